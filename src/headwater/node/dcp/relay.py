"""Relay streams of other workers' vbuckets, on a client's DCP connection at the address that workers share.

    request about another worker's vbucket --unchanged--> that worker, over a unix socket: a DCP connection with the
                                                          same name, user, bucket, features, OPEN and CONTROLs
    its answers                            --at once----> the client
    messages of its streams                --in turns, as the client's window has room--> the client

This connection keeps the only account of the client's window; relayed messages count in it like this worker's own. For
each other worker this end is a consumer with another window, which bounds the relayed bytes that wait here. Answers of
workers never wait for streams that the client does not read. This worker answers the no-ops of other workers and of the
client; it disconnects a worker that sends no more no-ops.

The connections are opened together with the client's, because the client must get its name at all workers. If a worker
can't be reached, the next request tries again, and is refused as a temporary failure if that fails too. If a connection
to a worker is lost, its streams end as disconnected; all other streams continue.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.scan import scan
from headwater.node.dcp.calls import ENTRY_BYTES, DcpCall, DcpCalls
from headwater.node.kv.relay import ANSWERS, AWAY, introduction, others_of, path_of
from headwater.node.streams.snapshot import PREPARE_COUNTS_MORE
from headwater.protocol.dcp.noop import SILENCE_SECONDS_MIN
from headwater.protocol.dcp.upr import end_status
from headwater.wire import dcp
from headwater.wire.dcp import EndReason
from headwater.wire.framing import stream_id_framing
from headwater.wire.header import Frame, Magic, frame_bytes, response
from headwater.wire.json_text import read_json
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    import asyncio

    from headwater.node.kv.api import Session
    from headwater.protocol.dcp.producer import Producer

WINDOW_BYTES: Final = 1 << 20
"""The window of a connection to a worker: so many bytes of its streams, plus one message, may wait here."""
ACKNOWLEDGED_BYTES: Final = WINDOW_BYTES // 4
_OWN_CONTROLS: Final = frozenset({b"connection_buffer_size"})
"""The settings that concern the client and this worker only, and are not relayed."""
BUSY_SECONDS_MAX: Final = 10.0
"""A worker may be silent for so long, even if the client's interval of no-ops is shorter: it has other work."""
_OF_NOOPS: Final = frozenset({b"enable_noop", b"set_noop_interval"})
FOR_THE_CLIENT: Final = frozenset({Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG, Opcode.DCP_CLOSE_STREAM})
"""The requests whose answers go to the client; this worker has already answered OPEN and CONTROL."""
_NO_SUCH_STREAM: Final = frozenset({Status.KEY_ENOENT, Status.DCP_STREAM_NOT_FOUND})
StreamKey = tuple[int, bytes]
"""A vbucket's number, and the framing extras with the stream's id; empty without stream ids."""


class RelayingProducer(Protocol):
    """The interface of a session that sends the output of its producer."""

    def say(self) -> None:
        """Send the output of the producer, and request a `pump` if changes wait."""


