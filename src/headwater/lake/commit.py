"""The driver's part of a batch: commits the files that all tasks wrote as one version of the table, or commits nothing.

A commit has the new files, a new deletion vector for each file that lost rows, the transaction (query, batch) and the
table's *record*: which bucket the table mirrors and up to which offset. Only the record holds the table's position. A
batch names the record that it was planned from; if the table's record has changed, the commit is refused. So a batch
can't be committed twice, nor after a rollback that it does not know of, nor between the batches of a second mirror.

The vectors always come from the log as it stands when the commit is made, with the newly dead rows added. A file that a
commit removes and adds again has another vector than before: nothing else would make it another logical file.

In a table without vectors (`--copy-on-write`) the driver rewrites a file that lost rows, without these rows.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyroaring import BitMap

from headwater.errors import TableChanged, TableError
from headwater.failpoints import failpoint
from headwater.invariants import invariant
from headwater.lake import folds, vectors
from headwater.lake.freshness import METRIC, complete_ms
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.index import Indexes
from headwater.lake.log import DOMAIN, Action, DataFile, TableLog, TableState, data_file, record, removal, transaction
from headwater.lake.writer import TaskResult

__all__ = ["DOMAIN", "BatchCommit", "Record", "commit", "record_of"]


@dataclass(frozen=True)
class Record:
    """The table's record: which bucket it mirrors, and how far.

    Attributes:
        bucket: the bucket's name.
        end: the offset up to which the table holds its changes, as `spark/offsets.py` writes it.
        batch: how many batches have been committed.
        kind: `documents` for a mirror's table, `changes` for its change log.
        table_digests: only for a change log: digests of the table's record before the batch and after it.
        quarantine: for a table, the version of its quarantine that belongs to it, None if it has none; for a
            quarantine, the version that its last commit restored, if it restored one.
        base: for a change log, the batch with which it last began anew; 0 if it never did.
    """

    bucket: str
    end: Mapping[str, Any]
    batch: int = 0
    kind: str = "documents"
    table_digests: tuple[str, ...] = ()
    quarantine: int | None = None
    base: int = 0

    @property
    def digest(self) -> str:
        """Return a short digest of exactly this record."""
        text = json.dumps([self.bucket, self.end, self.batch], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_action(self) -> Action:
        """Return the record as an action of the log."""
        facts = {"v": 1, "kind": self.kind, "bucket": self.bucket, "end": self.end, "batch": self.batch}
        optional_facts = {"beside": self.table_digests, "quarantine": self.quarantine, "base": self.base or None}
        return record(
            DOMAIN, facts | {name: value for name, value in optional_facts.items() if value not in ((), None)}
        )


def record_of(place: str, state: TableState) -> Record:
    """Return a table's record.

    Raises:
        TableError: the table is not a mirror's.
    """
    text = state.records.get(DOMAIN)
    if text is None:
        problem = "the table has no record of a mirror: it is somebody else's, mirror into another place"
        raise TableError(place, problem)
    facts = json.loads(text)
    kind, table_digests = facts.get("kind", "documents"), tuple(facts.get("beside", ()))
    position = facts["bucket"], facts["end"], int(facts["batch"])
    return Record(*position, kind, table_digests, facts.get("quarantine"), facts.get("base", 0))


@dataclass(frozen=True)
class BatchCommit:
    """The contents of a commit.

    Args:
        after: digest of the record that the batch was planned from.
        then: the record after this commit.
        transaction: (application, version), for readers that look for it in the log.
        written: the results of the tasks; may be empty.
        more: other actions, such as new columns.
        stands: called before each try; returns False if the log has changed so that this batch no longer fits. None: no
            such check.
    """

    after: str
    then: Record
    transaction: tuple[str, int]
    written: Sequence[TaskResult]
    more: Sequence[Action] = ()
    stands: Callable[[TableLog], bool] | None = None


def commit(log: TableLog, batch: BatchCommit, indexes: Indexes | None = None) -> None:
    """Commit a batch as the table's next version.

    Args:
        log: refreshed now, and again after each lost race.
        indexes: of the table; needed where there are no deletion vectors.

    Raises:
        TableChanged: the table's record is not the one that the batch was planned from; another writer changed the
            schema, or files, after the version in which rows were looked up; or `stands` returned False. Nothing was
            written: plan and write the batch anew.
        HeadwaterError, OSError: the batch may be in the table all the same, and not in the Iceberg table yet.
    """
    # The tasks synced the bytes of their files only. A power cut could still take the names, and the table would name
    # files that are not there.
    log.store.settle(log.state.layout.data)
    while True:
        # Every try checks all of it anew: the commit that won the race may be another mirror's batch, or have moved
        # rows that this batch looked up.
        state = log.refresh()
        _check_record(log, batch)
        _check_lookups(log, batch)
        if batch.stands is not None and not batch.stands(log):
            raise TableChanged(log.store.root, "another mirror's batch came between; it is put right first")
        changes = _actions(log, state, batch) if state.vectors else _copies(log, state, batch, indexes)
        actions = [*changes, *batch.more]
        failpoint("lake.before_commit")
        if log.commit(actions, "MIRROR", _metrics(batch)):
            # A process that dies from here on has committed the batch. Its Iceberg table is then behind its log, and
            # the next publication brings in what it lacks.
            failpoint("lake.after_commit")
            iceberg.publish(log)
            return


def _check_record(log: TableLog, batch: BatchCommit) -> None:
    current = record_of(log.store.root, log.state)
    # Without this a batch that was planned before a rollback, or by a second mirror, would go in behind changes that it
    # has not seen, and the end in its record would claim them.
    if current.digest != batch.after:
        text = f"the table is at batch {current.batch} by now and this one was planned from another place"
        raise TableChanged(log.store.root, f"{text}: another mirror writes to it, or its checkpoint is older than it")
    # RESTORE puts old rows back and leaves the record, so the digest alone would let the batch in; what was put back
    # would stay old for good.
    if log.restored and current.kind == "documents":
        raise TableChanged(log.store.root, "somebody put the table back to an older version; it is read anew")


def _check_lookups(log: TableLog, batch: BatchCommit) -> None:
    """Check that no other writer has changed the schema or files since the tasks looked rows up: a row could have
    moved.

    Raises:
        TableChanged: another writer has; the rows must be looked up anew.
    """
    # The oldest look-up decides, for the tasks of a batch read the log at different moments.
    looked = min((result.version for result in batch.written), default=log.state.version)
    for action in log.since(looked):
        if "metaData" in action or "protocol" in action:
            raise TableChanged(log.store.root, f"its schema was changed by somebody else after version {looked}")
        if "add" in action or "remove" in action:
            path = (action.get("add") or action["remove"])["path"]
            problem = f"{path} was changed by somebody else after version {looked}"
            raise TableChanged(log.store.root, f"{problem}; rows are looked up anew")


def _actions(log: TableLog, state: TableState, batch: BatchCommit) -> list[Action]:
    now = int(time.time() * 1000)
    dead_rows = _merged(batch.written)
    new_files = {add["path"]: add for result in batch.written for add in result.files}
    duplicates = new_files.keys() & state.files.keys()
    invariant(not duplicates, "new files of a batch are in the table already: {}", duplicates)
    actions, revised = [], {}
    for path, rows in dead_rows.items():
        # A key that comes twice in a batch leaves its earlier row dead in a file of this very batch.
        if path in new_files:
            total = _rows(new_files[path])
            invariant(rows.max() < total, "row {} of {} is dead, it has {}", rows.max(), path, total)
            revised[path] = rows
        elif (file := state.files.get(path)) is not None:
            # The old dead rows come from the log and not from memory: a vector that lacked them would bring rows back
            # to life.
            after = _dead_rows_after(log, file, rows)
            if after is not None:
                actions.append(removal(file, now))
                # A file without a live row is removed, and not added again.
                if len(after) < _rows_in(log, file):
                    revised[path] = after
    # Before the commit that names them: the vectors of all files stand in one file, on disk once this returns.
    descriptors = vectors.write(log.store, revised, state.layout.vectors)
    for path, add in new_files.items():
        if len(revised.get(path, ())) < _rows(add):
            actions.append({"add": add | _vector(descriptors, path)})
    for path in [path for path in revised if path not in new_files]:
        file = state.files[path]
        actions.append({"add": _loose(file.add, _rows_in(log, file)) | _vector(descriptors, path)})
    added_paths = [action["add"]["path"] for action in actions if "add" in action]
    invariant(len({*added_paths}) == len(added_paths), "a commit adds a file twice: {}", added_paths)
    return [transaction(*batch.transaction), batch.then.to_action(), *actions]


def _copies(log: TableLog, state: TableState, batch: BatchCommit, indexes: Indexes | None) -> list[Action]:
    """Return the actions for a table without deletion vectors: each file that lost rows is rewritten without them."""
    now = int(time.time() * 1000)
    dead_rows = _merged(batch.written)
    new_files = {add["path"]: data_file(add) for result in batch.written for add in result.files}
    metadata = [action["metaData"] for action in batch.more if "metaData" in action]
    fields = json.loads(metadata[-1]["schemaString"])["fields"] if metadata else state.fields
    actions: list[Action] = [{"add": file.add} for path, file in new_files.items() if path not in dead_rows]
    for path in dead_rows:
        file = new_files.get(path) or state.files.get(path)
        if file is None:
            continue
        # The table has no file of this batch yet, so there is none to remove.
        if path not in new_files:
            actions.append(removal(file, now))
        label = state.layout.label(folds.FOLD)
        folded = folds.fold(log.store, fields, indexes, [file], dead_rows, label, state.id_columns)
        actions += [{"add": new.to_add()} for new in folded.files]
    # The copies were written after the first `settle`, and the commit must not outlive their names either.
    log.store.settle(state.layout.data)
    return [transaction(*batch.transaction), batch.then.to_action(), *actions]


def _merged(results: Sequence[TaskResult]) -> dict[str, BitMap]:
    dead_rows: dict[str, BitMap] = {}
    for result in results:
        for path, rows in result.dead.items():
            dead_rows[path] = dead_rows[path] | rows if path in dead_rows else rows
    return dead_rows


def _dead_rows_after(log: TableLog, file: DataFile, rows: BitMap) -> BitMap | None:
    """Return the dead rows of a file after a commit that adds `rows`; None if all of these were dead before.

    An index also finds rows that are dead already.
    """
    before = vectors.read(log.store, file.vector) if file.vector else BitMap()
    after = before | rows
    return after if len(after) > len(before) else None


def _rows_in(log: TableLog, file: DataFile) -> int:
    """Return the number of rows in a file. Writers may leave it out, except for a file with a deletion vector."""
    if file.rows is not None:
        return file.rows
    with log.store.parquet(file.path) as parquet_file:
        return int(parquet_file.metadata.num_rows)


def _rows(add: Action) -> int:
    return int(json.loads(add["stats"])["numRecords"])


def _vector(descriptors: Mapping[str, Any], path: str) -> Action:
    return {"deletionVector": descriptors[path]} if path in descriptors else {}


def _loose(add: Action, rows: int) -> Action:
    """Return the `add` action of a file with dead rows: `numRecords` is `rows`, and its bounds are marked as not
    tight.
    """
    stats = json.loads(add["stats"]) if add.get("stats") else {}
    bounds = stats | {"numRecords": rows, "tightBounds": False}
    return add | {"dataChange": True, "stats": json.dumps(bounds, separators=(",", ":"))}


def _metrics(batch: BatchCommit) -> dict[str, int]:
    counts: dict[str, int] = {}
    for result in batch.written:
        for name, count in result.counts.items():
            counts[name] = counts.get(name, 0) + count
    file_count = sum(len(result.files) for result in batch.written)
    until = complete_ms(batch.then.end)
    return counts | {"numAddedFiles": file_count} | ({} if until is None else {METRIC: until})
