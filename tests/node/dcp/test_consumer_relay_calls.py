"""A mover's calls to another worker, which the test plays: it is full, asks for controls, and is late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from headwater.errors import LocalProtocolError
from headwater.node.dcp.consumer import ConsumerSession
from headwater.node.dcp.consumer_relay import OPAQUES_EACH
from headwater.node.kv.relay import refusal
from headwater.node.kv.session import KvSession
from headwater.wire import dcp
from headwater.wire.address import Address
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.kv.test_relay_calls import LARGE, Worker, turns
from tests.node.support import Desk, FakeConnection, discard

FAR = 9
"""A vbucket of the other worker, which is worker 1."""
THEIRS = 2 * OPAQUES_EACH + 5
"""An opaque that the other worker has chosen."""


class Mover:
    """A client of this worker, on whose connection the node consumes."""

    def __init__(self, here: Desk, paths: dict[Address, str]) -> None:
        self.connection = FakeConnection()
        self.connection.rearm = lambda: None  # type: ignore[attr-defined]
        self.connection.session = KvSession(self.connection, here, None, paths)  # type: ignore[arg-type]
        self.give(Frame(0x80, Opcode.DCP_OPEN, b"mover", extras=bytes(8)))
        (answer,) = self.heard()
        assert answer.status == 0

    def give(self, *frames: Frame) -> None:
        data = b"".join(frame.encode() for frame in frames)
        assert self.connection.session.receive(memoryview(bytearray(data))) == len(data)

    def heard(self) -> list[Frame]:
        data = b"".join(data for data, _ in self.connection.sent)
        self.connection.sent.clear()
        return FrameBuffer().receive_data(data)


Play = Callable[[Mover, Worker], Awaitable[None]]
ADD = dcp.AddStream(vbucket=FAR, opaque=3, flags=0).frame()
NOOP = Frame(0x80, Opcode.DCP_NOOP, opaque=4)


def played(play: Play, tmp_path: Path) -> None:
    """Run a play of one mover and one other worker."""

    async def run(folder: str) -> None:
        here, far, path = Desk(tmp_path / "s"), Address("far", 1), f"{folder}/worker-1"
        here.loop = asyncio.get_running_loop()
        here.cluster = SimpleNamespace(  # type: ignore[assignment]
            holders=lambda vbucket: (far,) if vbucket == FAR else (),
            owner=lambda vbucket: far if vbucket == FAR else None,
            version=(0, 0),
            map_in_refusals=False,
        )
        worker = Worker(path)
        mover = Mover(here, {far: path})
        try:
            await turns()
            await play(mover, worker)
        finally:
            mover.connection.session.closed()
            worker.die()
            here.close()
            discard(tmp_path / "s")

    with TemporaryDirectory(prefix="headwater-calls-") as folder:
        asyncio.run(run(folder))


def sends(worker: Worker, *frames: Frame) -> None:
    assert worker.call is not None
    worker.call.sendall(b"".join(frame.encode() for frame in frames))


def opcodes(frames: list[Frame]) -> list[tuple[int, int, int]]:
    return [(frame.opcode, frame.opaque, frame.status if frame.is_response else 0) for frame in frames]


def opened(worker: Worker) -> list[Frame]:
    """Answer OPEN; what came behind it."""
    first, *others = worker.hear()
    assert first.opcode == Opcode.DCP_OPEN and first.key == b"mover"
    sends(worker, response(first))
    return others


def test_a_worker_that_can_not_take_the_call_fails_what_was_asked_of_it_and_nothing_else(tmp_path: Path) -> None:
    async def play(mover: Mover, worker: Worker) -> None:
        close = dcp.CloseStream(vbucket=FAR, opaque=5).frame()
        mover.give(ADD, close, NOOP)
        assert mover.heard() == []
        worker.hear()
        assert worker.call is not None
        worker.call.sendall(refusal())
        await turns()
        assert sorted(opcodes(mover.heard())) == [
            (Opcode.DCP_ADD_STREAM, 3, Status.ETMPFAIL), (Opcode.DCP_CLOSE_STREAM, 5, Status.KEY_ENOENT),
            (Opcode.DCP_NOOP, 4, 0),
        ]  # fmt: skip
        assert not mover.connection.is_closed
        worker.call.close()
        worker.call = None
        mover.give(ADD)  # it is called again
        await turns()
        assert [each.opcode for each in opened(worker)] == [Opcode.DCP_ADD_STREAM]

    played(play, tmp_path)


def test_a_stream_that_would_get_an_opaque_of_the_next_worker_ends_the_connection(tmp_path: Path) -> None:
    """By its opaque a message finds its worker: with another worker's it would be an older stream's, or nobody's."""

    async def play(mover: Mover, worker: Worker) -> None:
        consumer = mover.connection.session
        assert isinstance(consumer, ConsumerSession)
        for vbucket in (1, 2):
            consumer._bucket.vbuckets[vbucket].set_state(State.REPLICA)
        core = consumer.consumer._core
        core._unused_opaques = iter(core._opaques[-2:])
        mover.give(dcp.AddStream(vbucket=1, opaque=6, flags=0).frame())
        assert [(each.opcode, each.opaque) for each in mover.heard()] == [(Opcode.DCP_CONTROL, OPAQUES_EACH - 1)]
        with pytest.raises(LocalProtocolError, match="all of its 4,194,303 opaques: open another one"):
            mover.give(dcp.AddStream(vbucket=2, opaque=7, flags=0).frame())

    played(play, tmp_path)


