"""The session: any request gets an answer or a hang-up, never a surprise."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import CorruptStore, DiskFull, RemoteProtocolError, StorageError
from headwater.node.buckets.scans import RangeScans
from headwater.node.kv.command import COMMANDS
from headwater.node.storage.staging import ArenaFull
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.support import QUIET, Desk, Talk, desk

# What changes the connection itself, waits in the loop, or belongs to DCP is tried elsewhere.
ELSEWHERE = {Opcode.QUIT, Opcode.QUITQ, Opcode.STAT, Opcode.COMPACT_DB, Opcode.SEQNO_PERSISTENCE, Opcode.DCP_OPEN}
ELSEWHERE |= {Opcode.SASL_AUTH, Opcode.SASL_STEP, Opcode.SELECT_BUCKET, Opcode.HELLO, Opcode.TAP_CONNECT}
ELSEWHERE |= {Opcode.FLUSH, Opcode.FLUSHQ, Opcode.SET_PARAM}
ELSEWHERE |= {Opcode.DEREGISTER_TAP_CLIENT, Opcode.CHANGE_VB_FILTER}
ELSEWHERE |= {Opcode.RANGE_SCAN_CREATE, Opcode.RANGE_SCAN_CONTINUE, Opcode.CREATE_BUCKET, Opcode.DELETE_BUCKET}
KNOWN = sorted(set(map(int, COMMANDS)) - set(map(int, ELSEWHERE)))

numbers = st.sampled_from([0, 1, 2, 24, 0xFF, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
extras = st.sampled_from([0, 1, 4, 8, 12, 16, 20, 24, 28, 30, 31]).flatmap(
    lambda size: st.binary(min_size=size, max_size=size)
)
frames = st.builds(
    Frame,
    magic=st.just(0x80),
    opcode=st.sampled_from(KNOWN) | st.integers(0, 255).filter(lambda code: code not in ELSEWHERE),
    key=st.sampled_from([b"", b"k", b"number", b"c" * 250, b"\xff\0"]) | st.binary(max_size=252),
    extras=extras,
    value=st.sampled_from([b"", b"1", b"{}", b"\0\0\0\1k"]) | st.binary(max_size=40),
    datatype=st.sampled_from([0, 0, 0, 1, 2, 4, 7, 8, 255]),
    vbucket=st.sampled_from([0, 0, 0, 1, 3, 4, 65535]),
    opaque=numbers,
    cas=st.sampled_from([0, 0, 0, 1, 2**64 - 1]),
)

TAP_MESSAGES = range(Opcode.TAP_MUTATION, Opcode.TAP_CHECKPOINT_END + 1)


@given(st.lists(frames, max_size=15), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_every_request_is_answered_once_or_hung_up_on(asked: list[Frame], modern: bool, fast: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, desk(Path(folder) / "s", fast=fast) as counter:
        for number, frame in enumerate(asked):
            talk = counter.session()
            if modern:
                talk.hello(4, 6, 7, 0x0A, 0x0B, 0x14)
            try:
                answers = talk.ask(frame.opcode, **_sections(frame))
            except RemoteProtocolError:  # the connection would hang up: what TAP does about a message it can't refuse
                assert frame.opcode in TAP_MESSAGES
                continue
            if talk.connection.is_paused:  # a pending vbucket: nothing was consumed
                continue
            if talk.connection.is_closed:
                assert not modern and answers == []
            elif frame.opcode in QUIET or frame.opcode in TAP_MESSAGES:  # tap.md 4: answered when they ask for it
                assert len(answers) <= 1
            else:
                (answer,) = answers
                assert (answer.opcode, answer.opaque) == (frame.opcode, frame.opaque)
                _check_error(answer, modern)
            if number % 3 == 0:
                counter.committer.commit()


def _sections(frame: Frame) -> dict[str, object]:
    names = ("key", "extras", "value", "datatype", "vbucket", "opaque", "cas")
    return {name: getattr(frame, name) for name in names}


def _check_error(answer: Frame, modern: bool) -> None:
    """wire.md 1.3: a refusal has no extras and no key; its value is empty or a JSON object, marked as such if that was
    agreed on. One of a scope or collection has the manifest's uid in any case (kv.md 4)."""
    if answer.status == 0:
        return
    assert answer.extras == answer.key == b"" and answer.cas == 0
    if answer.value:
        content = json.loads(answer.value)
        assert "context" in content["error"] and answer.datatype == modern
        assert modern or "manifest_uid" in content


