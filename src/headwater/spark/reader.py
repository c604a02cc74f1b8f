"""A task of a micro-batch: reads its vbuckets over one DCP connection a node, and yields the rows to Spark in batches.

A task can't report to the planner. So a task must always leave the data in a state that the planner's next look at the
failover logs repairs: a range that is no longer in the nodes' history, or only in part, is read as far as both
histories agree and no further. That is not an error, and the task must not wait for seqnos that will never come.

One case is invisible to the planner: deletions that were purged while a task was on its way from 0. For the planner a
range from 0 to behind the purge seqno is a whole one. So the task itself begins such a vbucket again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import ConnectionLost, DataLoss, RollbackRequired
from headwater.protocol.dcp.position import ClaimedPosition, Position
from headwater.spark.columns import RowMaker
from headwater.spark.history import BranchHistory
from headwater.spark.nodes import STATS, connect, patiently, purge_seqno
from headwater.spark.offsets import U64_MAX
from headwater.spark.planner import Range
from headwater.spark.settings import SourceSettings

if TYPE_CHECKING:
    from headwater.client import ChangeBatch, Client, CollectionEvent

logger: Final = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""The interval at which a task that receives nothing checks whether its changes can still come."""

DOUBT_SECONDS = 0.1
"""The pause before a stream is requested again that was refused for no visible reason."""

BATCH_BYTES = 4 << 20
"""The size of a batch; smaller ones cost more for each row (bench_spark: 0.27 us with 1 MiB, 0.22 with 4)."""


def read(
    settings: SourceSettings,
    names: tuple[str, ...],
    parts: Sequence[Range],
    connect: Callable[[SourceSettings], Client] = connect,
    unread: set[int] | None = None,
    *,
    purge_seqnos: dict[int, int] | None = None,
    dropped: set[int] | None = None,
    reached: dict[int, tuple[int, int]] | None = None,
    had: Mapping[int, Position] | None = None,
    kept_seqnos: dict[int, int] | None = None,
    begins_again: bool | None = None,
) -> Iterator[Any]:
    """Yield the rows of one Spark partition as Arrow batches; rollback rows first.

    Args:
        settings: the options.
        names: wanted columns, in order.
        parts: range of each vbucket to read.
        connect: opens a client.
        unread: filled with the vbuckets that were not read as planned, because a node has another history or deletions
            were purged meanwhile. None: the planner repairs these, and the task repairs the case that the planner can't
            see: a vbucket whose reading began at 0, and broke off below a later purge seqno, comes again behind a
            rollback row to 0.
        purge_seqnos: filled with those of `unread` of which deletions were purged: vbucket to the purge seqno.
        dropped: filled with the ids of collections whose end the streams reported. Their documents are gone without
            deletions.
        reached: filled with the vbuckets whose node could no longer show the state at the end of the range and sent a
            later one: vbucket to vb uuid and seqno of that state. All rows up to it are yielded then. None: rows above
            a range are left out, and with them documents that were replaced above it.
        had: by vbucket, the position up to which the reader has all rows: rows that a replay brings again are left out,
            as far as the history of that position still stands. None: all rows are wanted.
        kept_seqnos: vbuckets of which all rows are wanted in spite of `had`; filled with the seqno up to which the
            history of that position still stands, before the first row of the vbucket is yielded.
        begins_again: True to repair the case that the planner can't see, also with `unread`; None: without it alone.

    Raises:
        TransportError, StatusError: there was no progress for `retrySeconds`.
        RollbackRequired: for the same time a node refused a range without a reason that the planner could see.
        DataLoss: a vbucket would come again behind a rollback row, but `failOnDataLoss` or `rollbackPolicy` is set.
        OptionError: a key or value is not text though its format is `string`.
    """
    maker = RowMaker(names, settings.key_format, settings.value_format, settings.transaction_records)
    task = _Task(settings, maker, parts)
    task.begins_again = unread is None if begins_again is None else begins_again
    task.unread = set() if unread is None else unread
    task.purged = {} if purge_seqnos is None else purge_seqnos
    task.dropped = set() if dropped is None else dropped
    task.reached, task.had, task.kept = reached, had or {}, {} if kept_seqnos is None else kept_seqnos
    if any(part.rollback for part in parts):
        yield task.maker.rollbacks(parts)
    if not task.pending:
        return
    with patiently(lambda: connect(settings), settings.retry_seconds) as client:
        while task.pending:
            try:
                yield from task.drain(client)
            except RollbackRequired as rollback:
                yield from task.give_up(client, rollback)
        task.check_dropped(client)


def further(settings: SourceSettings) -> dict[int, tuple[int, int]] | None:
    """Return an empty dict, the argument `reached` of `read`, for a reader that needs a whole state of the bucket.

    Returns: None with `minPersisted`, since it is unknown whether other copies have the later changes on disk.
    """
    return {} if settings.min_persisted is None else None


