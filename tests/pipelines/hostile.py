"""Documents whose names and values are as odd as JSON's grammar lets them be, always the same ones for a seed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

READERS_OWN = [
    *("_metadata", "_METADATA", "__delta_internal_is_row_deleted", "__delta_internal_row_index"),
    *("_tmp_metadata_row_index", "__Delta_Internal_skip_row", "_change_type", "_commit_version", "_commit_timestamp"),
    *("_row_id_", "_source_row_present_", "_target_row_present_", "row_id", "rowid", "filename", "file_row_number"),
    *("delta_file_number", "file_index", "_file", "_pos", "__index_level_0__", "input_file_name", "_corrupt_record"),
    *("element", "list", "item", "key_value", "metadata", "typed_value", "col", "array", "struct"),
]
OURS = ["key", "Key", "VALUE", "seqno", "modified_at", "_rest", "_REST", "doc_key", "doc__metadata", "key_2"]
LETTERS = [
    *"aAzZ09_-. ,;:{}()[]=`'\"\\/?*%$#@!&|<>~^+",
    *"\0\x01\t\n\r\x1f\x7f\x80\x85\xa0\xad\u2028\u202e\ufeff\ufffd\uffff\ue000",
    *("é", "e\u0301", "ß", "\u1e9e", "İ", "ı", "ſ", "µ", "\u03bc", "ǆ", "\uff41", "日", "ع"),
    *("\U0001f600", "\U00010000", "\U00020bb7", "\U0010ffff", "\ud83d", "\ud800", "\udfff"),
    *(r"\ud800", r"\\", "%00", "doc_"),
]
NUMBERS = [
    *("0", "-0", "1", "-1", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e0", "1.0", "-0.0"),
    *("0.1", "1e308", "1.7976931348623157e308", "1e309", "-1e400", "1e-400", "5e-324", "9007199254740993", "1E+2"),
    *("9" * 39, "9" * 308, "9" * 309, "1" * 5000, "-" + "9" * 5000, "0." + "3" * 400, "123456789012345678.9"),
]


class Documents:
    """Makes documents.

    Args:
        seed: of what they are.
    """

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._names = [*READERS_OWN, *OURS, *LETTERS, *("n" * 255, "n" * 256, "ß" * 128), ""]
        self._names += ["".join(self._chance.choices(LETTERS, k=self._chance.randint(2, 6))) for _ in range(80)]

    def text(self) -> str:
        """Return a document, as JSON text; not all of it can be written in UTF-8 but by escapes."""
        names = self._chance.choices(self._names, k=self._chance.randint(0, 5))
        return self._object(names, 0)

    def _object(self, names: list[str], depth: int) -> str:
        return "{" + ", ".join(f"{self._text(name)}: {self._value(depth)}" for name in dict.fromkeys(names)) + "}"

    def _text(self, text: str) -> str:
        told = json.dumps(text, ensure_ascii=False)
        try:
            told.encode()
        except UnicodeEncodeError:
            return json.dumps(text)
        return told if self._chance.random() < 0.5 else json.dumps(text)

    def _value(self, depth: int) -> str:
        kind = self._chance.randint(0, 5 if depth < 4 else 3)
        if kind == 0:
            return self._chance.choice(NUMBERS)
        if kind == 1:
            return self._chance.choice(["null", "true", "false", "[]", "{}"])
        if kind <= 3:
            return self._text("".join(self._chance.choices(LETTERS, k=self._chance.randint(0, 4))))
        if kind == 4:
            return "[" + ", ".join(self._value(depth + 1) for _ in range(self._chance.randint(0, 3))) + "]"
        plain = ["a", "b", "A", "_metadata", "element", "n" * 300]
        return self._object(self._chance.choices(plain if self._chance.random() < 0.5 else self._names, k=2), depth + 1)


def expected(text: str) -> dict[str, Any]:
    """Return what a reader must find of a document, by the names as they are."""
    return {
        name: told(value)
        for name, value in json.loads(text, parse_float=_number, parse_int=_number).items()
        if value is not None
    }


def _number(digits: str) -> int | float | str:
    beyond = float(digits) in (float("inf"), float("-inf"))
    if beyond:
        return digits
    return float(digits) if set(digits) & set(".eE") else int(digits)


def told(value: Any) -> Any:
    """Return a value with half surrogate pairs as escapes."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [told(item) for item in value]
    if isinstance(value, dict):
        assert len({told(name) for name in value}) == len(value), "no name here is another's escape"
        return {told(name): told(item) for name, item in value.items()}
    return value


def same(found: Any, wanted: Any) -> bool:
    """Whether what a reader found in a column is a value: objects may be JSON text, or structs with more fields."""
    if isinstance(wanted, dict | list) and isinstance(found, str):
        return same(json.loads(found), wanted)
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(same(found.get(name), wanted.get(name)) for name in {*found, *wanted})
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, bool) or wanted is None or isinstance(wanted, str):
        return type(found) is type(wanted) and bool(found == wanted)
    return not isinstance(found, bool | str) and found is not None and float(found) == float(wanted)
