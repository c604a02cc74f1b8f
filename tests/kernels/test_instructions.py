"""The intrinsics as numba compiles them. That the checked ones do the same: tests/kernels/test_intrinsics.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from headwater.kernels import intrinsics

DATA = bytes(range(1, 33))
LOADS = ["load8", "load16", "load32", "load64", "load32_native", "load64_native"]
STORES = ["store8", "store16", "store32", "store64", "store16_native", "store32_native", "store64_native"]
MOVES = {"copy16": 16, "copy64": 64}


def compiled(name: str) -> Callable[..., Any]:
    """A function of compiled code that does nothing but call one intrinsic."""
    operation = getattr(intrinsics, name)
    if name in LOADS:
        return numba.njit(lambda address: operation(address))  # noqa: PLW0108 - numba wants a function
    if name in STORES:
        return numba.njit(lambda address, value: operation(address, value))  # noqa: PLW0108
    if name in MOVES:
        return numba.njit(lambda target, source: operation(target, source))  # noqa: PLW0108
    return numba.njit(lambda target, source, count: operation(target, source, count))  # noqa: PLW0108


COMPILED = {name: compiled(name) for name in (*LOADS, *STORES, *MOVES, "copy", "receive", "send")}


def test_network_order_at_any_alignment() -> None:
    data = np.frombuffer(DATA, np.uint8)
    at = data.ctypes.data + 1
    assert int(COMPILED["load8"](at)) == 0x02
    assert int(COMPILED["load16"](at)) == 0x0203
    assert int(COMPILED["load32"](at)) == 0x02030405
    assert int(COMPILED["load64"](at)) == 0x0203040506070809
    assert int(COMPILED["load64_native"](at)) == int(data[1:9].copy().view(np.uint64)[0])