class _Task:
    """The vbuckets of a task that are not read yet, with their progress."""

    def __init__(self, settings: SourceSettings, maker: RowMaker, parts: Sequence[Range]) -> None:
        self.settings, self.maker = settings, maker
        self.pending = {part.vbucket: part for part in parts if part.end_seqno > part.start_seqno}
        self.positions = {vb: replace(claim(part), coverage=settings.coverage) for vb, part in self.pending.items()}
        self.logs: dict[int, Any] = {}
        self._planned_ends = {vb: part.end_seqno for vb, part in self.pending.items()}
        self.begins_again = True
        self.unread: set[int] = set()
        self.purged: dict[int, int] = {}
        self.dropped: set[int] = set()
        self.reached: dict[int, tuple[int, int]] | None = None
        self.had: Mapping[int, Position] = {}
        self.kept: dict[int, int] = {}
        self._refused_at: dict[int, float] = {}

    def drain(self, client: Client) -> Iterator[Any]:
        """Yield batches until no vbucket is pending, or until a vbucket was refused, makes no progress or ended too
        early.
        """
        changes = client.batches(
            {vb: self.positions[vb] for vb in self.pending},
            vbuckets=list(self.pending),
            until={vb: part.end_seqno for vb, part in self.pending.items()},
            batch_bytes=BATCH_BYTES,
            window_bytes=self.settings.window_bytes,
            xattrs=self.settings.xattrs,
            deleted_xattrs=self.settings.xattrs and self.settings.transaction_records,
            no_value=not {"value", "before"} & set(self.maker.names),
            patience_seconds=self.settings.retry_seconds,
            max_wait_seconds=LOOK_SECONDS,
            collections=self.settings.coverage,
            history=self.settings.history,
            before=self.settings.before,
        )
        with changes:
            try:
                for batch in changes:
                    yield from self._rows(batch)
                    self._note_ends(batch)
                    if not batch.records.num_rows and self._abandon_unreachable():
                        return
            finally:
                # Also when the reading broke off: the next attempt goes on here, or the rows so far would come twice.
                self.positions |= {vb: place for vb, place in changes.positions.items() if vb in self.pending}

    def _rows(self, batch: ChangeBatch) -> Iterator[Any]:
        self._learn(batch.failover_logs)
        if self.settings.history or self.settings.before:
            for _, marker in batch.deduplicated:
                logger.warning(
                    "vbucket %d: the node's history does not reach back that far: of its changes up to seqno %d only"
                    " the last version of each document was read",
                    marker.vbucket,
                    marker.end_seqno,
                )
        self.dropped.update(
            collection_id for _, event in batch.collection_events if (collection_id := _dropped_id(event)) is not None
        )
        if batch.records.num_rows:
            rows = self.maker.rows(batch.records)
            if rows.num_rows:
                yield rows

    def _note_ends(self, batch: ChangeBatch) -> None:
        for end in batch.ended:
            vb = end.vbucket
            part = self.pending.pop(vb, None)
            if (
                part is None
                or self.reached is None
                or vb in self.unread
                or self.maker.last_of(vb) <= self._planned_ends[vb]
            ):
                continue
            # A stream ends with a whole snapshot, which is a state; not so one that was asked for again behind the end,
            # after a connection broke.
            place = batch.positions[vb]
            if place.complete:
                self.reached[vb] = (self.logs[vb][0][0], place.seqno)
            else:
                self.pending[vb] = replace(part, end_seqno=place.snapshot_end)

    def _learn(self, logs: Any) -> None:
        """Note the failover log that a stream reports when it opens: at first, and after each reconnection."""
        if logs is self.logs:
            return
        for vb, log in logs.items():
            if log is not self.logs.get(vb) and vb in self.pending:
                part = self.pending[vb]
                common_seqno = _common_seqno(part.vb_uuid, log)
                # Rows behind the range are wanted only while all of the range is this node's history: together they are
                # one state.
                goes_on = self.reached is not None and common_seqno >= part.end_seqno
                last = U64_MAX if goes_on else min(part.end_seqno, common_seqno)
                position = self.had.get(vb, Position.beginning(vb))
                above = min(position.seqno, _common_seqno(position.vb_uuid, log))
                if vb in self.kept:
                    self.kept[vb], above = above, 0
                self.maker.expect(part, log, last, above)
                if common_seqno < part.end_seqno:
                    self.unread.add(vb)
        self.logs = logs

    def _abandon_unreachable(self) -> bool:
        pending_parts = [(vb, part, self.logs[vb]) for vb, part in self.pending.items() if vb in self.logs]
        # The owner's history has not what the range was planned for, so no stream will ever bring it.
        unreachable = [vb for vb, part, log in pending_parts if _common_seqno(part.vb_uuid, log) < part.end_seqno]
        for vb in unreachable:
            del self.pending[vb]
        return bool(unreachable)

    def give_up(self, client: Client, rollback: RollbackRequired) -> Iterator[Any]:
        """Handle a vbucket whose stream was refused with a rollback.

        If the planner can see the reason, the vbucket is left to it (`unread`). If only this task can, the vbucket
        begins again, and its rollback row is yielded. Otherwise its stream is requested again, for `retrySeconds`.

        Raises:
            RollbackRequired: the node still refuses after that time. DataLoss: the options forbid to begin again.
        """
        part, place = self.pending[rollback.vbucket], self.positions[rollback.vbucket]
        log = tuple(client.failover_log(part.vbucket))
        is_other_branch = _common_seqno(part.vb_uuid, log) < max(part.snapshot_end, part.end_seqno)
        purge = purge_seqno(client.vbucket_stats(STATS), part.vbucket)
        if purge > place.seqno and not is_other_branch and part.start_seqno == 0 and self.begins_again:
            yield self._begin_again(replace(part, rollback=True, purged=purge), place.seqno)
        elif is_other_branch or purge > place.seqno:
            del self.pending[part.vbucket]
            self.unread.add(part.vbucket)
            self.purged |= {} if is_other_branch else {part.vbucket: purge}
        elif place.snapshot_start < place.seqno == purge:
            # Old servers compare the purge seqno with the snapshot's start, which a claim has one below its seqno.
            self.positions[part.vbucket] = replace(place, snapshot_start=place.seqno)
        else:
            self._doubt(rollback)

    def _begin_again(self, part: Range, seqno: int) -> Any:
        """Set a vbucket back to 0 and return its rollback row: rows up to `seqno` were yielded, and some may be of
        documents whose deletion was purged since.

        Raises:
            DataLoss: `failOnDataLoss` or `rollbackPolicy` forbids it.
        """
        loss = DataLoss({part.vbucket: part.purged}, seqno)
        if self.settings.fail_on_data_loss or self.settings.rollback_policy == "fail":
            raise loss
        logger.warning("%s", loss)
        self.positions[part.vbucket] = replace(claim(part), coverage=self.settings.coverage)
        return self.maker.rollbacks([part])

    def check_dropped(self, client: Client) -> None:
        """Check that collections that seem to be dropped are gone.

        A node refuses a stream in the same way if the collection does not exist and if the user has no rights in it,
        and leaves both out of the manifest.

        Raises:
            NoAccess: the user sees only a part of the bucket, so it is unknown. ConnectionLost: a collection exists.
            TransportError, StatusError: a node did not answer.
        """
        from headwater.client.unread import required_manifest  # noqa: PLC0415 -- Spark loads the source in every session

        if not self.dropped:
            return
        manifest = patiently(lambda: required_manifest(client), self.settings.retry_seconds)
        if any(map(manifest.has, self.dropped)):
            raise ConnectionLost(self.settings.url, "a collection is there that was not shown for a while")

    def _doubt(self, rollback: RollbackRequired) -> None:
        """Wait DOUBT_SECONDS before the next request: a node that has just lost the vbucket may have refused by its own
        old log.

        Raises:
            RollbackRequired: the refusals have lasted for `retrySeconds`.
        """
        refused_at = self._refused_at.setdefault(rollback.vbucket, time.monotonic())
        if time.monotonic() - refused_at >= self.settings.retry_seconds:
            raise rollback
        time.sleep(DOUBT_SECONDS)


def _dropped_id(event: CollectionEvent) -> int | None:
    from headwater.client import CollectionDropped  # noqa: PLC0415 -- Spark loads the source in every session

    return event.collection_id if isinstance(event, CollectionDropped) else None


def claim(part: Range) -> Position:
    """Return the position from which a task requests the stream of its range.

    The position's snapshot ends at the high seqno that the planner observed. So the node refuses the request unless its
    history still has all seqnos up to there, and with them the whole range. The snapshot starts one below the
    position's seqno, since a node would not check the end of a snapshot that starts at the seqno (failover 2, rule 5).
    Nodes of headwater get the position marked as a claim.
    """
    start = part.start_seqno
    if start == 0:
        return Position.beginning(part.vbucket)
    return ClaimedPosition(part.vbucket, part.vb_uuid, start, start - 1, max(part.snapshot_end, part.end_seqno))


def _common_seqno(vb_uuid: int, log: Any) -> int:
    """Return the last seqno that a failover log shares with a reader that last saw branch `vb_uuid`; U64_MAX without a
    bound.

    There is no bound if that branch is the newest, or if `vb_uuid` is 0.
    """
    return BranchHistory(tuple(log), U64_MAX).shared_with(vb_uuid) if vb_uuid else U64_MAX
