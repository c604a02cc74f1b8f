"""The shared state of a bucket's TAP connections: names, sessions whose client is away, and the commands about them.

Source: tap.md 1 (connect), 1.2 (names and reconnects), 7 (statistics).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headwater.errors import BadMessage
from headwater.node.connections.budget import Budget
from headwater.node.kv.command import handles, passes
from headwater.node.refused import CommandRefused
from headwater.node.reporting.log_lines import event
from headwater.node.streams.outlet import Outlet
from headwater.node.tap.feed import Feed
from headwater.node.tap.merging import TapMerge
from headwater.node.tap.reader import takes_not
from headwater.node.tap.session import TapSession
from headwater.protocol.tap.options import OPTIONS_BYTES_MAX, TapOptions, read_connect
from headwater.protocol.tap.producer import Fate, TapProducer
from headwater.wire.datatype import Datatype
from headwater.wire.failure import Failure
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.json_text import error_body
from headwater.wire.layout import Done
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.tap import ChangeFilter, Deregister
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.connections.connection import Connection
    from headwater.node.kv.api import Session


_DEFAULT_ALONE: Final = frozenset({0})
"""The ids of the collections that TAP sends: the default collection's."""

log: Final = logging.getLogger(__name__)


class Waiting:
    """An entry in the memory budget for a session whose client is away.

    Attributes:
        feed: the session.
    """

    def __init__(self, hub: TapHub, feed: Feed) -> None:
        self.feed = feed
        self._hub = hub

    def drop(self, cause: str) -> None:
        """End the session, because the budget needs its memory."""
        self._hub.let_go(self.feed, cause)


