"""Slots are given again when nobody can be reading them."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import numpy as np
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
        assert (slots.retired_bytes, one.slot) == (one.end, 2)
    slots.leave(second)
    assert (slots.retired_bytes, one.slot, slots.readers) == (0, UNREGISTERED, 0)
    assert slots.table[2].tolist() == [0, 0]
    slots.register(two)
    assert two.slot == 2


def test_a_reader_keeps_no_segment_that_was_made_after_it_began() -> None:
    slots, before, after = Slots(), segment(1), segment(2)
    slots.register(before)
    old = slots.enter()
    slots.register(after)
    slots.retire([before])
    young = slots.enter()
    assert slots.is_held_by(old) and not slots.is_held_by(young)
    slots.retire([after])
    assert slots.retired_bytes == before.end + after.end and slots.is_held_by(young)
    slots.leave(young)
    assert slots.is_held_by(old) and slots.retired_bytes == before.end
    slots.leave(old)
    assert slots.retired_bytes == 0 and slots.oldest_retired is None


def test_a_frame_is_seen_where_it_lies() -> None:
    slots, one = Slots(), segment(1)
    one.writable().write([drop_frame(5)], 100)
    slots.register(one)
    seen = slots.frame((one.slot << 40) | 100)
    assert seen == drop_frame(5)
    assert np.shares_memory(np.frombuffer(seen, np.uint8), one.memory)


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
    assert gone.wait(120.0)
    assert (threads[0] is not threading.current_thread()) is beside


def test_memory_is_given_back_where_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    slots, one = Slots(), segment(1, BESIDE_BYTES_MIN)
    memory, reader = weakref.ref(one.memory), slots.enter()
    slots.register(one)
    slots.retire([one])
    del one
    monkeypatch.setattr(threading.Thread, "start", refuse)
    slots.leave(reader)
    assert memory() is None
