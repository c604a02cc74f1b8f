"""Make a copy's vbuckets equal to the source's again, after a failover took copied changes back, at either end.

The conflict rule keeps the higher revision, and a lost one may be the higher. So the copy is compared key by key with
the source as of the batch's end, and differing documents are forced. Documents that the source lacks are deleted under
the lowest revision there is, so that the source's next write of the key wins.

A restore does not rely on earlier attempts: each one compares everything, after any number of failovers. In a copy of
collections, those that both sides have are compared, by their names; the others are left alone.

A failover at the target (target_histories.py) leaves no wrong documents there, but some are missing: `send_again`
writes these by the conflict rule, and deletes nothing of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.client.collections import check_ids, resolve
from headwater.client.kv import as_key
from headwater.client.unread import OWN_OF_SERVERS, required_manifest
from headwater.errors import BucketMadeAnew, KeyExists, RowsRefused
from headwater.pipelines.failures import passing_failovers
from headwater.protocol.dcp.coverage import Coverage
from headwater.spark import nodes
from headwater.spark.nodes import patiently
from headwater.spark.settings import SourceSettings, WriteSettings
from headwater.spark.writing import REFUSED_ROWS, ROWS_PER_CALL
from headwater.spark.writing import connect as connect_target
from headwater.wire.datatype import Datatype
from headwater.wire.documents import TRANSACTIONS
from headwater.wire.opcodes import Opcode

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.client.writes import Failed, WriteWithMeta

BYTES_PER_CALL = 16 << 20
"""The bytes of the documents of one call, about: a document may have 20 MiB."""

LOWEST = 1
"""Revision and CAS of a deletion that loses against everything."""


class Meta(NamedTuple):
    """The metadata by which two versions of a document are compared; deletions have neither flags nor expiry here."""

    deleted: bool
    cas: int
    rev_seqno: int
    flags: int = 0
    expiry: int = 0


@dataclass
class RestoreCounts:
    """The counts of the repaired documents.

    Attributes:
        forced: documents and deletions stored as the source has them.
        removed: keys that the source does not have.
    """

    forced: int = 0
    removed: int = 0


def restore(source: SourceSettings, target: WriteSettings, ends: Mapping[int, int]) -> RestoreCounts:
    """Make the target equal to the source as of these seqnos.

    Args:
        source: the settings of the read, with `xattrs`.
        target: the settings of the write.
        ends: vbucket of the source to the seqno that the copy has reached.

    Raises:
        BucketMadeAnew, CollectionMadeAnew: the target was dropped and created again while it was written to.
        TransportError, StatusError: a node did not answer, or could not write, for `retrySeconds`.
    """

    def attempt() -> RestoreCounts:
        with passing_failovers(source.url), nodes.connect(source) as origin, connect_target(target) as copy:
            place = _Place(copy, target.url)
            compared = _ComparedCollections.of(origin, copy, source, target)
            place.expect(compared.copy_paths)
            return _restore(origin, place, _reachable(origin, ends), source.retry_seconds, compared)

    # From the beginning: what is right already is passed over.
    return patiently(attempt, target.retry_seconds)


def send_again(source: SourceSettings, target: WriteSettings, ends: Mapping[int, int]) -> int:
    """Write the source's documents and deletions up to these seqnos to the target; return how many the target lacked.

    A version that is newer there stays. No change behind the ends is sent: a failover of the source could take it back,
    and the planner would not know that it was copied.

    Args:
        source: the settings of the read, with `xattrs`.
        target: the settings of the write.
        ends: vbucket of the source to the seqno that the copy has reached.

    Raises:
        BucketMadeAnew, CollectionMadeAnew: the target was dropped and created again while it was written to.
        RowsRefused: the target refuses documents for good, and there is no place for dead letters.
        TransportError, StatusError: a node did not answer, or could not write, for `retrySeconds`.
    """

    def attempt() -> int:
        with passing_failovers(source.url), nodes.connect(source) as origin, connect_target(target) as copy:
            place = _Place(copy, target.url)
            compared = _ComparedCollections.of(origin, copy, source, target)
            place.expect(compared.copy_paths)
            chunks = _chunks(_present(origin, _reachable(origin, ends), source.retry_seconds, compared))
            return sum(_add(place, path, writes, target) for path, writes in chunks)

    return patiently(attempt, target.retry_seconds)


@dataclass(frozen=True)
class _ComparedCollections:
    """The collections to compare.

    Args:
        origin, copy: the choice at each side; None for the default collection, read without collections.
        origin_paths: names at the target, by the source's ids. copy_paths: the same names, by the target's ids.
        transaction_records: True to compare the SDKs' transaction records, too. If they are not copied, those at the
            target belong to its own transactions.
    """

    transaction_records: bool = False
    origin: Coverage | None = None
    copy: Coverage | None = None
    origin_paths: Mapping[int, str] = field(default_factory=dict)
    copy_paths: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, origin: Client, copy: Client, source: SourceSettings, target: WriteSettings) -> _ComparedCollections:
        """Look up the copied collections."""
        if not source.chooses:
            return cls(source.transaction_records)
        names = "all" if source.collections == ("all",) else source.collections
        # Of a collection that is not found nothing is taken back: a node that does not answer may be who knows it, and
        # a user who has lost his rights in it is not shown it.
        manifest, copy_manifest = required_manifest(origin), copy.newest_manifest()
        coverage = resolve(manifest, names, source.scope)
        copy_ids = {
            f"{scope.name}.{collection.name}": collection.id for scope, collection in copy_manifest.each_collection()
        }
        paths = {
            collection.id: target.collection or f"{scope.name}.{collection.name}"
            for scope, collection in manifest.each_collection()
            if scope.name != OWN_OF_SERVERS
            and (coverage.is_whole or scope.id == coverage.scope or collection.id in (coverage.collections or ()))
        }
        common_paths = {number: path for number, path in paths.items() if path in copy_ids}
        source_paths = {copy_ids[path]: path for path in common_paths.values()}
        source_numbers, copy_numbers = tuple(sorted(common_paths)), tuple(sorted(source_paths))
        coverages = Coverage(manifest.uid, None, source_numbers), Coverage(copy_manifest.uid, None, copy_numbers)
        return cls(source.transaction_records, *coverages, common_paths, source_paths)

    def rows(self, records: Any, *, with_value: bool) -> Iterator[dict[str, Any]]:
        """Yield the changes to compare."""
        rows = _rows(records, with_value=with_value)
        return rows if self.transaction_records else (row for row in rows if not row["key"].startswith(TRANSACTIONS))


def _reachable(origin: Client, ends: Mapping[int, int]) -> dict[int, int]:
    """Return the ends, each limited to the vbucket's present high seqno.

    After a second failover the history may be shorter than an end, for an unknown time. The planner finds that failover
    with the next batch.
    """
    stats = origin.vbucket_stats(nodes.STATS)
    return {vb: min(end, int(stats[vb]["high_seqno"])) if vb in stats else end for vb, end in ends.items()}


class _Place:
    """The bucket and the collections of a target, which must stay the same ones from the comparison to the last write.

    Each call of `write` looks its collection up by itself: what went to one that was dropped since is gone with it.

    Args:
        client: the target. url: its connection string, for errors.
    """

    def __init__(self, client: Client, url: str) -> None:
        self.client: Client = client
        self._url, self._map = url, client.map
        self._ids: dict[str, int] = {}

    def expect(self, paths: Mapping[int, str]) -> None:
        """Note the collections of the target that were compared: their names by their ids. `write` accepts no others.

        A collection that was created again under such a name lacks the documents that were equal in the compared one,
        and no later step would write them.
        """
        self._ids.update((path, number) for number, path in paths.items())

    def write(self, path: str, writes: list[WriteWithMeta]) -> Failed:
        """Write documents of one collection ("" for the default one of a plain copy); return refusals by place.

        Raises:
            BucketMadeAnew, CollectionMadeAnew: the target is not the compared one, or that of earlier calls.
        """
        if not path:
            errors = self.client.write_many(writes)
        else:
            documents = self.client.collection(path)
            errors = documents.write_many(writes)
            check_ids(self._ids, {path: documents.collection_id})
        if not self._map.is_same_bucket(now := self.client.map):
            raise BucketMadeAnew(self._url, *((each.uuid, each.vbuckets) for each in (self._map, now)))
        return errors


_Held = dict[tuple[str, bytes], Meta]
"""The versions that the copy has, by the name of its collection ("" for the default one of a plain copy) and key."""


def _restore(
    origin: Client, place: _Place, ends: Mapping[int, int], patience_seconds: float, compared: _ComparedCollections
) -> RestoreCounts:
    restored = RestoreCounts()
    if compared.origin is not None and not compared.origin.collections:
        return restored
    copy_documents = _copy_documents(origin, place.client, ends, patience_seconds, compared)
    for path, writes in _chunks(_differing(origin, copy_documents, ends, patience_seconds, compared)):
        _force(place, path, writes)
        restored.forced += len(writes)
    for path, writes in _chunks(_removals(copy_documents)):
        _force(place, path, writes)
        restored.removed += len(writes)
    return restored


def _copy_documents(
    origin: Client, copy: Client, ends: Mapping[int, int], patience_seconds: float, compared: _ComparedCollections
) -> _Held:
    """Return the metadata of the copy's documents in these vbuckets of the source, by collection and key.

    The target may have another number of vbuckets.
    """
    same = origin.map.vbuckets == copy.map.vbuckets
    reading = copy.batches(
        vbuckets=list(ends) if same else None,
        until="now",
        no_value=True,
        patience_seconds=patience_seconds,
        collections=compared.copy,
    )
    copy_documents: _Held = {}
    with reading as batches:
        for batch in batches:
            for row in compared.rows(batch.records, with_value=False):
                if same or origin.vbucket_of(row["key"]) in ends:
                    copy_documents[_path(row, compared.copy_paths), row["key"]] = _meta(row)
    return copy_documents


def _path(row: Mapping[str, Any], paths: Mapping[int, str]) -> str:
    return paths[row["collection_id"]] if paths else ""


def _differing(
    origin: Client,
    copy_documents: _Held,
    ends: Mapping[int, int],
    patience_seconds: float,
    compared: _ComparedCollections,
) -> Iterator[tuple[str, WriteWithMeta]]:
    """Yield the writes that make differing documents equal to the source's; remove from `copy_documents` every key that
    the source had within `ends`.
    """
    for path, row in _changes_within(origin, ends, patience_seconds, compared):
        # What is newer comes with the next batch; until then the key is not there, rather than wrong.
        if row["seqno"] > ends[row["vbucket"]] or copy_documents.pop((path, row["key"]), None) == _meta(row):
            continue
        yield path, _as_it_is(row)


def _present(
    origin: Client, ends: Mapping[int, int], patience_seconds: float, compared: _ComparedCollections
) -> Iterator[tuple[str, WriteWithMeta]]:
    """Yield the writes of all documents and tombstones up to these ends, none of them forced."""
    if compared.origin is not None and not compared.origin.collections:
        return
    for path, row in _changes_within(origin, ends, patience_seconds, compared):
        if row["seqno"] <= ends[row["vbucket"]]:
            yield path, _as_it_is(row, force=False)


def _changes_within(
    origin: Client, ends: Mapping[int, int], patience_seconds: float, compared: _ComparedCollections
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the source's changes, from its beginning up to these ends at least, with the collections' names at the
    target.
    """
    until = {vb: end for vb, end in ends.items() if end}
    if not until:
        return
    reading = origin.batches(
        vbuckets=list(until),
        until=until,
        xattrs=True,
        deleted_xattrs=compared.transaction_records,
        patience_seconds=patience_seconds,
        collections=compared.origin,
    )
    with reading as batches:
        for batch in batches:
            for row in compared.rows(batch.records, with_value=True):
                yield _path(row, compared.origin_paths), row


