"""Paths into a JSON document: `a.b[0].c`, the last element `a[-1]`, names with dots or brackets in backticks.

A backtick inside backticks is doubled. The empty path is the document itself. Source: specification, kv.md 6.1.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

from headwater.node.refused import CommandRefused
from headwater.wire.status import Status
from headwater.wire.subdoc import PATH_BYTES_MAX, PATH_DEPTH_MAX

PATHS_KEPT = 1024
"""The number of parsed paths to keep, because applications use the same paths again and again."""

Component: TypeAlias = str | int
"""A member's name, or an element's index; -1 means the last element."""
Path: TypeAlias = tuple[Component, ...]

_COMPONENT = re.compile(r"(?P<dot>\.)?(?:(?P<bare>[^.\[\]`]+)|`(?P<quoted>(?:[^`]|``)+)`)|\[(?P<index>-1|[0-9]{1,9})\]")


def check_length(path: bytes) -> None:
    """Raise CommandRefused with EINVAL if a path has more than PATH_BYTES_MAX bytes: its request is malformed."""
    if len(path) > PATH_BYTES_MAX:
        raise CommandRefused(Status.EINVAL, f"a path of {len(path)} bytes, {PATH_BYTES_MAX} are allowed")


@lru_cache(PATHS_KEPT)
def parse(path: bytes) -> Path:
    """Return the components of a path.

    Raises:
        CommandRefused: SUBDOC_PATH_EINVAL for an invalid path, SUBDOC_PATH_E2BIG for more than 32 components, EINVAL
            for more than 1024 bytes.
    """
    check_length(path)
    try:
        text = path.decode()
    except UnicodeDecodeError:
        raise CommandRefused(Status.SUBDOC_PATH_EINVAL, "the path is not UTF-8") from None
    components: list[Component] = []
    at = 0
    while at < len(text):
        match = _COMPONENT.match(text, at)
        # A dot precedes each name but the first, and never an index.
        if match is None or (match["index"] is None and bool(match["dot"]) == (at == 0)):
            raise CommandRefused(Status.SUBDOC_PATH_EINVAL, f"no name or [index] at character {at} of the path")
        components.append(_component(match))
        at = match.end()
    if len(components) > PATH_DEPTH_MAX:
        raise CommandRefused(Status.SUBDOC_PATH_E2BIG, f"{len(components)} components, {PATH_DEPTH_MAX} are allowed")
    return tuple(components)


def _component(match: re.Match[str]) -> Component:
    if match["index"] is not None:
        return int(match["index"])
    return match["bare"] if match["bare"] is not None else match["quoted"].replace("``", "`")
