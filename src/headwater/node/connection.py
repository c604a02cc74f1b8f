"""One client: a non-blocking socket, what has arrived, what must leave, and the session that understands it.

The connection moves bytes and keeps order; the session (key-value, DCP, ...) gives them meaning and may be replaced
while the socket lives (DCP_OPEN does). Three promises:

* an item of output leaves only when the batch it is gated by is durable, and never before an item queued earlier;
* output is bounded: over QUEUED_BYTES_MAX nothing more is read, and streams are pulled (`pump`), never pushed;
* input is bounded: a buffer grows as bytes arrive, not as a header claims (inbox.py).

A session that cannot go on (it waits for a vbucket, a password check, a commit) pauses reading; what had arrived
waits in the inbox and is handed over again on resume.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Protocol, TypeVar

from headwater.errors import CorruptStore, ProtocolError
from headwater.node.committer import Committer
from headwater.node.inbox import Inbox
from headwater.node.outbox import Outbox

QUEUED_BYTES_MAX = 4 << 20
QUEUED_BYTES_RESUME = 1 << 20
SEND_BYTES = 256 << 10
FINISH_SECONDS = 10.0
PUMPS_PER_TURN = 4
"""How often in a row a session may send while the socket takes it all: a turn of the event loop has its price."""

T = TypeVar("T")

log = logging.getLogger("headwater.node")


class Session(Protocol):
    """What a connection asks of the object that understands its bytes; all calls come from the event loop's thread."""

    deadline: float | None
    """When `tick` must be called (loop.time() seconds); None for never. Read again after every other call."""

    def receive(self, data: memoryview) -> int:
        """Take whole frames off the front of `data` (valid during the call only); returns the bytes consumed."""

    def pump(self) -> None:
        """Send at most an arena's worth of what is waiting. Called again after it has left, until a call sends nothing;
        then `Connection.wake` asks for the next one."""

    def tick(self, now: float) -> None:
        """The deadline has passed (now: loop.time() seconds)."""

    def closed(self) -> None:
        """The socket is gone; nothing more can be sent."""

    @property
    def written_gate(self) -> int:
        """The newest batch with a write of this session's in it; 0 for none. When it is lost, the connection goes."""


class Host(Protocol):
    """What a connection needs from the server that accepted it."""

    loop: asyncio.AbstractEventLoop
    committer: Committer

    def forget(self, connection: Connection) -> None:
        """Drop the connection from the books."""

    def warn(self, peer: str, cause: str) -> None:
        """Write the one line that names peer and cause."""


