"""Any order of writes, commits, turns, acknowledgements, closes, restarts of streams and changes of state: what a
consumer sees is always a history that was.

Checked on every message: it belongs to a stream that is open, seqnos rise within their snapshot, a key comes once in a
snapshot, each (branch, seqno) has one content for ever, the view at the end of a snapshot is the truth of then, one
STREAM_END at most and nothing after it, and the ledger equals the bytes on the wire.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.wire import dcp
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import U64, Producer, StreamDesk
from tests.node.support import discard

VBUCKETS = 2
KEYS = st.sampled_from("abcde")
VBUCKET = st.integers(0, VBUCKETS - 1)
CHANGES = {Opcode.DCP_MUTATION, Opcode.DCP_DELETION}


@dataclass
class Held:
    """A consumer's copy of one vbucket, as it would save it."""

    vb_uuid: int = 0
    last: int = 0
    start: int = 0
    end: int = 0
    view: dict[str, int] = field(default_factory=dict)  # key -> seqno of the newest change, deletions as well
    seen: set[str] = field(default_factory=set)
    opaque: int | None = None
    until: int = U64


class Streaming(RuleBasedStateMachine):
    """One node, one connection at a time, a consumer that remembers across connections."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.desk = StreamDesk(self.folder / "store", vbuckets=VBUCKETS)
        self.truth: list[list[tuple[str, bytes | None]]] = [[] for _ in range(VBUCKETS)]
        self.held = [Held() for _ in range(VBUCKETS)]
        self.opaque = 0
        self.unacked = 0
        self.window = 0

    def teardown(self) -> None:
        self.desk.close()
        discard(self.desk.store.path)
        shutil.rmtree(self.folder)

    @initialize(window=st.sampled_from([0, 1, 150, 4000]))
    def connect(self, window: int) -> None:
        self.window, self.unacked = window, 0
        self.reader = Producer(self.desk)
        self.reader.control("connection_buffer_size", str(window))

    # --- the node ---------------------------------------------------------------------------------------------------

    @rule(vb=VBUCKET, key=KEYS, size=st.integers(0, 300))
    def write(self, vb: int, key: str, size: int) -> None:
        value = key.encode() * size
        seqno = self.desk.set(vb, key, value)
        self.truth[vb].append((key, value))
        assert seqno == len(self.truth[vb])

    @rule(vb=VBUCKET, key=KEYS)
    def delete(self, vb: int, key: str) -> None:
        self.desk.delete(vb, key)
        self.truth[vb].append((key, None))

    @rule()
    def commit(self) -> None:
        self.desk.commit()

    @rule(vb=VBUCKET, state=st.sampled_from([State.REPLICA, State.DEAD]))
    def leave_and_come_back(self, vb: int, state: State) -> None:
        vbucket = self.desk.bucket.vbuckets[vb]
        vbucket.set_state(state)
        vbucket.set_state(State.ACTIVE)
        self.desk.commit()
        if self.held[vb].opaque is not None:
            self.expect_end(vb, 2)

    # --- the consumer -----------------------------------------------------------------------------------------------

    @rule(vb=VBUCKET, more=st.one_of(st.none(), st.integers(0, 8)))
    def ask(self, vb: int, more: int | None) -> None:
        held = self.held[vb]
        if held.opaque is not None:
            assert self.reader.request(vb, 999).status == Status.KEY_EEXISTS
            return
        self.opaque += 1
        until = U64 if more is None else held.last + more
        answer = self.reader.request(
            vb,
            self.opaque,
            start_seqno=held.last,
            vb_uuid=held.vb_uuid,
            snap_start_seqno=held.start,
            snap_end_seqno=held.end,
            end_seqno=until,
        )
        assert answer.status == Status.SUCCESS, answer
        held.opaque, held.until = self.opaque, until
        held.vb_uuid = int.from_bytes(answer.value[:8])

    @rule(vb=VBUCKET)
    def close_a_stream(self, vb: int) -> None:
        open_stream = self.held[vb].opaque is not None
        assert self.reader.close_stream(vb).status == (Status.SUCCESS if open_stream else Status.KEY_ENOENT)
        self.held[vb].opaque = None

    @rule(window=st.sampled_from([0, 1, 150, 4000]))
    def lose_the_connection(self, window: int) -> None:
        self.reader.connection.drop("cut", fault=False)
        for held in self.held:
            held.opaque = None
        self.connect(window)

    @rule()
    def take_a_turn(self) -> None:
        for frame in self.reader.turn():
            self.receive(frame)

    @precondition(lambda self: self.unacked)
    @rule(share=st.floats(0, 1))
    def acknowledge(self, share: float) -> None:
        size = int(self.unacked * share)
        self.reader.ack(size)
        self.unacked -= size

    def acknowledge_all(self) -> None:
        self.reader.ack(self.unacked)
        self.unacked = 0

    @rule()
    def drain(self) -> None:
        """Everything that is durable arrives, however small the window."""
        self.desk.commit()
        self.acknowledge_all()
        while frames := self.reader.read():
            for frame in frames:
                self.receive(frame)
            self.acknowledge_all()
        for vb, held in enumerate(self.held):
            if held.opaque is not None:
                assert held.last == held.end == len(self.truth[vb]) <= held.until

    # --- judging ----------------------------------------------------------------------------------------------------

    def receive(self, frame: Frame) -> None:
        held = self.held[frame.vbucket]
        self.unacked += len(frame) if self.window else 0
        assert frame.opaque == held.opaque, "a message of no open stream"
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            self.receive_marker(held, dcp.SnapshotMarker.decode(frame))
        elif frame.opcode in CHANGES:
            self.receive_change(frame.vbucket, held, frame)
        else:
            assert dcp.StreamEnd.decode(frame).status == 0
            assert held.last == held.end
            assert held.last >= held.until
            held.opaque = None

    def receive_marker(self, held: Held, marker: dcp.SnapshotMarker) -> None:
        assert held.last < marker.end_seqno
        assert marker.start_seqno <= max(held.last + 1, held.start)
        held.start, held.end, held.seen = min(marker.start_seqno, held.last), marker.end_seqno, set()

    def receive_change(self, vb: int, held: Held, frame: Frame) -> None:
        key, seqno = frame.key.decode(), int.from_bytes(frame.extras[:8])
        assert held.last < seqno <= held.end
        assert key not in held.seen
        held.seen.add(key)
        expected_key, value = self.truth[vb][seqno - 1]
        assert key == expected_key
        assert (frame.opcode == Opcode.DCP_DELETION) == (value is None)
        assert frame.value == (value or b"")
        held.view[key], held.last = seqno, seqno
        if seqno == held.end:
            held.start = seqno
            newest = {key: at for at, (key, _) in enumerate(self.truth[vb][:seqno], start=1)}
            assert held.view == newest

    def expect_end(self, vb: int, reason: int) -> None:
        """The stream ends now, behind what the window still holds back of others."""
        held = self.held[vb]
        for _ in range(1000):
            frames = self.reader.turn()
            for frame in frames:
                if frame.opcode == Opcode.DCP_STREAM_END and frame.opaque == held.opaque:
                    assert dcp.StreamEnd.decode(frame).status == reason
                    self.unacked += len(frame) if self.window else 0
                    held.opaque = None
                else:
                    self.receive(frame)
            if held.opaque is None:
                return
            self.acknowledge_all()
        raise AssertionError("no STREAM_END")

    @invariant()
    def the_ledger_is_exact(self) -> None:
        if hasattr(self, "reader"):
            assert self.reader.session.producer.flow.outstanding_bytes == self.unacked


TestStreaming = Streaming.TestCase
TestStreaming.settings = settings(stateful_step_count=40, deadline=None)