class TapHub:
    """The TAP sessions of a bucket.

    Args:
        bucket: the bucket.
        loop: the event loop.
        keep_alive_seconds: the time that a named session waits for its client to return; 0 for not at all.
        budget: the memory budget of all connections, which also counts waiting sessions; None for no limit.

    Attributes:
        outlet: the buffer for output, which the connections of all sessions use in turn.
        feeds: the sessions by their names, with those whose clients are away.
    """

    def __init__(
        self,
        bucket: Bucket,
        loop: asyncio.AbstractEventLoop,
        keep_alive_seconds: float = 0.0,
        budget: Budget | None = None,
    ) -> None:
        self.outlet: Outlet = Outlet()
        self.feeds: dict[bytes, Feed] = {}
        self._bucket = bucket
        self._loop = loop
        self._keep_alive_seconds = keep_alive_seconds
        self._budget = budget or Budget(1 << 62, 1 << 62, "all sessions")
        self._waiting: dict[bytes, Waiting] = {}
        self._expiries: dict[bytes, asyncio.TimerHandle] = {}
        self._anonymous = 0
        self._to_see: set[int] = set()
        bucket.stat_groups["tap"] = self.stats
        bucket.on_changed.append(self._changed)

    def fenced(self, options: TapOptions) -> list[int]:
        """Return the vbuckets that a session with these options would lack, because they are fenced.

        Only a dump or a takeover would lack them: its end would say that it is complete. Other sessions send a vbucket
        once it is no longer fenced.
        """
        fenced = self._bucket.fenced
        return sorted(fenced.intersection(options.vbuckets or fenced)) if options.ends else []

    def unsettled(self, options: TapOptions) -> list[int]:
        """Return the vbuckets whose dump would lack durable writes of a former owner, which are still being settled.

        That owner may have shown these writes to clients already, but the end of a dump would say that it is complete.
        A takeover settles such writes itself before it hands a vbucket over.
        """
        here, writes = self._bucket.vbuckets, self._bucket.durable_writes
        vbuckets = [here[vb] for vb in options.vbuckets or here if vb in here] if options.dump else []
        return sorted(
            vbucket.id
            for vbucket in vbuckets
            if vbucket.state is State.ACTIVE and not writes.is_settled(vbucket.id, _DEFAULT_ALONE)
        )

    def left_behind(self, options: TapOptions) -> list[str]:
        """Return the paths of the collections that a takeover would leave behind in dead vbuckets.

        TAP sends the default collection only.
        """
        here = self._bucket.vbuckets
        vbuckets = [here[vb] for vb in options.vbuckets if vb in here] if options.takeover else []
        return sorted({name for vbucket in vbuckets for name in vbucket.collections.named_paths})

    def connect(self, kv: Session, options: TapOptions) -> TapSession:
        """Return the TAP session for a client's connection, of which it takes charge.

        A kept session with the client's name continues if the options allow it; otherwise a new one begins, and any
        session of that name ends.

        Args:
            kv: the key-value session of the connection.
            options: the options of TAP_CONNECT.

        Raises:
            CommandRefused: EACCESS if the name belongs to another user.
        """
        now, name = self._loop.time(), options.name or self._made_up()
        feed = self.feeds.get(name)
        # A session's filter and position are those of the user who opened it, and so are the changes that it sends.
        if feed is not None and feed.user != kv.user and not kv.access.is_administrator:
            raise CommandRefused(Status.EACCESS, "a session of another user has this name")
        if feed is not None and not (self._is_kept(feed) and options.goes_on_from(feed.producer.options)):
            self._forget(feed)
            feed = None
        elif feed is not None:
            self._cut(feed)
            feed.producer.resume(options, now, self._bucket.now())
        if feed is None:
            feed = self.feeds[name] = Feed(name, self._bucket, TapProducer(options, now), self._bucket.now())
        feed.user = kv.user
        session = TapSession(kv, self, feed)
        kv.connection.session = session
        feed.attach(kv.connection, Datatype.JSON if kv.has(Feature.JSON) else Datatype.RAW)
        return session

    def left(self, feed: Feed, connection: Connection) -> None:
        """Keep or end a session whose connection is closed.

        "A completed dump or takeover, or a session closed by a fatal NACK, is never resumed".
        """
        # Another connection has taken over the session.
        if feed.connection is not connection:
            return
        feed.detach()
        if not self._is_kept(feed):
            self._forget(feed)
            return
        expire = self._loop.call_later(self._keep_alive_seconds, lambda: self._forget(feed))
        self._expiries[feed.name] = expire
        self._waiting[feed.name] = waiting = Waiting(self, feed)
        self._budget.hold(waiting, feed.memory_bytes)

    @property
    def kept_bytes(self) -> int:
        """The approximate memory, in bytes, of the sessions that wait for their clients."""
        return sum(each.feed.memory_bytes for each in self._waiting.values())

    def let_go(self, feed: Feed, cause: str) -> None:
        """End a waiting session because its memory is needed."""
        fields = event("tap.dropped", session=feed.name.decode("latin-1"))
        log.warning("the TAP session %r, whose client is away, is over: %s", feed.name, cause, extra=fields)
        self._forget(feed)

    def forget(self) -> None:
        """End all sessions, because the bucket is dropped."""
        for feed in tuple(self.feeds.values()):
            self._forget(feed)

    def _is_kept(self, feed: Feed) -> bool:
        """Return True if a session waits for its client after its connection was closed."""
        options, lives = feed.producer.options, feed.producer.fate is Fate.LIVE
        return bool(options.name and self._keep_alive_seconds and lives and not options.dump)

    def deregister(self, name: bytes) -> bool:
        """Drop a session; return False if there is none of that name."""
        feed = self.feeds.get(name)
        if feed is not None:
            self._forget(feed)
        return feed is not None

    def change_filter(self, name: bytes, checkpoints: dict[int, int]) -> bool:
        """Change the vbuckets of a live session; return False if there is none of that name."""
        feed = self.feeds.get(name)
        if feed is None or feed.connection is None:
            return False
        producer = feed.producer
        for vb in [vb for vb in producer.streams if vb not in checkpoints]:
            del producer.streams[vb]
        known_checkpoints = checkpoints if producer.options.checkpoints is not None else None
        producer.options = replace(producer.options, vbuckets=tuple(checkpoints), checkpoints=known_checkpoints)
        feed.refilter()
        for vb in checkpoints:
            if vb in feed.readers:
                feed.ready(feed.readers[vb])
        producer.filter_changed()
        feed.connection.wake()
        return True

    def stats(self, _: list[str]) -> Iterable[tuple[str, str]]:
        """Yield the statistics of STAT tap; those of each session are named eq_tapq:NAME:stat."""
        yield "ep_tap_count", str(len(self.feeds))
        yield "ep_tap_keepalive", f"{self._keep_alive_seconds:g}"
        for name, feed in tuple(self.feeds.items()):
            for key, value in tuple(feed.stats(self._loop.time())):
                yield f"eq_tapq:{name.decode('latin-1')}:{key}", value

    def _changed(self, vb: int) -> None:
        """Note that a vbucket was created, dropped or changed; the sessions are told at the next turn of the event
        loop.
        """
        is_first = not self._to_see
        if self.feeds:
            self._to_see.add(vb)
            if is_first:
                # After this turn of the loop: the change of the vbucket is still going on, and a vbucket that is
                # dropped may be created again at once.
                self._loop.call_soon(self._look)

    def _look(self) -> None:
        changed, self._to_see = sorted(self._to_see), set()
        for feed in tuple(self.feeds.values()):
            feed.look(changed)

    def _made_up(self) -> bytes:
        self._anonymous += 1
        return b"anon_%d" % self._anonymous

    def _forget(self, feed: Feed) -> None:
        if self.feeds.get(feed.name) is feed:
            del self.feeds[feed.name]
        self._cut(feed)
        feed.close()

    def _cut(self, feed: Feed) -> None:
        """Close a session's connection, or stop waiting for its client.

        "Same name as a live session: the old socket is closed".
        """
        if (expiry := self._expiries.pop(feed.name, None)) is not None:
            expiry.cancel()
        if (waiting := self._waiting.pop(feed.name, None)) is not None:
            self._budget.release(waiting)
        connection = feed.connection
        feed.detach()
        if connection is not None:
            connection.drop(f"the TAP session {feed.name!r} goes on elsewhere, or is over", fault=False)


