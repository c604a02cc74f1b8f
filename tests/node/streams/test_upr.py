"""The same vbucket read in both dialects: other layouts, the same changes from the same views."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headwater.node.streams.handover import ANSWER_SECONDS_MAX
from headwater.protocol.dcp.position import ENDLESS
from headwater.wire import snappy, upr, xattr
from headwater.wire.dcp import StreamFlag
from headwater.wire.dialect import Dialect, decode
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import Producer, StreamDesk
from tests.node.support import discard

KEYS = st.sampled_from("abcde")
WRITES = st.tuples(st.just("set"), KEYS, st.integers(0, 300), st.sampled_from([0, 1, 2, 3, 4]))
ENDS = st.tuples(st.sampled_from(["delete", "expire"]), KEYS, st.just(0), st.just(0))
PAUSES = st.tuples(st.sampled_from(["commit", "read"]), st.just(""), st.just(0), st.just(0))
CHANGES = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)


class UprReader(Producer):
    """A client that says nothing UPR does not know."""

    def __init__(self, desk: StreamDesk, name: str = "upr") -> None:
        super().__init__(desk, name, features=())

    def open(self, vbucket: int = 0, opaque: int = 7, flags: int = 0, end_seqno: int = ENDLESS) -> None:
        request = upr.StreamRequest(vbucket=vbucket, opaque=opaque, flags=flags, start_seqno=0, end_seqno=end_seqno)
        self.give(request.encode())
        (answer,) = self.buffer.receive_data(self.bytes_sent())
        assert answer.status == Status.SUCCESS, answer


def write(desk: StreamDesk, what: str, key: str, size: int, datatype: int) -> None:
    if what == "set":
        value = b"v" * size
        if datatype & 4:
            value = xattr.join({"_sys": b'"x"'}, value)
        if datatype & 2:
            value = snappy.compress(value)
        desk.set(0, key, value, datatype=datatype, flags=size, expiry=size)
    elif desk.store.document(0, key.encode()) is not None:
        desk.delete(0, key, expired=what == "expire")


def contents(frames: list[Frame]) -> list[object]:
    """Boundaries, and of each change what both dialects tell."""
    found: list[object] = []
    for frame in frames:
        if frame.opcode in CHANGES:
            flags = frame.extras[16:28] if frame.opcode == Opcode.DCP_MUTATION else b""
            found.append(
                (
                    frame.opcode,
                    frame.vbucket,
                    frame.key,
                    frame.extras[:16],
                    flags,
                    frame.value,
                    frame.datatype,
                    frame.cas,
                )
            )
        else:
            found.append((frame.opcode, frame.vbucket))
    return found


@given(steps=st.lists(st.one_of(WRITES, ENDS, PAUSES), max_size=25))
def test_both_dialects_carry_the_same_changes_in_the_same_snapshots(steps):
    folder = Path(tempfile.mkdtemp())
    desk = StreamDesk(folder / "store", vbuckets=1)
    try:
        old, new = UprReader(desk), Producer(desk, "dcp", flags=1 | 0x20, features=())
        new.control("enable_expiry_opcode", "true")
        old.open()
        new.stream()
        for what, key, size, datatype in [*steps, ("commit", "", 0, 0), ("read", "", 0, 0)]:
            if what == "commit":
                desk.commit()
            elif what == "read":
                ours, theirs = old.read(), new.read()
                assert contents(ours) == contents(theirs)
                assert all(decode(frame, Dialect.UPR).encode() == frame.encode() for frame in ours)
                assert {len(frame.extras) for frame in ours} <= {0, 18, 30}
            else:
                write(desk, what, key, size, datatype)
    finally:
        desk.close()
        discard(desk.store.path)
        shutil.rmtree(folder)


def test_sizes_for_flow_control_are_54_42_and_24(desk):
    reader = UprReader(desk)
    reader.open()
    desk.set(0, "k", b"v")
    desk.delete(0, "gone", expired=True)
    desk.commit()
    assert [len(frame) for frame in reader.read()] == [24, 54 + 2, 42 + 4]
    assert reader.session.producer.flow.sent_bytes == 24 + 56 + 46


def test_an_end_that_was_asked_for_comes_with_0(desk):
    desk.set(0, "k")
    desk.commit()
    reader = UprReader(desk)
    reader.open(end_seqno=1)
    assert [frame.opcode for frame in reader.read()] == [0x56, 0x57, 0x55]


def test_a_consumer_that_obeys_the_text_and_answers_no_state_is_not_waited_for(desk):
    """ "A UPR producer that gets no reply within its time-out proceeds" (dcp 14, erratum U10)."""
    desk.set(0, "k")
    desk.commit()
    reader = UprReader(desk)
    reader.open(flags=StreamFlag.TAKEOVER)
    states = []
    for _ in range(3):
        states += [frame.extras for frame in reader.read() if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE]
        desk.commit()
        desk.time.now += ANSWER_SECONDS_MAX
        reader.session.tick(desk.time.now)
        states += told_states(reader)
    assert states == [b"\3", b"\1"]
    assert desk.bucket.vbuckets[0].state is State.DEAD
    assert not reader.session.streams


def told_states(reader: UprReader) -> list[bytes]:
    frames = reader.buffer.receive_data(reader.bytes_sent())
    return [frame.extras for frame in frames if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE]