def _as_it_is(row: Mapping[str, Any], *, force: bool = True) -> WriteWithMeta:
    """Return the write that makes a document, or its tombstone, equal to the source's."""
    from headwater.client.writes import WriteWithMeta

    deleted, attributes = row["opcode"] != Opcode.DCP_MUTATION, row["datatype"] & Datatype.XATTR
    return WriteWithMeta(
        row["key"],
        row["value"] if attributes or not deleted else None,
        flags=row["flags"],
        expiry=row["expiry"],
        cas=row["cas"],
        rev_seqno=row["rev_seqno"],
        datatype=attributes,
        deletes=deleted,
        expired=row["opcode"] == Opcode.DCP_EXPIRATION,
        force=force,
    )


def _removals(copy_documents: _Held) -> Iterator[tuple[str, WriteWithMeta]]:
    """Yield deletions of keys that only the copy has.

    Tombstones are deleted again, since their revisions may be of the lost branch.
    """
    from headwater.client.writes import WriteWithMeta

    deletion = Meta(deleted=True, cas=LOWEST, rev_seqno=LOWEST)
    for (path, key), meta in copy_documents.items():
        # What an earlier restore removed is as it should be; writing it again would send it through all streams.
        if meta != deletion:
            yield path, WriteWithMeta(key, None, flags=0, expiry=0, cas=LOWEST, rev_seqno=LOWEST, force=True)


