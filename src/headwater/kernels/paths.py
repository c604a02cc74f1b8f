"""Steps through a JSON text: to the end of a value, to a member by name, to an element by index.

The text is known to be JSON (json.py), so nothing is checked again: a container ends where as many brackets outside of
strings were closed as opened. No text is made into objects, and depth costs nothing.

The inlined kernels go by addresses (`at`, and `end` behind the text's last byte), those that Python calls by an array
and places in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.intrinsics import load8, load64_native
from headwater.kernels.jit import inline_kernel, kernel
from headwater.kernels.json import has_special

U = np.uintp
_ZERO, _ONE, _TWO, _EIGHT = U(0), U(1), U(2), U(8)
QUOTE, BACKSLASH, COMMA, COLON = (U(ord(each)) for each in '"\\,:')
OPEN_LIST, CLOSE_LIST, OPEN_DICT, CLOSE_DICT = (U(ord(each)) for each in "[]{}")
SPACE = U(ord(" "))

FOUND, MISSING, ESCAPED = 1, 0, 2
NOWHERE = -1


@inline_kernel
def skip_spaces(at: Any, end: Any) -> Any:
    """The next byte that is no space, tab or line end: in a JSON text all others are larger."""
    while at < end and U(load8(at)) <= SPACE:
        at = at + _ONE
    return at


@inline_kernel
def _after_string(at: Any, end: Any) -> Any:
    """`at` is at the opening quote; the place behind the closing one."""
    at = at + _ONE
    while at < end:
        while end - at >= _EIGHT and not has_special(U(load64_native(at))):
            at = at + _EIGHT
        if at >= end:
            return end
        byte = U(load8(at))
        if byte == QUOTE:
            return at + _ONE
        at = at + (_TWO if byte == BACKSLASH else _ONE)
    return end


@inline_kernel
def after_value(at: Any, end: Any) -> Any:
    """The place behind the value that begins at `at`."""
    first = U(load8(at))
    if first == QUOTE:
        return _after_string(at, end)
    if first != OPEN_LIST and first != OPEN_DICT:
        while at < end:
            byte = U(load8(at))
            if byte <= SPACE or byte == COMMA or byte == CLOSE_LIST or byte == CLOSE_DICT:
                break
            at = at + _ONE
        return at
    depth = 0
    while at < end:
        byte = U(load8(at))
        if byte == QUOTE:
            at = _after_string(at, end)
            continue
        if byte == OPEN_LIST or byte == OPEN_DICT:
            depth += 1
        elif byte == CLOSE_LIST or byte == CLOSE_DICT:
            depth -= 1
            if depth == 0:
                return at + _ONE
        at = at + _ONE
    return at


@inline_kernel
def _is_name(at: Any, end: Any, name: Any, length: Any) -> Any:
    """Whether the string at `at` is this one; ESCAPED when its bytes do not tell, because it is written otherwise."""
    at, behind = at + _ONE, name + length
    while name < behind:
        byte = U(load8(at)) if at < end else BACKSLASH
        if byte == BACKSLASH:
            return ESCAPED
        if byte == QUOTE or byte != U(load8(name)):
            return MISSING
        at, name = at + _ONE, name + _ONE
    return FOUND if U(load8(at)) == QUOTE else MISSING


@inline_kernel
def child(at: Any, end: Any, name: Any, length: Any, index: Any) -> Any:
    """The item of the container at `at`: of this name, or of this index where it is not NOWHERE.

    Returns: (FOUND, MISSING or ESCAPED, where it begins, where its value does, the end of the item before it, how many
    there are before it). Without an item: of the last one, and how many there are. An address that is none is 0.
    """
    named = U(load8(at)) == OPEN_DICT
    at = skip_spaces(at + _ONE, end)
    begin, value, before, count, behind = _ZERO, _ZERO, _ZERO, 0, _ZERO
    first = U(load8(at))
    if first == CLOSE_LIST or first == CLOSE_DICT:
        return MISSING, begin, value, before, count
    while at < end:
        begin, value, before = at, at, behind
        if named:
            is_it = _is_name(at, end, name, length) if index == NOWHERE else MISSING
            value = skip_spaces(skip_spaces(_after_string(at, end), end) + _ONE, end)
            if is_it != MISSING:
                return is_it, begin, value, before, count
        elif count == index:
            return FOUND, begin, value, before, count
        count += 1
        behind = after_value(value, end)
        at = skip_spaces(behind, end)
        if U(load8(at)) != COMMA:
            return MISSING, begin, value, before, count
        at = skip_spaces(at + _ONE, end)
    return MISSING, begin, value, before, count


@inline_kernel
def _place(start: Any, address: Any) -> Any:
    """Which byte of the text that begins at `start` an address is; NOWHERE for none."""
    return np.int64(address - start) if address != _ZERO else np.int64(NOWHERE)


@kernel
def _value_end(data: Any, at: Any) -> Any:
    start = U(data.ctypes.data)
    return np.int64(after_value(start + U(at), start + U(len(data))) - start)


@kernel
def _child(data: Any, at: Any, name: Any, index: Any) -> Any:
    """As `child`, with places in the text."""
    start = U(data.ctypes.data)
    seen, begin, value, before, count = child(
        start + U(at), start + U(len(data)), U(name.ctypes.data), U(len(name)), index
    )
    return seen, _place(start, begin), _place(start, value), _place(start, before), count


@kernel
def _walk(data: Any, names: Any, ends: Any, indexes: Any) -> Any:
    """Where the value begins and ends that a path leads to; NOWHERE twice if it leads to none, or only reading the
    names for what they mean can tell. The component at `i` is names[ends[i-1]:ends[i]], or an index that is not
    NOWHERE."""
    start, end = U(data.ctypes.data), U(data.ctypes.data) + U(len(data))
    at, begin, components = skip_spaces(start, end), _ZERO, U(names.ctypes.data)
    for depth in range(len(ends)):
        index, behind = indexes[depth], U(ends[depth])
        if U(load8(at)) != (OPEN_DICT if index == NOWHERE else OPEN_LIST):
            return np.int64(NOWHERE), np.int64(NOWHERE)
        seen, _, value, _, _ = child(at, end, components + begin, behind - begin, index)
        if seen != FOUND:
            return np.int64(NOWHERE), np.int64(NOWHERE)
        at, begin = value, behind
    return np.int64(at - start), np.int64(after_value(at, end) - start)


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
