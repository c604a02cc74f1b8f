"""Relay messages for other workers' vbuckets, on a client's DCP connection on which the node consumes.

    ADD_STREAM, CLOSE_STREAM            --unchanged--> the worker with the vbucket, over a unix socket: a DCP connection
                                                       with the same name, user, bucket, features and OPEN, on which
                                                       that worker consumes
    that worker's requests and answers  --unchanged--> the client
    the client's messages and answers   --by opaque--> the worker that chose the opaque
    that worker's controls              are answered here, as the client answered those of this worker
    that worker's acknowledgements      count in the window of this connection, the only one of the client

The client is mover and producer at once, and sees one node. Each worker chooses opaques from its own range, so the
opaque determines the worker of a message, and no byte of a message is changed. A no-op is answered once all workers
have handled the messages before it; the end of the client's input waits for the same.

If a worker does not accept the connection, ADD_STREAM is refused as a temporary failure, without any effect. If a
connection to a worker is lost, the client's connection is closed, as for a lost node: a consumer has no message that
ends a stream, and the producer would otherwise continue to send, or consider a vbucket handed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headwater.kernels.follow import COUNTED_OPCODES
from headwater.node.connections.inbox import whole_frame
from headwater.node.connections.worker_call import number_of
from headwater.node.dcp.calls import ENTRY_BYTES, DcpCall, DcpCalls
from headwater.node.kv.relay import ANSWERS, AWAY, introduction, others_of, path_of
from headwater.node.streams.snapshot import PREPARE_COUNTS_MORE
from headwater.protocol.dcp.consumer_messages import STREAM_MESSAGES
from headwater.protocol.dcp.events import StreamWanted
from headwater.protocol.dcp.negotiation import NOOP, NOOP_INTERVAL, WINDOW
from headwater.wire import dcp
from headwater.wire.header import HEADER, HEADER_BYTES, Frame, Magic, frame_bytes, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    import asyncio

    from headwater.node.kv.api import Session
    from headwater.protocol.dcp.consumer import Consumer

OPAQUES_EACH: Final = 1 << 22
"""The number of opaques per worker: 1024 workers have theirs in 32 bits. This worker's range is the first."""
_STREAM_MESSAGES: Final = frozenset(map(int, STREAM_MESSAGES))
_COUNTED: Final = frozenset(map(int, COUNTED_OPCODES))
_PREPARE: Final = int(Opcode.DCP_PREPARE)
_HERE: Final = frozenset({NOOP, NOOP_INTERVAL})
"""The controls that this worker refuses to other workers, because it checks by itself whether the client lives."""


class _Head(NamedTuple):
    """The header fields that determine the worker of a frame; in an answer `vbucket` is the status."""

    magic: int
    opcode: int
    vbucket: int
    opaque: int


class RelayingConsumer(Protocol):
    """The interface of a session that sends the output of its consumer."""

    def say(self) -> None:
        """Send the output of the consumer."""


@dataclass(slots=True, eq=False)
class _Barrier:
    """A no-op of the client, or the end of its input, that waits until all workers have handled the messages before it.

    Attributes:
        noop: the no-op; None for the end of the input.
        awaited: the number of workers that have not handled all messages yet.
    """

    noop: Frame | None
    awaited: int


