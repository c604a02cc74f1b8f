"""A TAP session of this node: its protocol object, its readers, and its present connection.

The session may outlive the connection (tap.md 1.2): then it keeps its positions, and its readers keep the tombstones
that it still needs in the store, but nothing is sent.

Readers with something to send take turns. Those that wait for an answer of the client are in a queue for each kind of
answer, and the whole queue is skipped until that answer arrives. So the cost of an answer does not depend on the number
of readers that wait for another kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from headwater.node.streams.round_robin import RoundRobin
from headwater.node.tap.encoding import encoding_of
from headwater.node.tap.reader import TapReader
from headwater.protocol.tap.ledger import TapStep
from headwater.protocol.tap.producer import Fate, Wait
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.connections.connection import Connection
    from headwater.node.streams.outlet import Outlet
    from headwater.node.tap.encoding import TapEncoding
    from headwater.protocol.tap.producer import TapProducer, TapProducerStream


SESSION_BYTES, READER_BYTES, ENTRY_BYTES = 4096, 768, 128
"""The approximate memory of a session, a reader, and an unacknowledged change; measured with thousands of each."""


class Feed:
    """A TAP session of this node.

    Args:
        name: the client's name for the session, or a generated one.
        bucket: the bucket whose changes it sends.
        producer: the session's protocol object.
        created_at: the time of its creation, in seconds since 1970.

    Attributes:
        connection: the client's connection; None while the client is away.
        user: the user who opened the session; None on a connection without a login.
        datatypes: the mask of datatype bits that the client understands.
        readers: the readers by vbucket.
    """

    def __init__(self, name: bytes, bucket: Bucket, producer: TapProducer, created_at: float) -> None:
        self.name = name
        self.producer = producer
        self.bucket = bucket
        self.connection: Connection | None = None
        self.user: str | None = None
        self.datatypes: int = 0
        self.created_at = created_at
        self.readers: dict[int, TapReader] = {}
        self._turns: dict[Wait, RoundRobin[TapReader]] = {wait: RoundRobin() for wait in Wait}

    @property
    def memory_bytes(self) -> int:
        """The approximate memory, in bytes, of the session, its readers and the unacknowledged changes."""
        return SESSION_BYTES + READER_BYTES * len(self.readers) + ENTRY_BYTES * self.producer.ledger.unacked

    # --- the client comes and goes ----------------------------------------------------------------------------------

    def attach(self, connection: Connection, datatypes: int) -> None:
        """Begin or continue the session on its client's connection."""
        self.connection, self.datatypes = connection, datatypes
        self.refilter()
        for reader in self.readers.values():
            reader.begin()
            self.ready(reader)
        connection.keeps(self.memory_bytes)
        connection.wake()

    def detach(self) -> None:
        """Forget the client's connection, which is closed; the session keeps its positions."""
        self.connection = None

    def close(self) -> None:
        """End the session and all its readers."""
        for reader in self.readers.values():
            reader.close()
        self.readers.clear()
        for turns in self._turns.values():
            turns.clear()

    def refilter(self) -> None:
        """Create readers for the vbuckets that the session wants now, and remove those of all others."""
        for reader in tuple(self.readers.values()):
            if self.producer.streams.get(reader.vbucket.id) is not reader.stream:
                self._drop(reader)
        self._follow(self.producer.options.vbuckets or sorted(self.bucket.vbuckets))

    def look(self, vbuckets: Iterable[int]) -> None:
        """React to vbuckets that were created, dropped or changed.

        A dump or a takeover keeps to the vbuckets that existed when it began. Other sessions also send vbuckets that
        are created or become active later.
        """
        options = self.producer.options
        for vb in vbuckets:
            reader = self.readers.get(vb)
            if reader is not None and self.bucket.vbuckets.get(vb) is reader.vbucket:
                self.ready(reader)  # changes that were held back by a gap may be readable now
                continue
            if reader is not None:
                self.leave(reader)
            if not options.ends and (not options.vbuckets or vb in options.vbuckets):
                self._follow((vb,))

    def _follow(self, vbuckets: Iterable[int]) -> None:
        now = self.bucket.now()
        for vb in vbuckets:
            vbucket = self.bucket.vbuckets.get(vb)
            if (
                vbucket is None
                or vb in self.readers
                or vb in self.bucket.fenced
                or not self._is_wanted(vbucket.state, vb)
            ):
                continue  # "missing ones are skipped silently"; `look` finds those that come later
            branch = vbucket.failover.newest.vb_uuid
            stream = self.producer.streams.get(vb) or self.producer.follow(
                vb, vbucket.durable_seqno, vbucket.purge_seqno, now, branch
            )
            reader = TapReader(vbucket, self, stream)
            self.readers[vb] = reader
            self.ready(reader)

    def _is_wanted(self, state: State, vb: int) -> bool:
        """Return True if the session wants a vbucket that is in this state.

        "DUMP covers the active vbuckets of the filter that hold items"; other sessions want all that are not dead.
        """
        if self.producer.options.dump:
            return state is State.ACTIVE and self.bucket.store.index.durable_seqno(vb) > 0
        return state is not State.DEAD

    # --- turns ------------------------------------------------------------------------------------------------------

    def pump(self, outlet: Outlet) -> None:
        """Fill the outlet: the readers take turns until it is full, or the connection's turn ends."""
        for wait, turns in self._turns.items():
            turns.fill(outlet, partial(self.producer.stops, wait))

    def ready(self, reader: TapReader) -> None:
        """Queue a reader that may have something to send."""
        if reader.stream.place.step is not TapStep.DONE:
            self._turns[Wait.ORDERS if reader.stream.place.step < TapStep.BACKFILL else Wait.DATA].add(reader)
            self._wake()

    def encoding(self, stream: TapProducerStream) -> TapEncoding:
        """Return the encoding in which the present client gets the changes of a stream."""
        return encoding_of(self.producer, stream, self.datatypes)

    def hold(self, reader: TapReader) -> None:
        """Queue a reader that can send nothing now, if it waits for an answer of the client."""
        wait = self.producer.wait(reader.stream, reader.vbucket.high_seqno)
        if wait is not None and self.producer.stops(wait):
            self._turns[wait].add(reader)

    def heard(self) -> None:
        """Resume the readers whose wait is over, because the client has answered, or a suspension has ended."""
        for stream in self.producer.take_released():
            reader = self.readers.get(stream.vbucket)
            if reader is not None and reader.stream is stream:
                self.ready(reader)
        if any(self._turns.values()):
            self._wake()

    def _wake(self) -> None:
        if self.connection is not None:
            self.connection.wake()

    def leave(self, reader: TapReader) -> None:
        """Remove the reader of a dropped vbucket.

        A dump or a takeover that has not sent all of the vbucket fails, because its end would say that it is complete.
        """
        vb = reader.vbucket.id
        self._drop(reader)
        if self.producer.options.ends and reader.stream.place.step is not TapStep.DONE:
            self.fail(f"vbucket {vb} was deleted before the TAP client {self.name!r} had all of it")
        self.producer.leave(vb)
        self._wake()

    def fail(self, cause: str) -> None:
        """End the session, because it can't continue; it will not be resumed."""
        self.producer.fate = Fate.FAILED
        if self.connection is not None:
            self.connection.drop(cause)

    def _drop(self, reader: TapReader) -> None:
        reader.close()
        for turns in self._turns.values():
            turns.discard(reader)
        if self.readers.get(reader.vbucket.id) is reader:
            del self.readers[reader.vbucket.id]

    def send(self, message: bytes, gate: int) -> None:
        """Send a message once a batch is durable."""
        if self.connection is not None:
            self.connection.send(message, gate)

    def when_room(self, reader: TapReader) -> None:
        """Resume a reader after the next commit."""
        self.bucket.committer.when_room(lambda: self.ready(reader))

    # --- statistics -------------------------------------------------------------------------------------------------

    def stats(self, now: float) -> Iterable[tuple[str, str]]:
        """Yield this session's statistics in STAT tap (tap.md 7)."""
        producer, ledger, options = self.producer, self.producer.ledger, self.producer.options
        backlogs = [
            max(0, reader.vbucket.durable_seqno - reader.stream.place.seqno) for reader in self.readers.values()
        ]
        backfilling = [reader for reader in self.readers.values() if reader.stream.place.step <= TapStep.BACKFILL]
        yield "type", "producer"
        yield "created", f"{self.created_at:.0f}"
        yield "connected", str(self.connection is not None).lower()
        yield "flags", ",".join(flag.name.lower() for flag in options.flags if flag.name) or "none"
        yield "qlen", str(sum(backlogs))
        yield "total_backlog_size", str(sum(backlogs))
        yield "rec_fetched", str(ledger.sent)
        yield "idle", str(not any(backlogs)).lower()
        yield "ack_seqno", str(ledger.sent)
        yield "recv_ack_seqno", str(ledger.acked)
        yield "seqno_ack_requested", str(ledger.ack_request)
        yield "ack_log_size", str(ledger.unacked)
        yield "ack_window_full", str(ledger.room <= 0).lower()
        yield "pending_backfill", str(bool(backfilling)).lower()
        yield "backfill_completed", str(not backfilling).lower()
        yield "backfill_age", str(options.since or 0)
        yield "vb_filter", " ".join(map(str, sorted(self.readers)))
        yield "suspended", str(producer.suspended_until > now).lower()
        yield "num_tap_nack", str(producer.nacks)
        yield "num_unknown", str(producer.unknown)
        yield "reconnects", str(producer.reconnects)