def test_a_response_is_listened_to_and_not_answered(talk: Talk) -> None:
    frame = Frame(0x83, 0x01, opaque=1).encode()
    assert talk.give(frame) == len(frame) and talk.bytes_sent() == b""


def test_garbage_is_told_to_the_connection(talk: Talk) -> None:
    with pytest.raises(RemoteProtocolError, match="magic"):
        talk.give(b"\x17" * 24)


def test_a_request_for_which_the_arena_has_no_room_runs_again_after_the_commit(talk: Talk, counter: Desk) -> None:
    counter.fast = False
    talk = counter.session()
    value = b"\xff" * (20 << 20)
    requests = [Frame(0x80, 1, b"%d" % number, bytes(8), value).encode() for number in range(3)]
    assert [talk.give(request) == len(request) for request in requests] == [True, True, False]
    assert talk.connection.paused == {"commit"}
    counter.committer.commit()
    assert not talk.connection.paused and talk.give(requests[2]) == len(requests[2])
    assert [frame.status for frame in FrameBuffer().receive_data(talk.bytes_sent())] == [0, 0, 0]


def test_the_kernel_waits_for_room_as_well(talk: Talk, counter: Desk) -> None:
    request = Frame(0x80, 0x11, b"k", bytes(8), b"\xff" * (5 << 20)).encode()
    taken = 0
    while talk.give(request):
        taken += 1
    assert taken >= 8 and talk.connection.paused == {"commit"} and counter.store.index.high_seqno(0) == taken
    counter.committer.commit()
    assert talk.give(request) == len(request)


