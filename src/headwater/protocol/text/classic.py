"""The classic commands (get, set, incr and others), as the requests that execute them. Source: kv.md 7.

A command is a generator (words.Steps). A command that ends with `noreply` gets no answer, not even of a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headwater.protocol.text import words
from headwater.protocol.text.answers import UNAUTHENTICATED, failed, said, with_value
from headwater.protocol.text.words import ERROR, LineRefused, Steps
from headwater.wire import bootstrap, documents
from headwater.wire.layout import Request
from headwater.wire.status import Status

__all__ = ["COMMANDS", "Classic", "LineWords", "login"]

_BAD_DELTA = b"CLIENT_ERROR invalid numeric delta argument\r\n"
_BAD_EXPTIME = b"CLIENT_ERROR invalid exptime argument\r\n"
_BAD_DELETE = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"
_BAD_TOKEN = b"CLIENT_ERROR bad authentication token format\r\n"
_OK: dict[int, bytes] = {Status.SUCCESS: b"OK\r\n"}
_END = b"END\r\n"
_MUST_EXIST = 0xFFFF_FFFF

LineWords = Sequence[bytes]


# --- reading ----------------------------------------------------------------------------------------------------------


def _get(line_words: LineWords, block: bytes) -> Steps:
    name, *keys = line_words
    checked_keys = [words.key(key) for key in keys]
    yield from _values((documents.Get(key=key) for key in checked_keys), with_cas=name == b"gets")


def _get_and_touch(line_words: LineWords, block: bytes) -> Steps:
    name, word, *keys = line_words
    expiry = words.expiry(word, _BAD_EXPTIME)
    checked_keys = [words.key(key) for key in keys]
    requests = (documents.GetAndTouch(key=key, expiration=expiry) for key in checked_keys)
    yield from _values(requests, with_cas=name == b"gats")


def _values(requests: Iterable[Request], *, with_cas: bool) -> Steps:
    """Execute the requests; answer with the existing values, then END. An error replaces END.

    Requests are created one by one, because a line may have a hundred thousand keys. While a `yield` waits for a slow
    reader, no variable may refer to a value: values of up to twenty MiB for each reader would not be counted anywhere.
    """
    for request in requests:
        answer = yield request
        if isinstance(answer, documents.GetResponse):
            cas = b" %d" % answer.cas if with_cas else b""
            line = b"VALUE %b %d %d%b\r\n" % (request.key, answer.flags, len(answer.value), cas)
            answer_line = [with_value(line, answer.value)]
            del answer
            yield answer_line.pop()
        elif answer is None or answer.status != Status.KEY_ENOENT:
            yield failed(answer)
            return
    yield _END


# --- writing ----------------------------------------------------------------------------------------------------------

_STORING: dict[bytes, type[documents.Set]] = {
    b"set": documents.Set,
    b"add": documents.Add,
    b"replace": documents.Replace,
    b"cas": documents.Set,
}
_EXTENDING = {b"append": documents.Append, b"prepend": documents.Prepend}
_STORED: dict[int, bytes] = {Status.SUCCESS: b"STORED\r\n"}
_KEPT_OUT: dict[int, bytes] = {Status.NOT_STORED: b"NOT_STORED\r\n"}
_ANSWERS = {
    b"set": _STORED,
    b"add": _STORED | {Status.KEY_EEXISTS: b"NOT_STORED\r\n"},
    b"replace": _STORED | {Status.KEY_ENOENT: b"NOT_STORED\r\n"},
    b"append": _STORED | _KEPT_OUT,
    b"prepend": _STORED | _KEPT_OUT,
    b"cas": _STORED | {Status.KEY_EEXISTS: b"EXISTS\r\n", Status.KEY_ENOENT: b"NOT_FOUND\r\n"},
}


def _store(line_words: LineWords, block: bytes) -> Steps:
    name, key, fields = (
        line_words[0],
        words.key(line_words[1]),
        (words.number(line_words[2], 32), words.expiry(line_words[3])),
    )
    cas = words.number(line_words[5], 64) if name == b"cas" else 0
    if name == b"cas" and cas == 0:  # a CAS of 0 would be none, and nothing stored has it
        answer = yield documents.Get(key=key)
        yield b"EXISTS\r\n" if isinstance(answer, documents.GetResponse) else said(answer, _ANSWERS[name])
        return
    if name in _EXTENDING:
        answer = yield _EXTENDING[name](key=key, value=block)
    elif name == b"add":
        answer = yield documents.Add(key=key, value=block, flags=fields[0], expiration=fields[1])
    else:
        answer = yield _STORING[name](key=key, value=block, flags=fields[0], expiration=fields[1], cas=cas)
    yield said(answer, _ANSWERS[name])


def _delete(line_words: LineWords, block: bytes) -> Steps:
    if tuple(line_words[2:]) not in {(), (b"0",)}:
        raise LineRefused(_BAD_DELETE)
    answer = yield documents.Delete(key=words.key(line_words[1]))
    yield said(answer, {Status.SUCCESS: b"DELETED\r\n", Status.KEY_ENOENT: b"NOT_FOUND\r\n"})


def _touch(line_words: LineWords, block: bytes) -> Steps:
    answer = yield documents.Touch(key=words.key(line_words[1]), expiration=words.expiry(line_words[2], _BAD_EXPTIME))
    yield said(answer, {Status.SUCCESS: b"TOUCHED\r\n", Status.KEY_ENOENT: b"NOT_FOUND\r\n"})


def _count(line_words: LineWords, block: bytes) -> Steps:
    form = documents.Increment if line_words[0] == b"incr" else documents.Decrement
    delta = words.number(line_words[2], 64, _BAD_DELTA)
    answer = yield form(key=words.key(line_words[1]), delta=delta, initial=0, expiration=_MUST_EXIST)
    if isinstance(answer, documents.IncrementResponse):
        yield b"%d\r\n" % answer.counter
    else:
        yield said(answer, {Status.KEY_ENOENT: b"NOT_FOUND\r\n"})


# --- the server -------------------------------------------------------------------------------------------------------


def _flush_all(line_words: LineWords, block: bytes) -> Steps:
    delay = line_words[1] if line_words[1:] else b"0"
    at_once = delay.startswith(b"-") and words.integer(delay) is not None
    answer = yield documents.Flush(expiration=0 if at_once else words.expiry(delay, _BAD_EXPTIME))
    yield said(answer, _OK)


def _stats(line_words: LineWords, block: bytes) -> Steps:
    """Execute STAT. The handler sends the lines of statistics itself; this generator sends only an error."""
    answer = yield bootstrap.Stat(key=b" ".join(line_words[1:]))
    if answer is not None:
        yield said(answer, {Status.KEY_ENOENT: ERROR})


def _version(line_words: LineWords, block: bytes) -> Steps:
    answer = yield bootstrap.Version()
    yield b"VERSION %b\r\n" % answer.value if isinstance(answer, bootstrap.VersionResponse) else failed(answer)


def _verbosity(line_words: LineWords, block: bytes) -> Steps:
    if len(line_words) < 2:
        raise LineRefused(ERROR)
    answer = yield bootstrap.Verbosity(level=words.number(line_words[1], 32))
    yield said(answer, _OK)


def _quit(line_words: LineWords, block: bytes) -> Steps:
    yield bootstrap.Quit(quiet=True)


def login(line_words: LineWords, block: bytes | None) -> Steps:
    """Treat the first `set` of a connection as a login, its data are user and password; refuse all but `quit`
    before.
    """
    if line_words and line_words[0] == b"quit":
        yield from _quit(line_words, b"")
        return
    if len(line_words) < 5 or line_words[0] != b"set" or block is None:
        raise LineRefused(UNAUTHENTICATED)
    credentials = block.split()
    if len(credentials) < 2:
        raise LineRefused(_BAD_TOKEN)
    answer = yield bootstrap.SaslAuth(key=b"PLAIN", value=b"\0%b\0%b" % (credentials[0], credentials[1]))
    yield said(answer, _STORED)


@dataclass(frozen=True, slots=True)
class Classic:
    """A command: its steps, least and largest number of words without `noreply`, and whether `noreply` may follow."""

    steps: Callable[[LineWords, bytes], Steps]
    least: int
    most: int | None
    noreply: bool = True


COMMANDS = {
    **dict.fromkeys((b"get", b"gets"), Classic(_get, 2, None, noreply=False)),
    **dict.fromkeys((b"gat", b"gats"), Classic(_get_and_touch, 3, None, noreply=False)),
    **dict.fromkeys((b"set", b"add", b"replace", b"append", b"prepend"), Classic(_store, 5, 5)),
    b"cas": Classic(_store, 6, 6),
    b"delete": Classic(_delete, 2, 4),
    b"touch": Classic(_touch, 3, 3),
    **dict.fromkeys((b"incr", b"decr"), Classic(_count, 3, 3)),
    b"flush_all": Classic(_flush_all, 1, 2),
    b"stats": Classic(_stats, 1, None, noreply=False),
    b"version": Classic(_version, 1, None, noreply=False),
    b"verbosity": Classic(_verbosity, 1, None),
    b"quit": Classic(_quit, 1, None, noreply=False),
}
