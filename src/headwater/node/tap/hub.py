"""What the TAP connections of a bucket share: names, sessions whose client is away, and the commands about them.

Source: tap.md 1 (connect), 1.2 (names and reconnects), 7 (statistics).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.errors import BadMessage
from headwater.node.kv.command import Part, Refused, Reply, command
from headwater.node.streams.outlet import Outlet
from headwater.node.tap.feed import Feed
from headwater.node.tap.session import TapSession
from headwater.protocol.tap_options import TapOptions, read_connect
from headwater.protocol.tap_producer import Fate, TapProducer
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.tap import ChangeFilter

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket
    from headwater.node.connection import Connection
    from headwater.node.kv.session import KvSession


class TapHub:
    """The TAP sessions of a bucket.

    Args:
        keep_alive_seconds: how long a named session waits for its client to come back; 0: not at all.
    """

    def __init__(self, bucket: Bucket, loop: asyncio.AbstractEventLoop, keep_alive_seconds: float = 0.0) -> None:
        self.outlet = Outlet()
        self.feeds: dict[bytes, Feed] = {}
        self._bucket = bucket
        self._loop = loop
        self._keep_alive_seconds = keep_alive_seconds
        self._expiries: dict[bytes, asyncio.TimerHandle] = {}
        self._anonymous = 0
        bucket.stat_groups["tap"] = self.stats

    def connect(self, kv: KvSession, options: TapOptions) -> TapSession:
        """The client of a name is there: a new session, or the one that waits for it."""
        now, name = self._loop.time(), options.name or self._made_up()
        feed = self.feeds.get(name)
        if feed is not None and (not self._keep_alive_seconds or feed.producer.fate is not Fate.LIVE):
            self._forget(feed)
            feed = None
        elif feed is not None:
            self._cut(feed)
            feed.producer.resume(options, now)
        if feed is None:
            feed = self.feeds[name] = Feed(name, self._bucket, TapProducer(options, now), self._bucket.now())
        session = TapSession(kv, self, feed)
        kv.connection.session = session
        feed.attach(kv.connection, Datatype.JSON if kv.has(Feature.JSON) else Datatype.RAW)
        return session

    def left(self, feed: Feed, connection: Connection) -> None:
        """A connection is gone. "A completed dump or takeover, or a session closed by a fatal NACK, is never
        resumed"."""
        if feed.connection is not connection:
            return
        feed.detach()
        if not feed.producer.options.name or not self._keep_alive_seconds or feed.producer.fate is not Fate.LIVE:
            self._forget(feed)
            return
        expire = self._loop.call_later(self._keep_alive_seconds, lambda: self._forget(feed))
        self._expiries[feed.name] = expire

    def deregister(self, name: bytes) -> bool:
        """Drop a session; False if there is none of that name."""
        feed = self.feeds.get(name)
        if feed is not None:
            self._forget(feed)
        return feed is not None

    def change_filter(self, name: bytes, checkpoints: dict[int, int]) -> bool:
        """Let a live session follow other vbuckets; False if there is none of that name."""
        feed = self.feeds.get(name)
        if feed is None or feed.connection is None:
            return False
        producer = feed.producer
        for vb in [vb for vb in producer.streams if vb not in checkpoints]:
            del producer.streams[vb]
        told = checkpoints if producer.options.checkpoints is not None else None
        producer.options = replace(producer.options, vbuckets=tuple(checkpoints), checkpoints=told)
        feed.follow(producer.options)
        for vb in checkpoints:
            if vb in feed.readers:
                feed.ready(feed.readers[vb])
        producer.filter_changed()
        feed.connection.wake()
        return True

    def stats(self, _: list[str]) -> Iterable[tuple[str, str]]:
        """STAT tap: each session, as eq_tapq:NAME:stat."""
        yield "ep_tap_count", str(len(self.feeds))
        yield "ep_tap_keepalive", f"{self._keep_alive_seconds:g}"
        for name, feed in self.feeds.items():
            for key, value in feed.stats(self._loop.time()):
                yield f"eq_tapq:{name.decode('latin-1')}:{key}", value

    def _made_up(self) -> bytes:
        self._anonymous += 1
        return b"anon_%d" % self._anonymous

    def _forget(self, feed: Feed) -> None:
        if self.feeds.get(feed.name) is feed:
            del self.feeds[feed.name]
        self._cut(feed)
        feed.close()

    def _cut(self, feed: Feed) -> None:
        """ "Same name as a live session: the old socket is closed"; and nobody waits for the client any more."""
        if (expiry := self._expiries.pop(feed.name, None)) is not None:
            expiry.cancel()
        connection = feed.connection
        feed.detach()
        if connection is not None:
            connection.drop(f"the TAP session {feed.name!r} goes on elsewhere, or is over", fault=False)


@command(Opcode.TAP_CONNECT, extras=None, key=Part.ANY, value=Part.ANY, cas=True)
def connect(session: KvSession, frame: Frame) -> Reply | None:
    """TAP_CONNECT: "there is no success response: the stream just begins"."""
    try:
        options = read_connect(frame)
    except BadMessage as bad:
        session.reply(frame, Reply(bad.status))
        session.connection.finish()
        return None
    session.server.tap.connect(session, options)
    return None


@command(Opcode.DEREGISTER_TAP_CLIENT, extras=None, key=Part.REQUIRED, value=Part.ANY)
def deregister(session: KvSession, frame: Frame) -> Reply:
    """Drop the session of a name."""
    session.server.tap.deregister(frame.key)
    return Reply()


@command(Opcode.CHANGE_VB_FILTER, extras=None, key=Part.REQUIRED, value=Part.ANY)
def change_filter(session: KvSession, frame: Frame) -> Reply:
    """ "n = 0, short body or unknown name: EINVAL"."""
    try:
        wanted = dict(ChangeFilter.decode(frame).checkpoints)
    except BadMessage as bad:
        raise Refused(Status.EINVAL, str(bad)) from None
    if not wanted or not session.server.tap.change_filter(frame.key, wanted):
        raise Refused(Status.EINVAL, f"no vbuckets, or no live session of the name {frame.key!r}")
    return Reply()
