"""Values of a document's JSON, such as every reader of a table takes them.

JSON's grammar (RFC 8259) allows two things that most readers refuse or misread. Half of a surrogate pair, `"\\ud83d"`,
which a cut emoji leaves, is no character, and UTF-8 has no bytes for it. A number may be beyond a double: 1e400 becomes
Infinity, which is no JSON, and Python refuses whole numbers of more than 4,300 digits. Both become text, by their
escape and by their digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

TOO_DEEP = "JSON that is nested too deeply"
DIGITS_MAX = 309
"""Whole numbers of more digits are beyond a double, in any case."""

_HALVES = (b"\\ud", b"\\uD", b"\xed", b"\0")
"""Without any of these a text has no half of a pair: as an escape, as bytes, or in another encoding than UTF-8."""


@dataclass(frozen=True, slots=True)
class LargeNumber:
    """A number that no double holds, by its digits."""

    digits: str


def refused(constant: str) -> Any:
    """Refuse what Python reads and JSON does not know: NaN, Infinity.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{constant} is no value of JSON")


def _fraction(text: str) -> float | LargeNumber:
    found = float(text)
    return LargeNumber(text) if math.isinf(found) else found


def _whole(text: str) -> int | LargeNumber:
    """Python's own limit is for the time that so many digits take."""
    return int(text) if len(text) < DIGITS_MAX or not math.isinf(float(text)) else LargeNumber(text)


def decoder(
    fraction: Callable[[str], Any] = _fraction, whole: Callable[[str], Any] = _whole
) -> Callable[[bytes | None], Any]:
    """Return what reads a text as `json.loads` does, but numbers by these two, and no constants of Python's own.

    It raises ValueError for what is no JSON, and RecursionError for what is nested too deeply.
    """
    read = json.JSONDecoder(parse_float=fraction, parse_int=whole, parse_constant=refused).decode

    def parse(value: bytes | None) -> Any:
        text = value or b""
        return read(text.decode(json.detect_encoding(text), "surrogatepass"))

    return parse


parse = decoder()


def _digits(value: LargeNumber) -> str:
    return value.digits


dumped = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_digits).encode
"""Write a value that `parse` read; a number beyond a double becomes text."""


def may_have_halves(value: bytes | None) -> bool:
    """Whether a text may say half of a surrogate pair; False is sure."""
    return value is not None and any(mark in value for mark in _HALVES)


def written(value: Any) -> Any:
    """Return a value with each half of a surrogate pair as its escape, so that UTF-8 can write it.

    Two names of an object stay two, though one be called as the other's escape.
    """
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [written(item) for item in value]
    return _members(value) if isinstance(value, dict) else value


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, item in value.items():
        wanted = column = written(name)
        number = 1
        while column != name and (column in value or column in made):
            number += 1
            column = f"{wanted}_{number}"
        made[column] = written(item)
    return made


def no_json(value: bytes | None, error: ValueError) -> str:
    """Return why a value is no JSON, in words."""
    if not value:
        return "no JSON: the value is empty"
    if isinstance(error, UnicodeDecodeError):
        return f"no JSON: not UTF-8 at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: {error.msg} at character {error.pos}"
    return f"no JSON: {str(error)[:60]}"