def test_a_worker_that_is_lost_costs_the_connection_once_something_was_there(tmp_path: Path) -> None:
    async def play(mover: Mover, worker: Worker) -> None:
        opened(worker)
        assert worker.call is not None
        worker.call.close()
        worker.call = None
        await turns()
        assert not mover.connection.is_closed
        mover.give(ADD)
        await turns()
        opened(worker)
        worker.call.close()
        await turns()
        assert mover.connection.is_closed

    played(play, tmp_path)


def test_controls_of_another_worker_are_answered_as_the_client_has_answered_this_ones(tmp_path: Path) -> None:
    async def play(mover: Mover, worker: Worker) -> None:
        mover.give(ADD)
        await turns()
        opened(worker)
        wanted = {b"connection_buffer_size": b"1", b"enable_noop": b"true", b"set_priority": b"high", b"other": b"x"}
        for at, (key, value) in enumerate(wanted.items()):
            sends(worker, Frame(0x80, Opcode.DCP_CONTROL, key, value=value, opaque=at))
        await turns()
        assert worker.hear() == [], "this worker's come first"
        seen = []
        while heard := mover.heard():
            (control,) = heard
            seen.append(control.key)
            status = Status.EINVAL if control.key == b"v7_dcp_status_codes" else Status.SUCCESS
            mover.give(response(control, status))
        assert len(seen) == len(set(seen)) > 9
        await turns()
        assert {each.opaque: each.status for each in worker.hear()} == {0: 0, 1: Status.EINVAL, 2: 0, 3: Status.EINVAL}
        sends(worker, Frame(0x80, Opcode.DCP_CONTROL, b"v7_dcp_status_codes", value=b"true"))
        await turns()
        assert [each.status for each in worker.hear()] == [Status.EINVAL]

    played(play, tmp_path)


def test_what_another_worker_asks_and_the_client_answers_passes_unchanged(tmp_path: Path) -> None:
    async def play(mover: Mover, worker: Worker) -> None:
        mover.give(ADD)
        await turns()
        opened(worker)
        asked = Frame(0x80, Opcode.DCP_STREAM_REQ, vbucket=FAR, opaque=THEIRS, extras=bytes(48))
        sends(worker, asked)
        await turns()
        assert mover.heard() == [asked]
        log = response(asked, value=bytes(16))
        change = dcp.Mutation(vbucket=FAR, opaque=THEIRS, key=b"k", value=b"v", by_seqno=1, rev_seqno=1).frame()
        mover.give(log, change, NOOP, NOOP)
        await turns()
        assert worker.hear() == [log, change, *[Frame(0x80, Opcode.DCP_NOOP)] * 2]
        assert mover.heard() == [], "a no-op waits for who has something to say before it"
        sends(worker, response(change, Status.ERANGE), response(NOOP))
        await turns()
        assert opcodes(mover.heard()) == [(Opcode.DCP_MUTATION, THEIRS, Status.ERANGE), (Opcode.DCP_NOOP, 4, 0)]

    played(play, tmp_path)


def test_the_end_of_the_clients_input_waits_for_what_other_workers_have_to_say(tmp_path: Path) -> None:
    async def play(mover: Mover, worker: Worker) -> None:
        mover.give(ADD)
        await turns()
        opened(worker)
        assert mover.connection.awaits_others()
        await turns()
        assert [each.opcode for each in worker.hear()] == [Opcode.DCP_NOOP]
        sends(worker, response(NOOP))
        assert not mover.connection.others_have_answered
        await turns()
        assert mover.connection.others_have_answered and not mover.connection.awaits_others()

    played(play, tmp_path)


def test_no_more_is_read_of_a_client_than_a_worker_reads(tmp_path: Path) -> None:
    async def play(mover: Mover, worker: Worker) -> None:
        mover.give(ADD)
        await turns()
        opened(worker)
        change = dcp.Mutation(vbucket=FAR, opaque=THEIRS, key=b"k", value=LARGE, by_seqno=1, rev_seqno=1).frame()
        mover.give(change, change)
        assert mover.connection.is_paused and mover.connection.session_bytes > len(LARGE)
        for _ in range(100):
            worker.hear()
            await asyncio.sleep(0.01)
        assert not mover.connection.is_paused
        sends(worker, dcp.BufferAck(acked_bytes=2 * len(change)).frame())
        await turns()
        assert mover.connection.session_bytes < len(LARGE)

    played(play, tmp_path)
