"""One DCP connection of a drain: opened, negotiated, and read until its streams are over.

A worker runs in steps: `step` runs until there is nothing to read, or the arena is full. `wait` is the event that the
worker waits for; AGAIN means that it must run again at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headwater.client.cluster import Cluster
from headwater.client.collections import StreamedCollections
from headwater.client.link import Link
from headwater.client.options import DrainOptions
from headwater.client.progress import Part
from headwater.client.routing import Address
from headwater.errors import ConnectionLost, NotSupported, PeerSilent
from headwater.kernels.columns import Arena
from headwater.protocol.dcp.controls import (
    BEFORE,
    CHANGE_STREAMS,
    CLAIMS,
    FLAT_EVENTS,
    LATEST_MARKER_VERSION,
    MARKER_VERSION,
)
from headwater.protocol.dcp.drain import Drain
from headwater.protocol.dcp.events import Opened, StreamEvent
from headwater.protocol.dcp.position import ClaimedPosition, Position
from headwater.protocol.end import PeerGone
from headwater.protocol.handshake import DCP_FEATURES, Opening, open_producer
from headwater.transport.waiting import Ready, Resolve, Steps
from headwater.wire.dcp import OpenFlag
from headwater.wire.features import Feature
from headwater.wire.vbucket import VBUCKET_NUMBERS

SERVER_IDLE_SECONDS = 360.0
"""The longest silence of a node with a no-op interval of its own (dcp.md 6: dcp_idle_timeout)."""

GATHER_BYTES_MIN = 64 * 1024
"""Receiving continues while the inbox has this much room."""

_NO_HISTORY = (
    "keeps no old versions of documents (it refused the control change_streams=true); Couchbase does from 7.2 on, in "
    "buckets of its storage magma. Read without history: then each snapshot has the last version of each document"
)

_NO_BEFORE = (
    "does not say what a change replaced (it refused the control headwater_before=true); nodes of headwater do, of "
    "this release or a later one. Read without before, or update the node"
)

REQUESTS_SENT_AT_ONCE = 64
"""The most stream requests that are sent before answers are read: the node opens the first streams meanwhile."""

AGAIN = Ready()
"""A task yields this to be stepped again at once."""


class Task:
    """A step generator that runs beside others.

    Attributes:
        wait: the event that the generator waits for.
    """

    def __init__(self, steps: Steps[None]) -> None:
        self._steps = steps
        self._name: Resolve | None = None
        self.wait: Ready = AGAIN

    def step(self) -> Steps[bool]:
        """Run until the generator waits; return True if it must run again at once.

        A lookup of a host name delays the other tasks. If the caller is cancelled during the lookup, the next call
        repeats it.
        """
        wait = next(self._steps) if self._name is None else self._name
        while isinstance(wait, Resolve):
            self._name = wait
            addresses = yield wait
            self._name = None
            wait = self._steps.send(addresses)
        self.wait = wait
        return wait is AGAIN

    def close(self) -> None:
        """End the generator; it is not stepped again."""
        self._steps.close()


class Worker(Task):
    """The DCP connection of a drain to one node.

    Attributes:
        address: the node.
        vbuckets: vbuckets with a stream here, requested or open.
        todo: vbuckets to request when the connection is ready: vbucket to (position, end seqno, purge seqno).
    """

    def __init__(
        self,
        address: Address,
        cluster: Cluster,
        arena: Arena,
        options: DrainOptions,
        streamed: StreamedCollections | None = None,
    ) -> None:
        super().__init__(self._serve())
        self._streamed = streamed
        self.address = address
        self.vbuckets: dict[int, None] = {}
        self.todo: dict[int, tuple[Position, int, int]] = {}
        self._tells_purges = False
        self._cluster, self._arena, self._options = cluster, arena, options
        self._link = Link(address, cluster.clock, cluster.settings.target.tls)
        self.drain: Drain | None = None
        self._is_open = np.zeros(VBUCKET_NUMBERS, np.bool_)  # whether a stream was accepted and is not over
        self._vbuckets_max = 0  # all vbuckets so far are below it
        self._open_streams: NDArray[np.intp] | None = None  # the same as numbers, made again when it changes

    def assign(self, position: Position, end_seqno: int, purge_seqno: int = 0) -> None:
        """Add a vbucket to the stream requests to send.

        Args:
            purge_seqno: the purge seqno of the vbucket's last marker; 0 for none.
        """
        self.todo[position.vbucket] = (position, end_seqno, purge_seqno)
        self._vbuckets_max = max(self._vbuckets_max, position.vbucket + 1)

    def release(self, vbucket: int) -> None:
        """Forget a vbucket whose stream is over."""
        self.vbuckets.pop(vbucket, None)
        self._is_open[vbucket] = False
        self._open_streams = None

    @property
    def idle(self) -> bool:
        """True if no stream is open, requested or to be requested here."""
        return not self.vbuckets and not self.todo

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self._link.close()

    def position(self, vbucket: int) -> Position:
        """Return the position of the stream of one of `vbuckets`."""
        return self._drain.position(vbucket)

    def purge_seqno(self, vbucket: int) -> int:
        """Return the purge seqno in the last marker of one of `vbuckets`."""
        return self._drain.streams[vbucket].purge_seqno

    @property
    def _drain(self) -> Drain:
        if self.drain is None:
            raise ConnectionLost(str(self.address), "not connected yet")
        return self.drain

    def take_events(self) -> Iterable[tuple[int, StreamEvent]]:
        """Return the events of streams since the last call."""
        if self.drain is None or not self.drain.events:
            return ()
        events, self.drain.events = self.drain.events, []
        self._is_open[[event.stream.vbucket for _, event in events if isinstance(event, Opened)]] = True
        self._open_streams = None
        return events

    def part(self) -> Part:
        """Return the positions of all open streams as numbers."""
        drain = self._drain
        if self._open_streams is None:
            self._open_streams = np.flatnonzero(self._is_open[: self._vbuckets_max])
        return Part(self._open_streams, drain.table.rows.take(self._open_streams, axis=0))

    def processed(self, now: float, keep_bytes: int = 0) -> None:
        """Acknowledge the returned rows to the producer, except for `keep_bytes` that wait for the caller."""
        if self.drain is not None:
            self.drain.processed(now, keep_bytes)

    # ------------------------------------------------------------------ running

    def _serve(self) -> Steps[None]:
        """Run the connection until an error or `close`."""
        self.drain = drain = yield from self._open()
        inbox = self._link.inbox
        while True:
            now = self._cluster.clock()
            if self.todo or drain.wants_to_send:
                self._ask(drain, now)
            # A full arena is not read into: the bytes stay with the node, whose window then stops it.
            close_error = None if drain.full else self._gather(drain)
            if drain.full or len(inbox.unread) >= drain.needed:
                inbox.consume(drain.receive(inbox.unread, now))
                yield Ready() if drain.full else AGAIN
            elif close_error is not None:
                raise close_error
            else:
                _check_alive(drain, now)
                self._link.channel.send(drain.data_to_send())
                self._link.channel.flush()  # what did not fit before
                yield AGAIN if self.todo else Ready((self._link.channel,), drain.deadline)

    def _gather(self, drain: Drain) -> ConnectionLost | None:
        """Receive until nothing is left or the inbox is about full; return the error that ended the connection, if any.

        Each decoding call has a price, receiving has almost none: so several receives are decoded together. Bytes from
        before the end of a connection are decoded first.
        """
        inbox = self._link.inbox
        while inbox.room_bytes >= GATHER_BYTES_MIN or len(inbox.unread) < drain.needed:
            try:
                count = self._link.fill(drain.needed)
            except ConnectionLost as error:
                return error
            if count is None:
                return None
            if count == 0:
                return ConnectionLost(str(self.address), "the node closed the connection")
        return None

    def _ask(self, drain: Drain, now: float) -> None:
        """Send some of the stream requests in `todo`, and all other bytes that are due."""
        for vbucket in tuple(islice(self.todo, REQUESTS_SENT_AT_ONCE)):
            position, end_seqno, purge_seqno = self.todo.pop(vbucket)
            known_purge_seqno = purge_seqno if self._tells_purges else 0
            drain.request(position, end_seqno, now, self._value(known_purge_seqno), known_purge_seqno)
            self.vbuckets[vbucket] = None
        self._link.channel.send(drain.data_to_send())

    def _value(self, purge_seqno: int) -> bytes:
        return b"" if self._streamed is None or not self._knows_collections else self._streamed.value(purge_seqno)

    @property
    def _knows_collections(self) -> bool:
        return Feature.COLLECTIONS in self._link.greeting.features

    def _open(self) -> Steps[Drain]:
        settings, options = self._cluster.settings, self._options
        features = DCP_FEATURES + ((Feature.XATTR,) if options.xattrs else ())
        features += (Feature.COLLECTIONS,) if self._streamed is not None else ()
        yield from self._link.open(replace(settings.login, features=features), settings.connect_timeout_seconds)
        if self._link.greeting.config:
            self._cluster.learn(self._link.greeting.config, self.address)
        if self._streamed is not None and not (self._knows_collections or self._streamed.choice.is_whole):
            raise NotSupported(f"a choice of collections: {self.address} does not know collections")
        deadline = self._cluster.clock() + settings.connect_timeout_seconds
        opening_ = opening(
            options,
            collections=self._streamed is not None and self._knows_collections,
            claims=any(isinstance(position, ClaimedPosition) for position, *_ in self.todo.values()),
        )
        accepted_controls = yield from self._link.converse(open_producer(opening_), deadline)
        if options.min_persisted is not None and "connection_buffer_size" not in accepted_controls:
            raise NotSupported(f"min_persisted: {self.address} has no flow control, so what waits can't be bounded")
        if options.every_version and CHANGE_STREAMS not in accepted_controls:
            raise NotSupported(f"{'history' if options.history else 'before'}: {self.address} {_NO_HISTORY}")
        if options.before and BEFORE not in accepted_controls:
            raise NotSupported(f"before: {self.address} {_NO_BEFORE}")
        self._tells_purges = MARKER_VERSION in accepted_controls
        return Drain(
            self._arena,
            str(self.address),
            # A node that refused the window sends without one, so there is nothing to acknowledge.
            window_bytes=options.window_bytes if "connection_buffer_size" in accepted_controls else 0,
            silence_seconds=silence_seconds(accepted_controls, options.noop_interval_seconds),
            answer_seconds=options.answer_seconds,
            now=self._cluster.clock(),
            markers=options.markers or options.every_version,
            with_ids=self._streamed is not None and self._knows_collections,
            checks_purges=self._tells_purges and self._streamed is not None and self._streamed.choice.is_whole,
        )


def _check_alive(drain: Drain, now: float) -> None:
    """Check that the node is alive.

    Raises:
        PeerSilent: the node has said nothing for too long, or has not answered a stream request in time.
    """
    for event in drain.tick(now):
        if isinstance(event, PeerGone):
            peer = f"{drain.peer}, {event.waited_for}" if event.waited_for else drain.peer
            raise PeerSilent(peer, event.silent_seconds or 0.0)


def opening(options: DrainOptions, *, collections: bool = False, claims: bool = False) -> Opening:
    """Return the DCP_OPEN flags and the controls to negotiate for these options.

    Args:
        collections: True if the node knows Collections and the drain reads them. The controls then also request events
            of modified collections, and purge seqnos in markers ("NOT_SUPPORTED without Collections", dcp 4).
        claims: True if positions are `ClaimedPosition`s. A node that refuses the control reads them as plain positions.
    """
    flags, optional_flags = OpenFlag.PRODUCER, OpenFlag.INCLUDE_DELETE_TIMES
    if options.xattrs:
        flags |= OpenFlag.INCLUDE_XATTRS
    if options.deleted_xattrs:
        optional_flags |= OpenFlag.INCLUDE_DELETED_USER_XATTRS
    if options.no_value:
        flags |= OpenFlag.NO_VALUE
    controls = [("enable_noop", "true"), ("set_noop_interval", f"{options.noop_interval_seconds:g}")]
    if options.window_bytes:
        controls.append(("connection_buffer_size", str(options.window_bytes)))
    # Needs the delete times asked for below; where it is refused, what ran out arrives as a deletion (dcp.md 4).
    controls.append(("enable_expiry_opcode", "true"))
    if collections:  # only events of version 2 tell of modified ones; where it is refused, all else comes as before
        controls.append((FLAT_EVENTS, "true"))
    if options.every_version:
        controls.append((CHANGE_STREAMS, "true"))
    if collections:
        controls.append((MARKER_VERSION, LATEST_MARKER_VERSION))
    if options.before:
        controls.append((BEFORE, "true"))
    if claims:
        controls.append((CLAIMS, "true"))
    return Opening(options.name, flags, optional_flags, optional=tuple(controls))


def silence_seconds(accepted_controls: frozenset[str], interval_seconds: float) -> float | None:
    """Return the longest silence that a live node allows itself: two no-op intervals (dcp.md 6); None if it sends no
    no-ops.
    """
    if "enable_noop" not in accepted_controls:
        return None
    return 2 * interval_seconds if "set_noop_interval" in accepted_controls else SERVER_IDLE_SECONDS
