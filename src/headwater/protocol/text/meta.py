"""The meta commands mg, ms, md, ma, mn and me, as the requests that execute them. Source: kv.md 7.

Flags follow the key: letters with or without a token. Some choose the action, others the fields of the answer, in the
order of the request. Flags about state that only a cache in memory has (time of the last read, staleness, the winner of
a recache) are refused, and so is a CAS chosen by the client.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headwater.protocol.text import words
from headwater.protocol.text.answers import failed, said, with_value
from headwater.protocol.text.classic import LineWords
from headwater.protocol.text.words import BAD_LINE, LineRefused, Steps
from headwater.wire import documents
from headwater.wire.layout import Answer, Request
from headwater.wire.meta import GetMeta, GetMetaResponse
from headwater.wire.status import Status

__all__ = ["COMMANDS"]

_BAD_TOKEN = b"CLIENT_ERROR bad token in command line format\r\n"
_BAD_FLAG = b"CLIENT_ERROR invalid flag\r\n"
_TWICE = b"CLIENT_ERROR duplicate flag\r\n"
_BAD_KEY = b"CLIENT_ERROR error decoding key\r\n"
_NOT_SERVED = frozenset("EIRxhlNLP")
_TOKENS = frozenset("CFTMNJDO")
_EN, _HD, _NF, _NS, _EX = b"EN", b"HD", b"NF", b"NS", b"EX"
_MUST_EXIST = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Flags:
    """The key and flags of a line; `tokens` has a token for each letter, in the line's order; `now` is in Unix
    seconds.
    """

    key: bytes
    word: bytes
    tokens: Mapping[str, bytes]
    now: int

    @property
    def quiet(self) -> bool:
        """True if the usual outcome gets no answer."""
        return "q" in self.tokens

    def number(self, letter: str, bits: int, default: int) -> int:
        """Return the number in a flag's token; `default` if the line does not have the flag."""
        return words.number(self.tokens[letter], bits, _BAD_TOKEN) if letter in self.tokens else default

    def expiry(self, letter: str, default: int = 0) -> int:
        """Return the expiry in a flag's token; `default` if the line does not have the flag."""
        return words.expiry(self.tokens[letter], _BAD_TOKEN) if letter in self.tokens else default

    def line(self, begins: bytes, values: Mapping[str, int] | None = None) -> bytes:
        """Return an answer line: its beginning, then the requested fields that `values` contains."""
        out = [begins]
        for letter, token in self.tokens.items():
            if letter == "O":
                out.append(b"O" + token)
            elif letter == "k":
                out.append(b"k" + self.word)
            elif letter == "b":
                out.append(b"b")
            elif values is not None and letter in values:
                out.append(b"%b%d" % (letter.encode(), values[letter]))
        return b" ".join(out) + b"\r\n"


def _flags(line_words: LineWords, at: int, allowed: str, now: int) -> Flags:
    """Return the flags of a line from its word `at` on.

    Raises:
        LineRefused: a flag is not among `allowed`, occurs twice, or lacks its token.
    """
    if len(line_words) < 2:
        raise LineRefused(BAD_LINE)
    tokens: dict[str, bytes] = {}
    for word in line_words[at:]:
        letter, token = chr(word[0]), word[1:]
        if letter in tokens:
            raise LineRefused(_TWICE)
        if letter not in allowed:
            served = letter not in _NOT_SERVED
            raise LineRefused(_BAD_FLAG if served else b"CLIENT_ERROR flag %b is not served\r\n" % letter.encode())
        if letter in _TOKENS and letter != "O" and not token:
            raise LineRefused(_BAD_TOKEN)
        tokens[letter] = token
    return Flags(_key(line_words[1], is_encoded="b" in tokens), line_words[1], tokens, now)


def _key(word: bytes, *, is_encoded: bool) -> bytes:
    key = words.key(word)
    if not is_encoded:
        return key
    try:
        decoded = base64.b64decode(word, validate=True)
    except binascii.Error:
        decoded = b""
    if not decoded:
        raise LineRefused(_BAD_KEY)
    return decoded


