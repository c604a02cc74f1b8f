"""Messages for other workers' vbuckets, on a client's DCP connection on which the node consumes.

    ADD_STREAM, CLOSE_STREAM    --as they came--> the worker that has the vbucket, over a unix socket: a DCP connection
                                                  of the same name, user, bucket, features and OPEN, which consumes
    its requests and answers    --as they come--> the client
    messages, the client's answers --by opaque--> the worker that chose the opaque
    its controls                <--answered here, as the client has answered those of this worker
    its acknowledgements        --> the window of this connection, the client's only one

The client is mover and producer in one, and knows one node. Each worker chooses opaques from a range of its own: so the
opaque shows whose stream a message is about, and no byte of a message is changed. A no-op is answered once all workers
have handled what came before it; the end of the client's input waits for the same.

A worker that could not take the call has done nothing: ADD_STREAM fails for now. The client of one that is lost loses
its connection, as the client of a node does that is lost: a consumer has no message that ends a stream, and a producer
that heard nothing would send on, or take a vbucket for handed over.
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
"""The opaques of a worker: 1024 workers have theirs in 32 bits. This worker's range is the first."""
_STREAM_MESSAGES: Final = frozenset(map(int, STREAM_MESSAGES))
_COUNTED: Final = frozenset(map(int, COUNTED_OPCODES))
_PREPARE: Final = int(Opcode.DCP_PREPARE)
_HERE: Final = frozenset({NOOP, NOOP_INTERVAL})
"""The controls that are declined to other workers: whether the client lives is found out here."""


class _Head(NamedTuple):
    """The fields of a frame's header by which it finds its worker; an answer has its status for a vbucket."""

    magic: int
    opcode: int
    vbucket: int
    opaque: int


class RelayingConsumer(Protocol):
    """The part of a session that sends what its consumer has to say."""

    def say(self) -> None:
        """Send it."""


@dataclass(slots=True, eq=False)
class _Barrier:
    """A no-op of the client's, or the end of its input (None), until all workers have handled what came before it."""

    noop: Frame | None
    awaited: int


class ConsumerRelay(DcpCalls[int, "_Call"]):
    """The calls of a client's consumer connection to other workers, by their numbers.

    Args:
        kv: the session that the connection began as. consumer: this end's. opened: the OPEN request.
    """

    HELD_UP_BY = "changes of others"

    def __init__(self, kv: Session, consumer: Consumer, relaying: RelayingConsumer, opened: Frame) -> None:
        super().__init__(kv)
        self._consumer, self._relaying, self._opened = consumer, relaying, opened
        self._places: dict[int, _Call] = {}  # the worker that a vbucket's last ADD_STREAM went to
        self._barriers: deque[_Barrier] = deque()
        self._has_ended = False
        kv.connection.awaits_others = self.ended
        for path in others_of(kv).values():
            self._call(path)

    @property
    def memory_bytes(self) -> int:
        """Return the memory of what waits here, both ways, and of what is known of streams."""
        entries = len(self._places) + len(self._barriers) + sum(len(each.owed) for each in self._calls.values())
        return sum(each.kept_bytes for each in self._calls.values()) + ENTRY_BYTES * entries

    # --- what the client says -----------------------------------------------------------------------------------------

    def take_run(self, data: memoryview, offset: int) -> int:
        """Take whole frames for other workers, one behind the other; return the offset of the first that is not."""
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
        """Return the worker whose stream a message is about: the one that chose its opaque, whatever vbucket it names,
        for that stream lacks the message if it is refused. With an opaque of nobody's it is the vbucket's."""
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
        """Let a no-op, or the end of the input, wait for all workers that have something to handle; False if it need
        not wait."""
        calls = [each for each in self._calls.values() if each.is_used]
        if not calls and not self._barriers:
            return False
        barrier = _Barrier(noop, len(calls))
        self._barriers.append(barrier)
        for call in calls:
            call.wait_at(barrier)
        return True

    def ended(self) -> bool:
        """Return True if the client, which has ended its input, is to wait for what other workers say to it."""
        if not self._has_ended:
            self._has_ended = True
            self._waits(None)
            self.flush()
        return bool(self._barriers)

    def answer_controls(self) -> None:
        """Answer the controls of other workers, once the client has answered all of this one's, which are the same."""
        accepted = self._consumer.controls
        if accepted is None:
            return
        for call in self._calls.values():
            for frame in call.take_controls():
                call.tell(response(frame, _control_status(frame, accepted)).encode())

    def close(self) -> None:
        """Hang up."""
        super().close()
        self._places.clear()
        self._barriers.clear()

    @property
    def _now(self) -> float:
        return self._kv.server.loop.time()

    def _call(self, path: str) -> _Call | None:
        """Return the connection to a worker; None if it can't be had."""
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
        """Send what another worker has to say to the client."""
        self._kv.connection.send(data)

    def controls_asked(self) -> None:
        """Another worker asks for controls, for it begins its first stream."""
        self._consumer.negotiate()
        self.answer_controls()

    def acknowledged(self, counted_bytes: int) -> None:
        """Acknowledge messages that another worker has processed."""
        self._consumer.counted_elsewhere(counted_bytes, self._now)

    def passed(self, barrier: _Barrier) -> None:
        """A worker has handled all that came before; answer the no-ops for which all have."""
        barrier.awaited -= 1
        # In their order: an answered no-op says that all before it was handled.
        while self._barriers and not self._barriers[0].awaited:
            if (noop := self._barriers.popleft().noop) is not None:
                self._consumer.receive_frame(noop, self._now)
        self.say()
        if self._has_ended and not self._barriers:
            self._kv.connection.others_answered()

    def say(self) -> None:
        """Send what this worker has to say by now."""
        self._relaying.say()

    def turned_away(self, call: _Call) -> None:
        """A worker could not take the call, and has done nothing of what was asked."""
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
        """A call has ended: the client's connection does, too, unless nothing of its was there."""
        self._forget(call)
        if call.is_used:
            self._kv.connection.drop("the worker that had vbuckets of its streams is gone", fault=False)

    def _forget(self, call: _Call) -> None:
        super()._forget(call)
        self._places = {vbucket: each for vbucket, each in self._places.items() if each is not call}


def opaques_from(first: int) -> range:
    """Return the opaques of the worker whose range begins with `first`, which itself is never chosen."""
    return range(first + 1, first + OPAQUES_EACH)


def _control_status(control: Frame, accepted: Mapping[str, str]) -> Status:
    """Return the answer to a control of another worker: what the client has answered to the same of this one."""
    key, value = control.key.decode("latin-1"), control.value.decode("latin-1")
    is_taken = key not in _HERE and key in accepted and (key == WINDOW or accepted[key] == value)
    return Status.SUCCESS if is_taken else Status.EINVAL


class _Call(DcpCall):
    """A DCP connection to another worker, which consumes, for one client.

    Attributes:
        is_used: True once something of the client's went there. owed: the requests that are not answered yet.
        streams: the vbuckets of those that are open. barriers: what waits until it has handled what came before.
        unacknowledged_bytes: of messages that went there, as flow control counts them.
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
        """Put a frame behind the others; it leaves with `flush`."""
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
        """Put a request behind the others that is to be answered."""
        self.is_used = True
        self.owed.append(frame)
        self._out += data

    def wait_at(self, barrier: _Barrier) -> None:
        """Have it say when it has handled all that went there."""
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
