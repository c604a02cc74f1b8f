"""Restore: writes the changes of a chain into a bucket unchanged: revision, CAS, expiry, flags, attributes.

The newest changes are written first, and older versions of their keys not at all. If the oldest came first, a node
would remove a version that has expired meanwhile; that removal, younger than anything in a backup, would win over the
next version, and a prolonged session would be gone. Nor can older versions be written later, to lose by the conflict
rule: if an earlier backup was restored by force, revisions have fallen, so the older of two versions may have the
higher one. Forced versions always win, so these are written in order.

Each vbucket is restored up to a point: the end of one of the chain's backups, since it is known to be whole only there.
(A node sends each key once. Up to a seqno in between, a backup lacks the versions that later ones replaced.) Rows above
the position from which a later backup had to read again were taken back, so they are left out.

Everything may be written twice, since a change that is there changes nothing: after an interruption, restore again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headwater.backup.archive import Archive, folder
from headwater.backup.collections import DEFAULT_PATH, live, routed
from headwater.backup.manifest import BackupManifest
from headwater.backup.verify import differs
from headwater.errors import BackupError, OptionError, RowsRefused
from headwater.failpoints import failpoint
from headwater.lake.store import reading_parquet
from headwater.spark.rows import check_columns
from headwater.spark.schema import types
from headwater.spark.settings import WriteSettings
from headwater.spark.writing import ROWS_PER_CALL, WriteCounts, write
from headwater.wire.manifest import CollectionsManifest
from headwater.wire.numbers import SEQNO_MAX
from headwater.wire.vbucket import VBUCKET_NUMBERS

KEYS_AT_ONCE = 10_000_000
"""The most keys that are remembered, about 1 GiB; of more, vbuckets are restored in several passes."""

Seen = set[tuple[int, bytes]]
"""Keys of which a newer version came already, with the ids of their collections."""


@dataclass(frozen=True)
class RestorePoint:
    """The point to restore: a chain, and for each vbucket the number of its backups that count.

    Attributes:
        chain: backups of the chain, the full one first.
        upto: vbucket to the number of backups of the chain, 0 for none.
        seqnos: vbucket to its seqno at the point.
    """

    chain: tuple[BackupManifest, ...]
    upto: Mapping[int, int]

    @property
    def seqnos(self) -> dict[int, int]:
        """The seqno of each vbucket after the restore."""
        return {
            vb: self.chain[count - 1].part.ends[vb].seqno if count else 0 for vb, count in sorted(self.upto.items())
        }

    @property
    def portions(self) -> list[RestorePoint]:
        """The same point in several parts with some of the vbuckets each.

        The increments of a part, and what the full backup read on, have about as many changes as one pass may remember
        keys (KEYS_AT_ONCE).
        """
        full, vbuckets = self.chain[0].part, sorted(self.upto)
        changes = sum(full.ends[vb].seqno - seqno for vb, seqno in full.read_on.items())
        changes += sum(manifest.rows for manifest in self.chain[1:])
        count = max(1, min(len(vbuckets), -(-changes // KEYS_AT_ONCE)))
        return [RestorePoint(self.chain, {vb: self.upto[vb] for vb in vbuckets[n::count]}) for n in range(count)]

    @property
    def backups(self) -> list[BackupManifest]:
        """The backups at whose end a vbucket will be, older first."""
        return [self.chain[count - 1] for count in sorted({*self.upto.values()} - {0})]

    @property
    def manifests(self) -> list[CollectionsManifest | None]:
        """The collections of each of `backups`; None for the default collection alone."""
        return [backup.collections for backup in self.backups]

    def limits(self, backup: int) -> dict[int, int]:
        """Return, for the backup with this index in the chain, the highest seqno of each vbucket that still counts."""
        limits = {}
        for vb, count in self.upto.items():
            if backup < count and vb in self.chain[backup].part.ends:
                later = [self.chain[n].part.starts.get(vb, 0) for n in range(backup + 1, count)]
                # What a later backup read again from further back is void here, see `manifest.py`.
                limits[vb] = min([self.chain[backup].part.ends[vb].seqno, *later])
        return limits


def point_of(archive: Archive, backup: str | None = None, at: datetime | None = None) -> RestorePoint:
    """Return the end of a backup: of the named one, the newest that had ended at a time, or the newest.

    Raises:
        BackupError: there is no such backup, or its chain is damaged.
    """
    if backup is None:
        ended_backups = [
            name
            for name, manifest in archive.backups.items()
            if at is None or datetime.fromisoformat(manifest.ended) <= at
        ]
        if not ended_backups:
            problem = "there is no backup here" if at is None else f"no backup had ended at {at.isoformat()}"
            raise BackupError(archive.place.name, problem)
        backup = max(ended_backups)
    chain = archive.chain(backup)
    return RestorePoint(tuple(chain), dict.fromkeys(chain[-1].part.ends, len(chain)))


def point_at(
    archive: Archive, point: RestorePoint, seqnos: Mapping[int, int], *, nearest: bool = False
) -> RestorePoint:
    """Return the point of a chain at which each vbucket stands at a wanted seqno.

    Args:
        archive: gives the place for errors.
        point: the end of the chain.
        seqnos: vbucket to seqno; others are left out.
        nearest: for a seqno at which no backup ended, take the newest end below it.

    Raises:
        BackupError: a vbucket is not in the backups.
        OptionError: a seqno at which no backup of the chain is whole.
    """
    backup_counts = {}
    for vb, seqno in seqnos.items():
        if vb not in point.upto:
            raise BackupError(archive.place.name, f"vbucket {vb} is not in backup {point.chain[-1].id}")
        places = [0, *(each.part.ends[vb].seqno if vb in each.part.ends else 0 for each in point.chain)]
        # A later backup that read again from further back has taken back what lies above.
        fitting = [count for count, place in enumerate(places) if place <= seqno]
        # Of equal seqnos the later backup, which knows the newer history.
        backup_counts[vb] = max(fitting, key=lambda count: (places[count], count))
        if places[backup_counts[vb]] != seqno and not nearest and seqno < places[-1]:
            choices = ", ".join(map(str, sorted(set(places))))
            raise OptionError(
                "seqnos", f"{vb}: {seqno}", f"a seqno at which a backup is whole: {choices} (or --nearest)"
            )
    return RestorePoint(point.chain, backup_counts)


@dataclass
class RestoreProgress:
    """The progress of a restore: changes read, and their total."""

    done: int = 0
    total: int = 0


Tell = Callable[[RestoreProgress], None]


def rows_of(
    archive: Archive,
    point: RestorePoint,
    collections: frozenset[str] | None = None,
    *,
    newest_first: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the changes that lead to a point.

    A backup with all collections yields the rows of collections that existed at the point, with their names at that
    time (null for the default one).

    Args:
        collections: the chosen collections, as `chosen_of` returned them; None for all.
        newest_first: True to yield the newest change of each key first. Then an older version does not follow if a
            later backup of the chain has another one. False: the oldest first.

    Raises:
        BackupError: a file is missing or damaged; none of its rows were yielded.
    """
    backup_counts = np.zeros(VBUCKET_NUMBERS, np.int64)
    backup_counts[list(point.upto)] = list(point.upto.values())
    routes = {count: live(point.chain[count - 1].collections, collections) for count in {*point.upto.values()} - {0}}
    step, newer_keys = -1 if newest_first else 1, Seen()
    read_on = point.chain[0].part.read_on
    for place, manifest in list(enumerate(point.chain))[::step]:
        if manifest.collections is None and collections is not None and str(DEFAULT_PATH) not in collections:
            continue
        limits = point.limits(place)
        bounds = np.zeros(VBUCKET_NUMBERS, np.int64)
        bounds[list(limits)] = list(limits.values())
        # Of the full backup, which is read last, only keys of what it read on have older versions behind them: memory
        # holds the keys of increments, and those.
        repeated_after = np.full(VBUCKET_NUMBERS, 0 if place else SEQNO_MAX, np.int64)
        if not place:
            repeated_after[list(read_on)] = list(read_on.values())
        for file in manifest.part.files[::step]:
            path = folder(manifest.id, file.path)
            data = archive.place.read(path)
            # The whole file is hashed before a row is written: a damaged one must not leave half of itself in the
            # bucket.
            if problem := differs(path, file, data):
                raise BackupError(archive.place.name, problem)
            with reading_parquet(pa.BufferReader(data)) as parquet_file:
                for batch in _reversed(parquet_file) if newest_first else parquet_file.iter_batches(ROWS_PER_CALL):
                    true = batch.column("seqno").to_numpy() <= bounds[batch.column("vbucket").to_numpy()]
                    rows = batch if true.all() else batch.filter(pa.array(true))
                    if newest_first and (len(point.chain) > 1 or read_on):
                        rows = _newest(rows, newer_keys, repeated_after)
                    yield rows if manifest.collections is None else routed(rows, backup_counts, routes)


