"""A drain over all nodes of a bucket: one DCP connection per node, every change once, through failures.

Nothing here blocks. Each connection is a worker (worker.py), a generator that runs until it has nothing to read;
`advance` runs the workers in turn, returns the rows gathered in the shared arena, and otherwise yields the events that
the workers wait for. A vbucket is always in one of three places: with a worker, in `_unassigned` until its next
attempt, or done.

A stream is requested again where it stopped: rows in the arena count, since they are returned before anything else
happens. After a producer broke a rule of the protocol, the rows since the last batch are dropped, the error is raised,
and the positions stay at the end of the caller's data.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from headwater.client.cluster import Cluster, tried
from headwater.client.collections import CollectionNames, StreamedCollections, manifest_of, newest_manifest
from headwater.client.losses import ReadAgain, explained
from headwater.client.mapwatch import REFRESH_SECONDS, watch
from headwater.client.mitigation import Gate, StreamCut
from headwater.client.options import DrainOptions
from headwater.client.persistence import poll
from headwater.client.progress import Positions, VBucketProgress
from headwater.client.routing import Address
from headwater.client.worker import AGAIN, Task, Worker
from headwater.errors import (
    BucketNotFound,
    DataLoss,
    HeadwaterError,
    PeerSilent,
    RemoteProtocolError,
    RollbackRequired,
    StatusError,
    TransportError,
    error_for,
)
from headwater.invariants import invariant
from headwater.kernels.columns import Arena
from headwater.protocol.dcp.consumer_stream import ConsumerStream
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.events import (
    Advanced,
    Boundary,
    CollectionsChanged,
    CollectionsTold,
    DeletionsMissed,
    Ended,
    Marked,
    Opened,
    Refused,
    RollbackNeeded,
    StreamEvent,
    Vanished,
)
from headwater.protocol.dcp.position import ENDLESS, FailoverLog, Position
from headwater.transport.backoff import Backoff
from headwater.transport.waiting import Ready, Steps
from headwater.wire.dcp import EndReason, SystemEvent
from headwater.wire.features import Feature
from headwater.wire.manifest import CollectionsManifest, EventKind
from headwater.wire.status import Status

LINGER_BYTES_MIN = 32 * 1024


@dataclass(frozen=True, slots=True)
class Pace:
    """The times that the rows of a batch may wait for more rows.

    Attributes:
        spell_seconds: the longest time of reading and decoding, while more bytes are there.
        linger_seconds: the longest wait for more bytes, once there are none.
        enough: the share of a full batch from which on rows do not wait.
    """

    spell_seconds: float
    linger_seconds: float
    enough: float


LIVE = Pace(0.002, 0.001, 1 / 2)
"""The pace of a drain without an end: somebody waits for each change."""
BULK = Pace(0.020, 0.010, 7 / 8)
"""The pace of a drain with an end, whose caller wants everything: on shared cores a batch is not full after 2 ms, and
each batch has a price downstream, some tenths of a millisecond with Spark."""
_OK = int(EndReason.OK)
FINAL = frozenset({EndReason.OK, EndReason.FILTER_EMPTY})
GONE = frozenset({Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE})
"""The statuses of a stream request if a part of its choice does not exist."""


NOT_SHOWN = (
    "not shown to this user any more: the right to it was taken away, or it was dropped, which a user with rights in "
    "parts of the bucket can't tell apart. Give the user the role stream in it again, or in the whole bucket, and go "
    "on from the last positions"
)


@dataclass(frozen=True, slots=True)
class Handout:
    """One delivery to the caller: rows, the events among them as (row, event), and the positions afterwards."""

    records: pa.RecordBatch
    events: list[tuple[int, StreamEvent]]
    positions: Positions
    streamed: StreamedCollections | None = None


@dataclass(slots=True)
class UnassignedVbucket:
    """A vbucket without a stream, with the time and the reason of its next attempt.

    Attributes:
        retry_at: the time of the next attempt.
        error: the failure that ended the stream; None for none.
        stale_map: True if an old cluster map may be the cause.
        stale_manifest: True if an old choice of collections may be the cause.
    """

    retry_at: float
    error: HeadwaterError | None
    stale_map: bool = False
    stale_manifest: bool = False


def _data_loss(missed: list[DeletionsMissed]) -> DataLoss:
    first = min(missed, key=lambda event: event.vbucket)
    return DataLoss({event.vbucket: event.purge_seqno for event in missed}, first.seqno)


class Drainer:
    """A drain over all nodes of a bucket; call `advance` until it returns None."""

    def __init__(
        self,
        cluster: Cluster,
        start: Mapping[int, Position],
        ends: Mapping[int, int],
        options: DrainOptions,
        streamed: StreamedCollections | None = None,
    ) -> None:
        self.cluster: Cluster = cluster
        self.options: DrainOptions = options
        self.clock: Callable[[], float] = cluster.clock
        self.streamed: StreamedCollections | None = streamed
        ids = streamed is not None
        self.arena: Arena = Arena(value_bytes=options.batch_bytes, with_ids=ids, with_befores=options.before)
        self._coverage = None if streamed is None else streamed.choice
        self._reported_drops: set[tuple[int, int]] = set()  # (vbucket, collection) of drops in events of this drain
        now = self.clock()
        self.progress: dict[int, VBucketProgress] = {
            vb: VBucketProgress(place, ends.get(vb, ENDLESS), backoff=Backoff()) for vb, place in start.items()
        }
        self._unassigned = {vb: UnassignedVbucket(now, None) for vb in start}
        self._workers: dict[Address, Worker] = {}
        self._events: list[tuple[int, StreamEvent]] = []
        # Changed only while no batch has them; the first change after a batch makes a copy.
        self._logs: dict[int, FailoverLog] = {}
        self._failure: HeadwaterError | None = None
        self._refusals: dict[int, RollbackRequired] = {}
        self._is_over = False
        self._bounded = all(part.end_seqno != ENDLESS for part in self.progress.values())
        self._pace = BULK if self._bounded else LIVE
        self._moved_at = self._waited_since = self._left_at = now
        self._linger_until: float | None = None
        self._last_error: HeadwaterError | None = None
        self._last_positions: dict[int, Position] = dict(start)
        self.positions: Positions = Positions(self._last_positions, [], {}, self._coverage)
        self._steward, self._refreshed_at = Task(self._house()), float("-inf")
        self._watch = Task(watch(cluster, options.map_poll_seconds, self._workers, self._lose))
        self._gate: Gate | None = None
        if options.min_persisted is not None:
            self._gate = Gate(start, options.min_persisted, options.batch_bytes)
            self._pollers: dict[Address, Task] = {}
            self._polled = cluster.twin()

    def close(self) -> None:
        """Close all connections, those of the cluster included; positions stay readable."""
        self._is_over = True
        self._steward.close()
        self._watch.close()
        for worker in self._workers.values():
            worker.close()
        if self._gate is not None:
            for poller in self._pollers.values():
                poller.close()
            self._polled.close()
        self._workers.clear()
        self._unassigned.clear()
        self.cluster.close()

    # ------------------------------------------------------------------ running

    def advance(self) -> Steps[Handout | None]:
        """Return the next rows and events, None when all streams have ended.

        The call also means that the caller has processed everything returned before: the drain acknowledges it to the
        nodes.
        """
        self._waited_since = now = self.clock()
        self._forget_callers_time(now - self._left_at)
        for worker in self._workers.values():
            # Bytes are acknowledged when the caller is done with them, not when they were read: so a slow caller slows
            # the nodes down, and memory stays bounded (dcp 7).
            worker.processed(now, 0 if self._gate is None else self._gate.held_bytes(worker.vbuckets))
        while not self._is_over:
            has_more = yield from self._run_workers()
            if self._gate is not None:
                yield from self._pass(self._gate)
                if self._gate.is_ready:
                    return self._hand_out()
            # What came before a failure is handed out first; the failure is raised by the next call.
            if self.arena.rows or self._events:
                if has_more or not self._worth_waiting():
                    return self._hand_out()
            elif self._failure is not None or self._is_done:
                if not (yield from self._reads_again()):
                    self.close()
                    break
            elif self._gave_up(self.clock()):
                return self._hand_out()
            if self._failure is None:
                yield self._next_wait()
        if self._failure is not None:
            raise self._failure
        return None

    def _reads_again(self) -> Steps[bool]:
        """Find the cause of the drain's failure, if any; return True if `on_data_loss` lets all failed vbuckets begin
        again.

        Otherwise the failure stays; a rollback to 0 becomes DataLoss where deletions were purged.
        """
        if self._failure is None:
            return False
        self._failure = yield from explained(self.cluster, self._failure, self._unopened)
        if self.options.on_data_loss == "raise" or not isinstance(self._failure, DataLoss):
            return False
        for vbucket, refusal in self._refusals.items():
            if vbucket in self._failure.purged:
                self._begin_again(vbucket, refusal.requested, self._failure.purged[vbucket])
        remaining = [refusal for vb, refusal in self._refusals.items() if vb not in self._failure.purged]
        self._failure = remaining[0] if remaining else None
        self._refusals.clear()
        return not remaining

    def _begin_again(self, vbucket: int, seqno: int, purge_seqno: int) -> None:
        progress = self.progress[vbucket]
        progress.position, progress.purge_seqno = replace(Position.beginning(vbucket), coverage=self._coverage), 0
        self._last_positions = {**self._last_positions, vbucket: progress.position}
        self._unassigned[vbucket] = UnassignedVbucket(self.clock(), None)
        self._events.append((self.arena.rows, ReadAgain(ConsumerStream(vbucket), seqno, purge_seqno)))

    @property
    def _unopened(self) -> dict[int, int]:
        """Return the start seqno of vbuckets whose stream no node has accepted."""
        return {vb: part.position.seqno for vb, part in self.progress.items() if vb not in self._logs and not part.done}

    @property
    def _is_done(self) -> bool:
        return all(part.done for part in self.progress.values()) and not (self._gate and self._gate.holding)

    def _worth_waiting(self) -> bool:
        """Return True if the rows so far should wait for more: in a bulk transfer, full batches cost less than many
        small ones.

        A trickle, a batch that is about full and the last rows are returned at once; a batch in between waits
        `linger_seconds` at most.
        """
        enough = self._pace.enough * self.options.batch_bytes
        if not LINGER_BYTES_MIN <= self.arena.bytes < enough or self._failure is not None or self._is_done:
            self._linger_until = None
            return False
        now = self.clock()
        if self._linger_until is None:
            self._linger_until = now + self._pace.linger_seconds
        return now < self._linger_until

    def _forget_callers_time(self, seconds: float) -> None:
        """Leave the time that the caller spent on a batch out of the times in which nodes must make progress."""
        self._moved_at += seconds
        if seconds >= 1.0:
            for part in self.progress.values():
                if part.trouble_since is not None:
                    part.trouble_since += seconds

    def _run_workers(self) -> Steps[bool]:
        """Run every worker until it waits or the arena is full, and find nodes for vbuckets without a stream.

        Returns: True if there are rows and the run stopped early, because changes may arrive as fast as they are read.
        """
        busy, until = True, self.clock() + self._pace.spell_seconds
        yield from self._run_task(self._watch)
        while busy and self._failure is None and (not self.arena.rows or self.clock() < until):
            busy = (yield from self._run_task(self._steward)) if self._unassigned else False
            for address, worker in list(self._workers.items()):
                if self._failure is not None:
                    break  # rows may have been dropped: a batch of what others have now would skip them
                busy |= yield from self._run(address, worker)
        return busy

    def _run_task(self, task: Task) -> Steps[bool]:
        try:
            return (yield from task.step())
        except HeadwaterError as error:
            self._failure = error
            return False

    def _run(self, address: Address, worker: Worker) -> Steps[bool]:
        try:
            busy = yield from worker.step()
            if missed := self._take_events(worker):
                self._lose(address, _data_loss(missed))
                self._miss(missed)
                return True
        except RemoteProtocolError as error:
            self._break_off(error)
            return False
        except (TransportError, StatusError) as error:
            # Whether the bucket is gone, or the node was emptied, is found out before its vbuckets are given away
            # (`_look_for_bucket`).
            if not error.retriable and not isinstance(error, BucketNotFound):
                self._failure = error
            self._lose(address, error)
            return True
        if worker.idle:
            del self._workers[address]
            worker.close()
        return busy

    def _break_off(self, error: HeadwaterError) -> None:
        """End the drain with an error: drop the rows and events since the last batch, and return no others."""
        self.arena.batch()
        self._events.clear()
        self._failure = error

    def _gave_up(self, now: float) -> bool:
        """Return True if the caller has waited for `max_wait_seconds`, and note the failure of a drain that makes no
        progress.

        A drain with an end that stands still although its nodes are alive has failed; its error is the last one.
        """
        patience, wait = self.options.patience_seconds, self.options.max_wait_seconds
        if self._gate is not None and (late := self._gate.too_long(now, patience, self.cluster.map)) is not None:
            self._failure = late
        elif self._may_stand_still and patience is not None and now >= self._moved_at + patience:
            self._failure = self._last_error or PeerSilent("a drain with an end", now - self._moved_at)
        return wait is not None and now >= self._waited_since + wait

    @property
    def _may_stand_still(self) -> bool:
        """True if the drain has an end and connections, and the gate holds no changes: then a lack of progress is a
        failure.

        Changes in the gate have a deadline of their own (`Gate.deadline`).
        """
        return self._bounded and bool(self._workers) and not (self._gate and self._gate.holding)

    def _next_wait(self) -> Ready:
        waits = [task.wait for task in (self._steward, self._watch, *self._workers.values())]
        moments = [wait.deadline for wait in waits]
        # While the steward asks for a map, which a silent node may make long, the times of the vbuckets that wait for
        # it have passed: to wake for them would be to turn round and round, all of a processor, until the answer comes.
        if self._steward.wait.deadline is None:
            moments += [entry.retry_at for entry in self._unassigned.values()]
        if self.options.max_wait_seconds is not None:
            moments.append(self._waited_since + self.options.max_wait_seconds)
        if self._may_stand_still and self.options.patience_seconds is not None:
            moments.append(self._moved_at + self.options.patience_seconds)
        if self._gate is not None:
            waits += [poller.wait for poller in self._pollers.values()]
            moments += [poller.wait.deadline for poller in self._pollers.values()]
            moments.append(self._gate.deadline(self.options.patience_seconds))
        moments.append(self._linger_until)
        channels = tuple(channel for wait in waits for channel in wait.channels)
        return Ready(channels, min((moment for moment in moments if moment is not None), default=None))

    def _hand_out(self) -> Handout:
        if self._gate is not None:
            return self._let_go(self._gate)
        self._left_at, self._linger_until = self.clock(), None
        if self.arena.rows or self._events:
            self._moved_at, self._last_error = self._left_at, None
        parts = [worker.part() for worker in self._workers.values() if worker.drain]
        # The numbers are copied here, with the rows: the workers read on while the caller has the batch.
        self.positions = Positions(self._last_positions, parts, self._logs, self._coverage)
        events, self._events = self._events, []
        last, rows = events[-1][0] if events else 0, self.arena.rows
        invariant(last <= rows, "an event before row {} of {}", last, rows)
        return Handout(self.arena.batch(), events, self.positions, self.streamed)

    # ------------------------------------------------------------------ what waits for copies to have it on disk

    def _pass(self, gate: Gate) -> Steps[None]:
        """Put new rows and events into the gate, and run the pollers that request persisted seqnos from the nodes."""
        if self.arena.rows or self._events:
            events, self._events = self._events, []
            gate.take(self.arena.batch(), events, self.clock())
        for address in self.cluster.map.servers:
            if address not in self._pollers:
                self._pollers[address] = Task(poll(self._polled, self.cluster, address, gate))
        for poller in self._pollers.values():
            yield from self._run_task(poller)

    def _let_go(self, gate: Gate) -> Handout:
        self._left_at = self.clock()
        if gate.is_ready:
            self._moved_at, self._last_error = self._left_at, None
        released = gate.release(self._left_at)
        self.positions = Positions(released.resting, [], released.logs, self._coverage)
        for _, event in released.events:
            if isinstance(event, Ended):
                self._finish(event.vbucket)
        records = self.arena.batch() if released.records is None else released.records
        return Handout(records, released.events, self.positions, self.streamed)

    def _finish(self, vbucket: int) -> None:
        """Mark a vbucket as done and release it from its worker, now that the caller has all of its rows."""
        self.progress[vbucket].done = True
        for worker in self._workers.values():
            if vbucket in worker.vbuckets:
                worker.release(vbucket)

    # ------------------------------------------------------------------ vbuckets without a stream

    def _house(self) -> Steps[None]:
        """Assign vbuckets without a stream to the workers of their owners, each at its `retry_at`; runs for ever."""
        while True:
            now = self.clock()
            due_vbuckets = [vb for vb, entry in self._unassigned.items() if entry.retry_at <= now]
            # Vbuckets fail one by one, a map tells of all of them: not every failure asks for a map of its own.
            is_time = now >= self._refreshed_at + REFRESH_SECONDS
            if is_time and (yield from self._look_for_bucket(due_vbuckets)):
                self._refreshed_at = self.clock()
            elif is_time and any(self._unassigned[vb].stale_map for vb in due_vbuckets):
                try:
                    yield from self.cluster.refresh()
                except (TransportError, StatusError) as error:
                    if not error.retriable:
                        raise
                    self._displace(due_vbuckets, error, stale_map=True)
                    due_vbuckets = []
                self._refreshed_at = self.clock()
            if any(self._unassigned[vb].stale_manifest for vb in due_vbuckets):
                due_vbuckets = yield from self._look_at_collections(due_vbuckets)
            for vbucket in due_vbuckets:
                self._assign(vbucket)
            yield AGAIN if due_vbuckets else Ready()

    def _look_for_bucket(self, vbuckets: Iterable[int]) -> Steps[bool]:
        """Return True if one of these vbuckets failed because its node was emptied, so that the newest map names other
        nodes.

        Raises:
            BucketNotFound: a node lacks the bucket, and no other node may have it.
        """
        for error in (self._unassigned[vb].error for vb in vbuckets):
            if isinstance(error, BucketNotFound):
                if not (yield from self.cluster.was_emptied(error, self.cluster.deadline())):
                    raise error
                return True
        return False

    def _look_at_collections(self, vbuckets: list[int]) -> Steps[list[int]]:
        """Compare the choice with the manifest and report dropped collections; return the vbuckets to request again.

        A stream that was cut off before it could report a drop is handled here.

        Raises:
            TransportError, StatusError: no node returned a manifest, and a retry would not help.
        """
        streamed = self.streamed
        assert streamed is not None, "streams without a choice are not refused for it"  # noqa: S101
        try:
            manifest = yield from manifest_of(self.cluster, streamed.choice.manifest_uid)
            if self._seems_dropped(streamed, manifest):
                manifest = yield from self._manifest_to_drop_by(streamed)
            streamed.apply_manifest(manifest)
        except (TransportError, StatusError) as error:
            if not error.retriable:
                raise
            self._displace(vbuckets, error, stale_map=True)
            for vbucket in vbuckets:
                self._unassigned[vbucket].stale_manifest = True
            return []
        for vbucket in vbuckets:
            self._tell_dropped(vbucket, streamed)
        return [] if streamed.is_over else vbuckets

    def _seems_dropped(self, streamed: StreamedCollections, manifest: CollectionsManifest) -> bool:
        """Return True if a manifest lacks a part of the choice that no stream has reported as dropped.

        An id is never used twice, so a drop that the stream of one vbucket reported is true for all vbuckets.
        """
        if streamed.is_over or streamed.choice.collections is None:
            return not streamed.is_over and streamed.choice.has_gone(manifest)
        return not {number for _, number in self._reported_drops}.issuperset(streamed.missing_in(manifest))

    def _manifest_to_drop_by(self, streamed: StreamedCollections) -> Steps[CollectionsManifest]:
        """Return the newest manifest of all owners, which has all collections of the bucket.

        A node refuses a stream in the same way if a collection does not exist and if the user has no right in it. It
        leaves both out of the manifest, whose uid stays the same. Only a user who may read the whole bucket sees all of
        them.

        Raises:
            NoAccess: the user does not see all collections, so a dropped one can't be told from a hidden one.
        """
        may_read = yield from self._may_read_all()
        manifest = yield from newest_manifest(self.cluster)
        if may_read and (yield from self._may_read_all()):  # rights may be taken between two answers
            return manifest
        raise error_for(Status.EACCESS, f"{streamed.described_without(manifest)} {NOT_SHOWN}")

    def _may_read_all(self) -> Steps[bool]:
        """Return True if all owners of vbuckets let this user stream the whole bucket: each is asked for a stream of
        all collections that ends where it begins."""
        firsts: dict[Address, int] = {}
        for vbucket in range(self.cluster.map.vbuckets):
            if (owner := self.cluster.map.owner(vbucket)) is not None:
                firsts.setdefault(owner, vbucket)
        starts = {vb: replace(Position.beginning(vb), coverage=Coverage()) for vb in firsts.values()}
        options = DrainOptions(
            # A name of its own: a connection of the same name would end the drain's (dcp 2.1).
            name=f"headwater-{secrets.token_hex(6)}",
            noop_interval_seconds=self.options.noop_interval_seconds,
            patience_seconds=self.options.patience_seconds,
        )
        streamed = StreamedCollections(Coverage(), CollectionNames())
        drain = Drainer(self.cluster.twin(Feature.COLLECTIONS), starts, dict.fromkeys(starts, 0), options, streamed)
        try:
            while (yield from drain.advance()) is not None:
                pass
        except StatusError as error:
            if error.status != Status.EACCESS:
                raise
            return False
        finally:
            drain.close()
        return True

    def _tell_dropped(self, vbucket: int, streamed: StreamedCollections) -> None:
        stream = ConsumerStream(vbucket, request_position=self.progress[vbucket].position)
        for number in streamed.dropped:
            if (vbucket, number) not in self._reported_drops:
                self._reported_drops.add((vbucket, number))
                self._events.append((self.arena.rows, Vanished(stream, number, streamed.manifest_uid)))
        if streamed.is_over:
            self.progress[vbucket].done = True
            del self._unassigned[vbucket]
            self._events.append((self.arena.rows, Ended(stream, EndReason.FILTER_EMPTY)))

    def _assign(self, vbucket: int) -> None:
        owner = self.cluster.map.owner(vbucket)
        if owner is None:
            self._displace([vbucket], self.cluster.ownerless(vbucket, "stream request"), stale_map=True)
            return
        del self._unassigned[vbucket]
        if owner not in self._workers:
            self._workers[owner] = Worker(owner, self.cluster, self.arena, self.options, self.streamed)
        progress = self.progress[vbucket]
        self._workers[owner].assign(progress.position, progress.end_seqno, progress.purge_seqno)

    def _displace(self, vbuckets: Iterable[int], error: HeadwaterError | None, *, stale_map: bool) -> None:
        """Schedule the next attempt of these vbuckets, all at one time; the drain fails if one has failed for
        `patience_seconds`.
        """
        now, self._last_error = self.clock(), error or self._last_error
        delays = [self.progress[vb].note_failure(now) for vb in vbuckets]
        # Together, at the pace of the slowest: they mostly fail for one reason, and are requested over one connection.
        retry_at = now + max(delays, default=0.0)
        for vbucket in vbuckets:
            self._unassigned[vbucket] = UnassignedVbucket(retry_at, error, stale_map)
            trouble_since, patience = self.progress[vbucket].trouble_since, self.options.patience_seconds
            if (
                patience is not None
                and trouble_since is not None
                and now - trouble_since >= patience
                and self._failure is None
            ):
                self._failure = error or PeerSilent(f"vbucket {vbucket}", now - trouble_since)
                if isinstance(error, TransportError | StatusError):
                    self._failure = tried(error, self.progress[vbucket].backoff.failures, now - trouble_since)

    def _lose(self, address: Address, error: HeadwaterError) -> None:
        """Drop a lost connection: its unfinished vbuckets continue elsewhere, or here again."""
        worker = self._workers.pop(address)
        # First what the streams said before the loss: their positions must cover it.
        missed = self._take_events(worker)
        for vbucket in worker.vbuckets:
            self._keep_position(worker, vbucket, self.arena.rows)
        worker.close()
        self._displace([*worker.vbuckets, *worker.todo], error, stale_map=True)
        if missed:
            self._miss(missed)

    def _miss(self, missed: list[DeletionsMissed]) -> None:
        """Handle deletions that were purged before the streams of a lost connection could read them, by `on_data_loss`.

        Changes behind the markers with these purge seqnos are here already. They may only be returned together with the
        event that their vbucket begins again: from their positions alone a node would find no deletion missing.
        """
        if self.options.on_data_loss == "raise":
            self._break_off(_data_loss(missed))
            return
        for event in missed:
            self._begin_again(event.vbucket, event.seqno, event.purge_seqno)

    def _keep_position(self, worker: Worker, vbucket: int, row: int) -> None:
        """Keep the last position of a stream that is over. Drop its rows that still wait in the gate: they come
        again.
        """
        if self._gate is not None:
            self.progress[vbucket].position = self._gate.cut(vbucket)
            self._events.append((row, StreamCut(ConsumerStream(vbucket))))
            return
        before = self.progress[vbucket].position.seqno
        self.progress[vbucket].position = position = worker.position(vbucket)
        # Not for a position that the gate puts back: deletions that were dropped with it may be gone by now.
        self.progress[vbucket].purge_seqno = worker.purge_seqno(vbucket)
        invariant(before <= position.seqno, "vbucket {}: from {} back to {}", vbucket, before, position.seqno)
        # The caller's last batch refers to this mapping, and must go on showing its own positions.
        if self._last_positions is self.positions.resting:
            self._last_positions = dict(self._last_positions)
        self._last_positions[vbucket] = position

    # ------------------------------------------------------------------ what became of the streams

    def _take_events(self, worker: Worker) -> list[DeletionsMissed]:
        """Handle the events of a worker's streams; return those of missed deletions, for which the caller drops the
        connection.
        """
        missed = []
        for row, event in worker.take_events():
            if isinstance(event, DeletionsMissed):
                missed.append(event)
            else:
                self._take(worker, row, event)
        return missed

    def _take(self, worker: Worker, row: int, event: StreamEvent) -> None:
        vbucket = event.stream.vbucket
        match event:
            case Opened():
                self.progress[vbucket].opened_at = self.clock()
                if self._gate is not None:
                    self._gate.opened(vbucket, event.failover_log)
                if self._logs is self.positions.logs:
                    self._logs = dict(self._logs)
                self._logs[vbucket] = event.failover_log
            case Ended(reason=int(reason)):
                # Behind a gate the last rows may still wait, or be dropped and requested again: the vbucket is done
                # when they are released (`_finish`).
                if self._gate is None or not self._is_final(vbucket, reason):
                    self._keep_position(worker, vbucket, row)
                    worker.release(vbucket)
                self._handle_end(row, event, reason)
            case CollectionsChanged(message=message):
                self._note_collection_event(vbucket, message)
                self._events.append((row, event))
            case CollectionsTold(news=news):
                if self.streamed is not None and news.collection_id is not None and news.scope_id is not None:
                    name = news.name.decode(errors="replace")
                    self.streamed.names.see(EventKind.CREATE_COLLECTION, news.scope_id, news.collection_id, name)
                self._events.append((row, event))
            case Marked() | Boundary() | Advanced():
                self._events.append((row, event))
            case RollbackNeeded(seqno=common, reason=reason):
                worker.release(vbucket)
                requested = event.stream.request_seqno
                self._refusals[vbucket] = refusal = RollbackRequired(vbucket, requested, common, reason)
                # The first failure is told; the others may be of the same kind, and come up again at the next start.
                self._failure = self._failure or refusal
            case Refused():
                worker.release(vbucket)
                self._handle_refusal(worker, event)

    def _note_collection_event(self, vbucket: int, message: SystemEvent) -> None:
        """Learn the names in a system event, and remember dropped collections, which must be reported only once."""
        kind, number = EventKind(message.event), message.collection_id
        if self.streamed is not None:
            name = message.key.decode(errors="replace")
            self.streamed.names.see(kind, message.scope_id, number, name)
        if kind is EventKind.DROP_COLLECTION and number is not None:
            self._reported_drops.add((vbucket, number))

    def _handle_end(self, row: int, event: Ended, reason: int) -> None:
        """Handle a stream's end, dcp.md 2.6: 0 done; 2 fetch the cluster map; 4, 5 retry with backoff; 6 re-request
        (expect a rollback); 7 nothing left; 8 give up. 1 is treated as 2 (UPR used 1 for it), and so are unknown
        numbers, and 0 for a stream without an end."""
        progress = self.progress[event.stream.vbucket]
        if self._is_final(event.vbucket, reason):
            progress.done = self._gate is None
            self._events.append((row, event))
        elif reason == EndReason.LOST_PRIVILEGES:
            self._failure = self._failure or error_for(Status.EACCESS, f"stream of vbucket {event.vbucket}")
        else:
            stale = reason not in (EndReason.SLOW, EndReason.BACKFILL_FAIL, EndReason.ROLLBACK)
            reason_text = f"the node ended the stream of vbucket {event.vbucket} (reason {reason})"
            self._displace([event.vbucket], error_for(Status.ETMPFAIL, reason_text), stale_map=stale)

    def _is_final(self, vbucket: int, reason: int) -> bool:
        return reason in FINAL and not (reason == _OK and self.progress[vbucket].end_seqno == ENDLESS)

    def _handle_refusal(self, worker: Worker, event: Refused) -> None:
        hint = event.said
        action = f"stream request for vbucket {event.vbucket} to {worker.address}" + (f" ({hint})" if hint else "")
        error = error_for(event.status, action)
        # A dropped collection ends only its own part of the choice, so the manifest is looked at before anything fails.
        if event.status in GONE and self.streamed is not None:
            self._displace([event.vbucket], error, stale_map=False)
            self._unassigned[event.vbucket].stale_manifest = True
            return
        if not error.retriable:
            self._failure = self._failure or error
            return
        is_moved = event.status == Status.NOT_MY_VBUCKET
        if is_moved and event.body.startswith(b"{"):
            self.cluster.learn(event.body, worker.address)
        self._displace([event.vbucket], error, stale_map=is_moved)
