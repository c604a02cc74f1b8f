"""The check of the debug build: the address ranges that a kernel may touch.

A compiled kernel reads and writes raw addresses, so a wrong length causes a crash, or worse, goes unnoticed. In the
debug build (builds.py) this module checks every load, store and copy first. A range is legal if it lies wholly inside
one registered buffer, even if an adjacent buffer is registered too. The array arguments of a kernel are registered
while it runs; a test must register memory that the kernel reaches by other addresses.
"""

from __future__ import annotations

import bisect
import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

_starts: list[int] = []
_spans: list[tuple[int, int, bool]] = []  # (start, end, writable), sorted by start; duplicates allowed


class KernelFault(AssertionError):  # noqa: N818 - a fault, as in segmentation fault
    """A kernel accessed memory that no registered buffer covers: a bug in the kernel or in its caller.

    Attributes: address (of the first byte), bytes (number of bytes accessed), access ("load", "store" or "copy").
    """

    def __init__(self, address: int, count: int, access: str) -> None:
        super().__init__(f"{access} of {count} bytes at {address:#x} lies outside every registered buffer")
        self.address = address
        self.bytes = count
        self.access = access


def _span(array: NDArray[Any]) -> tuple[int, int, bool]:
    start = int(array.ctypes.data)
    return start, start + int(array.nbytes), bool(array.flags.writeable)


def _add(span: tuple[int, int, bool]) -> None:
    place = bisect.bisect_right(_starts, span[0])
    _starts.insert(place, span[0])
    _spans.insert(place, span)


def _remove(span: tuple[int, int, bool]) -> None:
    place = _spans.index(span)
    del _starts[place]
    del _spans[place]


def register(array: NDArray[Any]) -> None:
    """Allow kernels to access a C-contiguous array until it is garbage-collected."""
    span = _span(array)
    _add(span)
    weakref.finalize(array, _remove, span)


@contextmanager
def registered(*arrays: NDArray[Any]) -> Iterator[None]:
    """Allow kernels to access these C-contiguous arrays inside the with block."""
    spans = [_span(array) for array in arrays if array.flags.c_contiguous]
    for span in spans:
        _add(span)
    try:
        yield
    finally:
        for span in spans:
            _remove(span)


def _require(address: int, count: int, access: str, writing: bool) -> None:
    """Raise KernelFault unless one registered buffer contains all of [address, address + count)."""
    place = bisect.bisect_right(_starts, address)
    for start, end, writable in reversed(_spans[:place]):
        if start <= address and address + count <= end and (writable or not writing):
            return
    raise KernelFault(address, count, access)


def read(address: int, count: int) -> bytes:
    """Return the bytes of a legal range."""
    _require(address, count, "load", writing=False)
    return ctypes.string_at(address, count)


def write(address: int, data: bytes) -> None:
    """Write into a legal, writable range."""
    _require(address, len(data), "store", writing=True)
    ctypes.memmove(address, data, len(data))


def copy(target: int, source: int, count: int) -> None:
    """Copy between legal ranges, which must not overlap: the result of the compiled copy, memcpy, would then be
    undefined.
    """
    if count == 0:
        return
    _require(source, count, "copy", writing=False)
    _require(target, count, "copy", writing=True)
    if abs(target - source) < count:
        raise KernelFault(target, count, "overlapping copy")
    ctypes.memmove(target, source, count)


def registered_bytes() -> int:
    """Return the number of bytes that kernels may access now (tests check that it returns to 0)."""
    return sum(end - start for start, end, _ in _spans)


def as_int(value: int | np.integer[Any]) -> int:
    """Return an address or length as a plain integer; raise KernelFault for a negative one, from a wrapped
    subtraction.
    """
    return int(value) & 0xFFFF_FFFF_FFFF_FFFF
