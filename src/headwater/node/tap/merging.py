"""A TAP session at the shared address of the workers: one stream that merges the sessions of all workers.

    TAP_CONNECT     --unchanged--> each worker, this one included, over its unix socket
    their messages  --renumbered--> the client
    its answers     --by their numbers--> each worker, for the messages that it sent

An answer of the client acknowledges all messages up to its number, so each worker gets one answer for its last message
among those. A refusal goes to each worker with unacknowledged messages: it sends those from the refused message on
again, as a single process would.

A worker reports when its dump or takeover is complete. If its connection ends without that report, the client's
connection ends too: otherwise the messages of the other workers would look like a complete dump.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.errors import RemoteProtocolError
from headwater.kernels.scan import scan
from headwater.node.connections.inbox import whole_frame
from headwater.node.connections.worker_call import WorkerCall, own_path
from headwater.node.kv.relay import introduction, others_of
from headwater.protocol.tap.ledger import OPAQUES
from headwater.wire.failure import Failure
from headwater.wire.header import Frame, Magic, opaque_of, put_opaque
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import REPLICATE, STREAM
from headwater.wire.status import Status
from headwater.wire.tap import Opaque, OpaqueCode

if TYPE_CHECKING:
    import asyncio

    from headwater.node.connections.connection import Connection
    from headwater.node.kv.api import Session
    from headwater.protocol.tap.options import TapOptions

RUN_BYTES: Final = 128
"""The approximate memory of a run of unacknowledged messages."""
_SET_UP: Final = frozenset({OpaqueCode.ENABLE_AUTO_NACK, OpaqueCode.ENABLE_CHECKPOINT_SYNC})
"""The codes of the TAP_OPAQUE messages with which each worker begins its session; the client gets each of them once."""
_REQUESTS: Final = (Magic.CLIENT_REQUEST, Magic.FLEXIBLE_REQUEST)


def complete() -> bytes:
    """Return the frame with which a worker reports that its session has sent everything."""
    return Frame(Magic.CLIENT_RESPONSE, Opcode.HELLO).encode()


@dataclass(slots=True)
class _Run:
    """Messages of one worker with consecutive numbers, which are not acknowledged yet.

    Attributes:
        first: the first message's number in the client's stream.
        count: the number of messages.
        call: the worker's session.
        there: the first message's number in the worker's session.
    """

    first: int
    count: int
    call: _Call
    there: int


class TapMerge:
    """The session of a client's connection, which merges the sessions of all workers.

    Args:
        kv: the key-value session of the connection.
        request: the client's TAP_CONNECT, which each worker gets.
        options: the options in that request.

    Raises:
        OSError: one of the workers can't be called; then no worker has a session.
    """

    deadline: float | None = None
    pumps = True
    quick = None

    def __init__(self, kv: Session, request: Frame, options: TapOptions) -> None:
        self.connection: Connection = kv.connection
        self._kv, self._request, self._options = kv, request, options
        self._is_refused = False
        self._runs: deque[_Run] = deque()
        self._sent = 0
        self._remarks: set[int] = set()
        self._filters_changed = 0
        self._calls: list[_Call] = []
        begin = introduction(kv) + request.encode()
        try:
            for path in (own_path(kv.relays.values()), *others_of(kv).values()):
                self._calls.append(_Call(self, kv.server.loop, path, begin))
        except OSError:
            self.closed()
            raise
        self._worker_count = len(self._calls)
        self._called = {*others_of(kv)}

    @property
    def is_whole(self) -> bool:
        """True as long as every worker in the bucket's map takes part in the session."""
        return {*others_of(self._kv)} <= self._called

    # --- what the connection calls ------------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        """Pass every complete answer of the client on to the workers; return the number of bytes consumed."""
        offset, connection = 0, self.connection
        while not connection.is_paused and not connection.is_closed and (size := whole_frame(data, offset)):
            frame = Frame.decode(data[offset : offset + size])
            offset += size
            if not frame.is_response:
                raise RemoteProtocolError(f"opcode 0x{frame.opcode:02x} after TAP_CONNECT: only answers may follow")
            if frame.opcode != Opcode.NOOP:
                self._answered(frame)
            if connection.gives_way():
                break
        self._weigh()
        return offset

    def pump(self) -> None:
        """Resume reading from the workers, because the client has received everything so far."""
        for call in self._calls:
            call.watch()

    def tick(self, now: float) -> None:
        """Do nothing: the workers send no-ops, and end the session of a client that is silent."""

    @property
    def written_gate(self) -> int:
        """The number of the newest batch with a key-value write from this connection."""
        return self._kv.written_gate

    def users_changed(self) -> None:
        """Close the connection if its user was removed, or has lost a right that the session needs."""
        end_without_right(self._kv, takes_over=self._options.takeover)

    def closed(self) -> None:
        """Close the connections to the workers; each worker may keep its session, until the client returns."""
        for call in self._calls:
            call.close()
        self._calls.clear()
        self._runs.clear()
        self._kv.closed()

    # --- answers ------------------------------------------------------------------------------------------------------

    def _answered(self, frame: Frame) -> None:
        behind = (self._sent - frame.opaque) % OPAQUES
        number = self._sent - behind
        if number < 1:
            return  # it answers a message that was never sent, and each worker would ignore it
        if frame.status == Status.SUCCESS:
            self._acknowledge(number, frame.opcode)
            return
        self._acknowledge(number - 1, frame.opcode)
        refused: dict[_Call, int] = {}
        for run in self._runs:
            refused.setdefault(run.call, run.there)
        self._runs.clear()  # all these messages are sent again, with new numbers
        for call, opaque in refused.items():
            call.answer(frame.opcode, opaque, frame.status)

    def _acknowledge(self, number: int, opcode: int) -> None:
        """Acknowledge the messages up to a number: each worker gets one answer, to its last message among them."""
        last: dict[_Call, int] = {}
        while self._runs and self._runs[0].first <= number:
            run = self._runs[0]
            count = min(run.count, number - run.first + 1)
            last[run.call] = _wire(run.there + count - 1)
            if count == run.count:
                self._runs.popleft()
            else:
                run.first, run.there, run.count = run.first + count, _wire(run.there + count), run.count - count
        for call, opaque in last.items():
            call.answer(opcode, opaque, Status.SUCCESS)

    # --- what the workers send ----------------------------------------------------------------------------------------

    def pass_on(self, call: _Call, messages: bytearray, offsets: list[int]) -> None:
        """Send consecutive messages of a worker to the client, with new numbers.

        Args:
            call: the worker's session.
            messages: the messages; their numbers are replaced in place.
            offsets: the offset of each message.
        """
        if self._options.acknowledge:
            self._runs.append(_Run(self._sent + 1, len(offsets), call, opaque_of(messages, offsets[0])))
        for offset in offsets:
            self._sent += 1
            put_opaque(messages, _wire(self._sent), offset)
        self.connection.send(messages)
        self._weigh()

    def is_heard(self, message: Frame) -> bool:
        """Return True if a TAP_OPAQUE message of a worker is passed on; of those that every worker sends, one is."""
        code = Opaque.decode(message).code if message.opcode == Opcode.TAP_OPAQUE else None
        if code == OpaqueCode.COMPLETE_VB_FILTER_CHANGE:
            self._filters_changed += 1
            return self._filters_changed % self._worker_count == 0
        if code not in _SET_UP or code is None:
            return True
        is_new = code not in self._remarks
        self._remarks.add(code)
        return is_new

    def read_on(self) -> None:
        """Stop reading from the workers if the client does not keep up; `pump` resumes it."""
        if not self.connection.writable:
            for call in self._calls:
                call.unwatch()

    def refused(self, answer: Frame) -> None:
        """Pass a worker's refusal of the session on to the client, and close the client's connection."""
        if not self._is_refused:
            self._is_refused = True
            self._kv.reply(self._request, Failure(status=Status(answer.status), value=answer.value))
            self.connection.finish()

    def over(self, call: _Call) -> None:
        """Remove a worker's session, whose connection has ended.

        The client's connection ends after the last of them, or at once if this one was not complete.
        """
        self._calls = [each for each in self._calls if each is not call]
        # The rest would look complete; the client begins again only if the connection breaks.
        if not call.is_complete and not self._is_refused:
            self.connection.drop("a worker that had a part of its TAP session is gone", fault=False)
        elif not self._calls and not self._is_refused:
            self.connection.finish()

    def _weigh(self) -> None:
        kept_bytes = sum(call.kept_bytes for call in self._calls)
        self.connection.keeps(RUN_BYTES * len(self._runs) + kept_bytes)


