"""Restore: the changes of a chain, stored as they were: revision, CAS, expiry, flags, attributes.

The newest come first, and the conflict rule lets no older one into their place. Were the oldest first, a node would
remove a version that has expired meanwhile, and the removal, which is younger than anything in a backup, would win over
the next version: a session that was prolonged would be gone. Forced versions win in any case, so they come in order.

Of each vbucket a backup is taken up to a point: the end of one of the chain's backups, for only there it is known to be
whole. (A node sends each key once. What a backup holds up to a seqno in between lacks the versions that were replaced
by later ones in it.) Rows above the place from which a later backup had to read again were taken back: left out.

Everything may be written again, for a change that is there changes nothing: after an interruption, just once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
from headwater.wire.vbucket import VBUCKET_NUMBERS


@dataclass(frozen=True)
class RestorePoint:
    """The point to restore: a chain, and for each vbucket how many of its backups count.

    Attributes:
        chain: the full backup first.
        upto: vbucket to the number of backups of the chain, 0 for none.
        seqnos: vbucket to the seqno at which that is.
    """

    chain: tuple[BackupManifest, ...]
    upto: Mapping[int, int]

    @property
    def seqnos(self) -> dict[int, int]:
        """Where each vbucket will stand."""
        return {
            vb: self.chain[count - 1].part.ends[vb].seqno if count else 0 for vb, count in sorted(self.upto.items())
        }

    @property
    def manifests(self) -> list[CollectionsManifest | None]:
        """The collections of every backup at whose end a vbucket will be, older ones first; None as in its manifest."""
        return [self.chain[count - 1].collections for count in sorted({*self.upto.values()} - {0})]

    def limits(self, backup: int) -> dict[int, int]:
        """Return, for the backup at this place of the chain, the highest seqno of each vbucket that is still true."""
        found = {}
        for vb, count in self.upto.items():
            if backup < count and vb in self.chain[backup].part.ends:
                later = [self.chain[n].part.starts.get(vb, 0) for n in range(backup + 1, count)]
                found[vb] = min([self.chain[backup].part.ends[vb].seqno, *later])
        return found


def point_of(archive: Archive, backup: str | None = None, at: datetime | None = None) -> RestorePoint:
    """Return the point at the end of a backup: the named one, the newest that had ended at a time, or the newest.

    Raises:
        BackupError: there is none, or its chain is damaged.
    """
    if backup is None:
        ended = [
            name
            for name, manifest in archive.backups.items()
            if at is None or datetime.fromisoformat(manifest.ended) <= at
        ]
        if not ended:
            told = "there is no backup here" if at is None else f"no backup had ended at {at.isoformat()}"
            raise BackupError(archive.place.name, told)
        backup = max(ended)
    chain = archive.chain(backup)
    return RestorePoint(tuple(chain), dict.fromkeys(chain[-1].part.ends, len(chain)))


def point_at(
    archive: Archive, point: RestorePoint, wanted: Mapping[int, int], *, nearest: bool = False
) -> RestorePoint:
    """Return the point of a chain at which each vbucket stands at a seqno.

    Args:
        archive: names the place in errors.
        point: the end of the chain.
        wanted: vbucket to seqno; others are left out.
        nearest: take the newest whole place below a seqno that is none.

    Raises:
        BackupError: a vbucket is not in the backups.
        OptionError: a seqno at which no backup of the chain is whole.
    """
    upto = {}
    for vb, seqno in wanted.items():
        if vb not in point.upto:
            raise BackupError(archive.place.name, f"vbucket {vb} is not in backup {point.chain[-1].id}")
        places = [0, *(each.part.ends[vb].seqno if vb in each.part.ends else 0 for each in point.chain)]
        # A later backup that read again from further back has taken back what lies above.
        fitting = [count for count, place in enumerate(places) if place <= seqno]
        upto[vb] = max(fitting, key=lambda count: (places[count], count))
        if places[upto[vb]] != seqno and not nearest and seqno < places[-1]:
            known = ", ".join(map(str, sorted(set(places))))
            raise OptionError("seqnos", f"{vb}: {seqno}", f"a seqno at which a backup is whole: {known} (or --nearest)")
    return RestorePoint(point.chain, upto)


@dataclass
class Restoring:
    """How far a restore is: changes looked at, those there are, and what became of them."""

    done: int = 0
    total: int = 0


Tell = Callable[[Restoring], None]


def rows_of(
    archive: Archive,
    point: RestorePoint,
    collections: frozenset[str] | None = None,
    *,
    newest_first: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the changes that lead to a point, the oldest of each key first, or the newest.

    Of a backup with all collections, rows of those that were there at the point, with the names they had then (null for
    the default one); `collections` are those that are wanted, as `chosen_of` returned them.

    Raises:
        BackupError: a file is missing or damaged; nothing of it was handed out.
    """
    upto = np.zeros(VBUCKET_NUMBERS, np.int64)
    upto[list(point.upto)] = list(point.upto.values())
    routes = {count: live(point.chain[count - 1].collections, collections) for count in {*point.upto.values()} - {0}}
    step = -1 if newest_first else 1
    for place, manifest in list(enumerate(point.chain))[::step]:
        if manifest.collections is None and collections is not None and str(DEFAULT_PATH) not in collections:
            continue
        limits = point.limits(place)
        bounds = np.zeros(VBUCKET_NUMBERS, np.int64)
        bounds[list(limits)] = list(limits.values())
        for file in manifest.part.files[::step]:
            path = folder(manifest.id, file.path)
            data = archive.place.read(path)
            if problem := differs(path, file, data):
                raise BackupError(archive.place.name, problem)
            with reading_parquet(pa.BufferReader(data)) as opened:
                for batch in _reversed(opened) if newest_first else opened.iter_batches(ROWS_PER_CALL):
                    true = batch.column("seqno").to_numpy() <= bounds[batch.column("vbucket").to_numpy()]
                    kept = batch if true.all() else batch.filter(pa.array(true))
                    yield kept if manifest.collections is None else routed(kept, upto, routes)


