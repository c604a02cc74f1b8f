"""The consumer's end of a DCP connection, from the first stream request on: bytes in, rows and events out.

The kernels do the bulk: every change is checked against its stream and becomes a row of the arena (kernels/decode.py).
What remains comes here one frame at a time, with the row it came before: answers to stream requests, markers, ends,
no-ops. No socket, no thread, no clock; what must be sent is collected for `data_to_send`, time is an argument, and
`deadline` says when `tick` wants to be called.

A stream's life: ASKED until its request is answered, then OPEN until it ends. Whatever a stream came to is an event:

    Opened    accepted, with the failover log                 Refused   the request was answered with a status
    Ended     the producer's STREAM_END                       Diverged  ROLLBACK: the histories differ

The caller decides what to do about it. A broken rule is a RemoteProtocolError that names opcode and numbers.
Source: dcp.md 2, 6, 7 and 9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headwater.errors import PeerSilent, RemoteProtocolError
from headwater.kernels.columns import Arena, Decoded, Stop, StreamTable
from headwater.kernels.tracker import HELD_END, HELD_START, LAST
from headwater.protocol.events import Advanced, Diverged, Ended, Event, Marked, Opened, Refused
from headwater.protocol.position import ENDLESS, FailoverLog, Position, older_histories, place
from headwater.protocol.stream import (
    Phase,
    Stream,
    complaint,
    log_entries,
    may_be_log,
    named,
    read_failover_log,
    read_rollback,
    stream_request,
)
from headwater.protocol.window import ConsumerWindow
from headwater.wire import dcp
from headwater.wire.dialect import Dialect
from headwater.wire.header import HEADER, HEADER_BYTES, Frame, Magic, lengths
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

MARKER_BYTES = 20
"""Extras of a snapshot marker V1; its flags are at their end."""

_ACK = int(dcp.SnapshotFlag.ACK)

Head: TypeAlias = tuple[int, ...]
"""The nine numbers of a header."""


class Drain:
    """All streams of one connection.

    Args:
        arena: where rows go; may be shared with other connections of the same thread.
        peer: "host:port", for messages.
        window_bytes: the flow-control window that was agreed; 0 for none.
        silence_seconds: how long the producer may say nothing at all; None without no-ops.
        answer_seconds: how long a stream request may remain unanswered.
        now: the time.
        markers: whether snapshot markers are wanted as events.

    Attributes:
        events: (row, event) pairs in order: the event came before the row with that number. The caller clears it.
        full: the arena has no room for the next change; take the batch, then call `receive` with the rest.
        needed: bytes of the frame that is incomplete: the receive buffer must be able to hold them.
        heard_at: when the last bytes arrived.
    """

    def __init__(
        self,
        arena: Arena,
        peer: str,
        *,
        window_bytes: int,
        silence_seconds: float | None,
        answer_seconds: float,
        now: float,
        markers: bool = False,
    ) -> None:
        self.arena, self.peer = arena, peer
        self.table = StreamTable()
        self.window = ConsumerWindow(window_bytes)
        self.streams: dict[int, Stream] = {}
        self.events: list[tuple[int, Event]] = []
        self.full, self.needed, self.heard_at = False, HEADER_BYTES, now
        self._silence_seconds, self._answer_seconds = silence_seconds, answer_seconds
        self._markers = markers
        self._asked: dict[int, Stream] = {}  # by opaque, in the order of asking
        # The first of their opaques, their vbuckets, and where they stand; made when it is needed.
        self._awaited: tuple[int, NDArray[Any], NDArray[np.uint64]] | None = None
        self._acks: dict[int, tuple[int, int]] = {}  # vbucket: (end of snapshot, opaque) of markers to answer
        self._opaque = 0
        # A producer that took a control, for flow or for no-ops, is none of UPR's.
        took_control = window_bytes > 0 or silence_seconds is not None
        self._dialect = Dialect.DCP if took_control else Dialect.AUTO
        self._outgoing: list[bytes] = []

    # ------------------------------------------------------------------ what the caller asks for

    def request(self, position: Position, end_seqno: int, now: float) -> None:
        """Ask for the changes of a vbucket after `position`, up to the snapshot that holds `end_seqno`."""
        histories = older_histories(position)
        stream = Stream(position.vbucket, 0, position, end_seqno, histories, position.failover_log, now)
        self._ask(stream, position.vb_uuid, now)

    def _ask(self, stream: Stream, vb_uuid: int, now: float) -> None:
        self._opaque += 1
        stream.opaque, stream.asked_at, asked = self._opaque, now, stream.asked
        self.streams[stream.vbucket] = self._asked[stream.opaque] = stream
        self._awaited = None
        self.table.open(stream.vbucket, stream.opaque, asked.seqno, asked.snapshot_start, asked.snapshot_end)
        stream.dialect = Dialect.UPR if self._dialect is Dialect.UPR else Dialect.DCP
        self._outgoing.append(stream_request(stream, vb_uuid))

    def position(self, vbucket: int) -> Position:
        """Where a stream stands, rows in the arena included."""
        stream = self.streams[vbucket]
        if stream.phase is Phase.ASKED:
            return stream.asked
        last, held_start, held_end = self.table.held(vbucket)
        return place(vbucket, last, held_start, held_end, stream.failover_log)

    def processed(self, now: float) -> None:
        """The caller is done with all rows and events handed out so far."""
        self.window.process(now)
        self._acknowledge(now)

    # ------------------------------------------------------------------ the five methods (style.md 3)

    @property
    def deadline(self) -> float | None:
        """When to call `tick`; None for never."""
        asked = next(iter(self._asked.values()), None)
        moments = [
            self.window.deadline,
            None if self._silence_seconds is None else self.heard_at + self._silence_seconds,
            None if asked is None else asked.asked_at + self._answer_seconds,
        ]
        return min((moment for moment in moments if moment is not None), default=None)

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> int:
        """Process received bytes; returns how many were used, always whole frames. Offer the rest again later.

        Raises:
            RemoteProtocolError: the producer broke the rules. Rows not handed out yet should be dropped as well.
        """
        self.heard_at = now
        view, at, counted, self.full = memoryview(data), 0, 0, False
        while True:
            decoded = self.arena.decode(view[at:], self.table)
            counted += decoded.flow_bytes
            self._take_controls(view[at:], decoded, now)
            at += decoded.consumed
            if decoded.stop is Stop.FRAME_TOO_LARGE:
                self.arena.grow(decoded.needed)
            elif decoded.stop is not Stop.CONTROLS_FULL:
                break
        self.window.receive(counted)
        if decoded.stop.refused:
            raise RemoteProtocolError(complaint(view[at:], decoded.stop, self.table))
        self.full, self.needed = decoded.stop is Stop.FULL, decoded.needed
        if counted and self._asked:
            self._check_order()
        if self._acks:
            self._answer_markers()
        return at

    def tick(self, now: float) -> None:
        """Look at the clock.

        Raises:
            PeerSilent: nothing was heard for too long, or a stream request was not answered in time.
        """
        if self._silence_seconds is not None and now >= self.heard_at + self._silence_seconds:
            raise PeerSilent(self.peer, now - self.heard_at)
        oldest = next(iter(self._asked.values()), None)
        if oldest is not None and now >= oldest.asked_at + self._answer_seconds:
            raise PeerSilent(f"{self.peer}, stream request for vbucket {oldest.vbucket}", now - oldest.asked_at)
        self._acknowledge(now)

    @property
    def wants_to_send(self) -> bool:
        """Whether `data_to_send` has something."""
        return bool(self._outgoing)

    def data_to_send(self) -> bytes:
        """Return what must go out now, and forget it."""
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    # ------------------------------------------------------------------ control frames

    def _take_controls(self, view: memoryview, decoded: Decoded, now: float) -> None:
        for offset, row in decoded.controls.tolist():
            head = HEADER.unpack_from(view, offset)
            short = _SHORT.get(head[:2])
            if short is None or not short(self, head, view[offset + HEADER_BYTES :], row):
                self._take_control(view[offset:], row, now)

    def _take_control(self, view: memoryview, row: int, now: float) -> None:
        found = lengths(view)
        frame = Frame.cut(view[: found.frame], found)
        handler = _HANDLERS.get((frame.is_response, frame.opcode))
        if handler is None or frame.magic in (Magic.SERVER_REQUEST, Magic.SERVER_RESPONSE):
            raise RemoteProtocolError(
                f"{named(frame.opcode)}: a frame with magic 0x{frame.magic:02x} that we did not ask for"
            )
        handler(self, frame, row, now)

    # A stream begins with an answer and a marker and ends with an end, and a drain may have a thousand of them: these
    # three, as they nearly always are, are understood by their header. False: not so, and nothing has happened.

    def _accepted_shortly(self, head: Head, body: memoryview, row: int) -> bool:
        _, _, key, extras, _, status, size, opaque, _ = head
        if status or key or extras or not may_be_log(size) or opaque not in self._asked:
            return False
        self._accepted(self._answered(opaque), log_entries(body[:size]), row)
        return True

    def _marked_shortly(self, head: Head, body: memoryview, row: int) -> bool:
        """The kernel has followed the marker; what is left is to tell of it, or to answer it."""
        return not self._markers and head[3] == MARKER_BYTES and not body[MARKER_BYTES - 1] & _ACK

    def _ended_shortly(self, head: Head, body: memoryview, row: int) -> bool:
        _, _, key, extras, _, vbucket, size, opaque, _ = head
        if key or (extras, size) != (4, 4):
            return False
        self._ended(vbucket, opaque, int.from_bytes(body[:4]), row)
        return True

    def _answered(self, opaque: int) -> Stream:
        """The stream that was asked for with this opaque; KeyError if none is that waits for an answer."""
        stream = self._asked.pop(opaque)
        if self._awaited is not None:
            first, vbuckets, seqnos = self._awaited
            in_order = opaque == first  # as nearly always
            self._awaited = (first + 1, vbuckets[1:], seqnos[1:]) if in_order else None
        return stream

    def _accepted(self, stream: Stream, log: FailoverLog, row: int) -> None:
        stream.failover_log = log
        stream.phase = Phase.OPEN
        self._dialect = stream.dialect
        self.events.append((row, Opened(stream.vbucket)))

    def _stream_answer(self, frame: Frame, row: int, now: float) -> None:
        if frame.opaque not in self._asked:  # dcp.md 9: a response with an unknown opaque: disconnect
            raise RemoteProtocolError(
                f"{named(frame.opcode)}: an answer with opaque {frame.opaque}, which was not asked"
            )
        stream = self._answered(frame.opaque)
        if frame.status == Status.SUCCESS:
            self._accepted(stream, read_failover_log(frame), row)
            return
        self._expect_nothing_yet(stream)
        self.table.close(stream.vbucket)
        if frame.status == Status.EINVAL and self._dialect is not Dialect.DCP and stream.dialect is Dialect.DCP:
            self._ask_in_upr(stream, row, now)
            return
        # UPR producers say KEY_ENOENT for an unknown history: the same as a rollback to 0 (dcp.md 14, erratum U4).
        if frame.status in (Status.ROLLBACK, Status.KEY_ENOENT):
            self._rolled_back(stream, frame, row, now)
        else:
            stream.phase = Phase.ENDED
            self.events.append((row, Refused(stream.vbucket, frame.status, frame.value)))

    def _ask_in_upr(self, stream: Stream, row: int, now: float) -> None:
        """A producer that does not understand may be one of UPR; there one goes on from whole snapshots only (dcp.md
        14), so what is held of another has to be given up first."""
        self._dialect, asked = Dialect.UPR, stream.asked
        if asked.complete:
            self._ask(stream, asked.vb_uuid, now)
            return
        stream.phase = Phase.ENDED
        told = "UPR goes on from the end of a snapshot only"
        self.events.append((row, Diverged(stream.vbucket, asked.seqno, asked.snapshot_start, told)))

    def _rolled_back(self, stream: Stream, frame: Frame, row: int, now: float) -> None:
        """dcp.md 9: "if seqno is 0 and the consumer's newest entry's seqno equals the start it asked with: drop that
        entry, retry with the previous uuid". Otherwise the caller has to go back."""
        common, asked = read_rollback(frame), stream.asked
        if common > asked.seqno:
            raise RemoteProtocolError(
                f"{named(frame.opcode)}: vbucket {stream.vbucket}, asked from seqno {asked.seqno}, "
                f"is rolled back forward, to {common}"
            )
        if common == 0 and stream.histories:  # those of which that is so
            self._ask(stream, stream.histories.pop(0), now)
            return
        stream.phase = Phase.ENDED
        known = "the node does not know our history" if common == 0 else "another history begins after it"
        self.events.append((row, Diverged(stream.vbucket, asked.seqno, common, known)))

    def _marker(self, frame: Frame, row: int, now: float) -> None:
        if frame.extras:
            numbers = frame.extras[1:] + frame.value if len(frame.extras) == 1 else frame.extras
            start, end, flags = (int.from_bytes(numbers[a:b]) for a, b in ((0, 8), (8, 16), (16, 20)))
        else:  # the bare marker of UPR: a boundary without numbers
            start, end, flags = 0, ENDLESS, 0
        if flags & dcp.SnapshotFlag.ACK:
            self._acks[frame.vbucket] = (end, frame.opaque)
        if self._markers:
            self.events.append((row, Marked(frame.vbucket, start, end, flags)))

    def _end(self, frame: Frame, row: int, now: float) -> None:
        self._ended(frame.vbucket, frame.opaque, dcp.StreamEnd.decode(frame).status, row)

    def _ended(self, vbucket: int, opaque: int, reason: int, row: int) -> None:
        stream = self.streams.get(vbucket)
        # The end of a stream that is long gone is ignored (dcp.md 9).
        if stream is None or stream.opaque != opaque or stream.phase is not Phase.OPEN:
            return
        stream.phase = Phase.ENDED
        if stream.dialect is Dialect.UPR and reason == dcp.EndReason.OK:  # a boundary like a marker (dcp.md 14)
            self.table.rows[stream.vbucket, HELD_START : HELD_END + 1] = self.table.rows[stream.vbucket, LAST]
        self.events.append((row, Ended(stream.vbucket, reason)))

    def _advance(self, frame: Frame, row: int, now: float) -> None:
        self.events.append((row, Advanced(frame.vbucket, int.from_bytes(frame.extras[:8]))))

    def _noop(self, frame: Frame, row: int, now: float) -> None:
        self._outgoing.append(dcp.NoopResponse(opaque=frame.opaque).encode())

    def _state_changed(self, frame: Frame, row: int, now: float) -> None:
        # Only a takeover sends this, and we never ask for one; but it must always be answered (dcp.md 2.12).
        self._outgoing.append(dcp.SetVbucketStateResponse(opaque=frame.opaque).encode())

    def _ignore(self, frame: Frame, row: int, now: float) -> None:
        """Nothing to do: an answer that producers are not supposed to send, but some do (erratum P3)."""

    # ------------------------------------------------------------------ after a buffer

    def _check_order(self) -> None:
        if self._awaited is None:
            asked = self._asked.values()
            seqnos = np.array([stream.asked.seqno for stream in asked], np.uint64)
            self._awaited = next(iter(self._asked)), np.array([stream.vbucket for stream in asked]), seqnos
        _, vbuckets, seqnos = self._awaited
        if (self.table.rows[vbuckets, LAST] != seqnos).any():
            for stream in self._asked.values():
                self._expect_nothing_yet(stream)

    def _expect_nothing_yet(self, stream: Stream) -> None:
        if self.table.held(stream.vbucket)[0] != stream.asked.seqno:
            raise RemoteProtocolError(
                f"vbucket {stream.vbucket}: changes came before the stream request {stream.opaque} was accepted"
            )

    def _answer_markers(self) -> None:
        """A marker with flag ACK is answered once the last seqno of its range has been processed (dcp.md 2.7)."""
        for vbucket, (end, opaque) in list(self._acks.items()):
            if self.table.held(vbucket)[0] >= end:
                self._outgoing.append(dcp.SnapshotMarkerResponse(opaque=opaque).encode())
                del self._acks[vbucket]

    def _acknowledge(self, now: float) -> None:
        if due := self.window.due(now):
            self._outgoing.append(dcp.BufferAck(acked_bytes=due).encode())


