r"""JSON values in a form that every reader of a table accepts.

JSON's grammar (RFC 8259) allows two things that most readers refuse or misread. The first is half of a surrogate pair,
`"\ud83d"`, as a cut emoji leaves it: it is not a character, and UTF-8 has no bytes for it. The second is a number
beyond a double: 1e400 becomes Infinity, which JSON does not have, and Python refuses integers of more than 4,300
digits. Both become text: the half by its escape, the number by its digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

TOO_DEEP = "JSON that is nested too deeply"
DIGITS_MAX = 309
"""Integers with more digits than this are always beyond a double."""

_HALVES = (b"\\ud", b"\\uD", b"\xed", b"\0")
"""A text without any of these has no half of a pair: as an escape, as bytes, or in an encoding other than UTF-8."""


@dataclass(frozen=True, slots=True)
class LargeNumber:
    """A number that no double holds, kept as its digits."""

    digits: str


def refused(constant: str) -> Any:
    """Raise ValueError for NaN and Infinity, which Python's decoder reads and JSON does not have.

    Args:
        constant: the constant's text.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{constant} is no value of JSON")


def _fraction(text: str) -> float | LargeNumber:
    number = float(text)
    return LargeNumber(text) if math.isinf(number) else number


def _whole_number(text: str) -> int | LargeNumber:
    """Return the integer of a text; a LargeNumber for more digits than Python reads that also exceed a double."""
    return int(text) if len(text) < DIGITS_MAX or not math.isinf(float(text)) else LargeNumber(text)


def decoder(
    fraction: Callable[[str], Any] = _fraction, integer: Callable[[str], Any] = _whole_number
) -> Callable[[bytes | None], Any]:
    """Return a function that reads JSON as `json.loads` does, with these functions for numbers, but no NaN or Infinity.

    It raises ValueError for text that is not JSON, and RecursionError for text that is nested too deeply.
    """
    read = json.JSONDecoder(parse_float=fraction, parse_int=integer, parse_constant=refused).decode

    def parse(value: bytes | None) -> Any:
        text = value or b""
        # Half of a surrogate pair may stand as bytes, too. It is let through here, and `written` makes an escape of it.
        return read(text.decode(json.detect_encoding(text), "surrogatepass"))

    return parse


parse: Final = decoder()


def _digits(value: LargeNumber) -> str:
    return value.digits


dumped: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_digits).encode
"""Encode a value that `parse` read; a number beyond a double becomes text."""


def may_have_halves(value: bytes | None) -> bool:
    """Return False if a text certainly has no half of a surrogate pair."""
    return value is not None and any(mark in value for mark in _HALVES)


def written(value: Any) -> Any:
    """Return a value in which each half of a surrogate pair is replaced by its escape, so that UTF-8 can encode it.

    Two different names of an object stay different, even if one equals the other's escape.
    """
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [written(item) for item in value]
    return _members(value) if isinstance(value, dict) else value


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, item in value.items():
        plain = column = written(name)
        number = 1
        while column != name and (column in value or column in members):
            number += 1
            column = f"{plain}_{number}"
        members[column] = written(item)
    return members


def no_json(value: bytes | None, error: ValueError) -> str:
    """Return a message that says why a value is not JSON."""
    if not value:
        return "no JSON: the value is empty"
    if isinstance(error, UnicodeDecodeError):
        return f"no JSON: not UTF-8 at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: {error.msg} at character {error.pos}"
    return f"no JSON: {str(error)[:60]}"
