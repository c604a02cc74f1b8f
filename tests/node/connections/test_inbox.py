"""Frames that arrive in pieces come out whole, and no buffer grows because of a claim."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadFrame, RemoteProtocolError
from headwater.node.connections.inbox import ConnectionInbox, next_frame, whole_frame
from headwater.wire.header import BODY_BYTES_MAX, Frame

ARENA = 4096


class Taker:
    """A session that takes whole frames, and does nothing while told to pause."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.paused = False

    def receive(self, data: memoryview) -> int:
        offset = 0
        while not self.paused and len(data) - offset >= 24:
            size = 24 + int.from_bytes(data[offset + 8 : offset + 12], "big")
            if len(data) - offset < size:
                break
            self.frames.append(bytes(data[offset : offset + size]))
            offset += size
        return offset


def feed(inbox: ConnectionInbox, taker: Taker, data: bytes) -> None:
    while data:
        room = inbox.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        seen = inbox.received(count)
        if seen:
            inbox.keep(seen, taker.receive(seen))


@given(
    st.lists(st.integers(0, 9000), max_size=6),
    st.lists(st.integers(1, 5000), min_size=1, max_size=20),
    st.sets(st.integers(0, 30)),
)
def test_how_the_bytes_are_cut_changes_nothing(sizes: list[int], cuts: list[int], pauses: set[int]) -> None:
    frames = [Frame(0x80, 1, value=bytes([number]) * size).encode() for number, size in enumerate(sizes)]
    inbox, taker, data, turn = ConnectionInbox(memoryview(bytearray(ARENA))), Taker(), b"".join(frames), 0
    while data:
        size = cuts[turn % len(cuts)]
        taker.paused = turn in pauses
        feed(inbox, taker, data[:size])
        data, turn = data[size:], turn + 1
    taker.paused = False
    waiting = inbox.pending()
    if waiting:
        inbox.keep(waiting, taker.receive(waiting))
    assert taker.frames == frames and inbox.held_bytes == 0


def test_a_message_is_as_long_as_the_measure_of_who_speaks_no_frames_says() -> None:
    inbox, seen = ConnectionInbox(memoryview(bytearray(ARENA))), []
    inbox.measure = lambda data: 3 * ARENA if len(data) > 4 else len(data) + 1
    for data in (b"large" + b"x" * (ARENA - 5), b"y" * ARENA, b"z" * ARENA):
        inbox.room()[: len(data)] = data[: len(inbox.room())]
        received = inbox.received(len(data))
        seen.append(len(received))
        if received:
            inbox.keep(received, 0)
    assert seen == [ARENA, 0, 3 * ARENA], "text of any kind may stand where a frame has its length"


def test_a_claim_of_30_mib_costs_what_has_arrived() -> None:
    inbox, taker = ConnectionInbox(memoryview(bytearray(ARENA))), Taker()
    header = bytearray(Frame(0x80, 1).encode())
    header[8:12] = BODY_BYTES_MAX.to_bytes(4, "big")
    feed(inbox, taker, bytes(header) + b"x" * (ARENA - 30))
    assert inbox.held_bytes == ARENA - 6
    feed(inbox, taker, b"y" * 10)
    assert len(inbox._held) < 4 * 64 * 1024


def test_a_claim_beyond_the_limit_is_refused_before_it_is_buffered() -> None:
    inbox, taker = ConnectionInbox(memoryview(bytearray(ARENA))), Taker()
    header = bytearray(Frame(0x80, 1).encode())
    header[8:12] = (BODY_BYTES_MAX + 1).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError, match="31457281"):
        feed(inbox, taker, bytes(header) + b"x" * ARENA)


def test_a_frame_larger_than_the_arena_is_handed_over_once_it_is_whole() -> None:
    inbox, taker = ConnectionInbox(memoryview(bytearray(ARENA))), Taker()
    frame = Frame(0x80, 1, value=b"v" * 100_000).encode()
    feed(inbox, taker, frame[:-1])
    assert taker.frames == []
    feed(inbox, taker, frame[-1:])
    assert taker.frames == [frame] and inbox.held_bytes == 0


def test_a_frame_counts_once_it_is_whole() -> None:
    data = memoryview(b"xyz" + Frame(0x80, 0x00, b"key").encode())
    assert [whole_frame(data[:end], 3) for end in (3, 26, 29, 30)] == [0, 0, 0, 27]
    assert [next_frame(data[:end], 3) for end in (3, 26, 29, 30)] == [None, None, None, Frame(0x80, 0x00, b"key")]


def test_bytes_that_are_no_frame_are_an_error_at_once() -> None:
    with pytest.raises(BadFrame):
        whole_frame(memoryview(bytes(24)), 0)
    with pytest.raises(BadFrame):
        next_frame(memoryview(bytes(24)), 0)


FILLED = """
from pathlib import Path

from headwater.node.connections.inbox import ConnectionInbox
from headwater.wire.header import Frame

def resident():
    pages, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(pages) - int(shared)) * 4096

inbox = ConnectionInbox(memoryview(bytearray(4096)))
frame = memoryview(Frame(0x80, 1, b"k", bytes(8), bytes(16 << 20)).encode())
before, at = resident(), 0
while at < len(frame) - 1:
    room = inbox.room()
    piece = frame[at : min(at + len(room), len(frame) - 1)]
    room[: len(piece)] = piece
    data = inbox.received(len(piece))
    at += len(piece)
    inbox.keep(data, 0)
    del room, data
filled = resident()
print(inbox.memory_bytes, filled - before)
inbox.clear()
print(resident() - before)
"""


def test_the_buffer_of_a_large_frame_is_memory_of_our_own_and_goes_back() -> None:
    """Shared memory would be left out where resident memory is counted without files.

    It is measured in a process of its own: other tests leave threads and garbage that take and give memory meanwhile.
    """
    done = subprocess.run([sys.executable, "-c", FILLED], capture_output=True, text=True, timeout=240, check=True)
    held, taken, left = map(int, done.stdout.split())
    assert held >= 16 << 20
    assert taken > 15 << 20
    assert left < 4 << 20