class Connection:
    """A socket with its queues. `session` is set by whoever makes the connection, before `start`."""

    session: Session

    def __init__(self, host: Host, sock: socket.socket, peer: str, inbox: Inbox) -> None:
        self.host = host
        self.loop = host.loop
        self.peer = peer
        self.is_closed = False
        self.heard_at = host.loop.time()
        self._sock = sock
        self._fd = sock.fileno()
        self._inbox = inbox
        self._outbox = Outbox()
        self._paused: set[str] = set()
        self._finishing = False
        self._eof = False
        self._writing = False
        self._woken = False
        self._feeding = False
        self._sends = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read."""
        self.loop.add_reader(self._fd, self._readable)

    def drop(self, cause: str, *, fault: bool = True) -> None:
        """Close now, unsent output included. `cause` goes to the log when it is the peer's fault."""
        if self.is_closed:
            return
        self.is_closed = True
        if fault:
            self.host.warn(self.peer, cause)
        else:
            log.debug("%s: closed: %s", self.peer, cause)
        self.loop.remove_reader(self._fd)
        if self._writing:
            self.loop.remove_writer(self._fd)
        if self._timer is not None:
            self._timer.cancel()
        self.host.committer.waiting.discard(self)
        self._outbox.clear()
        self._inbox.clear()  # now: half a frame may be 30 MiB, and who refers to whom here is only found out in time
        self._sock.close()
        self.host.forget(self)
        self.loop.call_soon(self.session.closed)  # never inside a call of the session's own

    def notice_reset(self) -> None:
        """Close if the peer has reset the connection. To be called now and then: a reset that comes together with the
        last data is told once, with the data, and then libuv watches the socket no more."""
        if not self.is_closed and (error := self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            self.drop(f"connection lost: {os.strerror(error)}", fault=False)

    def finish(self) -> None:
        """Read no more; close when everything queued has left (or after FINISH_SECONDS)."""
        if self.is_closed or self._finishing:
            return
        self._finishing = True
        self.pause("finishing")
        if self._outbox.empty:
            self.loop.call_soon(lambda: self.drop("finished", fault=False))
        else:
            self.loop.call_later(FINISH_SECONDS, lambda: self.drop("the peer does not take its answers", fault=False))

    # --- input --------------------------------------------------------------------------------------------------------

    def pause(self, reason: str) -> None:
        """Stop reading until `resume` was called for every reason given."""
        if not self._paused and not self.is_closed:
            self.loop.remove_reader(self._fd)
        self._paused.add(reason)

    def resume(self, reason: str) -> None:
        """Take back one reason; with the last of them, what had arrived meanwhile is handed to the session."""
        if reason not in self._paused:
            return
        self._paused.discard(reason)
        if self._paused or self.is_closed:
            return
        if not self._eof:
            self.loop.add_reader(self._fd, self._readable)
        self.loop.call_soon(self._feed_pending)

    @property
    def is_paused(self) -> bool:
        """Whether anything holds reading back; a session stops between two frames when it is."""
        return bool(self._paused)

    def _readable(self) -> None:
        try:
            count = self._sock.recv_into(self._inbox.room())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.drop(f"connection lost: {error.strerror}", fault=False)
            return
        if count == 0:
            self._end_of_input()
            return
        self.heard_at = self.loop.time()
        try:
            data = self._inbox.received(count)
        except ProtocolError as error:
            self.drop(str(error))
            return
        self._feed(data)

    def _end_of_input(self) -> None:
        """The peer sends no more; answers it may still be waiting for are given before the socket closes."""
        self._eof = True
        if self._paused:
            self.loop.remove_reader(self._fd)
        else:
            self.finish()

    def _feed_pending(self) -> None:
        if self.is_closed or self._paused:
            return
        self._feed(self._inbox.pending())
        if self._eof and not self._paused:
            self.finish()

    def _feed(self, data: memoryview) -> None:
        if self._feeding or not data:
            return
        self._feeding = True
        consumed = self._safely(self._consume, data)
        self._feeding = False
        if consumed is not None and not self.is_closed:
            self._inbox.keep(data, consumed)
            self._arm()

    def _consume(self, data: memoryview) -> int:
        """Hand bytes to the session; when DCP_OPEN replaced it, the rest is for its successor."""
        consumed = 0
        while True:
            session = self.session
            consumed += session.receive(data[consumed:])
            if self.session is session:
                return consumed

    def _safely(self, work: Callable[..., T], *arguments: object) -> T | None:
        """Call into the session; an error ends this connection only. None when there was one."""
        try:
            return work(*arguments)
        except (ProtocolError, CorruptStore) as error:
            self.drop(str(error))
        except Exception:  # a fault of ours: told in full, and the other connections go on
            log.exception("%s: the session failed", self.peer)
            self.drop("internal error", fault=False)
        return None

    # --- output -------------------------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether nothing waits in the queue: what is sent now goes out now."""
        return self._outbox.empty and not self.is_closed

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        """Queue bytes behind everything sent before; they leave once batch `gate` is durable (0: at once).

        The buffer is free again when the call returns.
        """
        if self.is_closed or not data:
            return
        self._sends += 1
        sent = 0
        if self._outbox.empty and gate <= self.host.committer.durable:
            sent = self._send_now(data)
            if sent == len(data) or self.is_closed:
                return
        self._outbox.push(bytes(memoryview(data)[sent:]), gate)
        self._await_departure()
        if self._outbox.queued_bytes > QUEUED_BYTES_MAX:
            self.pause("output")

    def wake(self) -> None:
        """Ask for a `pump` soon; asking twice is asking once."""
        if not self._woken and not self.is_closed:
            self._woken = True
            self.loop.call_soon(self._pump)

    def flush(self) -> None:
        """Send what may leave now (a batch became durable, or the socket takes bytes again)."""
        while not self.is_closed:
            chunk = self._outbox.ready(self.host.committer.durable, SEND_BYTES)
            if not chunk:
                break
            sent = self._send_now(chunk)
            self._outbox.sent(sent)
            if sent < len(chunk):
                break
        if self.is_closed:
            return
        self._await_departure()
        if self._outbox.queued_bytes <= QUEUED_BYTES_RESUME:
            self.resume("output")
        if self._outbox.empty:
            if self._finishing:
                self.drop("finished", fault=False)
            else:
                self.wake()

    def _send_now(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.drop(f"connection lost: {error.strerror}", fault=False)
            return 0

    def _await_departure(self) -> None:
        """Wait for what holds the head of the queue back: its batch, or the socket."""
        gated = self._outbox.gate > self.host.committer.durable
        if gated:
            self.host.committer.waiting.add(self)
        wants_writer = not self._outbox.empty and not gated
        if wants_writer and not self._writing:
            self.loop.add_writer(self._fd, self.flush)
        elif self._writing and not wants_writer:
            self.loop.remove_writer(self._fd)
        self._writing = wants_writer

    def _pump(self) -> None:
        self._woken = False
        if self.is_closed or self._finishing or not self._outbox.empty:
            return  # flush wakes again when the queue has drained
        for _ in range(PUMPS_PER_TURN):
            before = self._sends
            self._safely(self.session.pump)
            if self._sends == before or not self.writable:
                break
        else:
            self.wake()
        self._arm()

    # --- time ---------------------------------------------------------------------------------------------------------

    def rearm(self) -> None:
        """The session's deadline changed outside of a call of this connection's."""
        self._arm()

    def _arm(self) -> None:
        """Keep one timer, at or before the session's deadline; a deadline that moved later is found when it fires."""
        deadline = self.session.deadline
        if deadline is None or self.is_closed:
            return
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