def _wire(number: int) -> int:
    """Return the opaque of the message with this number."""
    return (number - 1) % OPAQUES + 1


class _Call(WorkerCall):
    """The session that one worker has for the client.

    Attributes:
        is_complete: True once the worker has reported that it has sent everything.
    """

    def __init__(self, merge: TapMerge, loop: asyncio.AbstractEventLoop, path: str, begin: bytes) -> None:
        super().__init__(loop, path, begin)
        self._merge = merge
        self.is_complete = False
        self._write()

    def answer(self, opcode: int, opaque: int, status: int) -> None:
        """Answer the worker's message that has this opaque."""
        self._out += Frame(Magic.CLIENT_RESPONSE, opcode, vbucket=status, opaque=opaque).encode()
        self._write()

    def _take(self, data: bytearray) -> int:
        scanned = scan(data)
        ends = [*scanned.offsets[1:].tolist(), scanned.consumed]
        begin, offsets = 0, list[int]()
        for offset, end in zip(scanned.offsets.tolist(), ends, strict=True):
            if data[offset] in _REQUESTS and data[offset + 1] not in (Opcode.TAP_OPAQUE, Opcode.NOOP):
                offsets.append(offset - begin)
                continue
            message = Frame.decode(bytes(memoryview(data)[offset:end]))
            if message.opcode == Opcode.TAP_OPAQUE and not message.is_response and self._merge.is_heard(message):
                offsets.append(offset - begin)
                continue
            self._pass_on(data, begin, offset, offsets)
            begin, offsets = end, []
            self._heard(message)
            if self.is_closed:
                return int(end)
        self._pass_on(data, begin, scanned.consumed, offsets)
        return int(scanned.consumed)

    def _pass_on(self, data: bytearray, begin: int, end: int, offsets: list[int]) -> None:
        if offsets:
            self._merge.pass_on(self, data[begin:end], offsets)

    def _heard(self, message: Frame) -> None:
        """Handle a message that is not passed on: an answer, a no-op, or a TAP_OPAQUE that the client has already."""
        if message.is_response and message.opcode == Opcode.HELLO and message.status == Status.SUCCESS:
            self.is_complete = True
        elif message.is_response:
            self._merge.refused(message)
        elif message.opcode == Opcode.NOOP:
            self._merge.connection.send(message.encode())
        else:
            self.answer(message.opcode, message.opaque, Status.SUCCESS)

    def _taken(self) -> None:
        self._merge.read_on()

    def _lost(self) -> None:
        self._merge.over(self)

    def _wrote(self) -> None:
        """Do nothing: nothing waits for a worker to read what was sent to it."""


def end_without_right(kv: Session, *, takes_over: bool) -> None:
    """Close a TAP connection if its user was removed, or may no longer stream from the bucket, or take its vbuckets
    over.
    """
    kv.users_changed()
    needed = int(STREAM | REPLICATE if takes_over else STREAM)
    has_right = kv.bucket is not None and not needed & ~kv.access.rights  # without a bucket: rights in other buckets
    if not has_right and not kv.connection.is_closed:
        kv.connection.drop(f"user {kv.user!r} has no right to it any more", fault=False)
