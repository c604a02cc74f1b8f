"""The part of a write that runs in a task: rows to pipelined requests, answers to counts and dead letters.

A retried task or a repeated micro-batch writes the same rows again, which must change nothing: an upsert and a deletion
are idempotent; an older row is skipped (`withMeta`); a row under a CAS that meets its own value was written before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from headwater.errors import (
    BucketMadeAnew,
    CasInvalid,
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    OptionError,
    RowsRefused,
    StatusError,
    TooBig,
    XattrInvalid,
)
from headwater.spark.deadletters import DeadLetters
from headwater.spark.nodes import patiently
from headwater.spark.rows import Row, rows
from headwater.spark.settings import WriteSettings

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.client.blocking import CollectionClient
    from headwater.client.writes import Failed, Write, WriteWithMeta

ROWS_PER_CALL = 20_000
"""The rows of one call: enough to fill the pipeline, and a bound for the memory that holds them twice."""

REFUSED_ROWS = (OptionError, TooBig, InvalidArguments, KeyExists, KeyNotFound, CasInvalid, XattrInvalid)
"""Refusals that concern the row. Any other refusal means that nothing can be written now, so the task fails."""


@dataclass
class WriteCounts:
    """The outcome of writes.

    Attributes:
        stored, deleted: rows that were written.
        absent: deletions of missing documents.
        behind: rows that changed nothing because the bucket had a later version (`withMeta`).
        repeated: rows under a CAS that had been written before.
        refused: rows that went to the dead letters.
    """

    stored: int = 0
    deleted: int = 0
    absent: int = 0
    behind: int = 0
    repeated: int = 0
    refused: int = 0

    def __add__(self, other: WriteCounts) -> WriteCounts:
        return WriteCounts(
            *(own_count + other_count for own_count, other_count in zip(astuple(self), astuple(other), strict=True))
        )


def connect(settings: WriteSettings) -> Client:
    """Open a task's client."""
    from headwater import client  # noqa: PLC0415 -- Spark loads the source in every session

    return client.connect(
        settings.url,
        settings.user,
        settings.password,
        timeout_seconds=max(settings.retry_seconds, 1.0),
        xattrs=settings.with_meta,
    )


def write(
    settings: WriteSettings,
    names: tuple[str, ...],
    batches: Iterable[Any],
    name: str,
    connect: Callable[[WriteSettings], Client] = connect,
    *,
    buckets: set[tuple[str, int]] | None = None,
    collections: dict[str, int] | None = None,
) -> WriteCounts:
    """Write the rows of one Spark partition.

    Args:
        settings: the options.
        names: the columns to write, as `rows.check_columns` returned them.
        batches: Arrow batches.
        name: name of this task's dead letters; the same when it is repeated.
        connect: opens a client.
        buckets: filled with the uuid and the number of vbuckets of the bucket that was written to.
        collections: filled with the id of each collection that was written to, by its name.

    Raises:
        BucketMadeAnew, CollectionMadeAnew: the bucket or a collection was dropped and created again after rows were
            written.
        RowsRefused: a node refused rows permanently and there is no place for dead letters.
        TransportError, StatusError: nodes did not answer, or could not write, for `retrySeconds`.
    """
    letters = DeadLetters(settings.dead_letters, name) if settings.dead_letters else None
    total = WriteCounts()
    with closing(patiently(lambda: connect(settings), settings.retry_seconds)) as client:
        task = _Task(settings, client)
        planned = client.map
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_PER_CALL):
                part_rows = list(rows(batch.slice(start, ROWS_PER_CALL), names))
                counts_, refusals = task.write(part_rows)
                if not planned.is_same_bucket(client.map):  # each call goes to one; this one went to another
                    raise BucketMadeAnew(settings.url, *((map_.uuid, map_.vbuckets) for map_ in (planned, client.map)))
                total += counts_
                if letters is not None:
                    letters.add(refusals)
                elif refusals:
                    row, error = refusals[0]
                    key = row.key.encode() if isinstance(row.key, str) else row.key
                    raise RowsRefused(len(refusals), key, str(error))
        if buckets is not None:
            buckets.add((client.map.uuid, client.map.vbuckets))
        if collections is not None:
            collections.update(task.ids)
    if letters is not None:
        letters.close()
    return total


