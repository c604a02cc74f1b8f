"""CSV as rows of text, and their fields as values of the columns' types.

Python's own reader cuts the rows, in the calling thread. Arrow's reader reads ahead in a thread of its own: when a
command ended while that thread read a Python file, the process died of SIGABRT. It also refuses a row longer than a
block, quoted or not. Here a row may be as long as the largest document.
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
"""The longest row: a document of quotes only, each of them doubled, with room for its key and other fields."""

DIGITS_MAX = 4000
"""The most digits of a whole number: Python refuses to read a longer one."""


class _Lines:
    """The lines of a text, for a reader of CSV; it notices an end within a row."""

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
        delimiter: the character between fields.
        strict: True to refuse text after a field's closing quote; otherwise it is part of the field.

    Raises:
        csv.Error: the text is no CSV. UnicodeDecodeError: it is no UTF-8.
    """
    csv.field_size_limit(ROW_CHARACTERS_MAX)
    lines = _Lines(io.TextIOWrapper(io.BufferedReader(cast(Any, stream)), "utf-8", newline=""))
    for row in csv.reader(lines, delimiter=delimiter, strict=strict):
        lines.taken = 0
        if row:
            yield row


def types_of(head: str, delimiter: str, stated: Mapping[str, str], key_field: str, *, infer: bool) -> dict[str, str]:
    """Return each column's type: the given one, one inferred from the beginning of the text, or `text`.

    Raises:
        ValueError: a name comes twice, or a type is given for a missing column.
    """
    csv.field_size_limit(ROW_CHARACTERS_MAX)
    rows = [row for row in csv.reader(io.StringIO(head, newline=""), delimiter=delimiter) if row]
    names = rows[0] if rows else []
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"names the columns {', '.join(map(repr, twice))} more than once")
    for name in stated:
        if name not in names:
            raise ValueError(f"--types names {name!r}; the columns are {', '.join(names)}")
    types = dict.fromkeys(names, "text")
    if infer:
        types |= {name: _inferred_type({row[at] for row in rows[1:] if at < len(row)}) for at, name in enumerate(names)}
        types |= {name: "text" for name in names if name == key_field}
    return types | dict(stated)


def _inferred_type(fields: set[str]) -> str:
    """Return the type that all fields have without a loss; empty fields are missing values of any type."""
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
    """Return a field as a value of a type; an empty field is a missing value, except of type text.

    Raises:
        ValueError: it is no value of this type.
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
