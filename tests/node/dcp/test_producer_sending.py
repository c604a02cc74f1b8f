"""The output of a DCP connection: streams in turns, as far as the window allows, in the encoding that was agreed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from headwater.node.streams.outlet import OUTLET_BYTES
from headwater.wire import dcp, snappy
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.streams.support import Producer, StreamDesk, fill, told

CALLS_PER_ARENA_MAX = 55
CALLS_PER_STREAM_MAX = 88  # three of them: what the vbucket knows of collections


def vbuckets_of(frames: list[Frame]) -> list[int]:
    return [frame.vbucket for frame in frames]


# --------------------------------------------------------------------------- turns


def test_one_turn_sends_an_arena_at_most_and_the_next_goes_on(desk: StreamDesk) -> None:
    fill(desk, 0, 600, b"x" * 1000)
    reader = Producer(desk)
    reader.stream()
    first = reader.turn()
    assert len(first) > 200
    assert sum(map(len, first)) <= OUTLET_BYTES
    assert not reader.connection.woken  # who pumped goes on as long as something is sent
    assert len(first) + len(reader.read()) == 601


def calls(work: Callable[[], object]) -> int:
    """Count the functions written in Python that a piece of work enters: its cost, on whatever machine."""
    entered = 0

    def look(_frame: object, event: str, _: object) -> None:
        nonlocal entered
        entered += event == "call"

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(before)
    return entered


def test_an_arena_of_changes_costs_a_few_calls_however_many_they_are(desk: StreamDesk) -> None:
    fill(desk, 0, 5000, b"x" * 300)
    reader = Producer(desk)
    reader.stream()
    reader.turn()  # the marker as well; and what is done once in a process is done
    entered = [calls(reader.session.pump) for _ in range(3)]
    assert len(reader.buffer.receive_data(reader.bytes_sent())) > 3 * 600
    assert min(entered) <= CALLS_PER_ARENA_MAX  # the least: a collection of garbage may come in between


def test_opening_a_stream_and_sending_the_little_there_is_costs_a_bounded_number_of_calls(tmp_path: Path) -> None:
    desk = StreamDesk(tmp_path / "store", vbuckets=128)
    for vb in range(128):
        fill(desk, vb, 1)
    request = dcp.StreamRequest(
        vbucket=0, opaque=7, start_seqno=0, end_seqno=1, vb_uuid=0, snap_start_seqno=0, snap_end_seqno=0
    )
    data = b"".join(replace(request, vbucket=vb).encode() for vb in range(128))
    entered = []
    for name in ("warms up", "second", "third"):  # kernels are looked up when they are called for the first time
        reader = Producer(desk, name)
        entered.append(calls(partial(reader.give, data)) + calls(reader.session.pump))
        frames = reader.buffer.receive_data(reader.bytes_sent())
        assert [frame.opcode for frame in frames].count(Opcode.DCP_STREAM_END) == 128
    assert min(entered) <= 128 * CALLS_PER_STREAM_MAX
    desk.close()


def test_streams_take_turns(desk: StreamDesk) -> None:
    for vb in (0, 1):
        fill(desk, vb, 400, b"x" * 1000)
    reader = Producer(desk)
    reader.stream(0, 7)
    reader.stream(1, 8)
    seen = [set(vbuckets_of(reader.turn())) for _ in range(3)]
    assert seen == [{0}, {1}, {0, 1}]
    frames = reader.read()
    assert {told([frame])[0][0] for frame in frames} == {"mutation"}


def test_a_stream_with_little_to_say_does_not_wait_for_one_with_much(desk: StreamDesk) -> None:
    fill(desk, 0, 2000, b"x" * 1000)
    reader = Producer(desk)
    reader.stream(0, 7)
    reader.turn()
    fill(desk, 1, 1)
    reader.stream(1, 8)
    assert 1 in vbuckets_of([*reader.turn(), *reader.turn()])


def test_a_value_larger_than_the_arena_goes_out_whole(desk: StreamDesk) -> None:
    fill(desk, 0, 3, b"x" * (2 << 20))
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1024")
    reader.stream(end_seqno=3)
    sizes = []
    while frames := reader.read():
        sizes.append([len(frame.value) for frame in frames if frame.opcode == Opcode.DCP_MUTATION])
        reader.ack(sum(map(len, frames)))
    assert [size for size in sizes if size] == [[2 << 20]] * 3


# --------------------------------------------------------------------------- flow control


def test_a_window_of_100_bytes_lets_the_marker_and_one_mutation_through(desk: StreamDesk) -> None:
    fill(desk, 0, 10)
    reader = Producer(desk)
    reader.control("connection_buffer_size", "100")
    reader.stream()
    assert [kind for kind, *_ in told(reader.read())] == ["marker", "mutation"]
    reader.ack(44)
    assert [kind for kind, *_ in told(reader.read())] == ["mutation"]


def test_commands_are_answered_while_the_window_is_full(desk: StreamDesk) -> None:
    fill(desk, 0, 5)
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1")
    reader.stream()
    assert len(reader.read()) == 1
    assert reader.one(Opcode.DCP_GET_FAILOVER_LOG).status == Status.SUCCESS
    assert reader.control("enable_noop", "true") == Status.SUCCESS
    reader.stream(1, 8)
    assert reader.close_stream().status == Status.SUCCESS
    assert reader.read() == []


def test_the_space_that_is_freed_goes_to_the_next_stream(desk: StreamDesk) -> None:
    fill(desk, 0, 5)
    fill(desk, 1, 5)
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1")
    reader.stream(0, 7)
    reader.stream(1, 8)
    seen = []
    for _ in range(6):
        (frame,) = reader.read()
        seen.append(frame.vbucket)
        reader.ack(len(frame))
    assert seen == [0, 1, 0, 1, 0, 1]


def test_the_ledger_counts_what_is_on_the_wire(desk: StreamDesk) -> None:
    fill(desk, 0, 50)
    desk.delete(0, "k3")
    desk.commit()
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1000000")
    reader.stream(end_seqno=51)
    frames = reader.read()
    assert reader.session.producer.flow.outstanding_bytes == sum(map(len, frames))


# --------------------------------------------------------------------------- forms


def test_a_connection_without_values(desk: StreamDesk) -> None:
    fill(desk, 0, 3, b"x" * 1000)
    reader = Producer(desk, flags=0x09)
    reader.stream()
    changes = reader.read()[1:]
    assert [(frame.value, frame.datatype) for frame in changes] == [(b"", 0)] * 3


def test_compressed_values_are_inflated_for_who_did_not_ask_for_snappy(desk: StreamDesk) -> None:
    desk.set(0, "a", snappy.compress(b"hello" * 50), datatype=2)
    desk.set(0, "b", b"world" * 50)
    desk.commit()
    plain, compressed, forced = (
        Producer(desk, "plain"),
        Producer(desk, "snappy", features=(0x07, 0x0A)),
        Producer(desk, "forced", features=(0x07, 0x0A)),
    )
    assert plain.control("force_value_compression", "true") == Status.EINVAL
    assert forced.control("force_value_compression", "true") == Status.SUCCESS
    seen = []
    for reader in (plain, compressed, forced):
        reader.stream()
        seen.append([(len(frame.value), frame.datatype) for frame in reader.read()[1:]])
    small = len(snappy.compress(b"hello" * 50))
    assert seen == [[(250, 0), (250, 0)], [(small, 2), (250, 0)], [(small, 2), (small, 2)]]
