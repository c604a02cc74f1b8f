"""Steps through a JSON text: to the end of a value, a member by name, an element by index or by value.

The text is known to be JSON (json.py), so nothing is checked again: a container ends when as many brackets outside of
strings were closed as opened. The text is not parsed into objects, and nesting costs nothing.

The inlined kernels use addresses (`at`, and `end` after the text's last byte); those that Python calls use an array and
offsets into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.builds import inline_kernel, kernel
from headwater.kernels.intrinsics import load8, load64_native
from headwater.kernels.json import has_special

U = np.uintp
_ZERO, _ONE, _TWO, _EIGHT = U(0), U(1), U(2), U(8)
_THREE, _FOUR, _SIX, _TEN = U(3), U(4), U(6), U(10)
_ESCAPE_BYTES = _SIX  # of one by number
_DIGIT_ZERO, _DIGIT_NINE, _LOWER, _TEN_BELOW_A = U(ord("0")), U(ord("9")), U(0x20), U(ord("a") - 10)
_U, _B, _F, _N, _R, _T = (U(ord(each)) for each in "ubfnrt")
_BACKSPACE, _FORM_FEED, _NEWLINE, _RETURN, _TAB = (U(ord(each)) for each in "\b\f\n\r\t")
_HIGH, _LOW, _LOW_END, _BEYOND = U(0xD800), U(0xDC00), U(0xE000), U(0x10000)
_SIX_BITS, _CONTINUED, _ASCII, _TWO_BYTES = U(0x3F), U(0x80), U(0x80), U(0x800)
_LEAD_OF_TWO, _LEAD_OF_THREE, _LEAD_OF_FOUR = U(0xC0), U(0xE0), U(0xF0)
QUOTE, BACKSLASH, COMMA = (U(ord(each)) for each in '"\\,')
OPEN_LIST, CLOSE_LIST, OPEN_DICT, CLOSE_DICT = (U(ord(each)) for each in "[]{}")
SPACE = U(ord(" "))

FOUND, MISSING, CONTAINER = 1, 0, 2
NOWHERE = -1


@inline_kernel
def skip_spaces(at: Any, end: Any) -> Any:
    """Return the address of the next byte other than space, tab and line end; all other bytes of a JSON text are
    larger.
    """
    while at < end and U(load8(at)) <= SPACE:
        at = at + _ONE
    return at


@inline_kernel
def _after_string(at: Any, end: Any) -> Any:
    """Return the address after the closing quote; `at` is at the opening one."""
    at = at + _ONE
    while at < end:
        while end - at >= _EIGHT and not has_special(U(load64_native(at))):
            at = at + _EIGHT
        if at >= end:
            return end
        byte = U(load8(at))
        if byte == QUOTE:
            return at + _ONE
        # The byte behind a backslash ends nothing; the digits of an escape by number are ordinary bytes.
        at = at + (_TWO if byte == BACKSLASH else _ONE)
    return end


@inline_kernel
def after_value(at: Any, end: Any) -> Any:
    """Return the address after the value that begins at `at`."""
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
def _hex(at: Any) -> Any:
    """Return the number written as four hex digits."""
    number = _ZERO
    for place in range(4):
        digit = U(load8(at + U(place)))
        value = digit - _DIGIT_ZERO if digit <= _DIGIT_NINE else (digit | _LOWER) - _TEN_BELOW_A
        number = (number << _FOUR) + value
    return number


@inline_kernel
def _escape(at: Any) -> Any:
    """Return the character of the escape at `at`, and the escape's length in bytes; a lone surrogate is a character
    itself.
    """
    kind = U(load8(at + _ONE))
    if kind == _U:
        code = _hex(at + _TWO)
        follows = at + _ESCAPE_BYTES
        # No bound is checked: in a text that is JSON the string goes on, by its closing quote at least, and a backslash
        # is followed by a whole escape.
        if _HIGH <= code < _LOW and U(load8(follows)) == BACKSLASH and U(load8(follows + _ONE)) == _U:
            low = _hex(follows + _TWO)
            if _LOW <= low < _LOW_END:
                return _BEYOND + ((code - _HIGH) << _TEN) + (low - _LOW), _ESCAPE_BYTES + _ESCAPE_BYTES
        return code, _ESCAPE_BYTES
    if kind == _B:
        return _BACKSPACE, _TWO
    if kind == _F:
        return _FORM_FEED, _TWO
    if kind == _N:
        return _NEWLINE, _TWO
    if kind == _R:
        return _RETURN, _TWO
    if kind == _T:
        return _TAB, _TWO
    return kind, _TWO


@inline_kernel
def _begins_with(code: Any, name: Any, name_end: Any) -> Any:
    """Return the length in UTF-8 of the character `code` if the text from `name` up to `name_end` begins with it;
    otherwise 0.
    """
    if code < _ASCII:
        return _ONE if name < name_end and U(load8(name)) == code else _ZERO
    last_index = _ONE if code < _TWO_BYTES else (_TWO if code < _BEYOND else _THREE)
    if name_end - name <= last_index:
        return _ZERO
    lead = _LEAD_OF_TWO if last_index == _ONE else (_LEAD_OF_THREE if last_index == _TWO else _LEAD_OF_FOUR)
    if U(load8(name)) != lead + (code >> (last_index * _SIX)):
        return _ZERO
    for place in range(1, int(last_index) + 1):
        bits = (code >> ((last_index - U(place)) * _SIX)) & _SIX_BITS
        if U(load8(name + U(place))) != _CONTINUED + bits:
            return _ZERO
    return last_index + _ONE


@inline_kernel
def _is_name(at: Any, end: Any, name: Any, length: Any) -> Any:
    """Return FOUND if the string at `at` means this name, with or without escapes; otherwise MISSING."""
    at, name_end = at + _ONE, name + length
    while at < end:
        byte = U(load8(at))
        if byte == QUOTE:
            return FOUND if name == name_end else MISSING
        if byte == BACKSLASH:
            code, width = _escape(at)
            matched_bytes = _begins_with(code, name, name_end)
            if matched_bytes == _ZERO:
                return MISSING
            at, name = at + width, name + matched_bytes
            continue
        if name == name_end or byte != U(load8(name)):
            return MISSING
        at, name = at + _ONE, name + _ONE
    return MISSING


@inline_kernel
def child(at: Any, end: Any, name: Any, length: Any, index: Any) -> Any:
    """Find the item of the container at `at` by name, or by index if that is not NOWHERE.

    Returns: (FOUND or MISSING, begin of the item, begin of its value, end of the item before it, number of items before
    it). If MISSING: the addresses of the last item, and the number of all items. An absent address is 0.
    """
    is_object = U(load8(at)) == OPEN_DICT
    at = skip_spaces(at + _ONE, end)
    begin, value, before, count, value_end = _ZERO, _ZERO, _ZERO, 0, _ZERO
    first = U(load8(at))
    if first == CLOSE_LIST or first == CLOSE_DICT:
        return MISSING, begin, value, before, count
    while at < end:
        begin, value, before = at, at, value_end
        if is_object:
            is_it = _is_name(at, end, name, length) if index == NOWHERE else MISSING
            value = skip_spaces(skip_spaces(_after_string(at, end), end) + _ONE, end)
            if is_it != MISSING:
                return is_it, begin, value, before, count
        elif count == index:
            return FOUND, begin, value, before, count
        count += 1
        value_end = after_value(value, end)
        at = skip_spaces(value_end, end)
        if U(load8(at)) != COMMA:
            return MISSING, begin, value, before, count
        at = skip_spaces(at + _ONE, end)
    return MISSING, begin, value, before, count


@inline_kernel
def _text_offset(start: Any, address: Any) -> Any:
    """Return the offset of an address in the text at `start`; NOWHERE for 0."""
    return np.int64(address - start) if address != _ZERO else np.int64(NOWHERE)


@kernel
def _value_end(data: Any, at: Any) -> Any:
    start = U(data.ctypes.data)
    return np.int64(after_value(start + U(at), start + U(len(data))) - start)


@kernel
def _child(data: Any, at: Any, name: Any, index: Any) -> Any:
    """Find an item as `child` does, with offsets in the text instead of addresses."""
    start = U(data.ctypes.data)
    status, begin, value, before, count = child(
        start + U(at), start + U(len(data)), U(name.ctypes.data), U(len(name)), index
    )
    return status, _text_offset(start, begin), _text_offset(start, value), _text_offset(start, before), count


@kernel
def _walk(data: Any, names: Any, ends: Any, indexes: Any) -> Any:
    """Return the offsets of beginning and end of the value at a path; NOWHERE twice if there is none.

    Component `i` of the path is indexes[i], or names[ends[i-1]:ends[i]] if that is NOWHERE.
    """
    start, end = U(data.ctypes.data), U(data.ctypes.data) + U(len(data))
    at, begin, components = skip_spaces(start, end), _ZERO, U(names.ctypes.data)
    for depth in range(len(ends)):
        index, component_end = indexes[depth], U(ends[depth])
        if U(load8(at)) != (OPEN_DICT if index == NOWHERE else OPEN_LIST):
            return np.int64(NOWHERE), np.int64(NOWHERE)
        status, _, value, _, _ = child(at, end, components + begin, component_end - begin, index)
        if status != FOUND:
            return np.int64(NOWHERE), np.int64(NOWHERE)
        at, begin = value, component_end
    return np.int64(at - start), np.int64(after_value(at, end) - start)


@inline_kernel
def _is_written(at: Any, end: Any, value: Any, length: Any) -> Any:
    """Return True if the value at `at` consists of exactly these bytes."""
    if after_value(at, end) - at != length:
        return False
    text_end = value + length
    while value < text_end:
        if load8(at) != load8(value):
            return False
        at, value = at + _ONE, value + _ONE
    return True


@kernel
def _among(data: Any, at: Any, value: Any, is_string: Any) -> Any:
    """Return FOUND if the array at `at` contains a simple value, CONTAINER if an array or dictionary comes before it;
    otherwise MISSING.
    """
    start, end = U(data.ctypes.data), U(data.ctypes.data) + U(len(data))
    address, length = U(value.ctypes.data), U(len(value))
    place = skip_spaces(start + U(at) + _ONE, end)
    while place < end and U(load8(place)) != CLOSE_LIST:
        first = U(load8(place))
        if first == OPEN_LIST or first == OPEN_DICT:
            return CONTAINER
        if is_string:
            if first == QUOTE and _is_name(place, end, address, length) == FOUND:
                return FOUND
        elif _is_written(place, end, address, length):
            return FOUND
        place = skip_spaces(after_value(place, end), end)
        if place < end and U(load8(place)) == COMMA:
            place = skip_spaces(place + _ONE, end)
    return MISSING


@kernel
def _depth(data: Any) -> Any:
    """Return the largest number of nested containers in a text, which is one JSON value."""
    at, end = U(data.ctypes.data), U(data.ctypes.data) + U(len(data))
    depth = deepest = 0
    while at < end:
        byte = U(load8(at))
        if byte == QUOTE:
            at = _after_string(at, end)
            continue
        if byte == OPEN_LIST or byte == OPEN_DICT:
            depth += 1
            deepest = max(deepest, depth)
        elif byte == CLOSE_LIST or byte == CLOSE_DICT:
            depth -= 1
        at = at + _ONE
    return deepest


_NO_NAME = np.frombuffer(b"", np.uint8)


def value_end(data: NDArray[np.uint8], at: int) -> int:
    """Return the offset after the value that begins at `at`."""
    return int(_value_end(data, at))


def member(data: NDArray[np.uint8], at: int, name: bytes) -> tuple[int, int, int, int, int]:
    """Find a member of the dictionary at `at`; the result is that of `_child`."""
    return _child(data, at, np.frombuffer(name, np.uint8) if name else _NO_NAME, NOWHERE)  # type: ignore[no-any-return]


def element(data: NDArray[np.uint8], at: int, index: int) -> tuple[int, int, int, int, int]:
    """Find an element of the array at `at`, or the member at a position of a dictionary; the result is that of
    `_child`.
    """
    return _child(data, at, _NO_NAME, index)  # type: ignore[no-any-return]


class Steps(NamedTuple):
    """A path in the form of the kernel `_walk`."""

    names: NDArray[np.uint8]
    ends: NDArray[np.int64]
    indexes: NDArray[np.int64]


def steps(path: Sequence[str | int]) -> Steps | None:
    """Return a path in the form for `walk`; None if an index counts from the end, which `walk` does not support."""
    if not path or any(isinstance(each, int) and each < 0 for each in path):
        return None
    names = [each.encode() if isinstance(each, str) else b"" for each in path]
    indexes = [NOWHERE if isinstance(each, str) else each for each in path]
    joined = np.frombuffer(b"".join(names), np.uint8) if any(names) else _NO_NAME
    return Steps(joined, np.cumsum([len(name) for name in names]), np.array(indexes, np.int64))


def walk(data: NDArray[np.uint8], path: Steps) -> tuple[int, int]:
    """Return the offsets of beginning and end of the value at a path; (NOWHERE, NOWHERE) if there is none."""
    return _walk(data, *path)  # type: ignore[no-any-return]


def among(data: NDArray[np.uint8], at: int, value: bytes, *, is_string: bool) -> int:
    """Search the array at `at` for a simple value; a string is given decoded, in UTF-8. The result is that of
    `_among`.
    """
    return int(_among(data, at, np.frombuffer(value, np.uint8) if value else _NO_NAME, is_string))


def depth_of(data: NDArray[np.uint8]) -> int:
    """Return how deep a JSON value is: 0 for a simple one."""
    return int(_depth(data))


def warm_up() -> None:
    """Build the kernels of this module."""
    data = np.frombuffer(b'{"a":[1]}', np.uint8)
    member(data, 0, b"a")
    element(data, 5, 0)
    value_end(data, 0)
    among(data, 5, b"2", is_string=False)
    depth_of(data)
    if (path := steps(("a", 0))) is not None:
        walk(data, path)
