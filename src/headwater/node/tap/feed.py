"""A TAP session of this node: its protocol object, its readers, and the connection it has at the moment.

The session may outlive the connection (tap.md 1.2): then it keeps its places, and the readers keep what it still needs
from being purged, but nothing is sent. Readers with something to say take turns; those that wait for an answer of the
client are put aside until one comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headwater.node.streams.turns import Turns
from headwater.node.tap.form import form_of
from headwater.node.tap.reader import TapReader
from headwater.protocol.tap_ledger import Step
from headwater.protocol.tap_producer import Fate
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket
    from headwater.node.connection import Connection
    from headwater.node.streams.outlet import Outlet
    from headwater.protocol.tap_options import TapOptions
    from headwater.protocol.tap_producer import TapProducer


class Feed:
    """A session.

    Args:
        name: as the client gave it, or made up.
        bucket: whose changes it sends.
        producer: the protocol's end.

    Attributes:
        connection: where to; None while the client is away.
        datatypes: mask of what the client understands of a datatype.
        readers: by vbucket.
    """

    def __init__(self, name: bytes, bucket: Bucket, producer: TapProducer, created_at: float) -> None:
        self.name = name
        self.producer = producer
        self.bucket = bucket
        self.connection: Connection | None = None
        self.datatypes = 0
        self.created_at = created_at
        self.readers: dict[int, TapReader] = {}
        self._turns: Turns[TapReader] = Turns()

    # --- the client comes and goes ----------------------------------------------------------------------------------

    def attach(self, connection: Connection, datatypes: int) -> None:
        """The client is there: begin, or go on."""
        self.connection, self.datatypes = connection, datatypes
        self.follow(self.producer.options)
        for reader in self.readers.values():
            reader.write_as(form_of(self.producer, reader.stream, datatypes))
            self.ready(reader)
        connection.wake()

    def detach(self) -> None:
        """The connection is gone."""
        self.connection = None

    def close(self) -> None:
        """The session is over."""
        for reader in self.readers.values():
            reader.close()
        self.readers.clear()
        self._turns.clear()

    def follow(self, options: TapOptions) -> None:
        """Have a reader for every vbucket that is wanted and here, and none for others."""
        for vb in [vb for vb, reader in self.readers.items() if self.producer.streams.get(vb) is not reader.stream]:
            self._drop(self.readers[vb])
        wanted, now = options.vbuckets or sorted(self.bucket.vbuckets), self.bucket.now()
        for vb in wanted:
            found = self.bucket.vbuckets.get(vb)
            if found is None or vb in self.readers or vb in self.bucket.fenced or not self._is_wanted(found.state, vb):
                continue  # "missing ones are skipped silently"
            stream = self.producer.streams.get(vb) or self.producer.follow(
                vb, found.durable_seqno, found.purge_seqno, now
            )
            self.readers[vb] = TapReader(found, self, stream, form_of(self.producer, stream, self.datatypes))

    def _is_wanted(self, state: State, vb: int) -> bool:
        """ "DUMP covers the active vbuckets of the filter that hold items"; others, all that live."""
        if self.producer.options.dump:
            return state is State.ACTIVE and self.bucket.store.durable_seqno(vb) > 0
        return state is not State.DEAD

    # --- turns ------------------------------------------------------------------------------------------------------

    def pump(self, outlet: Outlet) -> None:
        """Fill the outlet: readers take turns."""
        self._turns.fill(outlet)

    def ready(self, reader: TapReader) -> None:
        """A reader has something to send."""
        if reader.stream.place.step is not Step.DONE:
            reader.is_held = False
            self._turns.add(reader)
            if self.connection is not None:
                self.connection.wake()

    def heard(self) -> None:
        """The client answered, or a suspension is over: who waited may go on."""
        for reader in self.readers.values():
            if reader.is_held:
                self.ready(reader)

    def leave(self, reader: TapReader) -> None:
        """A vbucket is gone, or dead: its stream is over."""
        self._drop(reader)
        self.producer.streams.pop(reader.vbucket.id, None)
        if self.connection is not None:
            self.connection.wake()

    def fail(self, cause: str) -> None:
        """The session can't go on, and is not resumed."""
        self.producer.fate = Fate.FAILED
        if self.connection is not None:
            self.connection.drop(cause)

    def _drop(self, reader: TapReader) -> None:
        reader.close()
        self._turns.discard(reader)
        if self.readers.get(reader.vbucket.id) is reader:
            del self.readers[reader.vbucket.id]

    def send(self, message: bytes, gate: int) -> None:
        """Send a message once a batch is durable."""
        if self.connection is not None:
            self.connection.send(message, gate)

    def when_room(self, reader: TapReader) -> None:
        """Let a reader go on after the next commit."""
        self.bucket.committer.when_room(lambda: self.ready(reader))

    # --- statistics -------------------------------------------------------------------------------------------------

    def stats(self, now: float) -> Iterable[tuple[str, str]]:
        """This session's part of STAT tap (tap.md 7)."""
        producer, ledger, options = self.producer, self.producer.ledger, self.producer.options
        left = [max(0, each.vbucket.durable_seqno - each.stream.place.seqno) for each in self.readers.values()]
        backfilling = [each for each in self.readers.values() if each.stream.place.step <= Step.BACKFILL]
        yield "type", "producer"
        yield "created", f"{self.created_at:.0f}"
        yield "connected", str(self.connection is not None).lower()
        yield "flags", ",".join(flag.name.lower() for flag in options.flags if flag.name) or "none"
        yield "qlen", str(sum(left))
        yield "total_backlog_size", str(sum(left))
        yield "rec_fetched", str(ledger.sent)
        yield "idle", str(not any(left)).lower()
        yield "ack_seqno", str(ledger.sent)
        yield "recv_ack_seqno", str(ledger.acked)
        yield "seqno_ack_requested", str(ledger.asked)
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
