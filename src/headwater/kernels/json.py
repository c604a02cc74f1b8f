"""Checks that a value is JSON. The server sets the datatype JSON, not the client (wire.md 4), so it checks each stored
value.

The check follows RFC 8259 in UTF-8 exactly: no byte order mark, no NaN, no trailing comma, strings without raw control
characters and with well-formed UTF-8 (an escaped lone surrogate follows the grammar and is accepted). Containers nest
at most DEPTH_MAX deep; a deeper value counts as "not JSON", and only lacks the datatype bit.

One pass, no recursion: `scratch` holds the kind of every open container. Most values that are not JSON fail at their
first byte; in strings the check advances eight plain bytes at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel
from headwater.kernels.intrinsics import load8, load64_native

DEPTH_MAX = 1024
SCRATCH_BYTES = DEPTH_MAX

U = np.uintp
_ZERO, _ONE, _TWO, _THREE, _FOUR, _EIGHT = U(0), U(1), U(2), U(3), U(4), U(8)
_FAIL = U(0)

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _DOT, _SLASH = (U(ord(c)) for c in '"\\,:-+./')
_OPEN_ARRAY, _CLOSE_ARRAY, _OPEN_OBJECT, _CLOSE_OBJECT = (U(ord(c)) for c in "[]{}")
_NINE, _DIGIT_ZERO = U(ord("9")), U(ord("0"))
_LOWER_E, _UPPER_E, _LOWER_U = U(ord("e")), U(ord("E")), U(ord("u"))
_LOWER_B, _LOWER_F, _LOWER_N, _LOWER_R, _LOWER_T = (U(ord(c)) for c in "bfnrt")
_SPACE, _TAB, _LINE_FEED, _RETURN = U(32), U(9), U(10), U(13)

_VALUE, _VALUE_OR_CLOSE, _KEY, _KEY_OR_CLOSE, _AFTER = 0, 1, 2, 3, 4
_IN_ARRAY, _IN_OBJECT = np.uint8(1), np.uint8(2)

_ONES, _HIGHS, _SPACES = U(0x0101010101010101), U(0x8080808080808080), U(0x2020202020202020)
_QUOTES, _BACKSLASHES = U(0x2222222222222222), U(0x5C5C5C5C5C5C5C5C)


@inline_kernel
def _is_digit(byte: Any) -> Any:
    return byte >= _DIGIT_ZERO and byte <= _NINE


@inline_kernel
def _skip_spaces(at: Any, end: Any) -> Any:
    while at < end:
        byte = U(load8(at))
        if not (byte == _SPACE or byte == _LINE_FEED or byte == _RETURN or byte == _TAB):
            break
        at = at + _ONE
    return at


@inline_kernel
def _skip_digits(at: Any, end: Any) -> Any:
    while at < end and _is_digit(U(load8(at))):
        at = at + _ONE
    return at


@inline_kernel
def _after_number(at: Any, end: Any) -> Any:
    """Return the address after a number, or 0 if it is invalid. number = [ minus ] int [ frac ] [ exp ] (RFC
    8259, 6).
    """
    if U(load8(at)) == _MINUS:
        at = at + _ONE
    if at >= end:
        return _FAIL
    first = U(load8(at))
    if not _is_digit(first):
        return _FAIL
    at = at + _ONE if first == _DIGIT_ZERO else _skip_digits(at, end)
    if at < end and U(load8(at)) == _DOT:
        start = at + _ONE
        at = _skip_digits(start, end)
        if at == start:
            return _FAIL
    if at < end and (U(load8(at)) == _LOWER_E or U(load8(at)) == _UPPER_E):
        at = at + _ONE
        if at < end and (U(load8(at)) == _PLUS or U(load8(at)) == _MINUS):
            at = at + _ONE
        start = at
        at = _skip_digits(start, end)
        if at == start:
            return _FAIL
    return at


@inline_kernel
def _is_hex(byte: Any) -> Any:
    # This bit makes a letter lower case; no other byte becomes a hex digit by it.
    folded = byte | _SPACE
    return _is_digit(byte) or (folded >= U(ord("a")) and folded <= U(ord("f")))


@inline_kernel
def _after_escape(at: Any, end: Any) -> Any:
    """Return the address after an escape, or 0 if it is invalid; `at` is the address after the backslash."""
    if at >= end:
        return _FAIL
    byte = U(load8(at))
    if byte == _LOWER_U:
        if end - at <= _FOUR:
            return _FAIL
        for each in range(1, 5):
            if not _is_hex(U(load8(at + U(each)))):
                return _FAIL
        return at + U(5)
    simple = byte == _QUOTE or byte == _BACKSLASH or byte == _SLASH or byte == _LOWER_B or byte == _LOWER_F
    if simple or byte == _LOWER_N or byte == _LOWER_R or byte == _LOWER_T:
        return at + _ONE
    return _FAIL


@inline_kernel
def _continues(byte: Any) -> Any:
    return (byte & U(0xC0)) == U(0x80)


@inline_kernel
def _after_character(at: Any, end: Any) -> Any:
    """Return the address after a character of two to four bytes, by table 3-7 of the Unicode standard; 0 if it is
    invalid.
    """
    first, available = U(load8(at)), end - at
    if first < U(0xC2) or first > U(0xF4) or available < _TWO:
        return _FAIL
    second = U(load8(at + _ONE))
    if first < U(0xE0):
        return at + _TWO if _continues(second) else _FAIL
    # The bounds of the second byte: E0 and F0 would begin overlong forms below them, ED half of a surrogate pair and F4
    # a character beyond U+10FFFF above.
    low, high = U(0x80), U(0xBF)
    if first == U(0xE0):
        low = U(0xA0)
    elif first == U(0xED):
        high = U(0x9F)
    elif first == U(0xF0):
        low = U(0x90)
    elif first == U(0xF4):
        high = U(0x8F)
    if available < _THREE or second < low or second > high or not _continues(U(load8(at + _TWO))):
        return _FAIL
    if first < U(0xF0):
        return at + _THREE
    if available < _FOUR or not _continues(U(load8(at + _THREE))):
        return _FAIL
    return at + _FOUR


@inline_kernel
def has_special(word: Any) -> Any:
    """Return True if any of eight bytes is a quote, a backslash, below 0x20 or above 0x7f."""
    # Eight bytes at once. A byte below the one that is subtracted borrows, which sets its highest bit; `& ~` takes that
    # bit from bytes that had it. A borrow goes only into the byte above a marked one, so "any" stays true.
    quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
    marked = word | (word - _SPACES) & ~word
    marked = marked | (quotes - _ONES) & ~quotes
    marked = marked | (backslashes - _ONES) & ~backslashes
    return (marked & _HIGHS) != _ZERO


@inline_kernel
def _after_string(at: Any, end: Any) -> Any:
    """Return the address after a string's closing quote, or 0 if it is invalid; `at` is the address after the opening
    one.
    """
    while at < end:
        while end - at >= _EIGHT and not has_special(U(load64_native(at))):
            at = at + _EIGHT
        if at >= end:
            return _FAIL
        byte = U(load8(at))
        if byte == _QUOTE:
            return at + _ONE
        if byte < _SPACE:
            return _FAIL
        if byte == _BACKSLASH:
            at = _after_escape(at + _ONE, end)
        elif byte < U(0x80):
            at = at + _ONE
        else:
            at = _after_character(at, end)
        if at == _FAIL:
            return _FAIL
    return _FAIL


@inline_kernel
def _after_word(at: Any, end: Any) -> Any:
    """Return the address after true, false or null; 0 for anything else."""
    first, available = U(load8(at)), end - at
    if available < _FOUR:
        return _FAIL
    second, third, fourth = U(load8(at + _ONE)), U(load8(at + _TWO)), U(load8(at + _THREE))
    if first == _LOWER_T and second == _LOWER_R and third == _LOWER_U and fourth == _LOWER_E:
        return at + _FOUR
    if first == _LOWER_N and second == _LOWER_U and third == U(ord("l")) and fourth == U(ord("l")):
        return at + _FOUR
    if available > _FOUR and first == _LOWER_F and second == U(ord("a")) and third == U(ord("l")):
        if fourth == U(ord("s")) and U(load8(at + _FOUR)) == _LOWER_E:
            return at + U(5)
    return _FAIL


@inline_kernel
def _after_key(at: Any, end: Any) -> Any:
    """Return the address after the colon of a member, or 0 if the name is invalid; `at` is at the name's
    opening quote.
    """
    at = _after_string(at + _ONE, end)
    if at == _FAIL:
        return _FAIL
    at = _skip_spaces(at, end)
    if at >= end or U(load8(at)) != _COLON:
        return _FAIL
    return at + _ONE


@inline_kernel
def _after_scalar(at: Any, end: Any) -> Any:
    byte = U(load8(at))
    if byte == _QUOTE:
        return _after_string(at + _ONE, end)
    if byte == _MINUS or _is_digit(byte):
        return _after_number(at, end)
    return _after_word(at, end)


@inline_kernel
def may_be_json(address: Any, length: Any) -> Any:
    """Return False if the first byte can't begin a JSON text; a cheap check."""
    if length == _ZERO:
        return False
    byte = U(load8(address))
    opens = byte == _OPEN_OBJECT or byte == _OPEN_ARRAY or byte == _QUOTE or byte == _MINUS or _is_digit(byte)
    word = byte == _LOWER_T or byte == _LOWER_F or byte == _LOWER_N
    return opens or word or byte == _SPACE or byte == _LINE_FEED or byte == _RETURN or byte == _TAB


