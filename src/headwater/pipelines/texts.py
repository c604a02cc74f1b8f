"""The text of a document for a full-text index.

The text of JSON is its strings and numbers, of chosen fields or of all, each on a line of its own, in the document's
order. A document that is no JSON has no certain text; a rule of the index says what to do with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.errors import OptionError
from headwater.lake.json_values import LargeNumber, parse

OTHERS = ("key", "text", "quarantine")


@dataclass(frozen=True)
class TextRules:
    """The rules by which documents become text.

    Args:
        fields: paths such as `title` or `address.city`, also through lists; none for all fields.
        others: the rule for documents that are no JSON: `key` (found by their keys), `text` (UTF-8 is text, all others
            are found by their keys), `quarantine` (kept aside with the reason, and not found).

    Raises:
        OptionError: an unknown rule, or an empty name in a path.
    """

    fields: tuple[str, ...] = ()
    others: str = "key"

    def __post_init__(self) -> None:
        if self.others not in OTHERS:
            raise OptionError("others", self.others, f"one of {', '.join(OTHERS)}")
        for path in self.fields:
            if not all(path.split(".")):
                raise OptionError("field", path, "names with dots between them, such as address.city")

    def read(self, value: bytes) -> tuple[str, str]:
        """Return (text, reason to keep the document aside); one of the two is empty."""
        try:
            plain = value.decode()
        except UnicodeDecodeError as error:
            return self._unreadable("", f"not UTF-8: {error.reason} at byte {error.start}")
        try:
            content = parse(value)
            parts = list(self._texts_at(content))
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            return self._unreadable(plain, f"not JSON: {reason}")
        return clean("\n".join(parts)), ""

    def _unreadable(self, plain: str, reason: str) -> tuple[str, str]:
        if self.others == "quarantine":
            return "", reason
        return (clean(plain), "") if self.others == "text" else ("", "")

    def _texts_at(self, content: Any) -> Iterator[str]:
        if not self.fields:
            yield from _strings(content)
        for path in self.fields:
            for value in _values_at(content, path.split(".")):
                yield from _strings(value)


def clean(text: str) -> str:
    """Return text that every index accepts: without halves of surrogate pairs and zero characters."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, LargeNumber):
        yield value.digits


def _values_at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    if not path:
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _values_at(item, path)
    elif isinstance(value, dict) and path[0] in value:
        yield from _values_at(value[path[0]], path[1:])