class _Held:
    """Messages of a worker's streams that wait for room in the client's window. A change and the message in front of
    it, about the version that it replaced, count as one message.

    Args:
        data: whole messages, one after the other.
        ends: the offset of the end of each message.

    Attributes:
        size_bytes: the memory of the messages.
    """

    __slots__ = ("_counted", "_data", "_ends", "_left", "size_bytes")

    def __init__(self, data: bytes, ends: NDArray[np.int64]) -> None:
        starts = np.concatenate(([0], ends[:-1]))
        # "PREPARE: 57, 2 more than the wire size; both ends use 57" (dcp 7): counted otherwise, the client's window
        # would drift until it stalls.
        prepares = np.frombuffer(data, np.uint8)[starts + 1] == Opcode.DCP_PREPARE
        counted = ends + PREPARE_COUNTS_MORE * np.cumsum(prepares) if prepares.any() else ends
        self._data, self._ends, self._counted, self._left = data, ends, counted, 0
        self.size_bytes = len(data) + ends.nbytes

    @property
    def is_empty(self) -> bool:
        """True if `take` has returned all messages."""
        return self._left == len(self._ends)

    @property
    def counted_bytes(self) -> int:
        """The bytes of the remaining messages, as flow control counts them."""
        return int(self._counted[-1]) - self._counted_before

    @property
    def _counted_before(self) -> int:
        return int(self._counted[self._left - 1]) if self._left else 0

    def take(self, budget_bytes: int | None) -> tuple[memoryview, int]:
        """Take the next messages, up to the budget; return them, and their bytes as flow control counts them.

        The last message may exceed the budget. The budget None means no limit.
        """
        begin, before = int(self._ends[self._left - 1]) if self._left else 0, self._counted_before
        self._left = (
            len(self._ends)
            if budget_bytes is None
            else min(len(self._ends), int(np.searchsorted(self._counted, before + budget_bytes)) + 1)
        )
        return memoryview(self._data)[begin : int(self._ends[self._left - 1])], self._counted_before - before

    def without(self, key: StreamKey, opaque: int) -> _Held | None:
        """Return the remaining messages without the messages of one stream; None if no message remains."""
        remaining, at = [], int(self._ends[self._left - 1]) if self._left else 0
        for end in self._ends[self._left :].tolist():
            message = Frame.decode(self._data[at : at + frame_bytes(self._data, at)])
            if ((message.vbucket, message.framing), message.opaque) != (key, opaque):
                remaining.append(self._data[at:end])
            at = end
        return _held(remaining)


def _held(messages: list[bytes]) -> _Held | None:
    ends = np.cumsum([len(message) for message in messages], dtype=np.int64)
    return _Held(b"".join(messages), ends) if messages else None


def _framing_of(request: Frame) -> bytes:
    """Return the framing extras that a stream's messages have, read from its request; empty without a stream id.

    The request is the source, because the connection's settings may have changed since.
    """
    stream_id = read_json(request.value).get("sid") if request.value else None
    return b"" if stream_id is None else stream_id_framing(stream_id)