Refused = list[tuple[Row, StatusError | OptionError]]


class _Task:
    """A writer of rows, in calls of limited size, that counts the outcomes.

    Attributes:
        ids: the id of each collection that was written to, by its name.
    """

    def __init__(self, settings: WriteSettings, client: Client) -> None:
        self.settings, self._client = settings, client
        self.ids: dict[str, int] = {}
        self.client: Client | CollectionClient = client

    def write(self, part_rows: list[Row]) -> tuple[WriteCounts, Refused]:
        """Write rows, each into its collection; return the counts and the rows that were refused permanently."""
        by_path: dict[str | None, list[Row]] = {}
        for row in part_rows:
            by_path.setdefault(self.settings.collection or row.path, []).append(row)
        counts = WriteCounts()
        refusals: Refused = []
        for path, of_path in by_path.items():
            self.client = self._client if path is None else self._client.collection(path)
            counts_, new_refusals = self._write(of_path)
            counts, refusals = counts + counts_, refusals + new_refusals
        return counts, refusals

    def _write(self, rows_: list[Row]) -> tuple[WriteCounts, Refused]:
        writes_of_rows: list[tuple[Row, Write | WriteWithMeta]] = []
        refusals: Refused = []
        for row in rows_:
            try:
                meta, force = self.settings.with_meta, self.settings.force
                writes_of_rows.append((row, row.write_with_meta(force=force) if meta else row.write()))
            except OptionError as error:
                # It is no refused document: among the dead letters, what it takes back would stay in the bucket.
                if row.event == "rollback":
                    raise
                refusals.append((row, error))
        # A connection that broke leaves open what was written: all of it is written again.
        writes = [write for _, write in writes_of_rows]
        errors = patiently(lambda: self.client.write_many(writes), self.settings.retry_seconds)
        self._check_collection()  # before anything reads from it: a read may look another id up
        counts, new_refusals = self._count(writes_of_rows, errors)
        counts.refused = len(refusals) + len(new_refusals)
        return counts, refusals + new_refusals

    def _check_collection(self) -> None:
        """Note the id of the collection that was written to.

        Raises:
            CollectionMadeAnew: an earlier call wrote to another one of its name.
        """
        from headwater.client.blocking import CollectionClient  # noqa: PLC0415 -- see `connect`
        from headwater.client.collections import check_ids  # noqa: PLC0415

        place = self.client
        if isinstance(place, CollectionClient) and place.collection_id:
            check_ids(self.ids, {f"{place.scope}.{place.name}": place.collection_id})

    def _count(self, writes: list[tuple[Row, Write | WriteWithMeta]], errors: Failed) -> tuple[WriteCounts, Refused]:
        counts = WriteCounts()
        refusals: Refused = []
        present = self._stored_documents(
            [writes[place][0] for place, error in errors.items() if isinstance(error, KeyExists)]
        )
        for place, (row, _) in enumerate(writes):
            error = errors.get(place)
            if error is None:
                counts.deleted, counts.stored = counts.deleted + row.deletes, counts.stored + (not row.deletes)
            elif isinstance(error, KeyNotFound) and row.deletes:
                counts.absent += 1
            elif isinstance(error, KeyExists) and self.settings.with_meta:
                counts.behind += 1
            elif isinstance(error, KeyExists) and not row.deletes and present.get(_bytes(row.key)) == _document(row):
                counts.repeated += 1
            elif isinstance(error, REFUSED_ROWS):
                refusals.append((row, error))
            else:
                raise error
        return counts, refusals

    def _stored_documents(self, met: list[Row]) -> dict[bytes, tuple[bytes, int]]:
        """Return the value and flags of the stored documents of rows whose CAS did not match, by key; {} with
        `withMeta`.
        """
        if not met or self.settings.with_meta:
            return {}
        keys = [_bytes(row.key) for row in met]
        documents = patiently(lambda: self.client.get_many(keys), self.settings.retry_seconds)
        return {key: (document.value, document.flags) for key, document in documents.items()}


def _document(row: Row) -> tuple[bytes, int]:
    return _bytes(row.value), row.flags or 0


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else bytes(data)