def _reversed(opened: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    for group in reversed(range(opened.num_row_groups)):
        for batch in reversed(list(opened.iter_batches(ROWS_PER_CALL, row_groups=[group]))):
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
        archive: where the backups are.
        point: what to write.
        target: the bucket, with metadata.
        collections: those that are wanted; None for all. They must be there (`collections.lacking`, `make`).
        force: over newer versions as well; otherwise whoever has the higher (revision, CAS) wins.
        tell: called with the progress after each batch.

    Raises:
        BackupError: a file is missing or damaged; what was written before stays.
        RowsRefused: the node refused changes for good.
        TransportError, StatusError: a node did not answer, or could not write.
    """
    progress = Restoring(total=sum(manifest.rows for manifest in point.chain))

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in rows_of(archive, point, collections, newest_first=not force):
            yield batch
            failpoint("backup.restoring")
            progress.done += batch.num_rows
            tell(progress)

    by_collection = point.chain[-1].collections is not None
    names = check_columns(list(types(collections=by_collection).items()), with_meta=True)
    try:
        return write(replace(target, with_meta=True, force=force), names, watched(), "refused")
    except RowsRefused as refused:
        advice = "What was written before stays; when the reason is gone, restore again"
        raise RowsRefused(refused.count, refused.first, refused.reason, advice) from None


def counts(archive: Archive, point: RestorePoint, collections: frozenset[str] | None = None) -> dict[str, Any]:
    """Return what a restore of a point would write, by kind of change; every file is read and checked."""
    found = {"mutation": 0, "deletion": 0, "expiration": 0}
    for batch in rows_of(archive, point, collections):
        events: Any = batch.column("event")
        for each in events.value_counts().to_pylist():
            found[each["values"]] += each["counts"]
    return {f"{name}s": number for name, number in found.items()}