class StreamRelay(DcpCalls[str, "_Call"]):
    """The connections to other workers for a client's DCP connection, by their paths.

    Args:
        kv: the session with which the connection began.
        producer: this worker's end.
        relaying: the session of the client's connection.
        opened: the OPEN request.
    """

    HELD_UP_BY = "stream requests"

    def __init__(self, kv: Session, producer: Producer, relaying: RelayingProducer, opened: Frame) -> None:
        super().__init__(kv)
        self._producer, self._relaying = producer, relaying
        self._begin = introduction(kv) + opened.encode()
        self._controls: list[Frame] = []
        self._turns: deque[_Call] = deque()
        kv.connection.awaits_others = self.awaits_answers
        for path in others_of(kv).values():
            self._call(path)

    @property
    def memory_bytes(self) -> int:
        """The memory of waiting messages, in both directions, and of the state of streams, in bytes."""
        return sum(each.memory_bytes for each in {*self._calls.values(), *self._turns})

    @property
    def is_ready(self) -> bool:
        """True if messages wait for room in the client's window."""
        return bool(self._turns)

    def awaits_answers(self) -> bool:
        """Return True if a worker has not answered a request of the client."""
        return any(frame.opcode in FOR_THE_CLIENT for call in self._calls.values() for frame in call.owed)

    @property
    def deadline(self) -> float | None:
        """The time at which to call `tick`; None for never."""
        if not self._producer.noop.enabled or not self._calls:
            return None
        return min(call.heard_at for call in self._calls.values()) + self._silence_seconds_max

    def tick(self, now: float) -> None:
        """Disconnect workers that have been silent for too long. This worker answers the client's no-ops, so the client
        does not notice a worker that hangs.

        If the deadline passed long ago, this process itself was stopped, and all workers count as heard.
        """
        deadline = self.deadline
        for call in tuple(self._calls.values()):
            if deadline is not None and now >= deadline + SILENCE_SECONDS_MIN:
                call.heard_at = now
            elif deadline is not None and now >= call.heard_at + self._silence_seconds_max:
                call.close()
                self.over(call)

    @property
    def _silence_seconds_max(self) -> float:
        return max(self._producer.noop.silence_seconds_max, BUSY_SECONDS_MAX)

    # --- what the client says -----------------------------------------------------------------------------------------

    def takes(self, frame: Frame) -> bool:
        """Relay a request about another worker's vbucket, or refuse it if that worker can't be reached; return False if
        the vbucket is this worker's.
        """
        path = self._path_of(frame.vbucket)
        if path is None:
            return False
        call = self._call(path)
        if call is None:
            self._producer.refuse(frame, Status.ETMPFAIL, AWAY)
        else:
            call.ask(frame)
        return True

    def control(self, frame: Frame) -> None:
        """Relay a CONTROL that was accepted here."""
        if frame.key not in _OWN_CONTROLS:
            # Kept for a worker that is called later: it must get the same settings, in the client's order. A repeated
            # control keeps its place, because other controls may depend on it.
            self._controls = list(({each.key: each for each in self._controls} | {frame.key: frame}).values())
            for call in self._calls.values():
                call.ask(frame)
                if frame.key in _OF_NOOPS:
                    call.heard_at = self._kv.server.loop.time()

    def answered(self, frame: Frame) -> None:
        """Relay an answer of the client to the workers that have a stream with its opaque."""
        if frame.opcode != Opcode.DCP_NOOP:
            for call in self._calls.values():
                call.answered(frame)

    def tells(self, frame: Frame) -> bool:
        """Relay a message that needs no answer, if its vbucket is another worker's; return False if it is this
        worker's.
        """
        call = self._calls.get(self._path_of(frame.vbucket) or "")
        if call is not None:
            call.tell(frame.encode())
        return call is not None

    def close(self) -> None:
        """Close the connections to other workers."""
        super().close()
        self._turns.clear()

    def _path_of(self, vbucket: int) -> str | None:
        """Return the path of the worker that streams a vbucket, or otherwise has it by the map; None if that is this
        worker or no worker.
        """
        for path, call in self._calls.items():
            if call.has_stream_of(vbucket):
                return path
        return path_of(self._kv, vbucket)

    def _call(self, path: str) -> _Call | None:
        """Return the connection to a worker, opened if need be; None if the worker can't be reached."""
        if path not in self._calls:
            try:
                call = _Call(self, self._kv.server.loop, path, self._begin)
            except OSError:
                return None
            self._calls[path] = call
            for control in self._controls:
                call.ask(control)
            call.flush()
        return self._calls[path]

    # --- what the others say ------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send waiting messages, as many as the client's window and socket accept in this turn."""
        connection, flow = self._kv.connection, self._producer.flow
        while self._turns and connection.writable and not flow.is_full:
            call = self._turns.popleft()
            if not call.held:  # its messages were of streams that are closed now
                continue
            data, counted = call.next(flow.budget_bytes)
            flow.send(counted)
            connection.send(data)
            call.acknowledge(counted)
            if call.held:
                self._turns.append(call)
            if connection.is_closed or connection.turn_is_over():
                break

    def wait_for_turn(self, call: _Call) -> None:
        """Add a worker with messages to send to the turn queue."""
        if call not in self._turns:
            self._turns.append(call)

    def say(self) -> None:
        """Send refusals of this worker, and request a `pump` if messages wait."""
        self._relaying.say()
        if not self.awaits_answers():
            self._kv.connection.others_answered()

    def pass_on(self, answer: Frame) -> None:
        """Send another worker's answer."""
        self._kv.connection.send(answer.encode())

    def over(self, call: _Call) -> None:
        """Handle the end of a connection to a worker: refuse its unanswered requests as temporary failures, and end its
        streams after the messages that were received.
        """
        self._forget(call)
        for frame in call.owed:
            if frame.opcode in FOR_THE_CLIENT:
                self._producer.refuse(frame, Status.ETMPFAIL, AWAY)
        # Answered above; the deque must be empty before `hold` and `say` below, which may call this method again.
        call.owed.clear()
        # The ends are queued behind the messages that are still held, so the client loses no message that was sent.
        ends = _held([self._end(key, opaque) for key, opaque in call.streams.items()])
        call.streams.clear()
        if ends is not None:
            call.hold(ends)
        self.read_on()
        self.say()

    def _end(self, key: StreamKey, opaque: int) -> bytes:
        status = end_status(EndReason.DISCONNECTED, self._producer.dialect)
        vbucket, framing = key
        return dcp.StreamEnd(vbucket=vbucket, opaque=opaque, framing=framing or None, status=status).encode()


