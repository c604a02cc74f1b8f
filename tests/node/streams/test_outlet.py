"""The arena that all connections fill in turn."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.node.streams.outlet import MARGIN_BYTES, Outlet


class Sink:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.taken: list[bytes | bytearray | memoryview] = []

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        self.sent.append(bytes(data))
        self.taken.append(data)


def outlet(sink: Sink, size: int = 1000) -> Outlet:
    made = Outlet(np.zeros(size, np.uint8))
    made.begin(sink)
    return made


def test_messages_leave_together_and_in_order() -> None:
    sink = Sink()
    made = outlet(sink)
    made.write(b"one")
    made.free[:3] = np.frombuffer(b"two", np.uint8)
    made.fill(3)
    made.write(b"three")
    assert (made.flush(), sink.sent, made.room) == (11, [b"onetwothree"], 1000)
    assert made.flush() == 0
    assert len(sink.sent) == 1


def test_a_message_larger_than_the_arena_leaves_by_itself_behind_the_others() -> None:
    sink = Sink()
    made = outlet(sink)
    made.write(b"first")
    made.write(b"x" * 1001)
    assert sink.sent == [b"first", b"x" * 1001]
    assert made.is_full


def test_the_value_of_a_message_larger_than_the_arena_leaves_from_where_it_lies() -> None:
    sink, value = Sink(), bytes(1001)
    made = outlet(sink)
    made.write(b"first")
    made.write(b"head", value)
    assert sink.sent == [b"first", b"head", value]
    assert sink.taken[-1] is value
    assert made.is_full


def test_the_pieces_of_a_message_that_fits_leave_together() -> None:
    sink = Sink()
    made = outlet(sink)
    made.write(b"head", memoryview(b"value"))
    made.write(b"another")
    made.flush()
    assert sink.sent == [b"headvalueanother"]


def test_a_message_that_does_not_fit_any_more_ends_the_turn() -> None:
    sink = Sink()
    made = outlet(sink)
    made.write(b"x" * 600)
    made.write(b"y" * 600)
    assert (sink.sent, made.is_full) == ([b"x" * 600], True)
    made.flush()
    made.begin(sink)
    assert not made.is_full


def test_an_arena_with_no_room_for_a_marker_is_full() -> None:
    made = outlet(Sink())
    made.fill(1000 - MARGIN_BYTES)
    assert not made.is_full
    made.fill(1)
    assert made.is_full


def test_without_a_turn_nothing_can_be_sent() -> None:
    made = Outlet(np.zeros(10, np.uint8))
    made.fill(1)
    with pytest.raises(ValueError, match="nobody's turn"):
        made.flush()


def test_an_arena_that_is_nearly_full_is_low() -> None:
    made = outlet(Sink())
    made.fill(875)
    assert not made.is_low
    made.fill(1)
    assert made.is_low
