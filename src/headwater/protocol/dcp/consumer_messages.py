"""Handlers of a stream's messages at a consumer node; each checks a message against its stream (consumer_streams.py).

UPR's messages are included: its markers have no numbers, they are boundaries. Source: dcp 2.6 to 2.12, 9, 14.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.errors import BadMessage
from headwater.protocol.dcp.consumer_changes import check_change, check_durable, read_marker
from headwater.protocol.dcp.consumer_core import ends_whole
from headwater.protocol.dcp.consumer_stream import Phase, Step
from headwater.protocol.dcp.consumer_streams import LiveStreams, refusal
from headwater.protocol.dcp.events import (
    Advanced,
    Boundary,
    Changed,
    DurabilityChanged,
    Ended,
    Event,
    Flushed,
    ManifestChanged,
    Marked,
    StateWanted,
)
from headwater.protocol.dcp.upr import state_of
from headwater.wire import dcp, upr
from headwater.wire.dcp import SnapshotFlag
from headwater.wire.dialect import Dialect
from headwater.wire.header import Frame
from headwater.wire.numbers import HELD_MAX
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.system_events import event_of, read_message
from headwater.wire.vbucket import State


def _marker(live: LiveStreams, frame: Frame) -> list[Event]:
    if live.core.dialect is Dialect.UPR and not frame.extras:
        return _boundary(live, frame)
    start, end, flags, purge_seqno, prepared = read_marker(frame)
    if not live.tells_deleted_rev:  # no node of headwater: versions of collections without a history are left out
        flags &= ~SnapshotFlag.HISTORY
    stream = live.enter_snapshot(frame, start, end, ack=bool(flags & SnapshotFlag.ACK))
    # Of what lies above the end nothing is missing yet; a number without bounds would send readers back for ever.
    return [
        Marked(
            stream, start, end, flags, min(purge_seqno, end), min(prepared, HELD_MAX) if live.tells_deleted_rev else 0
        )
    ]


def _boundary(live: LiveStreams, frame: Frame) -> list[Event]:
    """Handle a bare marker: "closes the previous snapshot"; "the first marker of a stream closes nothing" (dcp 14)."""
    upr.SnapshotMarker.decode(frame)
    stream = live.open_for(frame)
    first, stream.marked = not stream.marked, True
    live.open_snapshot(stream)
    return [] if first else [Boundary(stream, goes_on=True)]


def _flush(live: LiveStreams, frame: Frame) -> list[Event]:
    """Handle FLUSH: served in UPR, retired in DCP (dcp 2.11). The seqnos of the stream continue to rise after it."""
    if live.core.dialect is not Dialect.UPR:
        return _not_negotiated(live, frame)
    upr.Flush.decode(frame)
    return [Flushed(live.open_for(frame))]


def _change(live: LiveStreams, frame: Frame) -> list[Event]:
    check_change(frame, collections=live.knows_collections)
    return [Changed(live.open_for(frame), frame, live.judged(frame, dcp.seqno_of(frame.extras)))]


def _advance(live: LiveStreams, frame: Frame) -> list[Event]:
    seqno = dcp.SeqnoAdvanced.decode(frame).seqno
    return [Advanced(live.open_for(frame), live.judged(frame, seqno))]


def _system_event(live: LiveStreams, frame: Frame) -> list[Event]:
    if not live.knows_collections:
        return _not_negotiated(live, frame)
    message = read_message(frame)
    stream = live.open_for(frame)
    # "Seqnos of system events count like documents" (dcp 2.16).
    live.judged(frame, message.by_seqno)
    event = event_of(message)
    # Another server's flag says which versions that server keeps. The copy keeps its own versions, by its own settings;
    # and the other's manifest, which is compared with the copy's, need not say anything of histories.
    if not live.tells_deleted_rev:
        event = event._replace(history=True)
    return [ManifestChanged(stream, message.by_seqno, event)]


def _prepare(live: LiveStreams, frame: Frame) -> list[Event]:
    if not live.takes_durable_writes:
        return _not_negotiated(live, frame)
    message = dcp.Prepare.decode(frame)
    # "CAS must be non-zero" (dcp 2.17); numbers beyond the limit would leave the vbucket without a next one.
    if not message.cas or message.cas > HELD_MAX or message.rev_seqno > HELD_MAX:
        raise BadMessage("Prepare", frame.opcode, f"a CAS of {message.cas}, revision {message.rev_seqno}")
    return _durability(live, frame, message, message.by_seqno)


def _commit(live: LiveStreams, frame: Frame) -> list[Event]:
    if not live.takes_durable_writes:
        return _not_negotiated(live, frame)
    message = dcp.Commit.decode(frame)
    return _durability(live, frame, message, message.commit_seqno)


def _abort(live: LiveStreams, frame: Frame) -> list[Event]:
    if not live.takes_durable_writes:
        return _not_negotiated(live, frame)
    message = dcp.Abort.decode(frame)
    return _durability(live, frame, message, message.abort_seqno)


def _durability(
    live: LiveStreams, frame: Frame, message: dcp.Prepare | dcp.Commit | dcp.Abort, seqno: int
) -> list[Event]:
    check_durable(frame, collections=live.knows_collections)
    return [DurabilityChanged(live.open_for(frame), message, frame, live.judged(frame, seqno))]


def _set_state(live: LiveStreams, frame: Frame) -> list[Event]:
    number, is_upr = dcp.SetVbucketState.decode(frame).state, live.core.dialect is Dialect.UPR
    state = state_of(number, as_printed=is_upr and live.states_as_printed)
    request = StateWanted(live.open_for(frame), state, frame)
    # In UPR a snapshot is complete at "next marker, STREAM_END, SET_VBUCKET_STATE" (dcp 14).
    return [Boundary(request.stream, goes_on=state is not State.ACTIVE), request] if is_upr else [request]


def _end(live: LiveStreams, frame: Frame) -> list[Event]:
    """Handle a stream end. It gets no answer, unless there is no stream; another opaque is ignored (dcp 9)."""
    reason = dcp.StreamEnd.decode(frame).status
    stream = live.core.streams.get(frame.vbucket)
    if stream is None or stream.phase is not Phase.OPEN:
        raise refusal(frame, live.no_stream, "no stream")
    # "Except STREAM_END, which is ignored with success" (dcp 9): it is the late end of an older stream.
    if stream.opaque != frame.opaque:
        return []
    stream.step(Step.ENDED)
    live.core.forget(stream)
    over = Ended(stream, reason)
    return [Boundary(stream, goes_on=False), over] if ends_whole(stream, reason) else [over]


def _not_negotiated(live: LiveStreams, frame: Frame) -> list[Event]:
    """Refuse a retired message (FLUSH) or one that was not negotiated; the error makes the producer disconnect."""
    # Without a stream the error is that there is none, which the producer tolerates; it must not lose its connection
    # for a late message.
    live.open_for(frame)
    raise refusal(frame, Status.NOT_SUPPORTED, "not negotiated")


STREAM_MESSAGES: dict[int, Callable[[LiveStreams, Frame], list[Event]]] = {
    Opcode.DCP_STREAM_END: _end,
    Opcode.DCP_SNAPSHOT_MARKER: _marker,
    Opcode.DCP_MUTATION: _change,
    Opcode.DCP_DELETION: _change,
    Opcode.DCP_EXPIRATION: _change,
    Opcode.DCP_FLUSH: _flush,
    Opcode.DCP_SET_VBUCKET_STATE: _set_state,
    Opcode.DCP_SEQNO_ADVANCED: _advance,
    Opcode.DCP_SYSTEM_EVENT: _system_event,
    Opcode.DCP_PREPARE: _prepare,
    Opcode.DCP_COMMIT: _commit,
    Opcode.DCP_ABORT: _abort,
    Opcode.DCP_BEFORE: _not_negotiated,
    Opcode.DCP_OSO_SNAPSHOT: _not_negotiated,
    Opcode.DCP_CACHE_TRANSFER: _not_negotiated,
    Opcode.DCP_CACHE_TRANSFER_END: _not_negotiated,
}
