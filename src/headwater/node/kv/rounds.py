"""Rounds of the kernel over the connections of a bucket that send one small request at a time.

    sockets --epoll--> events --kernels/rounds.py--> received, executed, answered; or kept until a batch is on disk
                                       \\--> one connection at a time, for Python: connection.readable, connection.take

A connection joins if its session allows the kernels to answer, and its requests need no other worker; it leaves when it
pauses or closes. The event loop watches one descriptor for all joined connections. A round ends after EVENTS_MAX
connections, so that streams, timers and other work get their turns, and its time counts in the run queue like other
work (run_queue.py). While requests need checks that only the plain path makes, such as checks of locks, every readable
connection is left to Python.

The rounds keep an answer that waits for a batch, until the batch is durable or its connection sends more. For these
answers, the rounds wait for the committer like a connection.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from headwater.kernels import execute
from headwater.kernels import rounds as kernel
from headwater.node.kv.fast import kernels_may_run

if TYPE_CHECKING:
    import asyncio

    from numpy.typing import NDArray

    from headwater.node.buckets.bucket import Bucket
    from headwater.node.committer import Committer
    from headwater.node.connections.watching import Watched
    from headwater.node.kv.fast import Workspace
    from headwater.node.process.run_queue import RunQueue
    from headwater.node.reporting.requests import Requests

EVENTS_MAX: Final = 64
MICROSECONDS: Final = 1_000_000
DESCRIPTORS_FIRST: Final = 256
_FIELDS: Final = kernel.MEMBER_FIELDS
_READS: Final = 0xFFFF & ~int(execute.FEATURE_WRITE)
_ALL: Final = 0xFFFF
_WROTE: Final = int(execute.FLAG_WROTE)  # converted once, because numpy's numbers are slow


class RoundsHost(Protocol):
    """The part of a node that all its rounds share: the receive buffer, the run queue, and the event loop."""

    loop: asyncio.AbstractEventLoop
    run_queue: RunQueue
    arena: NDArray[np.uint8]


class ServedRounds:
    """The connections of one bucket whose next request the kernel may answer, and the answers that wait for a batch.

    Attributes:
        answered: the number of requests since the start whose answers rounds have sent or keep.
    """

    def __init__(
        self, host: RoundsHost, bucket: Bucket, committer: Committer, requests: Requests, workspace: Workspace
    ) -> None:
        self._loop, self._run_queue, self._arena = host.loop, host.run_queue, host.arena
        self._time: Callable[[], float] = host.loop.time
        self._bucket, self._committer, self._requests, self._workspace = bucket, committer, requests, workspace
        self._connections: dict[int, Watched] = {}
        self.answered: int = 0
        self._epoll: select.epoll | None = None
        self._members = np.zeros((0, _FIELDS), np.uint64)
        self._rows = self._members.reshape(-1).data
        self._events = np.zeros(EVENTS_MAX, np.uint64)
        self._turn = np.zeros(kernel.TURN_FIELDS, np.uint64)
        self._fields = self._turn.data
        self._entries = np.zeros((kernel.KEPT, kernel.ENTRY_FIELDS), np.uint64)
        self._answers = np.zeros(kernel.KEPT * kernel.KEPT_BYTES, np.uint8)

    # --- members ------------------------------------------------------------------------------------------------------

    def join(self, connection: Watched, descriptor: int) -> bool:
        """Watch a connection; return False if the system has no epoll, or no more descriptors."""
        try:
            self._open().register(descriptor, select.EPOLLIN)
        except (AttributeError, OSError):
            return False
        if descriptor * _FIELDS >= len(self._rows):
            self._grow(descriptor)
        self._connections[descriptor] = connection
        at = descriptor * _FIELDS
        self._rows[at + kernel.READY] = self._rows[at + kernel.WAITING] = self._rows[at + kernel.STIRRED] = 0
        return True

    def leave(self, descriptor: int) -> None:
        """Stop watching a connection. Before this call, `take_back` must have taken an answer that the kernel keeps."""
        del self._connections[descriptor]
        self.allow(descriptor, None)
        if self._epoll is not None:
            with suppress(OSError):
                self._epoll.unregister(descriptor)

    def allow(self, descriptor: int, features: int | None) -> None:
        """Allow the kernel to answer a connection with these features; None leaves its next bytes to Python."""
        self._rows[descriptor * _FIELDS + kernel.READY] = 0 if features is None else features | kernel.IS_READY

    def take_back(self, descriptor: int) -> tuple[bytes, int] | None:
        """Take back the answer that the kernel keeps until a batch is durable; return it and the batch's number, or
        None if the kernel keeps no answer of the connection.
        """
        number = self._rows[descriptor * _FIELDS + kernel.WAITING]
        if not number:
            return None
        self._rows[descriptor * _FIELDS + kernel.WAITING] = 0
        place = (number - 1) % kernel.KEPT
        return bytes(self._answer_at(place)), int(self._entries[place, kernel.GATE])

    def stirred_at(self, descriptor: int) -> float:
        """Return the time at which a connection last sent a request that the kernel answered (loop.time() seconds)."""
        return self._rows[descriptor * _FIELDS + kernel.STIRRED] / MICROSECONDS

    def close(self) -> None:
        """Stop watching all connections."""
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _open(self) -> select.epoll:
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._readable)
        return self._epoll

    def _grow(self, descriptor: int) -> None:
        members = np.zeros((max(DESCRIPTORS_FIRST, 2 * descriptor), _FIELDS), np.uint64)
        members[: len(self._members)] = self._members
        self._members, self._rows = members, members.reshape(-1).data

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._run_queue.is_spent and self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._run_queue.first(self._read_now)
        else:
            self._read()

    def _read_now(self) -> None:
        """Read from the sockets that became readable while the rounds waited in the run queue."""
        if self._epoll is not None:
            self._loop.add_reader(self._epoll.fileno(), self._readable)
            self._read()

    def _read(self) -> None:
        if self._epoll is None:
            return
        events, fields = [number for number, _ in self._epoll.poll(0, EVENTS_MAX)], self._fields
        self._events[: len(events)] = events
        fields[kernel.AT], fields[kernel.COUNT] = 0, len(events)
        while (at := fields[kernel.AT]) < len(events):
            if not self._run_queue.is_spent and kernels_may_run(self._bucket):
                self._go_round()
            if fields[kernel.AT] == at:
                fields[kernel.AT] = at + 1
                self._ask(events[at])

    def _ask(self, descriptor: int) -> None:
        """Let a connection's session, instead of the kernel, handle what has arrived; do nothing if the connection is
        gone.
        """
        if (connection := self._connections.get(descriptor)) is not None:
            connection.readable()

    def _go_round(self) -> None:
        """Let the kernel serve connections until it leaves a connection to Python; then let Python handle this one."""
        begun, work, fields, requests = self._time(), self._workspace, self._fields, self._requests
        committer, store, uuids = self._committer, self._bucket.store, self._bucket.uuids
        work.begin(self._bucket)
        plain = self._bucket.collections.plain
        fields[kernel.TURN_NOW] = int(begun * MICROSECONDS)
        fields[kernel.MASK] = _READS if store.full else _ALL
        # Both are read in this turn of the loop, in which no batch is closed, so answers of the round wait for the
        # right batch.
        fields[kernel.OPEN_GATE], fields[kernel.READ_GATE] = committer.open, (read_gate := committer.gate())
        requests.begin()
        stop = kernel.go_round(
            self._events, self._members, self._arena, work.out, store.table, store.segments, uuids, plain, work.scratch,
            work.state, self._turn, self._entries, self._answers,
        )  # fmt: skip
        self._settle(read_gate, stop)
        requests.end()
        self._run_queue.spend(self._time() - begun)
        if stop == kernel.ROUND_ASK:
            self._ask(fields[kernel.WHO])
        elif stop == kernel.ROUND_TAKE:
            self._hand_over(self._connections[fields[kernel.WHO]])
        elif stop == kernel.ROUND_REST:
            self._connections[fields[kernel.WHO]].send(
                work.out_view[fields[kernel.SENT] : work.fields[execute.ANSWERED]]
            )

    def _settle(self, read_gate: int, stop: int) -> None:
        """Commit the changes of a round, and count its requests.

        This includes the changes of the last connection, which are in the index already, even if Python handles the
        rest of that connection's bytes.

        Args:
            read_gate: the batch that answers to reads wait for; 0 if they wait for none.
            stop: the reason why the round stopped (ROUND_*).
        """
        fields, committer, requests = self._fields, self._committer, self._requests
        hands_over = stop == kernel.ROUND_TAKE
        if fields[kernel.WROTE] or (hands_over and self._workspace.fields[execute.FLAGS] & _WROTE):
            self._bucket.store.staging.use(self._workspace.fields[execute.STAGED])
            committer.wrote()
        if fields[kernel.TAIL] != fields[kernel.HEAD]:
            # The rounds keep the answers, so they must learn of a lost batch (`drop`) for their connections.
            committer.waiting.add(self)
        for kind, gate in enumerate((0, read_gate, fields[kernel.OPEN_GATE])):
            seen = fields[kernel.ROUND_SEEN + kind]
            while seen:
                opcode = (seen & -seen).bit_length() - 1
                count = fields[kernel.ROUND_CALLED + kind * execute.OPCODES + opcode]
                requests.ran(opcode, count, gate)
                self.answered += count
                seen &= seen - 1
        self._bucket.count(
            fields[kernel.ROUND_GETS],
            fields[kernel.ROUND_HITS],
            fields[kernel.ROUND_SETS],
            fields[kernel.ROUND_DELETES],
        )
        requests.received_bytes += fields[kernel.RECEIVED]
        requests.sent_bytes += fields[kernel.SENT_BYTES]

    def _hand_over(self, connection: Watched) -> None:
        """Pass the received bytes to a connection, and the kernel's progress in them to its session."""
        if self._workspace.fields[execute.OFFSET] and (quick := connection.session.quick) is not None:
            quick.resume(self._fields[kernel.STOP])
        connection.take(self._fields[kernel.GOT])

    # --- kept answers -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send the kept answers whose batch is on disk; wait for the committer again if some are left."""
        fields, begun = self._fields, self._time()
        fields[kernel.DURABLE], fields[kernel.TURN_NOW] = self._committer.durable, int(begun * MICROSECONDS)
        while kernel.release(self._members, self._turn, self._entries, self._answers) == kernel.ROUND_REST:
            rest = self._answer_at((fields[kernel.HEAD] - 1) % kernel.KEPT)[fields[kernel.SENT] :]
            self._requests.sent_bytes += fields[kernel.SENT_BYTES]
            self._connections[fields[kernel.WHO]].send(rest)
        self._requests.sent_bytes += fields[kernel.SENT_BYTES]
        if fields[kernel.HEAD] != fields[kernel.TAIL]:
            self._committer.waiting.add(self)
        self._run_queue.spend(self._time() - begun)

    def drop(self, cause: str, *, fault: bool = True) -> None:
        """Drop the connections with a kept answer, because its batch was lost."""
        numbers = range(self._fields[kernel.HEAD], self._fields[kernel.TAIL])
        places = [number % kernel.KEPT for number in numbers]
        descriptors = [int(self._entries[place, kernel.DESCRIPTOR]) for place in places]
        for number, descriptor in zip(numbers, descriptors, strict=True):
            # The connection may have taken back its answer, or another connection may have the descriptor by now.
            if self._rows[descriptor * _FIELDS + kernel.WAITING] == number + 1:
                self._connections[descriptor].drop(cause, fault=fault)
        self._fields[kernel.HEAD] = self._fields[kernel.TAIL]

    def _answer_at(self, place: int) -> memoryview:
        at = place * kernel.KEPT_BYTES
        return self._answers.data[at : at + int(self._entries[place, kernel.LENGTH])]
