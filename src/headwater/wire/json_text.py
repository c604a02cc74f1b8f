"""JSON as it comes over the wire, from anybody, and the JSON that tells why a request was refused."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any, Final

CONTEXT_CHARACTERS_MAX = 200
"""So much of what a peer says is believed to be meant for people."""


LEVELS_MAX = 64
"""Deeper JSON is refused. A bound of our own: how deep Python's goes depends on who calls it, so that what was taken
here could break whoever reads it again elsewhere."""


def read_json(text: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, is no UTF-8, or is nested more than LEVELS_MAX deep.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {LEVELS_MAX} levels deep") from None
    _check_levels(value)
    return value


def _check_levels(value: Any) -> None:
    level: list[Any] = [[value]]
    for _ in range(LEVELS_MAX + 1):
        inside = [each.values() if isinstance(each, dict) else each for each in level]
        deeper = [values for values in inside if not _NESTED.isdisjoint(map(type, values))]  # a map's rows are not
        level = [each for each in chain.from_iterable(deeper) if type(each) in _NESTED]
        if not level:
            return
    raise ValueError(f"it is nested more than {LEVELS_MAX} levels deep")


_NESTED: Final = frozenset({dict, list})


def error_body(context: str) -> bytes:
    """The body of a refusal, for clients that negotiated XERROR (kv.md 1.5)."""
    return json.dumps({"error": {"context": context}}).encode()


def context_of(body: bytes) -> str:
    """Return a refusal's message for people: its context, or the text that it is; empty if there is none."""
    if not body.startswith(b"{"):
        return body[:CONTEXT_CHARACTERS_MAX].decode(errors="replace")
    try:
        told = read_json(body)
    except ValueError:
        return ""
    error = told.get("error")
    context = error.get("context") if isinstance(error, dict) else None
    return context[:CONTEXT_CHARACTERS_MAX] if isinstance(context, str) else ""