def _remaining(flags: Flags, meta: Answer | None) -> int:
    """Return the seconds until a document expires; -1 if it does not."""
    expiry = meta.expiration if isinstance(meta, GetMetaResponse) else 0
    return max(0, expiry - flags.now) if expiry else -1


# --- reading ----------------------------------------------------------------------------------------------------------


def _get(line_words: LineWords, block: bytes, now: int) -> Steps:
    flags = _flags(line_words, 2, "bcfkOqstTvu", now)
    request: Request = documents.Get(key=flags.key)
    if "T" in flags.tokens:
        request = documents.GetAndTouch(key=flags.key, expiration=flags.expiry("T"))
    answer = yield request
    if not isinstance(answer, documents.GetResponse):
        missed = answer is not None and answer.status == Status.KEY_ENOENT
        yield b"" if missed and flags.quiet else said(answer, {Status.KEY_ENOENT: flags.line(_EN)})
        return
    values = {"c": answer.cas, "f": answer.flags, "s": len(answer.value)}
    if "t" in flags.tokens:
        values["t"] = _remaining(flags, (yield GetMeta(key=flags.key)))
    if "v" in flags.tokens:
        answer_line = [with_value(flags.line(b"VA %d" % len(answer.value), values), answer.value)]
        del answer  # as for the classic commands: what waits for its reader holds no value
        yield answer_line.pop()
    else:
        yield flags.line(_HD, values)


def _describe(line_words: LineWords, block: bytes, now: int) -> Steps:
    """Execute ME: answer with a document's metadata, for people."""
    flags = _flags(line_words, 2, "b", now)
    answer = yield documents.Get(key=flags.key)
    if not isinstance(answer, documents.GetResponse):
        yield said(answer, {Status.KEY_ENOENT: b"EN\r\n"})
        return
    seconds = _remaining(flags, (yield GetMeta(key=flags.key)))
    yield b"ME %b exp=%d cas=%d size=%d\r\n" % (flags.word, seconds, answer.cas, len(answer.value))


# --- writing ----------------------------------------------------------------------------------------------------------

_MODES = {"S": "S", "E": "E", "A": "A", "P": "P", "R": "R"}
_OUTCOMES: dict[int, bytes] = {Status.KEY_ENOENT: _NF, Status.KEY_EEXISTS: _EX, Status.NOT_STORED: _NS}


def _mode(flags: Flags, modes: Mapping[str, str], command: bytes) -> str:
    letter = flags.tokens.get("M", b"").decode("latin-1")[:1].upper()
    mode = modes.get(letter) if letter else next(iter(modes.values()))
    if mode is None:
        raise LineRefused(b"CLIENT_ERROR invalid mode for %b M token\r\n" % command)
    return mode


def _outcome(flags: Flags, answer: Answer | None, lines: Mapping[int, bytes], values: Mapping[str, int]) -> bytes:
    """Return the answer line: HD and the requested fields (empty with the flag q), or the two letters of a failure.

    "q: no EN, HD, and of md no NF" (kv.md 7.2): a quiet client takes silence for "written".
    """
    if answer is not None and answer.status == Status.SUCCESS:
        return b"" if flags.quiet else flags.line(_HD, {**values, "c": answer.cas})
    line = lines.get(answer.status) if answer is not None else None
    if line is None:
        return failed(answer)
    return flags.line(line)


