"""The check behind the debug build: which bytes a kernel may touch."""

import gc

import numpy as np
import pytest

from headwater.kernels import guard
from headwater.kernels.guard import KernelFault


def test_a_registered_buffer_may_be_read_and_written_to_its_last_byte() -> None:
    array = np.arange(8, dtype=np.uint8)
    address = array.ctypes.data
    with guard.registered(array):
        assert guard.read(address, 8) == bytes(range(8))
        guard.write(address + 6, b"\xaa\xbb")
    assert array.tolist() == [0, 1, 2, 3, 4, 5, 0xAA, 0xBB]


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (0, 9), (8, 1), (7, 2)])
def test_a_range_that_leaves_its_buffer_is_a_fault_that_tells_where(offset: int, count: int) -> None:
    array = np.zeros(8, np.uint8)
    address = array.ctypes.data + offset
    with guard.registered(array), pytest.raises(KernelFault, match=f"load of {count} bytes at {address:#x}") as caught:
        guard.read(address, count)
    assert (caught.value.address, caught.value.bytes, caught.value.access) == (address, count, "load")


def test_neighbours_do_not_make_one_buffer() -> None:
    array = np.zeros(8, np.uint8)
    with guard.registered(array[:4], array[4:]), pytest.raises(KernelFault, match="load of 2 bytes"):
        guard.read(array.ctypes.data + 3, 2)


def test_what_is_read_only_is_not_written() -> None:
    array = np.zeros(8, np.uint8)
    array.flags.writeable = False
    with guard.registered(array):
        assert guard.read(array.ctypes.data, 8) == bytes(8)
        with pytest.raises(KernelFault, match="store of 1 bytes"):
            guard.write(array.ctypes.data, b"x")


def test_a_copy_needs_both_ends_and_no_overlap() -> None:
    array, other = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)
    source, target = array.ctypes.data, other.ctypes.data
    with guard.registered(array):
        with pytest.raises(KernelFault, match="copy of 4 bytes"):
            guard.copy(target, source, 4)
        with pytest.raises(KernelFault, match="overlapping copy of 4 bytes"):
            guard.copy(source + 3, source, 4)
        guard.copy(source + 4, source, 4)
        guard.copy(target, target, 0)
    assert array.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_buffer_is_forgotten_with_its_array_and_at_the_end_of_a_block() -> None:
    gc.collect()
    before = guard.registered_bytes()
    array = np.zeros(1000, np.uint8)
    guard.register(array)
    with guard.registered(np.zeros(10, np.uint8)):
        assert guard.registered_bytes() == before + 1010
    assert guard.registered_bytes() == before + 1000
    del array
    gc.collect()
    assert guard.registered_bytes() == before


def test_a_length_below_zero_is_never_legal() -> None:
    assert guard.as_int(np.int64(-1)) == 0xFFFF_FFFF_FFFF_FFFF
