"""Words of a line as keys, numbers and expiries; and the answers that say that they are none. Source: kv.md 7."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from headwater.wire.header import KEY_BYTES_MAX
from headwater.wire.layout import Answer, Request
from headwater.wire.times import RELATIVE_SECONDS_MAX

__all__ = ["BAD_LINE", "ERROR", "LineRefused", "Steps", "expiry", "integer", "key", "number"]

Steps: TypeAlias = Generator[Request | bytes | tuple[bytes, ...], Answer | None, None]
"""How a command is carried out: it yields requests, is sent their answers, and yields the bytes to answer with, in
pieces where one of them is large.

A request whose handler sends all that there is to say by itself (STAT) is answered with None.
"""

ERROR = b"ERROR\r\n"
BAD_LINE = b"CLIENT_ERROR bad command line format\r\n"

_DIGITS_MAX = 20
_AT_ONCE = RELATIVE_SECONDS_MAX + 1
"""A negative expiry: a time in 1970."""


class LineRefused(Exception):  # noqa: N818 - an answer, not an error of ours
    """The line is none that this command understands; `line` says so."""

    def __init__(self, line: bytes) -> None:
        super().__init__(line)
        self.line = line


def integer(word: bytes) -> int | None:
    """The whole number a word is, which may have a sign; None if it is none, or has more digits than 64 bits need."""
    digits = word[1:] if word[:1] in (b"-", b"+") else word
    return int(word) if digits.isdigit() and len(digits) <= _DIGITS_MAX else None


def number(word: bytes, bits: int, complaint: bytes = BAD_LINE) -> int:
    """The number of at most so many bits that a word is, without a sign; LineRefused if it is none."""
    found = integer(word)
    if found is None or not word.isdigit() or found >> bits:
        raise LineRefused(complaint)
    return found


def expiry(word: bytes, complaint: bytes = BAD_LINE) -> int:
    """The expiration of a request, for a negative one a time that is long over; LineRefused if it is none."""
    found = integer(word)
    if found is None or found >> 32 > 0:
        raise LineRefused(complaint)
    return found if found >= 0 else _AT_ONCE


def key(word: bytes) -> bytes:
    """A key as it stands in a line; LineRefused if it is too long."""
    if len(word) > KEY_BYTES_MAX:
        raise LineRefused(BAD_LINE)
    return word