def _rows(records: Any, *, with_value: bool) -> Iterator[dict[str, Any]]:
    names = ["vbucket", "seqno", "opcode", "key", "cas", "rev_seqno", "flags", "expiry", "datatype"]
    names += ["value"] if with_value else []
    names += ["collection_id"] if "collection_id" in records.schema.names else []
    columns = [records.column(name).to_pylist() for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _meta(row: Mapping[str, Any]) -> Meta:
    if row["opcode"] != Opcode.DCP_MUTATION:
        return Meta(True, row["cas"], row["rev_seqno"])
    return Meta(False, row["cas"], row["rev_seqno"], row["flags"], row["expiry"])


def _chunks(writes: Iterable[tuple[str, WriteWithMeta]]) -> Iterator[tuple[str, list[WriteWithMeta]]]:
    """Yield writes in groups of one collection, with limited numbers of documents and of bytes."""
    by_path: dict[str, list[WriteWithMeta]] = {}
    rows = size = 0
    for path, write in writes:
        by_path.setdefault(path, []).append(write)
        rows, size = rows + 1, size + len(write.value or b"")
        if rows >= ROWS_PER_CALL or size >= BYTES_PER_CALL:
            yield from by_path.items()
            by_path, rows, size = {}, 0, 0
    yield from by_path.items()


def _force(place: _Place, path: str, writes: list[WriteWithMeta]) -> None:
    # Any error ends this attempt: the next one compares everything again, and finds what is left to do.
    for error in place.write(path, writes).values():
        raise error


def _add(place: _Place, path: str, writes: list[WriteWithMeta], target: WriteSettings) -> int:
    """Write documents that may be there; return the number of those that the target lacked.

    Raises:
        RowsRefused: the target refuses one for good, and there is no place for dead letters. StatusError: another
            refusal.
    """
    errors = place.write(path, writes)
    for index, error in errors.items():
        # The target has this version or a newer one: nothing is missing there.
        if isinstance(error, KeyExists) or (target.dead_letters is not None and isinstance(error, REFUSED_ROWS)):
            continue
        if isinstance(error, REFUSED_ROWS):
            raise RowsRefused(1, as_key(writes[index].key), str(error))
        raise error
    return len(writes) - len(errors)