@pytest.mark.parametrize("error", [ArenaFull(1), DiskFull("/store", 1)])
def test_a_store_without_room_is_waited_for_and_a_full_disk_is_told(
    plain: Talk, monkeypatch: pytest.MonkeyPatch, error: StorageError
) -> None:
    def full(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(type(plain.desk.store.staging), "mutation", full)
    request = Frame(0x80, 1, b"k", bytes(8)).encode()
    if isinstance(error, ArenaFull):
        assert plain.give(request) == 0 and plain.connection.paused == {"commit"}
    else:
        assert plain.one(1, key=b"k", extras=bytes(8)).status == 0x86


def test_a_handler_that_breaks_answers_einternal_and_the_connection_lives(tmp_path: Path) -> None:
    async def main(counter: Desk) -> None:
        counter.loop = asyncio.get_running_loop()

        class Compactor:
            async def purge(self, vb: int, **_: object) -> None:
                raise RuntimeError("broken")

        counter.compactor = Compactor()  # type: ignore[attr-defined]
        talk = counter.session()
        request = Frame(0x80, Opcode.COMPACT_DB, extras=bytes(24)).encode()
        assert talk.give(request) == len(request) and talk.connection.paused == {"parked"}
        while talk.connection.is_paused:
            await asyncio.sleep(0)
        (answer,) = FrameBuffer().receive_data(talk.bytes_sent())
        assert answer.status == 0x84
        assert talk.one(Opcode.NOOP).status == 0

    with desk(tmp_path / "s") as counter:
        asyncio.run(main(counter))


@pytest.mark.parametrize(
    ("error", "status"), [(CorruptStore("/store", 9, "a checksum is wrong"), 0x84), (DiskFull("/store", 1), 0x86)]
)
def test_what_is_wrong_with_the_disk_is_told_by_a_handler_that_waits_as_by_one_that_does_not(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: StorageError,
    status: int,
) -> None:
    def broken(*_: object) -> None:
        raise error

    async def main(counter: Desk) -> None:
        counter.loop = asyncio.get_running_loop()
        talk = counter.session()
        talk.hello(7, 0x0B)
        told = b'{"range": {"start": "AA==", "end": "/w=="}}'
        talk.give(Frame(0x80, Opcode.RANGE_SCAN_CREATE, value=told, datatype=1).encode())
        while talk.connection.is_paused:
            await asyncio.sleep(0)
        (answer,) = FrameBuffer().receive_data(talk.bytes_sent())
        assert answer.status == status

    monkeypatch.setattr(RangeScans, "create", broken)
    with desk(tmp_path / "s") as counter:
        asyncio.run(main(counter))
    assert "failed" not in caplog.text


def test_seqno_persistence_waits_for_the_commit(tmp_path: Path) -> None:
    async def main(counter: Desk) -> None:
        counter.loop = asyncio.get_running_loop()
        waiting = asyncio.Event()
        counter.committer.durable, counter.committer.open = 6, 8  # batch 7 is in flight; there may never be an 8th

        async def wait(gate: int) -> bool:
            assert gate == 7
            waiting.set()
            await asyncio.sleep(0)
            counter.committer.commit()
            return True

        counter.committer.wait = wait  # type: ignore[attr-defined]
        talk, writer = counter.session(), counter.session()
        writer.one(1, key=b"k", extras=bytes(8))
        talk.give(Frame(0x80, Opcode.SEQNO_PERSISTENCE, extras=(1).to_bytes(8, "big")).encode())
        await waiting.wait()
        assert talk.bytes_sent() == b""
        while talk.connection.is_paused:
            await asyncio.sleep(0)
        (answer,) = FrameBuffer().receive_data(talk.bytes_sent())
        assert answer.status == 0

    with desk(tmp_path / "s") as counter:
        asyncio.run(main(counter))


@pytest.mark.parametrize(
    ("opcode", "extras", "comes_to_its_end"),
    [(Opcode.COMPACT_DB, bytes(24), True), (Opcode.SEQNO_PERSISTENCE, (9).to_bytes(8), False)],
)
def test_what_changes_the_node_comes_to_its_end_though_its_client_is_gone_and_what_only_waits_does_not(
    tmp_path: Path, opcode: int, extras: bytes, comes_to_its_end: bool
) -> None:
    async def main(counter: Desk) -> None:
        counter.loop = asyncio.get_running_loop()
        begun, may, ended = asyncio.Event(), asyncio.Event(), list[str]()

        async def work(*_: object, **__: object) -> bool:
            begun.set()
            try:
                await may.wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            ended.append("done")
            return True

        counter.compactor = type("Compactor", (), {"purge": staticmethod(work)})()  # type: ignore[attr-defined]
        counter.committer.wait = work  # type: ignore[attr-defined]
        talk = counter.session()
        talk.give(Frame(0x80, opcode, extras=extras).encode())
        await begun.wait()
        talk.connection.is_closed = True
        talk.kv.closed()
        await asyncio.sleep(0)
        may.set()
        while not ended:
            await asyncio.sleep(0)
        assert ended == ["done" if comes_to_its_end else "cancelled"]

    with desk(tmp_path / "s") as counter:
        asyncio.run(main(counter))


LARGE = b"{" + b" " * (1 << 20) + b"}"
OF_A_LARGE_DOCUMENT = {
    "read": Frame(0x80, Opcode.GET, b"large"),
    "read with its key": Frame(0x80, Opcode.GETK, b"large"),
    "touched": Frame(0x80, Opcode.GAT, b"large", bytes(4)),
    "appended to": Frame(0x80, Opcode.APPEND, b"large", value=b" "),
    "looked into": Frame(0x80, Opcode.SUBDOC_GET, b"large", pack(">HB", 1, 0), b"a"),
}


@pytest.mark.parametrize("request_", OF_A_LARGE_DOCUMENT.values(), ids=OF_A_LARGE_DOCUMENT)
def test_a_request_for_a_large_document_lets_those_in_line_go_first_and_is_answered_then(
    talk: Talk, counter: Desk, request_: Frame
) -> None:
    talk.ask(Opcode.SET, key=b"large", extras=bytes(8), value=LARGE)
    counter.committer.commit()
    other = counter.session()
    other.hello(7)  # or it is hung up on for a path that is not there
    other.connection.is_crowded = True
    data = request_.encode()
    assert other.give(data) == 0 and other.bytes_sent() == b""
    assert other.connection.paused == {"turn"}
    other.connection.is_crowded = False  # it has stood behind them
    other.connection.resume("turn")
    assert other.give(data) == len(data)
    counter.committer.commit()
    (answer,) = FrameBuffer().receive_data(other.bytes_sent())
    assert answer.opcode == request_.opcode


def test_a_request_for_a_short_document_or_none_waits_for_nobody(talk: Talk) -> None:
    talk.connection.is_crowded = True
    assert talk.ask(Opcode.SET, key=b"short", extras=bytes(8), value=b"x" * 1000)[0].status == 0
    assert talk.ask(Opcode.GET, key=b"short")[0].value == b"x" * 1000
    assert talk.ask(Opcode.GET, key=b"none")[0].status == Status.KEY_ENOENT