def _newest(batch: pa.RecordBatch, newer_keys: Seen, repeated_after: NDArray[np.int64]) -> pa.RecordBatch:
    """Return the rows whose keys are not in `newer_keys`; add to it the keys of rows above the seqno in
    `repeated_after` (by vbucket), since older versions of these may follow.
    """
    keys: list[Any] = batch.column("key").to_pylist()
    ids: list[Any] = [0] * len(keys)
    if "collection_id" in batch.schema.names:
        ids = batch.column("collection_id").to_pylist()
    is_repeated = batch.column("seqno").to_numpy() > repeated_after[batch.column("vbucket").to_numpy()]
    is_new = []
    for key, remember in zip(zip(ids, keys, strict=True), is_repeated.tolist(), strict=True):
        is_new.append(key not in newer_keys)
        if remember:
            newer_keys.add(key)
    return batch if all(is_new) else batch.filter(pa.array(is_new))


def _reversed(parquet_file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    for group in reversed(range(parquet_file.num_row_groups)):
        for batch in reversed(list(parquet_file.iter_batches(ROWS_PER_CALL, row_groups=[group]))):
            yield batch.take(np.arange(batch.num_rows - 1, -1, -1))


def restore(
    archive: Archive,
    point: RestorePoint,
    target: WriteSettings,
    *,
    force: bool = False,
    collections: frozenset[str] | None = None,
    tell: Tell = lambda done: None,
) -> WriteCounts:
    """Write a point into a bucket.

    Args:
        archive: archive with the backups.
        point: point to write.
        target: settings of the bucket, with metadata.
        collections: chosen collections, which must exist (`collections.lacking`, `make`); None for all.
        force: True to write over newer versions as well; otherwise the higher (revision, CAS) wins.
        tell: called with the progress after each batch.

    Raises:
        BackupError: a file is missing or damaged; earlier writes stay.
        RowsRefused: the node refused changes permanently.
        TransportError, StatusError: a node did not answer, or could not write.
    """
    progress = RestoreProgress(total=sum(manifest.rows for manifest in point.chain))

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in _written_changes(archive, point, collections, force=force):
            yield batch
            failpoint("backup.restoring")
            progress.done += batch.num_rows
            tell(progress)

    by_collection = point.chain[-1].collections is not None
    names = check_columns(list(types(collections=by_collection).items()), with_meta=True)
    try:
        return write(replace(target, with_meta=True, force=force), names, watched(), "refused")
    except RowsRefused as error:
        advice = "What was written before stays; when the reason is gone, restore again"
        raise RowsRefused(error.count, error.first, error.reason, advice) from None


def _written_changes(
    archive: Archive, point: RestorePoint, collections: frozenset[str] | None, *, force: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the changes that a restore writes, in its order."""
    # By force the order of writing decides, so nothing may be left out and nothing need be remembered.
    for part in [point] if force else point.portions:
        yield from rows_of(archive, part, collections, newest_first=not force)


def counts(
    archive: Archive, point: RestorePoint, collections: frozenset[str] | None = None, *, force: bool = False
) -> dict[str, Any]:
    """Return the number of changes that a restore of a point would write, by kind; every file is read and checked."""
    numbers = {"mutation": 0, "deletion": 0, "expiration": 0}
    for batch in _written_changes(archive, point, collections, force=force):
        events: Any = batch.column("event")
        for entry in events.value_counts().to_pylist():
            numbers[entry["values"]] += entry["counts"]
    return {f"{name}s": number for name, number in numbers.items()}
