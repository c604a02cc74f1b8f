"""Loads, stores and copies: compiled and checked build agree, and the checked one refuses what lies outside."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import guard, intrinsics, jit

DATA = bytes(range(1, 33))
CHECKED = jit.debug_copy("headwater.kernels.intrinsics")

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


COMPILED = {name: compiled(name) for name in (*LOADS, *STORES, *MOVES, "copy")}


def test_network_order_at_any_alignment() -> None:
    data = np.frombuffer(DATA, np.uint8)
    at = data.ctypes.data + 1
    assert int(COMPILED["load8"](at)) == 0x02
    assert int(COMPILED["load16"](at)) == 0x0203
    assert int(COMPILED["load32"](at)) == 0x02030405
    assert int(COMPILED["load64"](at)) == 0x0203040506070809
    assert int(COMPILED["load64_native"](at)) == int(data[1:9].copy().view(np.uint64)[0])


@given(name=st.sampled_from(LOADS), offset=st.integers(0, 24))
def test_both_builds_load_the_same(name: str, offset: int) -> None:
    data = np.frombuffer(DATA, np.uint8)
    with guard.registered(data):
        checked = getattr(CHECKED, name)(data.ctypes.data + offset)
    assert int(COMPILED[name](data.ctypes.data + offset)) == int(checked)


@given(name=st.sampled_from(STORES), offset=st.integers(0, 24), value=st.integers(0, (1 << 64) - 1))
def test_both_builds_store_the_same(name: str, offset: int, value: int) -> None:
    ours, theirs = (np.frombuffer(bytearray(DATA), np.uint8) for _ in range(2))
    with guard.registered(theirs):
        getattr(CHECKED, name)(theirs.ctypes.data + offset, np.uint64(value))
    COMPILED[name](ours.ctypes.data + offset, np.uint64(value))
    assert ours.tobytes() == theirs.tobytes()


def test_copy_moves_exactly_the_bytes_asked_for() -> None:
    for build in (COMPILED["copy"], CHECKED.copy):
        source, target = np.frombuffer(DATA, np.uint8), np.zeros(8, np.uint8)
        with guard.registered(source, target):
            build(target.ctypes.data + 2, source.ctypes.data + 4, 3)
        assert target.tolist() == [0, 0, 5, 6, 7, 0, 0, 0]


@pytest.mark.parametrize("name", MOVES)
def test_a_block_is_moved_at_any_alignment_and_nothing_beside_it(name: str) -> None:
    size = MOVES[name]
    for build in (COMPILED[name], getattr(CHECKED, name)):
        source, target = np.arange(1, size + 2, dtype=np.uint8), np.zeros(size + 4, np.uint8)
        with guard.registered(source, target):
            build(target.ctypes.data + 3, source.ctypes.data + 1)
        assert target.tolist() == [0, 0, 0, *source[1:].tolist(), 0]


@pytest.mark.parametrize("offset", [-1, 25, 32, 1000])
def test_a_load_that_leaves_the_buffer_is_a_fault(offset: int) -> None:
    data = np.frombuffer(DATA, np.uint8)
    with guard.registered(data), pytest.raises(guard.KernelFault) as fault:
        CHECKED.load64(data.ctypes.data + offset)
    assert (fault.value.address, fault.value.bytes) == (data.ctypes.data + offset, 8)


def test_two_buffers_side_by_side_are_not_one() -> None:
    data = np.zeros(16, np.uint8)
    with guard.registered(data[:8], data[8:]):
        assert int(CHECKED.load64(data.ctypes.data + 8)) == 0
        with pytest.raises(guard.KernelFault):
            CHECKED.load64(data.ctypes.data + 4)


def test_a_store_into_memory_that_is_read_only_is_a_fault() -> None:
    data = np.frombuffer(DATA, np.uint8)
    with guard.registered(data), pytest.raises(guard.KernelFault, match="store of 1 bytes"):
        CHECKED.store8(data.ctypes.data, 1)


def test_a_copy_within_one_range_is_a_fault_unless_the_ends_are_apart() -> None:
    data = np.zeros(16, np.uint8)
    with guard.registered(data):
        CHECKED.copy(data.ctypes.data + 8, data.ctypes.data, 8)
        with pytest.raises(guard.KernelFault, match="overlapping"):
            CHECKED.copy(data.ctypes.data + 7, data.ctypes.data, 8)


def test_nothing_may_be_copied_from_or_to_anywhere() -> None:
    CHECKED.copy(0, 0, 0)


def test_a_length_that_wrapped_below_zero_is_a_fault() -> None:
    data = np.zeros(16, np.uint8)
    with guard.registered(data), np.errstate(over="ignore"), pytest.raises(guard.KernelFault):
        CHECKED.copy(data.ctypes.data, data.ctypes.data + 8, np.uint64(3) - np.uint64(4))


def test_a_registered_array_is_reachable_until_it_is_garbage() -> None:
    before = guard.registered_bytes()
    data = np.zeros(1000, np.uint8)
    intrinsics.register(data)
    assert guard.registered_bytes() == before + 1000
    del data
    gc.collect()
    assert guard.registered_bytes() == before