_SHORT: dict[tuple[int, int], Callable[[Drain, Head, memoryview, int], bool]] = {  # by magic and opcode
    (Magic.CLIENT_RESPONSE, Opcode.DCP_STREAM_REQ): Drain._accepted_shortly,
    (Magic.CLIENT_REQUEST, Opcode.DCP_SNAPSHOT_MARKER): Drain._marked_shortly,
    (Magic.CLIENT_REQUEST, Opcode.DCP_STREAM_END): Drain._ended_shortly,
}

Handler = Callable[[Drain, Frame, int, float], None]

_HANDLERS: dict[tuple[bool, int], Handler] = {
    # (is it a response, opcode): what is not here was not negotiated. To skip it could mean to skip a change.
    (True, Opcode.DCP_STREAM_REQ): Drain._stream_answer,
    (True, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT): Drain._ignore,
    (False, Opcode.DCP_STREAM_END): Drain._end,
    (False, Opcode.DCP_SNAPSHOT_MARKER): Drain._marker,
    (False, Opcode.DCP_NOOP): Drain._noop,
    (False, Opcode.DCP_SET_VBUCKET_STATE): Drain._state_changed,
    (False, Opcode.DCP_SEQNO_ADVANCED): Drain._advance,
    (False, Opcode.DCP_SYSTEM_EVENT): Drain._advance,
}
