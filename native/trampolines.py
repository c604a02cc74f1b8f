"""One signature for all kernels: `int trampoline(void **, void **, int64_t *slots)`, as numba calls functions.

A kernel's arguments lie in `slots`: a number takes one slot, an array its address and its length in each dimension, a
tuple what its members take. Results take their places, from slot 0 on. `Signature.code` tells machine.c what to put
there:

    i  a number, as 64 bits        b  True or False
    B, I, Q, l, q                  an array of uint8, uint32, uint64, int32, int64; followed by its dimensions,
                                   and by r where the kernel takes arrays that can't be written to
    ( ... )                        a tuple
    :                              results follow: i signed, u unsigned, b, or none
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

ARRAYS = {"uint8": "B", "uint32": "I", "uint64": "Q", "int32": "l", "int64": "q"}
READ_ONLY = frozenset({"data", "frames", "value"})
"""Names of arguments that kernels only read: arrays over bytes are taken, whatever was prepared for."""
SLOTS_MAX = 96
"""As machine.c has it."""


class Unsupported(Exception):  # noqa: N818 - an answer
    """A kernel has an argument or a result that trampolines don't know."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Of a kernel. Attributes: name (module and function), code: see above. source: of the trampoline, in Python."""

    name: str
    code: str
    source: str


@intrinsic  # type: ignore[misc]
def pointer(typing_context, address):  # type: ignore[no-untyped-def]
    """Take a number for an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


class _Slots:
    """Hands out slots, and writes the expressions that read them."""

    def __init__(self) -> None:
        self._used = 0

    def take(self) -> str:
        """Return the next slot's expression."""
        self._used += 1
        if self._used > SLOTS_MAX:
            raise Unsupported(f"more than {SLOTS_MAX} slots")
        return f"slots[{self._used - 1}]"

    def read(self, kind: Any, name: str = "") -> tuple[str, str]:
        """Return the code of an argument, and the expression of its value."""
        if isinstance(kind, types.Array):
            return self._array(kind, is_read=name in READ_ONLY or not kind.mutable)
        if isinstance(kind, types.BaseTuple):
            members = [self.read(member) for member in kind]
            return f"({''.join(code for code, _ in members)})", f"({''.join(f'{value}, ' for _, value in members)})"
        if kind == types.boolean:
            return "b", f"({self.take()} != 0)"
        if isinstance(kind, types.Integer):
            return "i", f"np.{kind}({self.take()})"
        raise Unsupported(str(kind))

    def _array(self, kind: types.Array, *, is_read: bool) -> tuple[str, str]:
        if kind.layout != "C" or str(kind.dtype) not in ARRAYS:
            raise Unsupported(str(kind))
        address, shape = self.take(), "".join(f"{self.take()}, " for _ in range(kind.ndim))
        code = f"{ARRAYS[str(kind.dtype)]}{kind.ndim}{'r' if is_read else ''}"
        return code, f"carray(pointer({address}), ({shape}), np.{kind.dtype})"


def _result_code(kind: Any) -> str:
    if kind == types.boolean:
        return "b"
    if isinstance(kind, types.Integer):
        return "i" if kind.signed else "u"
    raise Unsupported(str(kind))


def _results(kind: Any) -> tuple[str, list[str]]:
    """Return the code of what a kernel returns, and the lines that put `found` into slots."""
    if kind == types.none:
        return "", []
    if isinstance(kind, types.BaseTuple):
        lines = [f"slots[{at}] = np.int64(found[{at}])" for at in range(len(kind))]
        return f"({''.join(map(_result_code, kind))})", lines
    return _result_code(kind), ["slots[0] = np.int64(found)"]


def signature(name: str, arguments: Sequence[tuple[str, Any]], result: Any) -> Signature:
    """Return how a kernel with arguments of such names and types is called.

    Raises:
        Unsupported: it has others.
    """
    slots = _Slots()
    read = [slots.read(kind, argument) for argument, kind in arguments]
    code, lines = _results(result)
    call = f"found = kernel({', '.join(value for _, value in read)})"
    body = "\n    ".join([call, *lines])
    return Signature(name, f"{''.join(each for each, _ in read)}:{code}", f"def trampoline(slots):\n    {body}\n")


def signatures_of(built: Sequence[tuple[str, Any]]) -> Iterator[tuple[Signature, Any]]:
    """Yield the signature of each kernel, and its dispatcher. Of two that differ in what may be written to, the one
    that takes both arrays: the code is the same."""
    for name, dispatcher in built:
        names, short = inspect.signature(dispatcher.py_func).parameters, name.removeprefix("headwater.kernels.")
        found = [
            signature(short, list(zip(names, kinds, strict=True)), dispatcher.overloads[kinds].signature.return_type)
            for kinds in dispatcher.signatures
        ]
        if found:
            yield max(found, key=lambda each: each.code.count("r")), dispatcher


def compiled(one: Signature, kernel: Callable[..., Any]) -> Any:
    """Compile a trampoline; returns numba's result, with `library` and `fndesc`."""
    names: dict[str, Any] = {"np": np, "carray": numba.carray, "pointer": pointer, "kernel": kernel}
    exec(one.source, names)  # noqa: S102 - written above
    kind = types.void(types.CPointer(types.int64))
    built: Any = numba.njit(kind, nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)(names["trampoline"])
    return built.overloads[built.signatures[0]]