class _Call(DcpCall):
    """A DCP connection to another worker, for one client.

    Attributes:
        owed: the unanswered requests, oldest first.
        streams: the opaques of open streams, by vbucket and stream id.
        held: messages of its streams that wait for the client's window.
        held_bytes: the memory of these messages.
        heard_at: the time of the last message from the worker, in loop.time() seconds.
    """

    def __init__(self, relay: StreamRelay, loop: asyncio.AbstractEventLoop, path: str, begin: bytes) -> None:
        super().__init__(loop, path, begin)
        self._relay = relay
        self.owed: deque[Frame] = deque([Frame(Magic.CLIENT_REQUEST, Opcode.DCP_OPEN)])
        self.streams: dict[StreamKey, int] = {}
        self.held: deque[_Held] = deque()
        self.held_bytes = 0
        self.heard_at: float = loop.time()
        self._vbuckets: Counter[int] = Counter()  # the vbuckets of open and requested streams
        self._unacknowledged_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """The memory of waiting messages, in both directions, and of the state of streams, in bytes."""
        return self.kept_bytes + self.held_bytes + ENTRY_BYTES * (len(self.streams) + len(self.owed))

    def has_stream_of(self, vbucket: int) -> bool:
        """Return True if the worker streams a vbucket, or a stream was requested from it."""
        return self._vbuckets[vbucket] > 0

    # --- what is said there -------------------------------------------------------------------------------------------

    def ask(self, frame: Frame) -> None:
        """Queue a request; `flush` sends it."""
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            self._vbuckets[frame.vbucket] += 1
        self.owed.append(frame)
        self._out += frame.encode()

    def acknowledge(self, counted_bytes: int) -> None:
        """Count bytes of relayed or discarded messages; acknowledge them to the worker once enough have gathered."""
        self._unacknowledged_bytes += counted_bytes
        # A quarter of the window at a time, so the worker never waits while the client reads.
        if self._unacknowledged_bytes >= ACKNOWLEDGED_BYTES and not self.is_closed:
            self.tell(dcp.BufferAck(acked_bytes=self._unacknowledged_bytes).encode())
            self._unacknowledged_bytes = 0

    # --- what it says -------------------------------------------------------------------------------------------------

    def _take(self, data: bytearray) -> int:
        """Keep the messages of streams as contiguous bytes; handle answers and no-ops at once. Return the bytes
        consumed.
        """
        scanned = scan(data)
        offsets, consumed = scanned.offsets, scanned.consumed
        last = int(offsets[-1]) if len(offsets) else 0
        if consumed and data[last + 1] == Opcode.DCP_BEFORE and data[last] not in ANSWERS:
            offsets, consumed = offsets[:-1], last  # it waits for its change
        if not consumed:
            return 0
        whole = bytes(memoryview(data)[:consumed])
        heads, ends = np.frombuffer(whole, np.uint8), np.append(offsets[1:], consumed)
        opcodes = heads[offsets + 1]
        is_said = np.isin(heads[offsets], ANSWERS) | (opcodes == Opcode.DCP_NOOP)
        begin = 0
        for at in np.flatnonzero(is_said | (opcodes == Opcode.DCP_STREAM_END)).tolist():
            frame = Frame.decode(whole[int(offsets[at]) : int(ends[at])])
            if not is_said[at]:
                self._forget((frame.vbucket, frame.framing))
                continue
            # Messages before an answer are held before it is handled; an answer overtakes only messages that wait for
            # the client's window.
            self._hold_between(whole, ends, begin, at)
            begin = at + 1
            self._heard(frame)
            if self.is_closed:
                return consumed
        self._hold_between(whole, ends, begin, len(offsets))
        return consumed

    def _hold_between(self, whole: bytes, ends: NDArray[np.int64], begin: int, end: int) -> None:
        if begin < end:
            start = int(ends[begin - 1]) if begin else 0
            data, own = whole[start : int(ends[end - 1])], ends[begin:end] - start
            opcodes = np.frombuffer(data, np.uint8)[np.concatenate(([0], own[:-1])) + 1]
            # Nothing of another stream may come between a change and what it replaced.
            self.hold(_Held(data, own[opcodes != Opcode.DCP_BEFORE]))

    def hold(self, held: _Held) -> None:
        """Keep messages until the client's window has room for them."""
        self.held.append(held)
        self.held_bytes += held.size_bytes
        self._relay.wait_for_turn(self)

    def next(self, budget_bytes: int | None) -> tuple[memoryview, int]:
        """Take waiting messages, up to the budget; return them, and their bytes as flow control counts them."""
        first = self.held[0]
        data, counted = first.take(budget_bytes)
        if first.is_empty:
            self.held.popleft()
            self.held_bytes -= first.size_bytes
        return data, counted

    def _heard(self, frame: Frame) -> None:
        if frame.opcode == Opcode.DCP_NOOP:
            self.tell(response(frame).encode())
        elif frame.opcode == Opcode.HELLO:
            self.close()
            self._relay.over(self)
        elif frame.opcode == Opcode.DCP_SEQNO_ACKNOWLEDGED:  # has an answer only if it was refused
            self._relay.pass_on(frame)
        else:
            self._answered(self.owed.popleft(), frame)

    def _answered(self, request: Frame, answer: Frame) -> None:
        key = request.vbucket, request.framing
        if request.opcode == Opcode.DCP_OPEN and answer.status:
            self.close()
            self._relay.refused(answer.status)
        elif request.opcode == Opcode.DCP_STREAM_REQ:
            self._opened(request, is_open=answer.status == Status.SUCCESS)
        elif request.opcode == Opcode.DCP_CLOSE_STREAM and answer.status == Status.SUCCESS:
            self._discard(key)
            self._forget(key)
        if request.opcode in FOR_THE_CLIENT:
            self._relay.pass_on(answer)

    def _opened(self, request: Frame, *, is_open: bool) -> None:
        if is_open:
            self.streams[request.vbucket, _framing_of(request)] = request.opaque
        else:
            self._vbuckets[request.vbucket] -= 1

    def _forget(self, key: StreamKey) -> None:
        """Forget a stream that is over."""
        if self.streams.pop(key, None) is not None:
            self._vbuckets[key[0]] -= 1

    def answered(self, frame: Frame) -> None:
        """Relay an answer of the client to this worker, if one of its streams has the opaque."""
        keys = [key for key, opaque in self.streams.items() if opaque == frame.opaque]
        if keys:
            self.tell(frame.encode())
        if frame.status in _NO_SUCH_STREAM:
            for each in keys:
                self._forget(each)

    def _discard(self, key: StreamKey) -> None:
        """Drop the waiting messages of a stream that the client has closed: after the answer it must get no more."""
        opaque = self.streams.get(key)
        if opaque is None:
            return
        held, self.held, self.held_bytes = self.held, deque(), 0
        for each in held:
            remaining = each.without(key, opaque)
            self.acknowledge(each.counted_bytes - (remaining.counted_bytes if remaining is not None else 0))
            if remaining is not None:
                self.hold(remaining)

    def _taken(self) -> None:
        self.heard_at = self._loop.time()
        self._relay.say()

    def _lost(self) -> None:
        self._relay.over(self)

    def _wrote(self) -> None:
        self._relay.read_on()
