"""A producer that does anything: gaps, repeats, wrong opaques, seqnos outside the marker, other opcodes.

The model knows what a replica must hold and answer (dcp 9): exactly the specified error or disconnect, data untouched.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.errors import RemoteProtocolError
from headwater.node.dcp.consumer import ConsumerSession
from headwater.wire import dcp
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import StreamDesk, Wire
from tests.node.support import Talk, discard

VB = 1
LOG = ((0xABC, 0),)
SEQNOS = st.integers(-2, 6)


class Passive(Talk):
    """A mover and producer in one."""

    def __init__(self, desk: StreamDesk, name: bytes = b"mover") -> None:
        super().__init__(desk)
        self.connection: Wire = Wire()
        self.speak_over(self.connection)
        self.connection.rearm = lambda: None  # type: ignore[attr-defined]
        self.hello(0x07, 0x08)
        assert self.one(Opcode.DCP_OPEN, key=name, extras=bytes(8)).status == 0

    def give(self, data: bytes) -> int:
        return self.connection.session.receive(memoryview(bytearray(data)))

    def say(self, frame: Frame) -> list[Frame]:
        """Return the frames that one message brings, acknowledgements of bytes left out."""
        self.give(frame.encode())
        answers = FrameBuffer().receive_data(self.bytes_sent())
        return [answer for answer in answers if answer.opcode != Opcode.DCP_BUFFER_ACKNOWLEDGEMENT]

    def add_stream(self) -> dcp.StreamRequest:
        """ADD_STREAM, and what its producer is asked."""
        answers = self.say(dcp.AddStream(vbucket=VB, opaque=5, flags=0).frame())
        while answers[0].opcode == Opcode.DCP_CONTROL:
            answers = self.say(Frame(Magic.CLIENT_RESPONSE, Opcode.DCP_CONTROL, opaque=answers[0].opaque))
        return dcp.StreamRequest.decode(answers[0])

    def accept(self, asked: dcp.StreamRequest, log: tuple[tuple[int, int], ...] = LOG) -> list[Frame]:
        """Return the frames that the producer's yes brings."""
        value = b"".join(struct.pack(">QQ", *entry) for entry in log)
        return self.say(Frame(Magic.CLIENT_RESPONSE, Opcode.DCP_STREAM_REQ, value=value, opaque=asked.opaque))

    def add(self, log: tuple[tuple[int, int], ...] = LOG) -> tuple[int, dcp.StreamRequest]:
        """ADD_STREAM to the end: (opaque, the stream request)."""
        asked = self.add_stream()
        (added,) = self.accept(asked, log)
        assert (added.opcode, added.status) == (Opcode.DCP_ADD_STREAM, Status.SUCCESS)
        return asked.opaque, asked


