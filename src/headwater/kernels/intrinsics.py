"""Loads, stores and copies at raw addresses: one machine instruction each, at any alignment.

numba has no unaligned big-endian load; with loads byte by byte the same kernels run six to eight times slower.
Addresses are `np.uintp` (`array.ctypes.data`, plus offsets of the same type: adding a signed integer to an unsigned one
yields a float in numba as in numpy). `load16/32/64` and `store16/32/64` use network order, the `_native` ones the
machine's (for the index's tables). `copy` is memcpy: the ranges must not overlap; `copy16` and `copy64` copy 16 and 64
bytes through registers, because a call would cost more than the copy (copying.py builds on them). `prefetch` loads the
cache line of an address in advance; any address is allowed. `receive` and `send` are recv(2) and send(2) on a
descriptor: they never wait; -1 means any error.

Nothing here checks a bound; the calling kernel must have checked it. In the debug build (builds.py) the same names are
Python functions: guard.py checks every range, and raises `KernelFault`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from headwater.kernels import guard
from headwater.kernels.builds import compiling, numbas
from headwater.kernels.guard import KernelFault, register, registered

__all__ = [
    "KernelFault",
    "copy",
    "copy16",
    "copy64",
    "load8",
    "load16",
    "load32",
    "load32_native",
    "load64",
    "load64_native",
    "prefetch",
    "receive",
    "register",
    "registered",
    "send",
    "store8",
    "store16",
    "store16_native",
    "store32",
    "store32_native",
    "store64",
    "store64_native",
]

Unsigned: TypeAlias = "int | np.integer[Any]"

_TALK_FLAGS = 0x4040
"""MSG_DONTWAIT and MSG_NOSIGNAL with Linux's numbers: kernels use sockets on Linux only (node/kv/rounds.py)."""

_NUMPY = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def _checked_load(bits: int, native: bool) -> Callable[[Unsigned], Any]:
    kind, order = _NUMPY[bits], sys.byteorder if native else "big"

    def load(address: Unsigned) -> Any:
        data = guard.read(guard.as_int(address), bits // 8)
        return kind(int.from_bytes(data, "little" if order == "little" else "big"))

    return load


def _checked_store(bits: int, native: bool) -> Callable[[Unsigned, Unsigned], None]:
    order, mask = sys.byteorder if native else "big", (1 << bits) - 1

    def store(address: Unsigned, value: Unsigned) -> None:
        data = (int(value) & mask).to_bytes(bits // 8, "little" if order == "little" else "big")
        guard.write(guard.as_int(address), data)

    return store


def _checked_copy(target: Unsigned, source: Unsigned, count: Unsigned) -> None:
    guard.copy(guard.as_int(target), guard.as_int(source), guard.as_int(count))


def _checked_move(count: int) -> Callable[[Unsigned, Unsigned], None]:
    def move(target: Unsigned, source: Unsigned) -> None:
        guard.copy(guard.as_int(target), guard.as_int(source), count)

    return move


def _no_prefetch(address: Unsigned) -> None:
    """Do nothing: the prefetch of the checked build. A prefetch may use any address."""


def _checked_receive(descriptor: Unsigned, address: Unsigned, count: Unsigned) -> np.intp:
    try:
        data = os.read(int(descriptor), int(count))
    except OSError:
        return np.intp(-1)
    guard.write(guard.as_int(address), data)
    return np.intp(len(data))


def _checked_send(descriptor: Unsigned, address: Unsigned, count: Unsigned) -> np.intp:
    try:
        return np.intp(os.write(int(descriptor), guard.read(guard.as_int(address), guard.as_int(count))))
    except OSError:
        return np.intp(-1)


_instructions: Any = numbas("instructions") if compiling() else None
_loading = _instructions.loading if _instructions else _checked_load  # machine code has its own: nobody calls these
_storing = _instructions.storing if _instructions else _checked_store
_moving = _instructions.moving if _instructions else _checked_move

load8: Callable[[Unsigned], np.uint8] = _loading(8, False)
load16: Callable[[Unsigned], np.uint16] = _loading(16, False)
load32: Callable[[Unsigned], np.uint32] = _loading(32, False)
load64: Callable[[Unsigned], np.uint64] = _loading(64, False)
load32_native: Callable[[Unsigned], np.uint32] = _loading(32, True)
load64_native: Callable[[Unsigned], np.uint64] = _loading(64, True)
store8: Callable[[Unsigned, Unsigned], None] = _storing(8, False)
store16: Callable[[Unsigned, Unsigned], None] = _storing(16, False)
store32: Callable[[Unsigned, Unsigned], None] = _storing(32, False)
store64: Callable[[Unsigned, Unsigned], None] = _storing(64, False)
store16_native: Callable[[Unsigned, Unsigned], None] = _storing(16, True)
store32_native: Callable[[Unsigned, Unsigned], None] = _storing(32, True)
store64_native: Callable[[Unsigned, Unsigned], None] = _storing(64, True)
copy: Callable[[Unsigned, Unsigned, Unsigned], None] = _instructions.copying() if _instructions else _checked_copy
copy16: Callable[[Unsigned, Unsigned], None] = _moving(16)
copy64: Callable[[Unsigned, Unsigned], None] = _moving(64)
prefetch: Callable[[Unsigned], None] = _instructions.prefetching() if _instructions else _no_prefetch
receive: Callable[[Unsigned, Unsigned, Unsigned], np.intp] = (
    _instructions.talking("recv", _TALK_FLAGS) if _instructions else _checked_receive
)
send: Callable[[Unsigned, Unsigned, Unsigned], np.intp] = (
    _instructions.talking("send", _TALK_FLAGS) if _instructions else _checked_send
)
