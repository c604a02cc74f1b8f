"""Steps through a JSON text: to the end of a value, to a member by name, to an element by index.

The text is known to be JSON (json.py), so nothing is checked again: a container ends where as many brackets outside of
strings were closed as opened. No text is made into objects, and depth costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.jit import inline_kernel, kernel

QUOTE, BACKSLASH, COMMA, COLON = ord('"'), ord("\\"), ord(","), ord(":")
OPEN_LIST, CLOSE_LIST, OPEN_DICT, CLOSE_DICT = ord("["), ord("]"), ord("{"), ord("}")
SPACE = ord(" ")

FOUND, MISSING, ESCAPED = 1, 0, 2
NOWHERE = -1


@inline_kernel
def _skip(data: Any, at: Any) -> Any:
    """The next byte that is no space, tab or line end: in a JSON text all others are larger."""
    while at < len(data) and data[at] <= SPACE:
        at += 1
    return at


@inline_kernel
def _after_string(data: Any, at: Any) -> Any:
    """`at` is at the opening quote; the place behind the closing one."""
    at += 1
    while at < len(data) and data[at] != QUOTE:
        at += 2 if data[at] == BACKSLASH else 1
    return at + 1


@inline_kernel
def _after(data: Any, at: Any) -> Any:
    """The place behind the value that begins at `at`."""
    first = data[at]
    if first == QUOTE:
        return _after_string(data, at)
    if first != OPEN_LIST and first != OPEN_DICT:
        while at < len(data) and data[at] > SPACE and data[at] != COMMA:
            if data[at] == CLOSE_LIST or data[at] == CLOSE_DICT:
                break
            at += 1
        return at
    depth = 0
    while at < len(data):
        byte = data[at]
        if byte == QUOTE:
            at = _after_string(data, at)
            continue
        if byte == OPEN_LIST or byte == OPEN_DICT:
            depth += 1
        elif byte == CLOSE_LIST or byte == CLOSE_DICT:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return at


@kernel
def _value_end(data: Any, at: Any) -> Any:
    return _after(data, at)


@inline_kernel
def _is_name(data: Any, at: Any, name: Any) -> Any:
    """Whether the string at `at` is this one; ESCAPED when its bytes do not tell, because it is written otherwise."""
    at += 1
    for place in range(len(name)):
        if at >= len(data) or data[at] == BACKSLASH:
            return ESCAPED
        if data[at] != name[place]:
            return MISSING
        at += 1
    return FOUND if data[at] == QUOTE else MISSING


@kernel
def _child(data: Any, at: Any, name: Any, index: Any) -> Any:
    """The item of the container at `at`: of this name, or of this index where `name` is empty and `index` not NOWHERE.

    Returns: (FOUND, MISSING or ESCAPED, where it begins, where its value does, the end of the item before it, how many
    there are before it). Without an item: of the last one, and how many there are.
    """
    named = data[at] == OPEN_DICT
    at = _skip(data, at + 1)
    begin, value, before, count = NOWHERE, NOWHERE, NOWHERE, 0
    if data[at] == CLOSE_LIST or data[at] == CLOSE_DICT:
        return MISSING, begin, value, before, count
    end = NOWHERE
    while at < len(data):
        begin, value, before = at, at, end
        if named:
            is_it = _is_name(data, at, name)
            value = _skip(data, _skip(data, _after_string(data, at)) + 1)
            if is_it == FOUND and index == NOWHERE:
                return FOUND, begin, value, before, count
            if is_it == ESCAPED and index == NOWHERE:
                return ESCAPED, begin, value, before, count
        elif count == index:
            return FOUND, begin, value, before, count
        count += 1
        end = _after(data, value)
        at = _skip(data, end)
        if data[at] != COMMA:
            return MISSING, begin, value, before, count
        at = _skip(data, at + 1)
    return MISSING, begin, value, before, count


@kernel
def _walk(data: Any, names: Any, ends: Any, indexes: Any) -> Any:
    """Where the value begins and ends that a path leads to; NOWHERE twice if it leads to none, or only reading the
    names for what they mean can tell. The component at `i` is names[ends[i-1]:ends[i]], or an index that is not
    NOWHERE."""
    at, begin = _skip(data, 0), 0
    for depth in range(len(ends)):
        index = indexes[depth]
        if data[at] != (OPEN_DICT if index == NOWHERE else OPEN_LIST):
            return NOWHERE, NOWHERE
        seen, _, value, _, _ = _child(data, at, names[begin : ends[depth]], index)
        if seen != FOUND:
            return NOWHERE, NOWHERE
        at, begin = value, ends[depth]
    return at, _after(data, at)


_NO_NAME = np.frombuffer(b"", np.uint8)


def value_end(data: NDArray[np.uint8], at: int) -> int:
    """Return the place behind the value that begins at `at`."""
    return int(_value_end(data, at))


def member(data: NDArray[np.uint8], at: int, name: bytes) -> tuple[int, int, int, int, int]:
    """Look for a member of the dictionary at `at`; see `_child`. ESCAPED: some name before it may be the same."""
    return _child(data, at, np.frombuffer(name, np.uint8) if name else _NO_NAME, NOWHERE)  # type: ignore[no-any-return]


def element(data: NDArray[np.uint8], at: int, index: int) -> tuple[int, int, int, int, int]:
    """Look for an element of the array at `at`, or a dictionary's member by its place; see `_child`."""
    return _child(data, at, _NO_NAME, index)  # type: ignore[no-any-return]


class Steps(NamedTuple):
    """A path as the kernel reads it; see `_walk`."""

    names: NDArray[np.uint8]
    ends: NDArray[np.int64]
    indexes: NDArray[np.int64]


def steps(path: Sequence[str | int]) -> Steps | None:
    """Return a path for `walk`; None for one that counts from the end, which it can't follow."""
    if not path or any(isinstance(each, int) and each < 0 for each in path):
        return None
    names = [each.encode() if isinstance(each, str) else b"" for each in path]
    indexes = [NOWHERE if isinstance(each, str) else each for each in path]
    joined = np.frombuffer(b"".join(names), np.uint8) if any(names) else _NO_NAME
    return Steps(joined, np.cumsum([len(each) for each in names]), np.array(indexes, np.int64))


def walk(data: NDArray[np.uint8], path: Steps) -> tuple[int, int]:
    """Where the value of a path begins and ends, in one call; (NOWHERE, NOWHERE) if one has to look more closely."""
    return _walk(data, *path)  # type: ignore[no-any-return]


def warm_up() -> None:
    """Build the kernels of this module."""
    data = np.frombuffer(b'{"a":[1]}', np.uint8)
    member(data, 0, b"a")
    element(data, 5, 0)
    value_end(data, 0)
    if (found := steps(("a", 0))) is not None:
        walk(data, found)