class Following(RuleBasedStateMachine):
    """One replica and its producer."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.desk = StreamDesk(self.folder / "store")
        self.desk.bucket.vbuckets[VB].set_state(State.REPLICA)
        self.desk.commit()
        self.taken: list[tuple[int, bytes, bytes]] = []
        self.last, self.start, self.end = 0, 0, 0
        self.announced = False

    def teardown(self) -> None:
        self.desk.close()
        discard(self.desk.store.path)
        shutil.rmtree(self.folder)

    @property
    def held(self) -> dict[bytes, tuple[int, bytes]]:
        return {key: (seqno, value) for seqno, key, value in self.taken}

    def give_up(self, seqno: int) -> None:
        """Behind a refused change that has no number nothing can stay: all of it comes again (decision 0106)."""
        self.taken = [change for change in self.taken if change[0] <= seqno]
        self.last = self.start = self.end = seqno

    @initialize()
    def begin(self) -> None:
        vbucket = self.desk.bucket.vbuckets[VB]
        whole_seqno = vbucket.gap.whole_seqno if vbucket.needs_all_anew else None
        self.talk = Passive(self.desk)
        self.opaque, asked = self.talk.add()
        if whole_seqno is not None:
            assert asked.start_seqno <= whole_seqno
            self.give_up(asked.start_seqno)
        self.announced = False
        inside = self.start < self.last < self.end
        expected = (self.last, self.start, self.end) if inside else (self.last, self.last, self.last)
        assert (asked.start_seqno, asked.snap_start_seqno, asked.snap_end_seqno) == expected
        assert asked.vb_uuid == (LOG[0][0] if self.last else 0)

    def expect(self, frame: Frame, status: Status | None) -> None:
        """The one answer to a message, or silence."""
        assert [(each.opcode, each.status) for each in self.talk.say(frame)] == (
            [] if status is None else [(frame.opcode, status)]
        )

    @rule(first=SEQNOS, length=SEQNOS)
    def announce(self, first: int, length: int) -> None:
        start, end = max(0, self.last + first), max(0, self.last + first + length)
        frame = dcp.SnapshotMarker(vbucket=VB, opaque=self.opaque, start_seqno=start, end_seqno=end, flags=1).frame()
        if start > end:
            self.expect(frame, Status.EINVAL)
        elif start < self.last and end <= self.last:
            self.expect(frame, Status.ERANGE)
        else:
            self.expect(frame, None)
            incomplete = self.last < self.end
            self.start, self.end = min(self.start, start) if incomplete else start, end
            self.marker, self.announced = (start, end), True

    @rule(
        ahead=SEQNOS, key=st.sampled_from([b"a", b"b", b"c"]), opaque=st.sampled_from([0, 0, 0, 1]), plain=st.booleans()
    )
    def change(self, ahead: int, key: bytes, opaque: int, plain: bool) -> None:
        seqno = max(0, self.last + ahead)
        frame = dcp.Mutation(
            vbucket=VB,
            opaque=self.opaque + opaque,
            cas=9 if plain else 0,  # without a CAS it is for Python
            key=key,
            by_seqno=seqno,
            rev_seqno=1,
            value=b"%d" % seqno,
        ).frame()
        if opaque:
            self.expect(frame, Status.OPAQUE_NO_MATCH)
        elif seqno == 0:
            self.expect(frame, Status.EINVAL)
        elif not self.announced or seqno <= self.last or not self.marker[0] <= seqno <= self.marker[1]:
            self.expect(frame, Status.ERANGE)
        else:
            self.expect(frame, None)
            self.last = seqno
            self.taken.append((seqno, key, frame.value))

    @rule(vbucket=st.sampled_from([0, 2, 9]))
    def change_of_no_stream(self, vbucket: int) -> None:
        frame = dcp.Mutation(vbucket=vbucket, opaque=self.opaque, cas=1, key=b"x", by_seqno=1, rev_seqno=1).frame()
        self.expect(frame, Status.DCP_STREAM_NOT_FOUND)

    @rule(opcode=st.sampled_from([0x5F, 0x60, 0x62, 0x63, 0x65]))
    def something_not_agreed(self, opcode: int) -> None:
        self.expect(Frame(0x80, opcode, b"k", bytes(16), vbucket=VB, opaque=self.opaque), Status.NOT_SUPPORTED)

    @rule(opcode=st.sampled_from([0x53, 0x54, 0x5D, 0x5E, 0x61]))
    def something_for_producers(self, opcode: int) -> None:
        try:
            self.talk.say(Frame(0x80, opcode, extras=bytes(4), vbucket=VB, opaque=self.opaque))
        except RemoteProtocolError as error:
            self.lose_the_connection(str(error))
        else:
            raise AssertionError("taken")

    @rule()
    def an_unknown_opcode(self) -> None:
        self.expect(Frame(0x80, 0xEE, vbucket=VB, opaque=3), Status.UNKNOWN_COMMAND)

    @rule(reason=st.just("cut"))
    def lose_the_connection(self, reason: str) -> None:
        self.talk.connection.drop(reason)
        self.begin()

    @rule(reason=st.integers(0, 8))
    def end_the_stream(self, reason: int) -> None:
        self.expect(dcp.StreamEnd(vbucket=VB, opaque=self.opaque, status=reason).frame(), None)
        self.talk.connection.drop("over")
        self.begin()

    @rule()
    def commit(self) -> None:
        self.desk.commit()

    @precondition(lambda self: self.last)
    @rule()
    def crash(self) -> None:
        """Crash: changes that are not durable are gone; the rest, and the replica's position, stay."""
        self.talk.connection.drop("crash")
        self.desk.commit()
        self.desk.store.close(clean=False)
        self.desk = StreamDesk(self.folder / "store")
        self.begin()

    @invariant()
    def the_replica_holds_what_was_taken(self) -> None:
        store = self.desk.store
        assert store.index.high_seqno(VB) == self.last
        for key in (b"a", b"b", b"c"):
            found = store.document(VB, key)
            assert (None if found is None else (found.seqno, found.value)) == self.held.get(key)
        assert not isinstance(self.talk.connection.session, ConsumerSession) or not self.talk.connection.is_closed


TestFollowing = Following.TestCase
