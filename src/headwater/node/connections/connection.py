"""One client: a non-blocking socket, its incoming and outgoing bytes, and the session that interprets them.

The connection moves bytes and keeps their order. The session (key-value, DCP, ...) interprets them; another session may
replace it while the socket stays open (DCP_OPEN does this). Three guarantees:

* an item of output is sent only once its batch is durable, and never before an item queued earlier;
* output is bounded: above QUEUED_BYTES_MAX the connection stops reading, and streams are pulled (`pump`), never pushed;
* input is bounded: a buffer grows as bytes arrive, not as a header claims (inbox.py), and the memory of all connections
  together is bounded as well (budget.py).

A session that can't continue (it waits for a vbucket, a password check, a commit) pauses reading; bytes that have
arrived wait in the inbox, and are passed to it again on resume.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from time import thread_time
from typing import Final, Protocol, TypeVar

from headwater.errors import CorruptStore, ProtocolError, TlsError
from headwater.node.committer import Committer
from headwater.node.connections.budget import Budget
from headwater.node.connections.inbox import ConnectionInbox
from headwater.node.connections.outbox import Outbox
from headwater.node.connections.tls import ENGINE_BYTES
from headwater.node.connections.watching import QuickPath, SocketWatch
from headwater.node.process.memory import MAPPED_BYTES_MIN, mapped_copy, socket_bytes
from headwater.node.process.run_queue import SLICE_SECONDS, RunQueue
from headwater.node.reporting.log_lines import event
from headwater.node.reporting.requests import Requests
from headwater.tls.socket import TlsSocket

QUEUED_BYTES_MAX = 4 << 20
QUEUED_BYTES_RESUME = 1 << 20
STRANGER_QUEUED_BYTES_MAX = 64 << 10
STIR_BYTES = 64 << 10  # so many bytes of an incomplete frame count as a sign of life
SEND_BYTES = 256 << 10
FINISH_SECONDS = 10.0
SENDS_PER_TURN = 8
GRAIN_BYTES = 512
"""The error allowed in the account of a connection's memory, in bytes. An update after every answer would cost more
than it is worth: the Python objects of a connection, which are not counted, are several times as large."""
_WORKING = frozenset({"parked", "changing", "preparing", "relayed"})
"""The reasons of a pause that mean: the node works on an answer."""
PUMPS_PER_TURN = 4
"""The most calls of a session's `pump` in one turn of the event loop: fewer turns cost less time."""

T = TypeVar("T")

log: Final = logging.getLogger(__name__)


class ConnectionSession(Protocol):
    """The object that interprets a connection's bytes; its methods are called from the event loop's thread."""

    deadline: float | None
    """The time (loop.time() seconds) for `tick`; None for never. Read again after every other call."""
    pumps: bool
    """True if the session has output to pump; if False, `pump` is not called when the queue has drained."""

    def receive(self, data: memoryview) -> int:
        """Handle whole frames at the beginning of `data` (valid during the call only); return the number of bytes
        consumed.
        """

    def pump(self) -> None:
        """Send waiting output, at most as much as an arena holds.

        The connection repeats the call when that output has been sent. A call that sends nothing, although its turn is
        not over, ends this; then `Connection.wake` requests the next call.
        """

    def tick(self, now: float) -> None:
        """Act on the deadline, which has passed; `now` is loop.time() in seconds."""

    def users_changed(self) -> None:
        """Look up the peer's rights again, because users were added or removed, or their roles changed."""

    def closed(self) -> None:
        """End the session, because the socket is closed."""

    @property
    def written_gate(self) -> int:
        """The number of the newest batch with a write of this session; 0 for none. If the batch can't be written to
        disk, the connection is dropped.
        """

    @property
    def quick(self) -> QuickPath | None:
        """The facts with which rounds may answer requests without this session; None if it must see all requests."""


def _awaits_nobody() -> bool:
    return False


class _Nobody:
    """The session of a connection that is closed."""

    deadline: float | None = None
    pumps = False
    written_gate = 0
    quick = None

    def receive(self, data: memoryview) -> int:
        """Drop incoming bytes."""
        return len(data)

    def pump(self) -> None:
        """Do nothing: there is no peer."""

    def tick(self, now: float) -> None:
        """Do nothing: there is no deadline."""

    def users_changed(self) -> None:
        """Do nothing: there is no user."""

    def closed(self) -> None:
        """Do nothing: the socket is closed already."""


