"""Reads JSON from the wire, which anybody may have sent, and encodes the JSON that explains a refusal."""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any, Final

CONTEXT_CHARACTERS_MAX = 200
"""The most characters of a peer's message that are kept for people."""


LEVELS_MAX = 64
"""The deepest JSON that is accepted. The bound is our own: Python's depends on the depth of the caller, so a text
accepted here could fail another reader elsewhere."""


def read_json(text: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: not JSON, not UTF-8, or nested more than LEVELS_MAX deep.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {LEVELS_MAX} levels deep") from None
    if not _is_shallow(text):
        _check_levels(value)
    return value


def _is_shallow(text: bytes | str) -> bool:
    """Return True if a text can't be nested too deep, because it opens too few lists and objects.

    The lists of a cluster map, one for each vbucket, contain numbers alone; such lists count as one level together.
    """
    data = text.encode() if isinstance(text, str) else text
    if data.count(b"[") >= LEVELS_MAX:
        data = _FLAT_LIST.sub(b"", data)
    return data.count(b"[") + data.count(b"{") < LEVELS_MAX


def _check_levels(value: Any) -> None:
    level: list[Any] = [[value]]
    for _ in range(LEVELS_MAX + 1):
        inside = [item.values() if isinstance(item, dict) else item for item in level]
        deeper = [values for values in inside if not _NESTED.isdisjoint(map(type, values))]  # a map's rows are not
        level = [each for each in chain.from_iterable(deeper) if type(each) in _NESTED]
        if not level:
            return
    raise ValueError(f"it is nested more than {LEVELS_MAX} levels deep")


_NESTED: Final = frozenset({dict, list})
_FLAT_LIST: Final = re.compile(rb"\[[-0-9, ]*\]")


def error_body(context: str) -> bytes:
    """Return the JSON body of a refusal, for clients that negotiated XERROR (kv.md 1.5)."""
    return json.dumps({"error": {"context": context}}).encode()


def context_of(body: bytes) -> str:
    """Return a refusal's message for people: its context, or its plain text; empty if there is none."""
    if not body.startswith(b"{"):
        return body[:CONTEXT_CHARACTERS_MAX].decode(errors="replace")
    try:
        content = read_json(body)
    except ValueError:
        return ""
    error = content.get("error")
    context = error.get("context") if isinstance(error, dict) else None
    return context[:CONTEXT_CHARACTERS_MAX] if isinstance(context, str) else ""