@passes(Opcode.TAP_CONNECT)
def connect(session: Session, frame: Frame) -> None:
    """Handle TAP_CONNECT: "there is no success response: the stream just begins"."""
    try:
        options = read_connect(frame)
    except BadMessage as bad:
        session.reply(frame, Failure(status=bad.status))
        session.connection.finish()
        return
    if session.relays:
        _merge(session, frame, options)
        return
    tap = session.server.tap
    if fenced := tap.fenced(options):
        # An empty dump would look like an empty bucket.
        cause = f"no TAP dump or takeover yet: {len(fenced)} vbuckets may belong to another node by now"
        _refuse(session, frame, Status.ETMPFAIL, cause)
    elif unsettled := tap.unsettled(options):
        cause = f"no TAP dump yet: durable writes of a former owner of {len(unsettled)} vbuckets are being settled"
        next_step = f"the first is {unsettled[0]}; its replicas must be up, or failed over"
        _refuse(session, frame, Status.ETMPFAIL, f"{cause}; {next_step}")
    # Refused before anything moves: otherwise documents of other collections would stay behind in a dead vbucket.
    elif collection_names := tap.left_behind(options):
        _refuse(session, frame, Status.NOT_SUPPORTED, takes_not(collection_names))
    else:
        tap.connect(session, options)


def _merge(session: Session, frame: Frame, options: TapOptions) -> None:
    """Begin a session that merges those of all workers; each worker checks the request itself."""
    try:
        session.connection.session = TapMerge(session, frame, options)
    except OSError:
        _refuse(session, frame, Status.ETMPFAIL, "no TAP yet: a worker is being started again")


def _refuse(session: Session, frame: Frame, status: Status, cause: str) -> None:
    """Refuse TAP_CONNECT, with the reason if the client understands one, and close the connection."""
    session.server.warn(session.connection.peer, cause)
    words = error_body(cause) if session.has(Feature.XERROR) else b""
    session.reply(frame, Failure(status=status, value=words))
    session.connection.finish()


@handles(Deregister)
def deregister(session: Session, request: Deregister) -> Done:
    """Handle DEREGISTER: drop the session with this name, if there is one."""
    session.server.tap.deregister(request.key)
    return Done()


@handles(ChangeFilter, value_bytes_max=OPTIONS_BYTES_MAX)
def change_filter(session: Session, request: ChangeFilter) -> Done:
    """Handle CHANGE_FILTER: change the vbuckets of a session. "n = 0, short body or unknown name: EINVAL"."""
    checkpoints = dict(request.checkpoints)
    if not checkpoints or not session.server.tap.change_filter(request.key, checkpoints):
        raise CommandRefused(Status.EINVAL, f"no vbuckets, or no live session of the name {request.key!r}")
    return Done()
