"""The instructions of intrinsics.py for numba: a function for each kind, which returns an intrinsic."""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_utils: Any = cgutils  # untyped

# What numba calls below (`load`, `generate` and the like) takes numba's own objects, which have no types.


def loading(bits: int, native: bool) -> Any:
    """Return the intrinsic that loads `bits` bits from an address, in network order unless `native`."""

    result, word = getattr(types, f"uint{bits}"), ir.IntType(bits)
    swap = bits > 8 and not native and sys.byteorder == "little"

    @intrinsic
    def load(typing_context, address):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            value = builder.load(builder.inttoptr(arguments[0], word.as_pointer()))
            # A field of a frame stands at any address. Without this LLVM may choose instructions that fault there.
            value.align = 1
            return builder.bswap(value) if swap else value

        return result(types.uintp), generate

    return load


def storing(bits: int, native: bool) -> Any:
    """Return the intrinsic that stores `bits` bits at an address, in network order unless `native`."""

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


def copying() -> Any:
    """Return the intrinsic of memcpy."""

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


def moving(count: int) -> Any:
    """Return the intrinsic that copies `count` bytes through registers."""

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


def prefetching() -> Any:
    """Return the intrinsic that prefetches a cache line."""

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


def talking(name: str, flags: int) -> Any:
    """Return the intrinsic of recv(2) or send(2), with these flags."""

    @intrinsic
    def talk(typing_context, descriptor, address, count):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            size, number, pointer = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
            kind = ir.FunctionType(size, [number, pointer, size, number])
            function = _utils.get_or_insert_function(builder.module, kind, name)
            socket_number, buffer = builder.trunc(arguments[0], number), builder.inttoptr(arguments[1], pointer)
            return builder.call(function, [socket_number, buffer, arguments[2], number(flags)])

        return types.intp(types.uintp, types.uintp, types.uintp), generate

    return talk
