"""Sockets without an operating system: bytes take time, links can be cut, stalled or dead.

A `Network` knows the listener of each place, and the state of the link between any two places. A connection is a pair
of `SimSocket`s; each has a queue of bytes in transit to it, cut anywhere, never reordered. Buffers are small, so that
an end that does not read makes the other end wait.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.simulation.scheduler import Schedule, SimLoop

BUFFER_BYTES = 64 << 10
LATENCY_SECONDS = 0.004
CUT_CHANCE = 0.3


class Link(Enum):
    """The states of a link."""

    UP = "they arrive"
    STALLED = "they wait, and nobody is told"
    DOWN = "connections are refused"


FIRST_NUMBER = 1 << 20
"""No descriptor of the operating system is that high."""


class SimSocket:
    """One end of a connection, or a listener; the methods are those of `socket.socket` that are used."""

    def __init__(self, network: Network, place: str) -> None:
        self.network = network
        self.place = place
        self.peer: SimSocket | None = None
        self.accepted: list[SimSocket] = []
        self.is_closed = False
        self.error = 0
        self._is_calling = False
        self._number = FIRST_NUMBER + len(network.files)
        self._arrived = bytearray()
        self._travelling = 0
        self._arrives_at = 0.0
        self._ended = False
        self._watch: dict[str, tuple[SimLoop, Callable[..., object]] | None] = {"read": None, "write": None}
        self._told: set[str] = set()
        self._parked: list[bytes] = []
        self.is_held = False
        network.files.append(self)

    # --- socket.socket ----------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor's number, -1 once closed."""
        return -1 if self.is_closed else self._number

    def setblocking(self, _: bool) -> None:
        """Do nothing: these sockets never block."""

    def setsockopt(self, *_: object) -> None:
        """Do nothing: there is nothing to set."""

    def getsockopt(self, _: int, __: int, size: int = 0) -> int | bytes:
        """Return the pending error (SO_ERROR), and clear it; of a structure (SO_MEMINFO) zeros."""
        if size:
            return bytes(size)
        error, self.error = self.error, 0
        return error

    def listen(self, _: int = 0) -> None:
        """Do nothing: a bound socket listens already."""

    def getsockname(self) -> tuple[str, int]:
        """Return the (host, port) of the socket's place."""
        return self.network.address(self.place)

    def getpeername(self) -> tuple[str, int]:
        """Return the (host, port) of the called place; OSError before the connection is established."""
        if self.peer is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self.network.address(self.peer.place)

    def connect_ex(self, address: tuple[str, int]) -> int:
        """Begin to connect to a place; the socket becomes writable when that has succeeded or failed."""
        self._is_calling = True
        self.network.call(self, self.network.place_of(address[1]))
        return errno.EINPROGRESS

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        """Return the next caller's socket and address; BlockingIOError if there is none."""
        if not self.accepted:
            raise BlockingIOError(errno.EAGAIN, "nobody called")
        sock = self.accepted.pop(0)
        return sock, self.network.address(sock.peer.place if sock.peer is not None else "nobody")

    def send(self, data: Any) -> int:
        """Send as many bytes as there is room for; return their number."""
        if self.error:
            error, self.error = self.error, 0
            raise ConnectionResetError(error, "reset")
        peer = self.peer
        if self._ended or peer is None:
            raise BrokenPipeError(errno.EPIPE, "the peer is gone")
        room = BUFFER_BYTES - peer._travelling - len(peer._arrived)
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "no room")
        piece = bytes(memoryview(data)[:room])
        self.network.carry(self, peer, piece)
        return len(piece)

    def recv(self, size: int) -> bytes:
        """Return received bytes; b"" at the end."""
        if self.error:
            error, self.error = self.error, 0
            self._ended = True
            raise ConnectionResetError(error, "reset")
        if not self._arrived:
            if self._ended:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing there")
        data = bytes(self._arrived[:size])
        del self._arrived[:size]
        if self.peer is not None:
            self.peer.tell("write")
        return data

    def recv_into(self, room: memoryview) -> int:
        """Receive what has arrived into a buffer; return the number of bytes."""
        data = self.recv(len(room))
        room[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the socket; the peer reads the end after all bytes that were sent."""
        if not self.is_closed:
            self.is_closed = True
            self._watch = {"read": None, "write": None}
            self.network.closed(self)

    # --- readiness --------------------------------------------------------------------------------------------------

    def watch_reading(self, loop: SimLoop, callback: Callable[..., object] | None) -> bool:
        """Call back while there is something to read; None ends that. Return True if there was a callback before."""
        return self._set_watch("read", loop, callback)

    def watch_writing(self, loop: SimLoop, callback: Callable[..., object] | None) -> bool:
        """Call back while there is room to send; None ends that. Return True if there was a callback before."""
        return self._set_watch("write", loop, callback)

    def _set_watch(self, what: str, loop: SimLoop, callback: Callable[..., object] | None) -> bool:
        before = self._watch[what] is not None
        self._watch[what] = None if callback is None else (loop, callback)
        self.tell(what)
        return before

    def _is_ready(self, what: str) -> bool:
        if what == "read":
            return bool(self._arrived or self._ended or self.error or self.accepted)
        peer = self.peer
        if self._is_calling:
            return bool(self.error)
        return peer is None or self._ended or bool(self.error) or peer._travelling + len(peer._arrived) < BUFFER_BYTES

    def tell(self, what: str) -> None:
        """Schedule the callback for reading or writing, if the socket is ready for it."""
        watching = self._watch[what]
        if watching is None or what in self._told or not self._is_ready(what):
            return
        self._told.add(what)
        watching[0].call_soon(self._call, what)

    def _call(self, what: str) -> None:
        self._told.discard(what)
        watching = self._watch[what]
        if watching is not None and self._is_ready(what):
            watching[1]()
            self.tell(what)  # level-triggered: again as long as it is so

    # --- what the network does --------------------------------------------------------------------------------------

    def arrive(self, data: bytes) -> None:
        """Add bytes to the receive queue."""
        self._travelling -= len(data)
        self._arrived += data
        self.tell("read")

    def end(self, error: int = 0) -> None:
        """Note that the peer closed the connection, or (with an errno) that it was reset."""
        self._ended = True
        if error:
            self.error = error
            self._arrived.clear()
        self.tell("read")
        self.tell("write")


class Network:
    """Places, their listeners, and the links between them.

    Attributes:
        deaf: (from, to) pairs in whose direction bytes wait, while the other direction is as the link is.
        rooms: (from, to) to the number of bytes that still arrive in that direction; later ones wait.
        slow: the most seconds that bytes take, where that is not `LATENCY_SECONDS`.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.files: list[SimSocket] = []
        self.listeners: dict[str, SimSocket] = {}
        self.links: dict[frozenset[str], Link] = {}
        self.deaf: set[tuple[str, str]] = set()
        self.rooms: dict[tuple[str, str], int] = {}
        self.slow: dict[frozenset[str], float] = {}
        self.sockets: dict[str, list[SimSocket]] = {}
        self._ports: dict[str, int] = {}

    def file(self, number: int) -> SimSocket:
        """Return the socket with a number."""
        return self.files[number - FIRST_NUMBER]

    def address(self, place: str) -> tuple[str, int]:
        """Return host and port of a place, which never change."""
        return "127.0.0.1", self._ports.setdefault(place, 10_001 + len(self._ports))

    def place_of(self, port: int) -> str:
        """Return the place of a port."""
        return next((place for place, number in self._ports.items() if number == port), "nobody")

    def socket(self, place: str) -> SimSocket:
        """Return a socket that is not connected."""
        made = SimSocket(self, place)
        self.sockets.setdefault(place, []).append(made)
        return made

    def listener(self, place: str) -> SimSocket:
        """Return a listening socket at a place."""
        self.listeners[place] = made = self.socket(place)
        self.address(place)
        return made

    def link(self, one: str, other: str) -> Link:
        """Return the state of the link between two places."""
        return self.links.get(frozenset((one, other)), Link.UP) if self.links else Link.UP

    def set_link(self, one: str, other: str, link: Link) -> None:
        """Set the state of a link; waiting bytes continue where they can."""
        self._note(one, other, link)
        for way in ((one, other), (other, one)):
            self.rooms.pop(way, None)
        self.go_on(one, other)

    def _note(self, one: str, other: str, link: Link) -> None:
        """Keep the state of a link. Links that are up, as nearly all are, are not kept: each piece that arrives looks
        the link up.
        """
        if link is Link.UP:
            self.links.pop(frozenset((one, other)), None)
        else:
            self.links[frozenset((one, other))] = link

    def let_through(self, sender: str, receiver: str, count: int) -> None:
        """Set the link to up, and let so many more bytes arrive in that direction: the next message may be cut
        anywhere.
        """
        self.rooms.pop((receiver, sender), None)
        self.rooms[sender, receiver] = count
        self._note(sender, receiver, Link.UP)
        self.go_on(sender, receiver)

    def is_stalled(self, sender: str, receiver: str) -> bool:
        """Return True if bytes in that direction wait."""
        way = sender, receiver
        return self.link(sender, receiver) is Link.STALLED or way in self.deaf or self.rooms.get(way) == 0

    def go_on(self, one: str, other: str) -> None:
        """Let waiting bytes between two places arrive, where nothing stalls them any more."""
        for sock in [*self.sockets.get(one, ()), *self.sockets.get(other, ())]:
            peer = sock.peer
            if peer is None or {sock.place, peer.place} != {one, other} or sock.is_held:
                continue
            if self.is_stalled(peer.place, sock.place):
                continue
            parked, sock._parked = sock._parked, []
            for piece in parked:
                self._arrive(peer.place, sock, piece)

    def cut(self, one: str, other: str) -> None:
        """Reset all connections between two places."""
        for sock in list(self.sockets.get(one, ())):
            if sock.peer is not None and sock.peer.place == other:
                self.reset(sock)
                self.reset(sock.peer)

    def callers(self, place: str) -> list[str]:
        """Return the places that have a connection to a place now."""
        peers = (each.peer for each in self.sockets.get(place, ()) if each.peer is not None)
        return sorted({peer.place for peer in peers if not peer.is_closed})

    def hold(self, sender: str, receiver: str) -> list[SimSocket]:
        """Hold back the bytes from one place to another on the present connections; new connections are not affected.

        Returns: the ends that neither receive nor send until `release`; `lose` may come in between.
        """
        found = [each for each in self.sockets.get(receiver, ()) if each.peer is not None and each.peer.place == sender]
        for each in found:
            each.is_held = True
        return found

    def lose(self, held: list[SimSocket]) -> None:
        """Reset the sending ends of held connections; the other ends do not notice it yet."""
        for each in held:
            if each.is_held and each.peer is not None:
                self.reset(each.peer)

    def release(self, held: list[SimSocket]) -> None:
        """Let the held bytes arrive, however late, also those of a sender that has hung up since and repeated its
        requests.
        """
        for each in held:
            each.is_held = False
            if each.peer is not None:
                self.go_on(each.peer.place, each.place)

    def reset(self, sock: SimSocket) -> None:
        """Reset one end of a connection."""
        sock._parked.clear()
        sock.is_held = False
        if not sock.is_closed:
            sock.end(errno.ECONNRESET)
        sock.peer = None if sock.peer is None else sock.peer

    def vanish(self, place: str, silent: bool) -> None:
        """Remove a dead process: its peers see the connections reset or, if `silent`, find out when they send to its
        successor.
        """
        self.listeners.pop(place, None)
        for sock in self.sockets.pop(place, []):
            sock.is_closed = True
            sock._watch = {"read": None, "write": None}
            for waiting in sock.accepted:
                waiting.is_closed = True
            if sock.peer is not None and not silent and not sock.peer.is_closed:
                self.schedule.after(self._latency(place, sock.peer.place), lambda peer=sock.peer: self.reset(peer))  # type: ignore[misc]

    def closed(self, sock: SimSocket) -> None:
        """Note that one end closed: the other end reads that after the data."""
        if sock in self.sockets.get(sock.place, ()):
            self.sockets[sock.place].remove(sock)
        if self.listeners.get(sock.place) is sock:
            del self.listeners[sock.place]
        peer = sock.peer
        if peer is not None and not peer.is_closed:
            when = max(peer._arrives_at, self.schedule.now + self._latency(sock.place, peer.place))
            self.schedule.at(when, None, lambda: self._finish(sock, peer))

    def _finish(self, sock: SimSocket, peer: SimSocket) -> None:
        if peer._parked or peer.is_held or self.is_stalled(sock.place, peer.place):
            self.schedule.after(1.0, lambda: self._finish(sock, peer))
        elif not peer.is_closed:
            peer.end()

    def carry(self, sender: SimSocket, receiver: SimSocket, data: bytes) -> None:
        """Send bytes towards an end; they may arrive in pieces."""
        random, cuts = self.schedule.random, [0, len(data)]
        while random.random() < CUT_CHANCE:
            cuts.append(random.randrange(len(data)))
        for begin, end in pairwise(sorted(cuts)):
            piece = data[begin:end]
            if piece:
                receiver._travelling += len(piece)
                taken = self._latency(sender.place, receiver.place)
                receiver._arrives_at = max(receiver._arrives_at, self.schedule.now + taken)
                self.schedule.at(receiver._arrives_at, None, lambda piece=piece: self._deliver(sender, receiver, piece))  # type: ignore[misc]

    def _deliver(self, sender: SimSocket, receiver: SimSocket, piece: bytes) -> None:
        if sender.is_held:  # its peer may believe by now that all is over
            return
        if receiver.is_closed:
            if receiver.place in self.listeners and not sender.is_closed:
                self.reset(sender)  # the machine is up again and knows nothing of this
            return
        self._arrive(sender.place, receiver, piece)

    def _arrive(self, sender: str, receiver: SimSocket, piece: bytes) -> None:
        """Deliver a piece, as far as there is room; the rest waits behind bytes that wait already."""
        if receiver._parked or receiver.is_held or self.is_stalled(sender, receiver.place):
            receiver._parked.append(piece)
            return
        way = sender, receiver.place
        arrives = piece[: self.rooms.get(way, len(piece))]
        if way in self.rooms:
            self.rooms[way] -= len(arrives)
        receiver.arrive(arrives)
        if len(arrives) < len(piece):
            receiver._parked.append(piece[len(arrives) :])

    def _latency(self, one: str, other: str) -> float:
        most = self.slow.get(frozenset((one, other)), LATENCY_SECONDS) if self.slow else LATENCY_SECONDS
        return self.schedule.random.random() ** 3 * most

    async def connect(self, loop: SimLoop, sock: SimSocket, address: tuple[str, int]) -> None:
        """Connect to a place; its listener has the connection on return. Refused if nobody listens, silent if the link
        stalls.
        """
        target = self.place_of(address[1])
        await asyncio.sleep(self._latency(sock.place, target))
        while self.is_stalled(sock.place, target):
            await asyncio.sleep(0.1)
        self.join(sock, target)

    def call(self, sock: SimSocket, target: str) -> None:
        """Connect a socket to a place, a little later; there is no answer as long as the link stalls."""

        def arrive() -> None:
            if sock.is_closed:
                return
            if self.is_stalled(sock.place, target) or self.is_stalled(target, sock.place):
                self.schedule.after(0.1, arrive)
                return
            sock._is_calling = False
            try:
                self.join(sock, target)
            except ConnectionRefusedError as error:
                sock.end(error.errno or errno.ECONNREFUSED)
            sock.tell("write")

        self.schedule.after(self._latency(sock.place, target), arrive)

    def join(self, sock: SimSocket, target: str) -> None:
        """Connect a socket to the listener of a place, at once."""
        listener = self.listeners.get(target)
        if listener is None or self.link(sock.place, target) is not Link.UP:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {target}")
        other = self.socket(target)
        sock.peer, other.peer = other, sock
        listener.accepted.append(other)
        listener.tell("read")
