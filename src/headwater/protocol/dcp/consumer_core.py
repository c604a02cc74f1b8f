"""The core of every DCP consumer: requests streams, reads the answers, acknowledges, and answers the producer.

A client (`Drain`) and a node that follows (`Consumer`) differ in the target of the changes. The client's kernel writes
rows to an arena, before Python reads the other messages of the same buffer. The node's kernel writes to the store, and
Python receives all other messages one frame at a time. The rules from the request of a stream to its end are the same
for both:

    ask() -> STREAM_REQ -> answered() -> Opened | Refused
                                      -> RollbackNeeded | PositionNeeded, then ask() again
                                      -> None: a new request, with an older history, is sent already

If the producer answers the first stream request with EINVAL, the request is sent again in UPR, and the connection stays
in UPR (dcp 14). `out` collects the bytes to send. Source: dcp 2.4, 2.7, 6, 7, 9, 14.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headwater.errors import LocalProtocolError, RemoteProtocolError
from headwater.invariants import invariant
from headwater.kernels.tracker import LAST, StreamTable
from headwater.protocol.dcp.answers import label, read_failover_log, read_rollback
from headwater.protocol.dcp.consumer_stream import ConsumerStream, Step
from headwater.protocol.dcp.events import Opened, PositionNeeded, Refused, RollbackNeeded
from headwater.protocol.dcp.position import FailoverLog, Position, older_histories
from headwater.protocol.dcp.stream_asked import request_after
from headwater.protocol.dcp.window import ConsumerWindow
from headwater.wire import dcp
from headwater.wire.dialect import Dialect
from headwater.wire.header import Frame, plain_response, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

# By names of their own, as members are slow to look up and a drain may have a thousand streams.
_UPR: Final = Dialect.UPR
_DCP: Final = Dialect.DCP
_ASKED: Final = Step.ASKED
_ACCEPTED: Final = Step.ACCEPTED

OPAQUES: Final = range(1, 1 << 32)
"""The opaques of a connection whose only consumer chooses them."""
ROLLBACKS_MAX = 64
"""The most rollbacks for one stream; a producer that sends more is not going to accept."""


class ConsumerCore:
    """The streams of one connection, and the messages to send to its producer.

    Args:
        dialect: AUTO as long as a refusal may mean that the producer only has UPR.
        window: of flow control.
        runs_ahead: True if a kernel checks the changes of a buffer before Python reads the answers in it. Then a
            stream's row in the table is open from its request on, and every request has its own opaque, so that no
            message for an earlier request passes for one of a later request. If False, the row opens with the answer,
            and all requests of a stream have one opaque (dcp 9: "with the same opaque").
        with_ids: Collections were negotiated: keys begin with the id of their collection.
        opaques: the opaques of the requests; each is used once.
        unknown_is_rollback: True if KEY_ENOENT means a rollback to 0 in any dialect; False if in UPR only, where it is
            the answer to an unknown history (dcp 14, erratum U4).

    Attributes:
        streams: by vbucket. table: their rows, which kernels check changes against.
        awaiting: streams that wait for an answer, by opaque, oldest first; the value is None if the stream was closed
            meanwhile.
        past: opaques of streams that are over.
        out: bytes to send.
    """

    def __init__(
        self,
        dialect: Dialect,
        window: ConsumerWindow,
        *,
        runs_ahead: bool,
        unknown_is_rollback: bool,
        with_ids: bool = False,
        opaques: range = OPAQUES,
    ) -> None:
        self.dialect: Dialect = dialect
        self.window: Final = window
        self.streams: dict[int, ConsumerStream] = {}
        self.table: StreamTable = StreamTable(with_ids=with_ids)
        self.awaiting: dict[int, ConsumerStream | None] = {}
        self.past: set[int] = set()
        self.out: bytearray = bytearray()
        self._runs_ahead, self._unknown_is_rollback = runs_ahead, unknown_is_rollback
        self._opaques = opaques
        self._unused_opaques: Iterator[int] = iter(opaques)
        self._acks: dict[int, tuple[int, int]] = {}  # vbucket: (end of snapshot, opaque) of markers to answer

    # --- asking -----------------------------------------------------------------------------------------------------

    def next_opaque(self) -> int:
        """Return an opaque that was not used on this connection.

        Raises:
            LocalProtocolError: all opaques were used. With a repeated opaque, late messages for an older stream would
                count as messages of the new one.
        """
        opaque = next(self._unused_opaques, None)
        if opaque is None:
            many = f"{len(self._opaques):,}"
            raise LocalProtocolError(f"this connection has used all of its {many} opaques: open another one")
        return opaque

    def ask(self, stream: ConsumerStream, position: Position) -> RollbackNeeded | None:
        """Send the stream request for the changes after `position`.

        Returns RollbackNeeded, and sends nothing, if the dialect is UPR and `position` lies inside a snapshot: "A UPR
        consumer may resume only from the last completed boundary" (dcp 14).
        """
        if self.dialect is _UPR and not position.complete:
            return RollbackNeeded(stream, position.seqno, "UPR goes on from the end of a snapshot only")
        stream.step(_ASKED)
        # Only for the first position: after a rollback data was given up, and an older uuid would claim a branch that
        # no longer fits it.
        if not stream.rollbacks:
            stream.histories = older_histories(position)
        self._request(stream, position, position.vb_uuid)
        return None

    def _request(self, stream: ConsumerStream, position: Position, vb_uuid: int) -> None:
        opaque, seqno = stream.opaque, position.seqno
        if self._runs_ahead or not opaque:
            stream.opaque = opaque = self.next_opaque()
        stream.request_position = position
        stream.dialect = dialect = _UPR if self.dialect is _UPR else _DCP
        invariant(opaque not in self.awaiting, "a second request has opaque {}", opaque)
        self.awaiting[opaque] = stream
        # The kernel checks changes before the answer in front of them is read, so the row must be open when the first
        # change can arrive.
        if self._runs_ahead:
            self.table.open(stream.vbucket, opaque, seqno, position.snapshot_start, position.snapshot_end)
        # A start beyond the end is ERANGE before histories are compared (dcp 2.4, step 7).
        end_seqno = stream.end_seqno if stream.end_seqno > seqno else seqno
        self.out += request_after(position, end_seqno, vb_uuid, opaque, dialect, stream.flags, stream.value)

    # --- answers ----------------------------------------------------------------------------------------------------

    def answered(self, frame: Frame) -> Opened | Refused | RollbackNeeded | PositionNeeded | None:
        """Take the answer to a stream request; return its event, or None if the request was sent again or the stream
        was closed.

        Raises:
            RemoteProtocolError: no request has this opaque, or the answer rolls back to a seqno above the request's.
        """
        if frame.opaque not in self.awaiting:  # "response with unknown opaque: disconnect" (dcp 9)
            raise RemoteProtocolError(
                f"{label(frame.opcode)}: an answer with opaque {frame.opaque}, which was not asked"
            )
        stream = self.awaiting.pop(frame.opaque)
        # Closed here while the request was on its way: an acceptance must not bring the stream to life again.
        if stream is None:
            return None
        if frame.status == Status.SUCCESS:
            self.accept(stream, read_failover_log(frame))
            return Opened(stream, stream.failover_log)
        # Closed at once: changes behind a refusal belong to no stream.
        self.table.close(stream.vbucket)
        is_upr = stream.dialect is Dialect.UPR
        is_unknown = frame.status == Status.KEY_ENOENT and (is_upr or self._unknown_is_rollback)
        if frame.status == Status.ROLLBACK or is_unknown:
            return self._rolled_back(stream, frame)
        # "Tries 48 and on EINVAL retries 40" (dcp 14); once, for a producer that has shown to speak DCP means the
        # EINVAL.
        if frame.status == Status.EINVAL and self.dialect is not Dialect.DCP and not is_upr:
            self.dialect = Dialect.UPR
            stream.step(Step.ROLLED_BACK)
            return PositionNeeded(stream)
        stream.step(Step.REFUSED)
        return Refused(stream, frame.status, frame.value)

    def accept(self, stream: ConsumerStream, log: FailoverLog) -> None:
        """Open a stream whose accepted request was removed from `awaiting`; `log` is the failover log in the answer."""
        stream.step(_ACCEPTED)
        stream.failover_log = log
        self.dialect = stream.dialect
        if not self._runs_ahead:
            self.table.open(stream.vbucket, stream.opaque, stream.request_seqno)

    def _rolled_back(self, stream: ConsumerStream, frame: Frame) -> Refused | RollbackNeeded | None:
        """Retry a rollback to 0 with the previous uuid, as dcp 9 demands if the consumer's newest branch began at its
        own seqno.

        For any other rollback return the RollbackNeeded, or Refused after too many of them.

        Raises:
            RemoteProtocolError: the rollback leads to a seqno above the request's.
        """
        seqno, position = read_rollback(frame), stream.request_position
        # Obeyed, it would make a consumer pass over changes that it does not hold (failover 2, the historical bug).
        if position is None or seqno > position.seqno:
            raise RemoteProtocolError(
                f"{label(frame.opcode)}: vbucket {stream.vbucket}, asked from seqno {stream.request_seqno}, "
                f"is rolled back forward, to {seqno}"
            )
        if seqno == 0 and stream.histories:  # those of which that is so
            older, stream.histories = stream.histories[0], stream.histories[1:]
            self._request(stream, position, older)
            return None
        stream.rollbacks += 1
        # Two nodes that contradict each other would otherwise send a consumer back and forth for ever.
        if stream.rollbacks > ROLLBACKS_MAX:
            stream.step(Step.REFUSED)
            return Refused(stream, frame.status, b"it was sent back %d times" % stream.rollbacks)
        stream.step(Step.ROLLED_BACK)
        stream.histories = ()
        invariant(seqno <= position.seqno, "vbucket {}: back from {} to {}", stream.vbucket, position.seqno, seqno)
        reason = "another history begins after it" if seqno else "the node does not know our history"
        return RollbackNeeded(stream, seqno, reason)

    # --- what the producer is owed ----------------------------------------------------------------------------------

    @property
    def owes_markers(self) -> bool:
        """True if a marker waits for its answer."""
        return bool(self._acks)

    def marked(self, stream: ConsumerStream, end_seqno: int, *, wants_answer: bool) -> None:
        """Note that a snapshot begins; its wish for an answer replaces that of an earlier, unanswered marker."""
        self._acks.pop(stream.vbucket, None)
        if wants_answer:
            self._acks[stream.vbucket] = (end_seqno, stream.opaque)

    def answer_markers(self) -> bool:
        """Answer the markers with flag ACK whose last seqno was processed (dcp 2.7); return True if there were any."""
        finished = [vbucket for vbucket, (end, _) in self._acks.items() if self.last(vbucket) >= end]
        for vbucket in finished:
            self.out += plain_response(Opcode.DCP_SNAPSHOT_MARKER, self._acks.pop(vbucket)[1])
        return bool(finished)

    def last(self, vbucket: int) -> int:
        """Return the last seqno of a stream."""
        return int(self.table.rows[vbucket, LAST])

    def acknowledge(self, now: float, *, more_waits: bool = False) -> None:
        """Acknowledge processed bytes to the producer, if enough of them are owed (dcp 7)."""
        if bytes_due := self.window.due(now, more_waits=more_waits):
            self.out += dcp.BufferAck(acked_bytes=bytes_due).encode()

    def succeed(self, frame: Frame) -> None:
        """Answer a producer's request with success: a no-op or a state of a takeover (dcp 6, 2.12)."""
        self.out += response(frame).encode()

    def forget(self, stream: ConsumerStream) -> None:
        """Remove a stream that is over; messages with its opaque are ignored from now on."""
        self._acks.pop(stream.vbucket, None)
        self.table.close(stream.vbucket)
        # Remembered, since messages of the stream may still be on their way and must not be taken for those of the next
        # one.
        self.past.add(stream.opaque)
        # A newer stream of the vbucket may have taken the place already.
        if self.streams.get(stream.vbucket) is stream:
            del self.streams[stream.vbucket]

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and forget them."""
        data = bytes(self.out)
        self.out.clear()
        return data


def ends_whole(stream: ConsumerStream, reason: int) -> bool:
    """Return True if a stream end of UPR has reason OK: it completes the last snapshot, as a marker does (dcp 14)."""
    return stream.dialect is _UPR and reason == dcp.EndReason.OK