@inline_kernel
def is_json(address: Any, length: Any, scratch: Any) -> Any:
    """Return True if `length` bytes at `address` are one JSON text. `scratch`: uint8[SCRATCH_BYTES], overwritten."""
    at, end = address, address + length
    depth, expect = 0, _VALUE
    while True:
        at = _skip_spaces(at, end)
        if at >= end:
            return expect == _AFTER and depth == 0
        byte = U(load8(at))
        if expect == _AFTER:
            if depth == 0:
                return False
            in_object = scratch[depth - 1] == _IN_OBJECT
            if byte == _COMMA:
                expect = _KEY if in_object else _VALUE
            elif byte == (_CLOSE_OBJECT if in_object else _CLOSE_ARRAY):
                depth = depth - 1
            else:
                return False
            at = at + _ONE
        elif (expect == _KEY_OR_CLOSE and byte == _CLOSE_OBJECT) or (
            expect == _VALUE_OR_CLOSE and byte == _CLOSE_ARRAY
        ):
            depth = depth - 1
            expect = _AFTER
            at = at + _ONE
        elif expect == _KEY or expect == _KEY_OR_CLOSE:
            if byte != _QUOTE:
                return False
            at = _after_key(at, end)
            if at == _FAIL:
                return False
            expect = _VALUE
        elif byte == _OPEN_OBJECT or byte == _OPEN_ARRAY:
            if depth == DEPTH_MAX:
                return False
            scratch[depth] = _IN_OBJECT if byte == _OPEN_OBJECT else _IN_ARRAY
            expect = _KEY_OR_CLOSE if byte == _OPEN_OBJECT else _VALUE_OR_CLOSE
            depth = depth + 1
            at = at + _ONE
        else:
            at = _after_scalar(at, end)
            if at == _FAIL:
                return False
            expect = _AFTER


@kernel
def valid(data: Any, scratch: Any) -> Any:
    """Return True if a uint8 array is one JSON text."""
    address, length = U(data.ctypes.data), U(len(data))
    return may_be_json(address, length) and is_json(address, length, scratch)


def warm_up() -> None:
    """Build the kernels of this module."""
    scratch = np.zeros(SCRATCH_BYTES, np.uint8)
    valid(np.zeros(1, np.uint8), scratch)
    valid(np.frombuffer(b"0", np.uint8), scratch)  # one that may not be written to is another type