class ConsumerRelay(DcpCalls[int, "_Call"]):
    """The connections to other workers for a client's connection on which the node consumes, by the number of their
    opaque range.

    Args:
        kv: the session with which the connection began.
        consumer: this worker's end.
        relaying: the session of the client's connection.
        opened: the OPEN request.
    """

    HELD_UP_BY = "changes of others"

    def __init__(self, kv: Session, consumer: Consumer, relaying: RelayingConsumer, opened: Frame) -> None:
        super().__init__(kv)
        self._consumer, self._relaying, self._opened = consumer, relaying, opened
        self._places: dict[int, _Call] = {}  # the worker that got the last ADD_STREAM of a vbucket
        self._barriers: deque[_Barrier] = deque()
        self._has_ended = False
        kv.connection.awaits_others = self.ended
        for path in others_of(kv).values():
            self._call(path)

    @property
    def memory_bytes(self) -> int:
        """The memory of waiting messages, in both directions, and of the state of streams, in bytes."""
        entries = len(self._places) + len(self._barriers) + sum(len(call.owed) for call in self._calls.values())
        return sum(call.kept_bytes for call in self._calls.values()) + ENTRY_BYTES * entries

    # --- what the client says -----------------------------------------------------------------------------------------

    def take_run(self, data: memoryview, offset: int) -> int:
        """Relay whole frames for other workers, one after the other; return the offset of the first frame for this
        worker.
        """
        begun = offset
        while (size := whole_frame(data, offset)) and self._takes(data[offset : offset + size]):
            offset += size
        if offset > begun:
            self._consumer.heard_at = self._now
        return offset

    def _takes(self, data: memoryview) -> bool:
        magic, opcode, _, _, _, vbucket, _, opaque, _ = HEADER.unpack_from(data)
        head = _Head(magic, opcode, vbucket, opaque)
        if head.magic in ANSWERS:
            # Controls are negotiated once, by this worker; the others get its answers (`answer_controls`).
            call = None if head.opcode == Opcode.DCP_CONTROL else self._calls.get(head.opaque // OPAQUES_EACH)
        elif head.opcode in _STREAM_MESSAGES:
            call = self._of_stream(head)
        elif head.opcode == Opcode.DCP_NOOP:
            return self._waits(Frame.decode(bytes(data)))
        elif head.opcode == Opcode.DCP_ADD_STREAM:
            return self._add(Frame.decode(bytes(data)))
        elif head.opcode == Opcode.DCP_CLOSE_STREAM and head.vbucket not in self._consumer.streams:
            call = self._places.get(head.vbucket)
        else:
            call = None
        if call is not None:
            call.put(head, data)
        return call is not None

    def _of_stream(self, head: _Head) -> _Call | None:
        """Return the connection to the worker that must handle a message of a stream; None if it is this worker.

        That is the worker that chose the message's opaque, even if the vbucket is another worker's: a worker that
        refuses the message must record that its stream lacks it. If no worker knows the opaque, the vbucket decides.
        """
        call = self._calls.get(head.opaque // OPAQUES_EACH)
        if call is not None or head.vbucket in self._consumer.streams or self._consumer.knows(head.opaque):
            return call
        return self._places.get(head.vbucket)

    def _add(self, frame: Frame) -> bool:
        path = path_of(self._kv, frame.vbucket)
        if path is None:
            return False
        call = self._call(path)
        if call is None:
            self._consumer.refuse_stream(StreamWanted(frame.vbucket, 0, frame), Status.ETMPFAIL, AWAY)
        else:
            self._places[frame.vbucket] = call
            call.ask(frame, frame.encode())
        return True

    def _waits(self, noop: Frame | None) -> bool:
        """Make a no-op, or the end of the input (None), wait for all workers that have got messages; return False if
        there is no such worker.
        """
        calls = [call for call in self._calls.values() if call.is_used]
        if not calls and not self._barriers:
            return False
        barrier = _Barrier(noop, len(calls))
        self._barriers.append(barrier)
        for call in calls:
            call.wait_at(barrier)
        return True

    def ended(self) -> bool:
        """Note that the client has ended its input; return True while other workers still have to handle its
        messages.
        """
        if not self._has_ended:
            self._has_ended = True
            self._waits(None)
            self.flush()
        return bool(self._barriers)

    def answer_controls(self) -> None:
        """Answer the controls of other workers, once the client has answered this worker's controls, which are the
        same.
        """
        accepted = self._consumer.controls
        if accepted is None:
            return
        for call in self._calls.values():
            for frame in call.take_controls():
                call.tell(response(frame, _control_status(frame, accepted)).encode())

    def close(self) -> None:
        """Close the connections to other workers."""
        super().close()
        self._places.clear()
        self._barriers.clear()

    @property
    def _now(self) -> float:
        return self._kv.server.loop.time()

    def _call(self, path: str) -> _Call | None:
        """Return the connection to a worker, opened if need be; None if the worker can't be reached."""
        number = number_of(path) + 1
        if number not in self._calls:
            begin = introduction(self._kv, first_opaque=number * OPAQUES_EACH) + self._opened.encode()
            try:
                call = _Call(self, self._kv.server.loop, path, begin)
            except OSError:
                return None
            self._calls[number] = call
            call.flush()
        return self._calls[number]

    # --- what the others say ------------------------------------------------------------------------------------------

    def pass_on(self, data: bytes) -> None:
        """Send a message of another worker to the client."""
        self._kv.connection.send(data)

    def controls_asked(self) -> None:
        """Send this worker's controls to the client, because another worker has sent its own, with its first stream."""
        self._consumer.negotiate()
        self.answer_controls()

    def acknowledged(self, counted_bytes: int) -> None:
        """Acknowledge `counted_bytes` of messages that another worker has processed."""
        self._consumer.counted_elsewhere(counted_bytes, self._now)

    def passed(self, barrier: _Barrier) -> None:
        """Note that one worker has handled all messages before a barrier; answer the no-ops that no longer wait for a
        worker.
        """
        barrier.awaited -= 1
        # In their order, because the answer to a no-op says that all messages before it were handled.
        while self._barriers and not self._barriers[0].awaited:
            if (noop := self._barriers.popleft().noop) is not None:
                self._consumer.receive_frame(noop, self._now)
        self.say()
        if self._has_ended and not self._barriers:
            self._kv.connection.others_answered()

    def say(self) -> None:
        """Send the output of this worker's consumer."""
        self._relaying.say()

    def turned_away(self, call: _Call) -> None:
        """Refuse the requests that were queued for a worker that did not accept the connection; they had no effect."""
        self._forget(call)
        for frame in call.owed:
            if frame.opcode == Opcode.DCP_ADD_STREAM:
                self._consumer.refuse_stream(StreamWanted(frame.vbucket, 0, frame), Status.ETMPFAIL, AWAY)
            else:
                self.pass_on(self._consumer.refusals.answer(frame, Status.KEY_ENOENT, AWAY))
        # "Count every counted message, also those it rejects" (dcp 7): nobody else would ever acknowledge these bytes.
        self.acknowledged(call.unacknowledged_bytes)
        for barrier in call.barriers:
            self.passed(barrier)
        self.read_on()
        self.say()

    def lost(self, call: _Call) -> None:
        """Handle the end of a connection to a worker. If the worker has got messages, drop the client's connection."""
        self._forget(call)
        if call.is_used:
            self._kv.connection.drop("the worker that had vbuckets of its streams is gone", fault=False)

    def _forget(self, call: _Call) -> None:
        super()._forget(call)
        self._places = {vbucket: place for vbucket, place in self._places.items() if place is not call}


def opaques_from(first: int) -> range:
    """Return the opaques of the worker whose range begins with `first`; `first` itself is not used."""
    return range(first + 1, first + OPAQUES_EACH)


def _control_status(control: Frame, accepted: Mapping[str, str]) -> Status:
    """Return the answer to a control of another worker: the client's answer to the same control of this worker."""
    key, value = control.key.decode("latin-1"), control.value.decode("latin-1")
    is_taken = key not in _HERE and key in accepted and (key == WINDOW or accepted[key] == value)
    return Status.SUCCESS if is_taken else Status.EINVAL


class _Call(DcpCall):
    """A DCP connection to another worker, on which that worker consumes, for one client.

    Attributes:
        is_used: True once a message of the client was sent to the worker.
        owed: the unanswered requests.
        streams: the vbuckets of open streams.
        barriers: the barriers that the worker has not passed yet, oldest first.
        unacknowledged_bytes: bytes of relayed messages that the worker has not acknowledged, as flow control counts
            them.
    """

    def __init__(self, relay: ConsumerRelay, loop: asyncio.AbstractEventLoop, path: str, begin: bytes) -> None:
        super().__init__(loop, path, begin)
        self._relay = relay
        self.is_used = False
        self.owed: list[Frame] = []
        self.streams: set[int] = set()
        self.barriers: deque[_Barrier] = deque()
        self.unacknowledged_bytes = 0
        self._controls: list[Frame] = []

    # --- what is said there -------------------------------------------------------------------------------------------

    def put(self, head: _Head, data: memoryview) -> None:
        """Queue a frame; `flush` sends it."""
        if head.opcode == Opcode.DCP_CLOSE_STREAM and head.magic not in ANSWERS:
            self.ask(Frame.decode(bytes(data)), data)
            return
        if head.opcode in _COUNTED and head.magic not in ANSWERS:
            self.unacknowledged_bytes += len(data) + PREPARE_COUNTS_MORE * (head.opcode == _PREPARE)
        if head.opcode == Opcode.DCP_STREAM_END:
            self.streams.discard(head.vbucket)
        self.is_used = True
        self._out += data

    def ask(self, frame: Frame, data: bytes | memoryview) -> None:
        """Queue a request, and record that its answer is due."""
        self.is_used = True
        self.owed.append(frame)
        self._out += data

    def wait_at(self, barrier: _Barrier) -> None:
        """Queue a no-op, whose answer will say that the worker has handled all messages before the barrier."""
        self.barriers.append(barrier)
        self._out += Frame(Magic.CLIENT_REQUEST, Opcode.DCP_NOOP).encode()

    def take_controls(self) -> list[Frame]:
        """Return the controls that wait for an answer, and forget them."""
        controls, self._controls = self._controls, []
        return controls

    # --- what it says -------------------------------------------------------------------------------------------------

    def _take(self, data: bytearray) -> int:
        at = 0
        while len(data) - at >= HEADER_BYTES and (end := at + frame_bytes(data, at)) <= len(data):
            message = bytes(memoryview(data)[at:end])
            at = end
            self._heard(Frame.decode(message), message)
            if self.is_closed:
                break
        return at

    def _heard(self, frame: Frame, data: bytes) -> None:
        match frame.is_response, frame.opcode:
            case True, Opcode.HELLO:
                self.close()
                self._relay.turned_away(self)
            case True, Opcode.DCP_OPEN:
                if frame.status:
                    self.close()
                    self._relay.refused(frame.status)
            case True, Opcode.DCP_NOOP:
                self._relay.passed(self.barriers.popleft())
            case False, Opcode.DCP_CONTROL:
                self._controls.append(frame)
                self._relay.controls_asked()
            case False, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT:
                counted_bytes = dcp.BufferAck.decode(frame).acked_bytes
                self.unacknowledged_bytes -= counted_bytes
                self._relay.acknowledged(counted_bytes)
            case _:
                if frame.is_response:
                    self._answered(frame)
                self._relay.pass_on(data)

    def _answered(self, answer: Frame) -> None:
        for at, request in enumerate(self.owed):
            if (request.opcode, request.opaque) == (answer.opcode, answer.opaque):
                del self.owed[at]
                if not answer.status and request.opcode == Opcode.DCP_ADD_STREAM:
                    self.streams.add(request.vbucket)
                elif not answer.status:
                    self.streams.discard(request.vbucket)
                return

    def _taken(self) -> None:
        self._relay.say()

    def _lost(self) -> None:
        self._relay.lost(self)

    def _wrote(self) -> None:
        self._relay.read_on()
