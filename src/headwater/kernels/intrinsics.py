"""Loads, stores and copies at raw addresses: one machine instruction each, at any alignment.

numba has no unaligned big-endian load; written byte by byte in Python the same kernels run six to eight times slower.
These are the whole trick. Addresses are `np.uintp` (`array.ctypes.data`, plus offsets of the same type: adding a signed
integer to an unsigned one yields a float in numba as in numpy). `load16/32/64` and `store16/32/64` speak network order,
the `_native` ones the machine's (for tables of our own). `copy` is memcpy: the ranges must not overlap; `copy16` and
`copy64` move so many bytes in registers, as a call would cost more than the move (copying.py makes copies of them).
`prefetch` asks the processor to bring the cache line of an address closer; it reads nothing, and any address will do.

Nothing here checks a bound; the kernel that calls must have. In the debug build (jit.py) the same names are Python
functions that ask guard.py about every range and raise `KernelFault`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from headwater.kernels import guard
from headwater.kernels.guard import KernelFault, register, registered
from headwater.kernels.jit import debugging

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
    "register",
    "registered",
    "store8",
    "store16",
    "store16_native",
    "store32",
    "store32_native",
    "store64",
    "store64_native",
]

Unsigned: TypeAlias = "int | np.integer[Any]"

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


# What numba calls below (`load`, `generate` and the like) takes numba's own objects, which have no types.


def _compiled_load(bits: int, native: bool) -> Any:
    result, word = getattr(types, f"uint{bits}"), ir.IntType(bits)
    swap = bits > 8 and not native and sys.byteorder == "little"

    @intrinsic
    def load(typing_context, address):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            value = builder.load(builder.inttoptr(arguments[0], word.as_pointer()))
            value.align = 1
            return builder.bswap(value) if swap else value

        return result(types.uintp), generate

    return load


def _compiled_store(bits: int, native: bool) -> Any:
    kind, word = getattr(types, f"uint{bits}"), ir.IntType(bits)
    swap = bits > 8 and not native and sys.byteorder == "little"

    @intrinsic
    def store(typing_context, address, value):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            word_stored = builder.bswap(arguments[1]) if swap else arguments[1]
            placed = builder.store(word_stored, builder.inttoptr(arguments[0], word.as_pointer()))
            placed.align = 1
            return context.get_dummy_value()

        return types.void(types.uintp, kind), generate

    return store


def _compiled_copy() -> Any:
    @intrinsic
    def copy(typing_context, target, source, count):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            pointer = ir.IntType(8).as_pointer()
            ends = [builder.inttoptr(argument, pointer) for argument in arguments[:2]]
            memcpy = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, ir.IntType(64)])
            builder.call(memcpy, [*ends, arguments[2], ir.IntType(1)(0)])
            return context.get_dummy_value()

        return types.void(types.uintp, types.uintp, types.uintp), generate

    return copy


def _compiled_move(count: int) -> Any:
    block = ir.VectorType(ir.IntType(8), count)

    @intrinsic
    def move(typing_context, target, source):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            value = builder.load(builder.inttoptr(arguments[1], block.as_pointer()))
            placed = builder.store(value, builder.inttoptr(arguments[0], block.as_pointer()))
            value.align = placed.align = 1
            return context.get_dummy_value()

        return types.void(types.uintp, types.uintp), generate

    return move


def _compiled_prefetch() -> Any:
    @intrinsic
    def prefetch(typing_context, address):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
            function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
            # for reading, to be kept in all caches, data
            builder.call(function, [builder.inttoptr(arguments[0], pointer), number(0), number(3), number(1)])
            return context.get_dummy_value()

        return types.void(types.uintp), generate

    return prefetch


def _no_prefetch(address: Unsigned) -> None:
    """Do nothing, the checked build's prefetch: a hint may point anywhere."""


_load, _store = (_checked_load, _checked_store) if debugging() else (_compiled_load, _compiled_store)
_move = _checked_move if debugging() else _compiled_move

load8: Callable[[Unsigned], np.uint8] = _load(8, False)
load16: Callable[[Unsigned], np.uint16] = _load(16, False)
load32: Callable[[Unsigned], np.uint32] = _load(32, False)
load64: Callable[[Unsigned], np.uint64] = _load(64, False)
load32_native: Callable[[Unsigned], np.uint32] = _load(32, True)
load64_native: Callable[[Unsigned], np.uint64] = _load(64, True)
store8: Callable[[Unsigned, Unsigned], None] = _store(8, False)
store16: Callable[[Unsigned, Unsigned], None] = _store(16, False)
store32: Callable[[Unsigned, Unsigned], None] = _store(32, False)
store64: Callable[[Unsigned, Unsigned], None] = _store(64, False)
store16_native: Callable[[Unsigned, Unsigned], None] = _store(16, True)
store32_native: Callable[[Unsigned, Unsigned], None] = _store(32, True)
store64_native: Callable[[Unsigned, Unsigned], None] = _store(64, True)
copy: Callable[[Unsigned, Unsigned, Unsigned], None] = _checked_copy if debugging() else _compiled_copy()
copy16: Callable[[Unsigned, Unsigned], None] = _move(16)
copy64: Callable[[Unsigned, Unsigned], None] = _move(64)
prefetch: Callable[[Unsigned], None] = _no_prefetch if debugging() else _compiled_prefetch()
