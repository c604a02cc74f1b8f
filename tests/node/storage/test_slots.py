"""Slots are given again when nobody can be reading them."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import pytest

from headwater.node.storage.records import drop_frame
from headwater.node.storage.segment import UNREGISTERED, Segment, SegmentHeader
from headwater.node.storage.slots import BESIDE_BYTES_MIN, Slots
from headwater.testing.faults import FaultyDisk


def segment(number: int, size: int = 4096) -> Segment:
    return Segment.create(FaultyDisk(), Path("/store"), SegmentHeader(bytes(16), number, 1, 0), size, 64)


def test_a_segment_keeps_one_slot_and_the_table_says_where_it_is() -> None:
    slots, one = Slots(), segment(1)
    slots.register(one)
    slots.register(one)
    assert one.slot == 2
    assert slots.table[2].tolist() == [one.memory.ctypes.data, 4096]


def test_a_retired_segment_goes_when_the_last_reader_from_before_leaves() -> None:
    slots, one, two = Slots(), segment(1), segment(2)
    slots.register(one)
    first, second = slots.enter(), slots.enter()
    slots.retire([one])
    third = slots.enter()
    for ticket in (first, third):
        slots.leave(ticket)
        slots.leave(ticket)
        assert (slots.retired, one.slot) == (1, 2)
    slots.leave(second)
    assert (slots.retired, one.slot, slots.readers) == (0, UNREGISTERED, 0)
    assert slots.table[2].tolist() == [0, 0]
    slots.register(two)
    assert two.slot == 2


def test_a_frame_is_copied_out_of_its_place() -> None:
    slots, one = Slots(), segment(1)
    one.writable().write([drop_frame(5)], 100)
    slots.register(one)
    assert slots.frame((one.slot << 40) | 100) == drop_frame(5)


@pytest.mark.parametrize(("size", "beside"), [(BESIDE_BYTES_MIN, True), (4096, False)])
def test_much_memory_is_given_back_in_another_thread_than_the_readers(size: int, beside: bool) -> None:
    slots, one, gone = Slots(), segment(1, size), threading.Event()
    threads: list[threading.Thread] = []
    weakref.finalize(one.memory, lambda: (threads.append(threading.current_thread()), gone.set()))
    slots.register(one)
    reader = slots.enter()
    slots.retire([one])
    del one
    assert not threads
    slots.leave(reader)
    assert gone.wait(10.0)
    assert (threads[0] is not threading.current_thread()) is beside