def _set(line_words: LineWords, block: bytes, now: int) -> Steps:
    flags = _flags(line_words, 3, "bcCFkMOqsTN", now)
    request = _storing(flags, block)
    if "C" in flags.tokens and not request.cas:  # a CAS of 0 would be none, and what must not be there has none
        answer = yield documents.Get(key=flags.key)
        is_there = isinstance(answer, documents.GetResponse)
        yield flags.line(_EX) if is_there else said(answer, {Status.KEY_ENOENT: flags.line(_NF)})
        return
    begins = flags.expiry("N")
    answer = yield request
    if "N" in flags.tokens and answer is not None and answer.status == Status.NOT_STORED:
        answer = yield documents.Add(key=flags.key, value=block, flags=flags.number("F", 32, 0), expiration=begins)
    by_mode: dict[int, bytes] = {} if request.cas else {Status.KEY_ENOENT: _NS, Status.KEY_EEXISTS: _NS}
    yield _outcome(flags, answer, _OUTCOMES | by_mode, {"s": len(block)})


def _storing(flags: Flags, block: bytes) -> Request:
    mode, cas = _mode(flags, _MODES, b"ms"), flags.number("C", 64, 0)
    key, client_flags, expiry = flags.key, flags.number("F", 32, 0), flags.expiry("T")
    if mode == "A":
        return documents.Append(key=key, value=block, cas=cas)
    if mode == "P":
        return documents.Prepend(key=key, value=block, cas=cas)
    if mode == "E":
        return documents.Add(key=key, value=block, flags=client_flags, expiration=expiry)
    form = documents.Replace if mode == "R" else documents.Set
    return form(key=key, value=block, flags=client_flags, expiration=expiry, cas=cas)


def _delete(line_words: LineWords, block: bytes, now: int) -> Steps:
    flags = _flags(line_words, 2, "bCkOq", now)
    cas = flags.number("C", 64, 0)
    is_nobodys = "C" in flags.tokens and cas == 0
    answer = yield documents.Get(key=flags.key) if is_nobodys else documents.Delete(key=flags.key, cas=cas)
    if isinstance(answer, documents.GetResponse):
        yield flags.line(_EX)
    elif flags.quiet and answer is not None and answer.status == Status.KEY_ENOENT:
        yield b""
    else:
        yield _outcome(flags, answer, _OUTCOMES, {})


_COUNTS = {"I": "I", "+": "I", "D": "D", "-": "D"}


def _count(line_words: LineWords, block: bytes, now: int) -> Steps:
    flags = _flags(line_words, 2, "bcDJkMNOqtTv", now)
    form = documents.Increment if _mode(flags, _COUNTS, b"ma") == "I" else documents.Decrement
    delta, initial = flags.number("D", 64, 1), flags.number("J", 64, 0)
    expiry = flags.expiry("T")
    answer = yield form(key=flags.key, delta=delta, initial=initial, expiration=flags.expiry("N", _MUST_EXIST))
    if not isinstance(answer, documents.IncrementResponse):
        yield _outcome(flags, answer, {Status.KEY_ENOENT: _NF}, {})
        return
    values = {"c": answer.cas}
    if "T" in flags.tokens:
        touch_answer = yield documents.Touch(key=flags.key, expiration=expiry)
        values["c"] = (
            touch_answer.cas if touch_answer is not None and touch_answer.status == Status.SUCCESS else answer.cas
        )
    if "t" in flags.tokens:
        values["t"] = _remaining(flags, (yield GetMeta(key=flags.key)))
    yield _count_line(flags, answer.counter, values)


def _count_line(flags: Flags, counter: int, values: Mapping[str, int]) -> bytes:
    if flags.quiet:
        return b""
    digits = b"%d" % counter
    if "v" in flags.tokens:
        return flags.line(b"VA %d" % len(digits), values) + digits + b"\r\n"
    return flags.line(_HD, values)


def _no_op(line_words: LineWords, block: bytes, now: int) -> Steps:
    """Execute MN, a no-op whose answer follows the answers to all earlier commands."""
    yield b"MN\r\n"


COMMANDS: dict[bytes, Callable[[LineWords, bytes, int], Steps]] = {
    b"mg": _get,
    b"ms": _set,
    b"md": _delete,
    b"ma": _count,
    b"me": _describe,
    b"mn": _no_op,
}
