"""Checks that a value fits its datatype, so that readers can decode it: Snappy, extended attributes.

An accepted value is valid. Python (protocol/dcp/consumer_changes.py) checks any other again, and names the error or
accepts it: a value with many attributes, names beyond ASCII, or attributes before a compressed body.

Source: specification, wire.md 5 and 9.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel, prepare
from headwater.kernels.intrinsics import load8, load32
from headwater.wire.datatype import Datatype
from headwater.wire.header import VALUE_BYTES_MAX
from headwater.wire.xattr import XATTR_KEY_BYTES_MAX

U = np.uintp
_ZERO, _ONE, _TWO, _THREE, _FOUR = U(0), U(1), U(2), U(3), U(4)
_SNAPPY, _XATTR = U(int(Datatype.SNAPPY)), U(int(Datatype.XATTR))
_VALUE_MAX: Final = VALUE_BYTES_MAX
_KEY_MAX: Final = XATTR_KEY_BYTES_MAX
_PAIRS_MAX: Final = 16
_GROWTH_MAX: Final = 64  # as wire/snappy.py
_SIZE_BYTES: Final = 5


@inline_kernel
def is_snappy(data: Any, length: Any) -> Any:
    """Return True if `length` bytes at an address are a whole Snappy block of a storable size.

    The check reads the elements of the block (size, literals, copies of earlier bytes) without inflating them.
    """
    size, at, end = _ZERO, data, data + length
    continues: Any = True
    while continues:
        # The bound keeps the shift below 32 bits.
        if at == end or at - data == U(_SIZE_BYTES):
            return False
        byte = U(load8(at))
        size = size | ((byte & U(0x7F)) << (U(7) * (at - data)))
        continues = byte >= U(0x80)
        at = at + _ONE
    # A few bytes that claim to become many would cost whoever inflates them.
    if size > U(_VALUE_MAX) or size > U(_GROWTH_MAX) * length:
        return False
    if size == _ZERO:
        return length == _ONE
    inflated = _ZERO
    while at < end:
        tag = U(load8(at))
        kind, count = tag & _THREE, (tag >> _TWO) + _ONE
        at = at + _ONE
        if kind == _ZERO:
            if count > U(60):
                wide = count - U(60)  # the count less one, in so many bytes
                if wide > end - at:
                    return False
                count = _ONE
                for i in range(np.int64(wide)):
                    count = count + (U(load8(at + U(i))) << U(8 * i))
                at = at + wide
            if count > end - at:
                return False
            at = at + count
        else:
            wide = _FOUR if kind == _THREE else kind
            if wide > end - at:
                return False
            back = _ZERO
            for i in range(np.int64(wide)):
                back = back | (U(load8(at + U(i))) << U(8 * i))
            if kind == _ONE:
                back = back | ((tag >> U(5)) << U(8))
                count = ((tag >> _TWO) & U(7)) + _FOUR
            # A copy from before the beginning would read memory that is not the value's.
            if back == _ZERO or back > inflated:
                return False
            at = at + wide
        inflated = inflated + count
        # At once, so that the sum stays below 2^33 and can't wrap.
        if inflated > size:
            return False
    return inflated == size


@inline_kernel
def _is_attribute(pair: Any, length: Any) -> Any:
    """Return True if a pair consists of an ASCII name, a zero, a text without zeros, and a zero."""
    name = _ZERO
    while name < length and load8(pair + name) != 0:
        if load8(pair + name) >= 0x80:
            return False
        name = name + _ONE
    if name == _ZERO or name > U(_KEY_MAX) or name + _ONE >= length:
        return False
    at = name + _ONE
    while load8(pair + at) != 0:
        at = at + _ONE
        if at == length:
            return False
    return at + _ONE == length


@inline_kernel
def _have_one_name(first: Any, other: Any) -> Any:
    """Return True if two pairs have the same name."""
    at = _ZERO
    while load8(first + at) == load8(other + at):
        if load8(first + at) == 0:
            return True
        at = at + _ONE
    return False


@inline_kernel
def has_attributes(data: Any, length: Any) -> Any:
    """Return True if a value begins with extended attributes, few of them and with different names."""
    # The section's length counts what follows it (wire 9), and must lie within the value.
    if length < _FOUR or U(load32(data)) > length - _FOUR:
        return False
    at, end, pairs = data + _FOUR, data + _FOUR + U(load32(data)), 0
    while at < end:
        # By subtractions, which can't wrap. Few pairs only: each is compared with all before it.
        if end - at < _FOUR or U(load32(at)) > end - at - _FOUR or pairs == _PAIRS_MAX:
            return False
        if not _is_attribute(at + _FOUR, U(load32(at))):
            return False
        before = data + _FOUR
        while before < at:
            if _have_one_name(before + _FOUR, at + _FOUR):
                return False
            before = before + _FOUR + U(load32(before))
        at, pairs = at + _FOUR + U(load32(at)), pairs + 1
    return True


@inline_kernel
def is_readable(data: Any, length: Any, datatype: Any) -> Any:
    """Return True if a value is certainly valid for its datatype; False leaves the decision to Python."""
    if (U(datatype) & (_SNAPPY | _XATTR)) == _ZERO:
        return True
    if (U(datatype) & _XATTR) == _ZERO:
        return is_snappy(data, length)
    return (U(datatype) & _SNAPPY) == _ZERO and has_attributes(data, length)


@kernel
def readable(value: Any, datatype: Any) -> Any:
    """Return the result of `is_readable` for an array of bytes."""
    return is_readable(U(value.ctypes.data), U(len(value)), datatype)


def warm_up() -> None:
    """Build the kernels of this module."""
    prepare(readable, np.zeros(0, np.uint8), 0)
