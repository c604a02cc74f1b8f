"""Loads, stores and copies: compiled and checked build agree, and the checked one refuses what lies outside."""

from __future__ import annotations

import gc
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import builds, guard, intrinsics
from tests.kernels.test_instructions import COMPILED, DATA, LOADS, MOVES, STORES

CHECKED = builds.debug_copy("headwater.kernels.intrinsics")


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


def test_a_descriptor_is_read_and_written_without_waiting_and_an_error_is_minus_one() -> None:
    for build in (COMPILED, vars(CHECKED)):
        data = np.frombuffer(bytearray(DATA), np.uint8)
        ours, theirs = socket.socketpair()
        with ours, theirs, guard.registered(data):
            ours.setblocking(False)
            assert build["receive"](ours.fileno(), data.ctypes.data, 8) == -1  # nothing has come
            assert build["send"](ours.fileno(), data.ctypes.data + 2, 3) == 3
            assert theirs.recv(100) == DATA[2:5]
            theirs.send(b"abc")
            assert build["receive"](ours.fileno(), data.ctypes.data + 1, 2) == 2
            assert data.tobytes() == DATA[:1] + b"ab" + DATA[3:]
            theirs.close()
            assert build["receive"](ours.fileno(), data.ctypes.data, 8) == 1
            assert build["receive"](ours.fileno(), data.ctypes.data, 8) == 0
            assert build["send"](ours.fileno(), data.ctypes.data, 1) == -1  # and no signal ends the process
        assert build["receive"](10_000, data.ctypes.data, 8) == -1


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
