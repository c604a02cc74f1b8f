"""The live streams of a consumer's connection, and the checks of each message against them.

Every stream has a row in the kernel's table: last seqno, announced snapshot. The kernel, which takes changes in order,
and `judged`, which finds the error status of all others, check against the same row. Source: dcp 9, the table of a
consumer's checks.
"""

from __future__ import annotations

from typing import Final

from headwater.errors import BadMessage
from headwater.protocol.dcp.consumer_core import ConsumerCore
from headwater.protocol.dcp.consumer_stream import ConsumerStream, Phase
from headwater.protocol.dcp.position import WIRE_SEQNO_MAX
from headwater.wire import numbers
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status


class LiveStreams:
    """The state against which messages are checked.

    Args:
        core: the streams. states_as_printed: True if states have the numbers of UPR's text (erratum U9).
            knows_collections: True if Collections were negotiated.

    Attributes:
        speaks_v7: True if stream errors have their own codes (control v7_dcp_status_codes).
        tells_deleted_rev: True if markers have the highest revision of tombstones (control headwater_deleted_rev).
        takes_durable_writes: True if prepares, commits and aborts may come (control enable_sync_writes).
    """

    def __init__(self, core: ConsumerCore, states_as_printed: bool = False, *, knows_collections: bool = False) -> None:
        self.knows_collections = knows_collections
        self.core: Final = core
        self.table: Final = core.table
        self.states_as_printed = states_as_printed
        self.speaks_v7 = self.tells_deleted_rev = self.takes_durable_writes = False

    @property
    def no_stream(self) -> Status:
        """The status of the answer to a message without a stream."""
        return Status.DCP_STREAM_NOT_FOUND if self.speaks_v7 else Status.KEY_ENOENT

    def open_for(self, frame: Frame) -> ConsumerStream:
        """Return the stream that a message belongs to.

        "Unknown vb on the connection or no stream: KEY_ENOENT. Opaque differs: KEY_EEXISTS"; other codes once v7 was
        agreed. A stream that ended or was closed does not count: its producer receives the error, and stops.

        Raises:
            BadMessage: there is no stream, or the opaque is another stream's.
        """
        stream = self.core.streams.get(frame.vbucket)
        if stream is None or stream.phase is not Phase.OPEN:
            raise refusal(frame, self.no_stream, "no stream")
        if stream.opaque != frame.opaque:
            status = Status.OPAQUE_NO_MATCH if self.speaks_v7 else Status.KEY_EEXISTS
            raise refusal(frame, status, f"opaque {frame.opaque}, the stream's is {stream.opaque}")
        # A state that was set may be said again. A marker would open the way for changes, over those of clients here.
        if frame.opcode != Opcode.DCP_SET_VBUCKET_STATE and not self.table.is_open(frame.vbucket):
            raise refusal(frame, self.no_stream, "the vbucket was taken over")
        return stream

    def judged(self, frame: Frame, seqno: int) -> int:
        """Return `seqno` if the stream may receive it next.

        "By_seqno 0: EINVAL. by_seqno <= last seqno: ERANGE. Outside the current snapshot, or no snapshot yet: ERANGE."

        Raises:
            BadMessage: the seqno is not valid next in the stream.
        """
        row = self.table.stream(frame.vbucket)
        if not 0 < seqno <= numbers.SEQNO_MAX:
            raise refusal(frame, Status.EINVAL, f"seqno {seqno}")
        if seqno <= row.seqno or not self.table.takes(frame.vbucket, seqno):
            problem = f"seqno {seqno} after {row.seqno} in [{row.snapshot_start}, {row.snapshot_end}]"
            raise refusal(frame, Status.ERANGE, problem)
        return seqno

    def enter_snapshot(self, frame: Frame, start: int, end: int, *, ack: bool) -> ConsumerStream:
        """Enter the snapshot of a marker; return its stream.

        A marker that arrives before the previous snapshot is complete replaces that snapshot and its wish for an
        answer.

        Raises:
            BadMessage: "start > end: EINVAL. start < last seqno and end <= last seqno: ERANGE", or as in `open_for`.
        """
        stream = self.open_for(frame)
        last = self.core.last(stream.vbucket)
        if start > end or end > numbers.SEQNO_MAX:
            raise refusal(frame, Status.EINVAL, f"a snapshot from {start} to {end}")
        # Both: a marker that begins below the last seqno and ends above it is legal, for it replaces an unfinished
        # snapshot (dcp 9).
        if start < last and end <= last:
            raise refusal(frame, Status.ERANGE, f"a snapshot from {start} to {end} after seqno {last}")
        self.table.enter(stream.vbucket, start, end)
        self.core.marked(stream, end, wants_answer=ack)
        return stream

    def open_snapshot(self, stream: ConsumerStream) -> None:
        """Begin a snapshot of UPR after the last seqno; its end is unknown."""
        self.table.enter(stream.vbucket, self.core.last(stream.vbucket), WIRE_SEQNO_MAX)


def refusal(frame: Frame, status: Status, problem: str) -> BadMessage:
    """Return the error that answers `frame` with a status."""
    return BadMessage(f"vbucket {frame.vbucket}", frame.opcode, problem, status)