NOBODY = _Nobody()


class Host(Protocol):
    """The part of the server that a connection needs."""

    loop: asyncio.AbstractEventLoop
    budget: Budget
    strangers: Budget
    run_queue: RunQueue

    @property
    def committer(self) -> Committer:
        """The committer for the output of a new connection."""

    @property
    def requests(self) -> Requests:
        """The counters of requests over a new connection."""

    def forget(self, connection: Connection) -> None:
        """Remove the connection from the server's list."""

    def end_trial(self, connection: Connection, *, is_trusted: bool) -> None:
        """Assign a place to a connection on trial whose peer has logged in, or drop it."""

    def warn(self, peer: str, cause: str) -> None:
        """Write one log line that names peer and cause."""


class Connection:
    """A socket with its queues. The owner sets `session` before `start`.

    Attributes:
        is_paused: True while reading is paused; a session then stops between two frames.
        committer: the committer of the selected bucket, whose batches output waits for.
        is_on_trial: True if the connection exceeds the limit, and must soon log in as a member or administrator.
        is_inner: True if another worker opened the connection for one of its clients, and closes it when that client
            leaves.
        is_common: True if the peer called the address that all workers share.
        awaits_others: called when the peer has ended its input; returns True if other workers still have to answer the
            peer's requests. Their last answer leads to a call of `others_answered`.
    """

    session: ConnectionSession

    def __init__(self, host: Host, sock: socket.socket | TlsSocket, peer: str, inbox: ConnectionInbox) -> None:
        self.host: Final = host
        self.loop: asyncio.AbstractEventLoop = host.loop
        self.peer = peer
        self.is_closed: bool = False
        self.is_paused: bool = False
        self.is_on_trial = self.is_inner = self.is_common = False
        self._stirred_at: float = host.loop.time()
        self.is_known: bool = True
        self.stranger_since: float = self._stirred_at
        self.kernel_bytes: int = 0
        self._stirred_bytes = self._held_bytes = self._session_bytes = self._relayed_bytes = self._tls_bytes = 0
        self._turn_ends = 0.0
        self.awaits_others: Callable[[], bool] = _awaits_nobody
        self._sock = sock
        self.tls: TlsSocket | None = sock if isinstance(sock, TlsSocket) else None
        self._raw = sock.raw if isinstance(sock, TlsSocket) else sock
        self._fd = sock.fileno()
        self._run_queue = host.run_queue
        self._requests = host.requests
        self.committer: Committer = host.committer
        self._time = host.loop.time
        self._inbox, self._outbox = inbox, Outbox()
        self._watching = SocketWatch(host.loop, self._fd, may_join=type(sock) is socket.socket)
        self._paused: set[str] = set()
        self._finishing = False
        self._eof = False
        self._writing = False
        self._woken = False
        self._feeding = False
        self._flushes = False
        self._was_long = self._has_stood = False
        self._sends = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def stirred_at(self) -> float:
        """The time (loop.time() seconds) at which the last whole message was received, or output was sent."""
        return self._watching.stirred_at(self._stirred_at)

    @property
    def called_at(self) -> object:
        """The local address that the peer called, as the socket reports it."""
        return self._raw.getsockname()

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read from the socket."""
        self._tls_bytes = 0 if self.tls is None else ENGINE_BYTES
        self._listen()
        self._account()

    def serve(self, committer: Committer, requests: Requests) -> None:
        """Change to another bucket: output waits for its committer's batches, and its counters count the requests.

        No queued output may still wait for a batch of the former bucket.
        """
        if committer is not self.committer:
            # `settle` has waited for all of these batches; the new bucket's numbers would hold them back for nothing.
            self._outbox.ungate()
            self.committer.waiting.discard(self)
            self._requests.end()
            self.committer, self._requests = committer, requests
            requests.begin()
            if not self.is_closed:
                self._await_departure()

    def know(self, *, is_known: bool, is_trusted: bool = False) -> None:
        """Note that the peer has logged in (`is_trusted`: as a member or administrator), or that it is a stranger, who
        has lower limits.
        """
        if is_known and self.is_on_trial:
            self.host.end_trial(self, is_trusted=is_trusted)
        self._follow_session()
        if is_known == self.is_known or self.is_closed:
            return
        self._budget.release(self)
        self._held_bytes = 0
        self.is_known = is_known
        if not is_known:
            self.stranger_since = self.loop.time()
        self._account()

    def drop(self, cause: str, *, fault: bool = True) -> None:
        """Close now, and discard unsent output; do nothing if the connection is closed already.

        Args:
            cause: the reason, for the log.
            fault: True if the peer broke a rule: the log line is a warning then, otherwise a debug line.
        """
        if self.is_closed:
            return
        # First of all: everything below may lead back here.
        self.is_closed = True
        if fault:
            self.host.warn(self.peer, cause)
        else:
            log.debug("%s: closed: %s", self.peer, cause, extra=event("peer.closed", peer=self.peer))
        self._unwatch()
        self._watching.forget_session()
        if self._writing:
            self.loop.remove_writer(self._fd)
        if self._timer is not None:
            self._timer.cancel()
        self.committer.waiting.discard(self)
        self._outbox.clear()
        self._budget.release(self)
        self._inbox.clear()  # now: half a frame may be 30 MiB, and the garbage collector may free this object late
        self._sock.close()
        self.host.forget(self)
        self.loop.call_soon(self._leave_session)  # never inside a call of the session's own

    def _leave_session(self) -> None:
        """Call `closed` of the session; then drop the references between connection and session, so that both are freed
        without the garbage collector (garbage.py).
        """
        session, self.session = self.session, NOBODY
        self.awaits_others = _awaits_nobody
        session.closed()

    def notice_reset(self) -> None:
        """Close if the peer has reset the connection; the server calls it at intervals.

        libuv reports a reset that arrives together with the last data only once, with the data, and then stops watching
        the socket.
        """
        if not self.is_closed and (error := self._raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            self.drop(f"connection lost: {os.strerror(error)}", fault=False)

    def finish(self) -> None:
        """Stop reading; close when all queued output has been sent, or after FINISH_SECONDS."""
        if self.is_closed or self._finishing:
            return
        self._finishing = True
        self.pause("finishing")
        if self._outbox.empty and not self._is_held_up:
            self.loop.call_soon(lambda: self.drop("finished", fault=False))
        else:
            self.loop.call_later(FINISH_SECONDS, lambda: self.drop("the peer does not take its answers", fault=False))

    # --- input --------------------------------------------------------------------------------------------------------

    def measures(self, measure: Callable[[memoryview], int]) -> None:
        """Set the function that returns the size of the next message (inbox.py), for a peer whose messages are not
        frames.
        """
        self._inbox.measure = measure

    def pause(self, reason: str) -> None:
        """Stop reading until `resume` was called for every reason for which `pause` was called."""
        if not self._paused and not self.is_closed:
            self._unwatch()
        self._paused.add(reason)
        self.is_paused = True

    def resume(self, reason: str) -> None:
        """Remove one reason of a pause; after the last one, pass the bytes that arrived meanwhile to the session."""
        if reason not in self._paused:
            return
        self._paused.discard(reason)
        # Each reason has an end of its own; reading while one is left would break the order of requests.
        if self._paused or self.is_closed:
            return
        self._listen()
        self._run_queue.first(self._feed_pending)

    @property
    def owes_answer(self) -> bool:
        """True while the session works on a request, however long it takes: the peer waits for this node."""
        return not _WORKING.isdisjoint(self._paused)

    def _listen(self) -> None:
        """Read from the socket again, because no reason of a pause is left."""
        self.is_paused = False
        if not self._eof:
            self._watch_reading()
            if self.tls is not None and self.tls.has_more:  # the loop does not report bytes that TLS has already read
                self._run_queue.first(self._read_on)

    def _watch_reading(self) -> None:
        if self._watching.begin(self, self._watch):
            self._look_at_rest()

    def _unwatch(self) -> None:
        """Stop watching the socket for reading."""
        self._take_back()
        # Read before rounds forget this connection: its descriptor may be another connection's in a moment.
        self._stirred_at = self.stirred_at
        self._watching.end()

    def _follow_session(self) -> None:
        """Change the watching of the socket if the session, or the facts for rounds, have changed."""
        if self._watching.is_outdated(self):
            self._unwatch()
            self._watch_reading()

    def _look_at_rest(self) -> None:
        """Allow rounds to answer the next requests if no earlier bytes or answers are left here; otherwise leave them
        to Python.
        """
        if self._watching.rounds is not None:
            self._watching.allow(
                is_at_rest=not self._inbox.held_bytes
                and not self._outbox.queued_bytes
                and not self._was_long
                and not self._feeding
                and self.session.written_gate <= self.committer.durable
            )

    def _take_back(self) -> None:
        """Take back an answer that rounds keep until its batch is durable, so that later answers are queued
        after it.
        """
        if self._watching.rounds is not None and (answer := self._watching.take_back()) is not None:
            if self.is_closed:
                return
            self._outbox.push(*answer)
            self._look_at_rest()
            self._await_departure()

    def _watch(self, add: Callable[..., None], work: Callable[[], None]) -> None:
        """Watch the socket with the event loop.

        libuv reports a reset once to both watchers and closes its handle; uvloop remembers this for the descriptor as
        long as the loop watches it, and raises RuntimeError.
        """
        try:
            add(self._fd, work)
        except RuntimeError:
            self.drop("connection lost: the peer has reset it", fault=False)

    def turn_is_over(self) -> bool:
        """Return True if this connection has used up its time slice."""
        return self._time() >= self._turn_ends

    def begin_turn(self) -> None:
        """Begin a new time slice."""
        self._turn_ends = self._time() + self._run_queue.slice_seconds

    def gives_way(self) -> bool:
        """Return True if the session must stop here, because its time slice is used up; it then continues after the
        other connections' turns.
        """
        if not self.turn_is_over():
            return False
        self.stand_behind()
        return True

    def others_wait(self) -> bool:
        """Return True if other connections are in the run queue, and this one has not yet waited for them in
        this turn.
        """
        return len(self._run_queue) > 0 and not self._has_stood

    def stand_behind(self) -> None:
        """Stop the session here, and continue it after all connections in the run queue."""
        self.pause("turn")
        self._run_queue.behind(self._have_turn)

    def _have_turn(self) -> None:
        """Continue the session, which `stand_behind` stopped."""
        if self._paused != {"turn"} or self.is_closed:
            self.resume("turn")
            return
        self._paused.clear()
        self._listen()
        self._has_stood = True
        self._feed_pending()
        self._has_stood = False

    @property
    def _budget(self) -> Budget:
        return self.host.budget if self.is_known else self.host.strangers

    def keeps(self, session_bytes: int) -> None:
        """Set the memory, in bytes, that the session holds besides incoming and outgoing bytes."""
        if session_bytes != self._session_bytes:
            self._session_bytes = session_bytes
            self._account()

    def keeps_relayed(self, relayed_bytes: int) -> None:
        """Set the memory, in bytes, of messages to and from other workers, which a session holds besides its own."""
        if relayed_bytes != self._relayed_bytes:
            self._relayed_bytes = relayed_bytes
            self._account()

    def weigh_kernel(self) -> int:
        """Measure the memory that the operating system holds for the socket, in both directions; count it, and return
        the bytes.
        """
        if not self.is_closed:
            self.kernel_bytes = socket_bytes(self._raw)
            self._account()
        return self.kernel_bytes

    def _account(self) -> None:
        """Report the bytes held to the budget if they have changed by GRAIN_BYTES or more; this may drop the
        connection.
        """
        held = (
            self._inbox.memory_bytes
            + self._outbox.queued_bytes
            + self._session_bytes
            + self._relayed_bytes
            + self.kernel_bytes
            + self._tls_bytes
        )
        if not -GRAIN_BYTES < held - self._held_bytes < GRAIN_BYTES and not self.is_closed:
            self._held_bytes = held
            self._budget.hold(self, held)

    def _stir(self, now: float) -> None:
        """Note that a whole message was received, or output was sent: the peer is alive."""
        self._stirred_at, self._stirred_bytes = now, 0

    def _read_on(self) -> None:
        """Read the bytes that TLS still holds, unless another call has read them meanwhile."""
        if self.tls is not None and self.tls.has_more and not self._paused and not self.is_closed:
            self._receive()

    def readable(self) -> None:
        """Read from the socket, or first wait in the run queue if this connection's time slice is used up."""
        if self._run_queue.is_spent:
            self.pause("line")
            # A connection whose last request was long waits behind all others: hundreds of such connections, with one
            # long request each, would otherwise delay everybody's short requests by many seconds.
            line = self._run_queue.behind if self._was_long else self._run_queue.first
            line(self._read_now)
        else:
            self._receive()

    def _read_now(self) -> None:
        """Read the bytes that arrived while this connection waited in the run queue."""
        self._paused.discard("line")
        if self._paused or self.is_closed:
            return
        self._listen()
        if not self.is_closed:
            self._has_stood = self._was_long
            self._receive()
            self._has_stood = False

    def take(self, count: int) -> None:
        """Handle `count` bytes that a round has received into the shared receive buffer."""
        self._receive(count)

    def _receive(self, count: int = 0) -> None:
        # An event reads the clock only twice; all work in between uses the first reading. While other connections wait,
        # the thread's processor time is read as well: the system may have interrupted the thread, and a short request
        # that took long by the clock must not put its connection behind the others.
        begun, is_alone = self._time(), not len(self._run_queue)
        worked = 0.0 if is_alone else thread_time()
        self._take_back()
        self._take_bytes(begun, count)
        spent = self._time() - begun
        is_slow = spent >= SLICE_SECONDS and not is_alone
        self._was_long = is_slow and thread_time() - worked >= SLICE_SECONDS
        self._look_at_rest()
        if spent:
            self._run_queue.spend(spent)

    def _take_bytes(self, now: float, count: int) -> None:
        try:
            room = self._inbox.room()  # where a round has put its bytes
            count = count or self._sock.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return
        except MemoryError:
            self.drop("there is no memory for what it sends")
            return
        except TlsError as error:
            self.drop(error.reason)
            return
        except OSError as error:
            self.drop(f"connection lost: {error.strerror}", fault=False)
            return
        if count == 0:
            self._end_of_input()
            return
        self._requests.received_bytes += count
        self._stirred_bytes += count
        if self._stirred_bytes >= STIR_BYTES:
            self._stir(now)
        try:
            data = self._inbox.received(count)
        except ProtocolError as error:
            self.drop(str(error))
            return
        self._feed(data, now)
        self._account()
        if self.tls is not None and self.tls.has_more and not self._paused and not self.is_closed:
            self._run_queue.first(self._read_on)

    def _end_of_input(self) -> None:
        """Handle the end of the peer's input: answer the requests under way, then close the socket."""
        self._eof = True
        if self._paused:
            self.loop.remove_reader(self._fd)
        else:  # a connection that was resumed just now may still have earlier requests in its inbox
            self._feed_pending()

    def _end(self) -> None:
        """Close after the end of the peer's input, once other workers have answered its requests, or after
        FINISH_SECONDS.
        """
        if self.awaits_others():
            self.pause("others")
            self.loop.call_later(FINISH_SECONDS, self.finish)
        else:
            self.finish()

    def others_answered(self) -> None:
        """Close if the peer has ended its input, because other workers have now answered all its requests."""
        self.resume("others")

    def _feed_pending(self) -> None:
        if self.is_closed or self._paused:
            return
        begun = self._time()
        self._feed(self._inbox.pending(), begun)
        self._account()
        if self._eof and not self._paused and not self.is_closed:
            self._end()
        self._look_at_rest()
        self._run_queue.spend(self._time() - begun)

    def _feed(self, data: memoryview, now: float) -> None:
        if self._feeding or not data:
            return
        self._feeding = True
        self._turn_ends = now + self._run_queue.slice_seconds
        self._requests.begin()
        try:
            consumed = self._consume(data)
            if not self.is_closed:
                self._inbox.keep(data, consumed)
        except Exception as error:  # `_fail` takes every kind
            self._fail(error)
        else:
            if consumed:
                self._stir(now)
            if self.session.deadline is not None:
                self._arm()
        finally:
            self._feeding = False
            self._requests.end()
            self._follow_session()

    def _consume(self, data: memoryview) -> int:
        """Pass bytes to the session; if DCP_OPEN replaced the session, pass the rest to its successor."""
        session = self.session
        consumed = session.receive(data)
        # DCP_OPEN and TAP_CONNECT replace the session in the middle of a buffer: the new session handles the rest.
        while self.session is not session:
            session = self.session
            consumed += session.receive(data[consumed:])
        return consumed

    def _safely(self, work: Callable[..., T], *arguments: object) -> T | None:
        """Call a method of the session, and return its result. If it raises, end the connection, and return None."""
        try:
            return work(*arguments)
        except Exception as error:  # `_fail` takes every kind
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        """End this connection only, after its session raised an error."""
        if isinstance(error, ProtocolError | CorruptStore):
            self.drop(str(error))
        elif isinstance(error, MemoryError):
            self.drop("there is no memory for what it asks")
        else:  # a fault of this node: logged with its traceback; the other connections continue
            log.error("%s: the session failed", self.peer, exc_info=error, extra=event("node.failed", peer=self.peer))
            self.drop("internal error", fault=False)

    # --- output -------------------------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """True if no output waits, so that new output is sent at once."""
        is_held_up = self.tls is not None and self.tls.unsent_bytes > 0  # as `_is_held_up`: asked after each send
        return not self._outbox.queued_bytes and not self.is_closed and not is_held_up

    @property
    def _is_held_up(self) -> bool:
        """True if encrypted bytes still wait for room in the socket."""
        return self.tls is not None and self.tls.unsent_bytes > 0

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        """Queue bytes after all earlier output; they are sent once batch `gate` is durable (0: at once).

        The caller may reuse the buffer when the call returns.
        """
        if self.is_closed or not data:
            return
        self._sends += 1
        if not self._feeding:
            # An answer that rounds keep is earlier than this one, and must be sent before it.
            self._take_back()
        sent = 0
        # Send directly only if the queue is empty: an answer whose batch is durable must not overtake an answer that
        # still waits.
        outbox = self._outbox
        if not outbox.queued_bytes and gate <= self.committer.durable:
            sent = self._send_now(data)
            if sent and not self._feeding:
                self._stir(self._time())
            if sent == len(data) or self.is_closed:
                if self.tls is not None and not self.is_closed:
                    self._await_departure()  # some encrypted bytes may still wait for room in the socket
                return
        # A bytes object is queued as it is; only a view of an arena must be copied. Large output, which may wait long
        # or for ever, is copied into a mapping, whose memory returns to the system when it is freed.
        if len(data) - sent >= MAPPED_BYTES_MIN:
            outbox.push(mapped_copy(memoryview(data)[sent:]), gate)
        elif isinstance(data, bytes):
            outbox.push(memoryview(data)[sent:], gate)
        else:
            outbox.push(bytes(memoryview(data)[sent:] if sent else data), gate)
        if len(data) >= GRAIN_BYTES or not self._feeding:  # `_feed`'s callers account afterwards
            self._account()
            if self.is_closed:
                return
        self._look_at_rest()
        self._await_departure()
        if outbox.queued_bytes > (QUEUED_BYTES_MAX if self.is_known else STRANGER_QUEUED_BYTES_MAX):
            self.pause("output")

    def wake(self) -> None:
        """Request a `pump` soon; several requests cause one call."""
        if not self._woken and not self.is_closed:
            self._woken = True
            self._run_queue.first(self._pump)

    def flush(self) -> None:
        """Send soon the output that may be sent, because a batch became durable or the socket has room again."""
        if self._outbox.gate > self.committer.durable and not self._writing:
            self.committer.waiting.add(self)  # the batch that became durable is not the awaited one
        elif not self._run_queue.is_spent:
            self.flush_now()
        elif not self._flushes:
            self._flushes = True
            self._run_queue.first(self.flush_now)

    def flush_now(self) -> None:
        """Send now the output that may be sent and that the socket has room for, even if the time slice is used up."""
        self._flushes = False
        begun = self._time()
        self._send_queued(begun)
        if spent := self._time() - begun:
            self._run_queue.spend(spent)

    def _send_queued(self, now: float) -> None:
        outbox = self._outbox
        if self._is_held_up:
            self._send_now(b"")
        # A fast reader with a long queue must not keep the loop: the socket says again that it is writable.
        for _ in range(SENDS_PER_TURN):
            chunk = outbox.ready(self.committer.durable, SEND_BYTES)
            if not chunk:
                break
            sent = self._send_now(chunk)
            if self.is_closed:
                return
            outbox.sent(sent)
            if sent:
                self._stir(now)
            if sent < len(chunk) or not outbox.queued_bytes:
                break
        if self.is_closed:
            return
        self._account()
        self._await_departure()
        self._look_at_rest()
        if self.is_paused and outbox.queued_bytes <= (QUEUED_BYTES_RESUME if self.is_known else 0):
            self.resume("output")
        if not outbox.queued_bytes and not self._is_held_up:
            if self._finishing:
                self.drop("finished", fault=False)
            # A stream is pulled only now: the bytes that it copies out of the log go straight into a socket with room.
            elif self.session.pumps:
                self.wake()

    def _send_now(self, data: bytes | bytearray | memoryview) -> int:
        try:
            sent = self._sock.send(data)
            self._requests.sent_bytes += sent
            return sent
        except (BlockingIOError, InterruptedError):
            return 0
        except TlsError as error:
            self.drop(error.reason)
            return 0
        except OSError as error:
            self.drop(f"connection lost: {error.strerror}", fault=False)
            return 0

    def _await_departure(self) -> None:
        """Wait for the batch, or the room in the socket, that the first queued item needs."""
        # The first item decides: if its batch holds it back, a writer on the socket would make the loop spin.
        if self.tls is not None:
            self._tls_bytes = ENGINE_BYTES + self.tls.unsent_bytes
            self._account()
            if self.is_closed:
                return
        outbox, wants_writer = self._outbox, self._is_held_up
        if outbox.queued_bytes:
            is_free = outbox.gate <= self.committer.durable
            wants_writer = wants_writer or is_free
            if not is_free:
                self.committer.waiting.add(self)
        if wants_writer and not self._writing:
            self._watch(self.loop.add_writer, self.flush)
        elif self._writing and not wants_writer:
            self.loop.remove_writer(self._fd)
        self._writing = wants_writer and not self.is_closed

    def _pump(self) -> None:
        self._woken = False
        if self.is_closed or self._finishing or not self._outbox.empty:
            return  # flush wakes again when the queue has drained
        begun = self._time()
        self._turn_ends = begun + self._run_queue.slice_seconds
        for _ in range(PUMPS_PER_TURN):
            before = self._sends
            self._safely(self.session.pump)
            if not self.writable:
                break  # flush wakes when the queue has drained
            if self._sends == before:
                if self.turn_is_over():  # the session may have had no time to send anything
                    self._pump_again()
                break
        else:
            self._pump_again()
        self._arm()
        self._run_queue.spend(self._time() - begun)

    def _pump_again(self) -> None:
        """Request a `pump` as `wake` does, but after the connections that have not been pumped yet."""
        if not self._woken and not self.is_closed:
            self._woken = True
            self._run_queue.behind(self._pump)

    # --- time ---------------------------------------------------------------------------------------------------------

    def rearm(self) -> None:
        """Set the timer again after the session's deadline changed outside of a call by this connection."""
        self._arm()

    def _arm(self) -> None:
        """Keep one timer, at or before the session's deadline; if the deadline is later when it fires, set it again."""
        deadline = self.session.deadline
        if deadline is None or self.is_closed:
            return
        # A later deadline keeps the earlier timer: every message moves the deadline, and a new timer costs more than
        # one needless call of `_expired`.
        if self._timer is None or self._timer_at > deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self.loop.call_at(deadline, self._expired)

    def _expired(self) -> None:
        self._timer = None
        deadline = self.session.deadline
        if self.is_closed or deadline is None:
            return
        now = self.loop.time()
        if now >= deadline:
            self._safely(self.session.tick, now)
        self._arm()
