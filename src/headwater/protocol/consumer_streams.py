"""The live streams of a consumer's connection, and what each message is held against before it is believed.

Beside every stream stands its row of the kernel's table: last seqno, announced snapshot. Both ways to the store judge
by it: the kernel, which takes what is plainly right, and `judged` here, which says what is wrong with the rest.
Source: dcp 9, the table of a consumer's checks.
"""

from __future__ import annotations

from headwater.errors import BadMessage
from headwater.kernels.tracker import LAST, StreamTable
from headwater.protocol.consumer_changes import CHANGES
from headwater.protocol.consumer_stream import ConsumerStream, PassiveState
from headwater.protocol.position import SEQNO_MAX
from headwater.wire.dialect import Dialect
from headwater.wire.header import Frame
from headwater.wire.status import Status


class LiveStreams:
    """Streams by vbucket.

    Attributes:
        by_vbucket: those that live. table: their rows.
        dialect: AUTO until the first stream is accepted. states_as_printed: UPR's numbers of states are its text's.
        speaks_v7: whether stream errors have codes of their own (control v7_dcp_status_codes).
    """

    def __init__(self, dialect: Dialect = Dialect.DCP, states_as_printed: bool = False) -> None:
        self.dialect = dialect
        self.states_as_printed = states_as_printed
        self.by_vbucket: dict[int, ConsumerStream] = {}
        self.table = StreamTable()
        self.speaks_v7 = False
        self._acks: dict[int, ConsumerStream] = {}  # by vbucket: markers to be answered

    @property
    def no_stream(self) -> Status:
        """What a message of no stream is answered with."""
        return Status.DCP_STREAM_NOT_FOUND if self.speaks_v7 else Status.KEY_ENOENT

    def open_for(self, frame: Frame) -> ConsumerStream:
        """The stream a message belongs to.

        "Unknown vb on the connection or no stream: KEY_ENOENT. Opaque differs: KEY_EEXISTS"; other codes once v7 was
        agreed. A stream that ended or was closed is none any more: its producer hears that, and stops.

        Raises:
            BadMessage: there is none, or the opaque is another's.
        """
        stream = self.by_vbucket.get(frame.vbucket)
        if stream is None or stream.state is not PassiveState.OPEN:
            raise refusal(frame, self.no_stream, "no stream")
        if stream.opaque != frame.opaque:
            status = Status.OPAQUE_NO_MATCH if self.speaks_v7 else Status.KEY_EEXISTS
            raise refusal(frame, status, f"opaque {frame.opaque}, the stream's is {stream.opaque}")
        if frame.opcode in CHANGES and not self.table.is_open(frame.vbucket):
            raise refusal(frame, self.no_stream, "the vbucket was taken over")
        return stream

    def judged(self, frame: Frame, seqno: int) -> int:
        """The seqno, if it may come next in its stream.

        "By_seqno 0: EINVAL. by_seqno <= last seqno: ERANGE. Outside the current snapshot, or no snapshot yet: ERANGE."

        Raises:
            BadMessage: it may not.
        """
        row = self.table.stream(frame.vbucket)
        if seqno == 0:
            raise refusal(frame, Status.EINVAL, "seqno 0")
        if seqno <= row.seqno or not self.table.takes(frame.vbucket, seqno):
            problem = f"seqno {seqno} after {row.seqno} in [{row.snapshot_start}, {row.snapshot_end}]"
            raise refusal(frame, Status.ERANGE, problem)
        return seqno

    def enter_snapshot(self, frame: Frame, start: int, end: int, *, ack: bool) -> ConsumerStream:
        """A marker: "start > end: EINVAL. start < last seqno and end <= last seqno: ERANGE".

        One that comes while the snapshot before is incomplete simply replaces it; so does its wish for an answer.
        """
        stream = self.open_for(frame)
        last = self.last(stream)
        if start > end:
            raise refusal(frame, Status.EINVAL, f"a snapshot from {start} to {end}")
        if start < last and end <= last:
            raise refusal(frame, Status.ERANGE, f"a snapshot from {start} to {end} after seqno {last}")
        self.table.enter(stream.vbucket, start, end)
        stream.ack_end_seqno = end if ack else None
        self._acks.pop(stream.vbucket, None)
        if ack:
            self._acks[stream.vbucket] = stream
        return stream

    def open_snapshot(self, stream: ConsumerStream) -> None:
        """UPR: a snapshot begins after the last seqno, its end is unknown."""
        self.table.enter(stream.vbucket, self.last(stream), SEQNO_MAX)

    def take_reached(self) -> list[ConsumerStream]:
        """The streams whose marker must be answered now: its last seqno was processed (dcp 2.7)."""
        if not self._acks:
            return []
        reached = [each for each in self._acks.values() if self.last(each) >= (each.ack_end_seqno or 0)]
        for stream in reached:
            del self._acks[stream.vbucket]
        return reached

    def last(self, stream: ConsumerStream) -> int:
        """The last seqno of a stream."""
        return int(self.table.rows[stream.vbucket, LAST])

    def forget(self, stream: ConsumerStream) -> None:
        """The stream is over."""
        self._acks.pop(stream.vbucket, None)
        self.table.close(stream.vbucket)
        if self.by_vbucket.get(stream.vbucket) is stream:
            del self.by_vbucket[stream.vbucket]


def refusal(frame: Frame, status: Status, problem: str) -> BadMessage:
    """The error that answers `frame` with a status."""
    return BadMessage(f"vbucket {frame.vbucket}", frame.opcode, problem, status)
