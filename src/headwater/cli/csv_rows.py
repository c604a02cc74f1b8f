"""CSV as rows of text, and their fields as values of the types that columns were given.

Rows are cut by Python's own reader, in the thread that asks for them. Arrow's reads ahead in a thread of its own, and
where a command ended while that thread was in a file of Python's, the process died of SIGABRT; nor does it take a row
that is longer than a block, be it quoted or not. Here a row is bounded by what a document can be.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from headwater.wire.header import VALUE_BYTES_MAX

ROW_CHARACTERS_MAX = 3 * VALUE_BYTES_MAX
"""A document of quotes only, each of them doubled, with its key and all that is its own."""

DIGITS_MAX = 4000
"""Python reads no longer whole number."""


class _Lines:
    """The lines of a text, as a reader of CSV wants them; knows when they end within a row."""

    def __init__(self, text: io.TextIOBase) -> None:
        self._text, self.taken = text, 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._text.readline(ROW_CHARACTERS_MAX)
        if not line and self.taken:
            raise csv.Error("the file ends within a field that began with a quote")
        if not line:
            raise StopIteration
        self.taken += len(line)
        if self.taken >= ROW_CHARACTERS_MAX:
            raise csv.Error(f"a row is longer than {ROW_CHARACTERS_MAX >> 20} MiB; is a quote without its other one?")
        return line


def rows_of(stream: io.RawIOBase | io.BytesIO, delimiter: str, *, strict: bool = False) -> Iterator[list[str]]:
    """Yield the rows of UTF-8, the header among them, and none for an empty line.

    Args:
        stream: the bytes.
        delimiter: between fields.
        strict: refuse what stands behind a field's closing quote; else it is part of the field.

    Raises:
        csv.Error: no CSV. UnicodeDecodeError: no UTF-8.
    """
    csv.field_size_limit(ROW_CHARACTERS_MAX)
    lines = _Lines(io.TextIOWrapper(io.BufferedReader(cast(Any, stream)), "utf-8", newline=""))
    for row in csv.reader(lines, delimiter=delimiter, strict=strict):
        lines.taken = 0
        if row:
            yield row


def types_of(head: str, delimiter: str, given: Mapping[str, str], key_field: str, *, infer: bool) -> dict[str, str]:
    """Return each column's type: as given, or inferred of the beginning of a text, or `text`.

    Raises:
        ValueError: a name comes twice, or a type is given to a column that there is not.
    """
    csv.field_size_limit(ROW_CHARACTERS_MAX)
    rows = [row for row in csv.reader(io.StringIO(head, newline=""), delimiter=delimiter) if row]
    names = rows[0] if rows else []
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"names the columns {', '.join(map(repr, twice))} more than once")
    for name in given:
        if name not in names:
            raise ValueError(f"--types names {name!r}; the columns are {', '.join(names)}")
    types = dict.fromkeys(names, "text")
    if infer:
        types |= {name: _inferred({row[at] for row in rows[1:] if at < len(row)}) for at, name in enumerate(names)}
        types |= {name: "text" for name in names if name == key_field}
    return types | dict(given)


def _inferred(fields: set[str]) -> str:
    """The type that all fields have and that gives each back as it stood; empty ones are missing in any."""
    fields = fields - {""}
    for kind, pattern in _PATTERNS.items():
        if fields and all(pattern.fullmatch(field) for field in fields):
            return kind
    return "text"


_PATTERNS = {
    "bool": re.compile(r"true|false"),
    # At most 18 and 15 digits: what 64 bits hold without losing one. 007 and +1 are somebody's codes.
    "int": re.compile(r"-?(0|[1-9]\d{0,17})"),
    "float": re.compile(r"-?(?=[\d.]{1,16}$)(0|[1-9]\d*)(\.\d+)?"),
}


def typed(kind: str, field: str) -> Any:
    """Return a field as a value of a type; an empty one of any type but text is missing.

    Raises:
        ValueError: it is none.
    """
    if kind == "text":
        return field
    return _READ[kind](field.strip()) if field else None


def _int(field: str) -> int:
    if not re.fullmatch(r"-?[0-9]+", field) or len(field) > DIGITS_MAX:
        raise ValueError
    return int(field)


def _float(field: str) -> float:
    if "_" in field:
        raise ValueError
    return float(field)


def _bool(field: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[field.lower()]


_READ: dict[str, Callable[[str], Any]] = {"int": _int, "float": _float, "bool": _bool}
