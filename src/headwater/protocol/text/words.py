"""Reads words of a line as keys, numbers and expiries; an invalid word raises LineRefused. Source: kv.md 7."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from headwater.wire.header import KEY_BYTES_MAX
from headwater.wire.layout import Answer, Request
from headwater.wire.times import RELATIVE_SECONDS_MAX

__all__ = ["BAD_LINE", "ERROR", "LineRefused", "Steps", "expiry", "integer", "key", "number"]

Steps: TypeAlias = Generator[Request | bytes | tuple[bytes, ...], Answer | None, None]
"""The execution of a command: it yields requests, is sent their answers, and yields the bytes to answer with, in parts
if one of them is large.

A request whose handler sends all answers itself (STAT) is answered with None.
"""

ERROR = b"ERROR\r\n"
BAD_LINE = b"CLIENT_ERROR bad command line format\r\n"

_DIGITS_MAX = 20
_AT_ONCE = RELATIVE_SECONDS_MAX + 1
"""A negative expiry: a time in 1970."""


class LineRefused(Exception):  # noqa: N818 - an answer, not an error of ours
    """A command has an invalid line; `line` is the answer."""

    def __init__(self, line: bytes) -> None:
        super().__init__(line)
        self.line = line


def integer(word: bytes) -> int | None:
    """Return the integer that a word gives, signed or not; None if it is none, or has more digits than 64 bits need."""
    digits = word[1:] if word[:1] in (b"-", b"+") else word
    return int(word) if digits.isdigit() and len(digits) <= _DIGITS_MAX else None


def number(word: bytes, bits: int, complaint: bytes = BAD_LINE) -> int:
    """Return the unsigned integer of at most `bits` bits that a word gives.

    Raises:
        LineRefused: the word is no such integer; its line is `complaint`.
    """
    value = integer(word)
    if value is None or not word.isdigit() or value >> bits:
        raise LineRefused(complaint)
    return value


def expiry(word: bytes, complaint: bytes = BAD_LINE) -> int:
    """Return the expiry that a word gives; for a negative one, a time in the past.

    Raises:
        LineRefused: the word is no integer, or is larger than 32 bits; its line is `complaint`.
    """
    seconds = integer(word)
    if seconds is None or seconds >> 32 > 0:
        raise LineRefused(complaint)
    return seconds if seconds >= 0 else _AT_ONCE


def key(word: bytes) -> bytes:
    """Return a key from a line.

    Raises:
        LineRefused: the key is too long.
    """
    if len(word) > KEY_BYTES_MAX:
        raise LineRefused(BAD_LINE)
    return word
