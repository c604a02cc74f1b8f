"""Make a copy of some vbuckets what they are at their source, after a failover took back what had been copied.

The conflict rule keeps the higher revision, and a lost one may be the higher. So the copy is compared key by key with
the source as it was at the batch's end, and what differs is forced. What the source has not is deleted under the lowest
revision there is, so that whatever the source writes next wins against it.

Nothing of an earlier attempt is relied on: each restoring compares everything, however many failovers lie before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.spark import nodes
from headwater.spark.nodes import patiently
from headwater.spark.settings import SourceSettings, WriteSettings
from headwater.spark.writing import ROWS_PER_CALL
from headwater.spark.writing import connect as connect_target
from headwater.wire.datatype import Datatype
from headwater.wire.opcodes import Opcode

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.client.writes import WriteWithMeta

LOWEST = 1
"""Revision and CAS of a deletion that loses against everything."""


class Meta(NamedTuple):
    """The marks that tell two versions of a document apart; deletions have neither flags nor expiry here."""

    deleted: bool
    cas: int
    rev_seqno: int
    flags: int = 0
    expiry: int = 0


@dataclass
class Restored:
    """The counts of what was put right.

    Attributes:
        forced: documents and deletions stored as the source has them.
        removed: keys the source has not.
    """

    forced: int = 0
    removed: int = 0


def restore(source: SourceSettings, target: WriteSettings, ends: Mapping[int, int]) -> Restored:
    """Make the target what the source was at these seqnos.

    Args:
        source: options of the reading, with `xattrs`.
        target: options of the writing.
        ends: vbucket of the source to the seqno the copy has come to.

    Raises:
        TransportError, StatusError: a node did not answer, or could not write, for `retrySeconds`.
    """

    def attempt() -> Restored:
        with nodes.connect(source) as origin, connect_target(target) as copy:
            return _restore(origin, copy, ends, source.retry_seconds)

    # From the beginning: what is right already is passed over.
    return patiently(attempt, target.retry_seconds)


def _restore(origin: Client, copy: Client, ends: Mapping[int, int], patience_seconds: float) -> Restored:
    held = _held(origin, copy, ends, patience_seconds)
    told = Restored()
    for writes in _chunks(_differing(origin, held, ends, patience_seconds)):
        _force(copy, writes)
        told.forced += len(writes)
    for writes in _chunks(_removals(held)):
        _force(copy, writes)
        told.removed += len(writes)
    return told


def _held(origin: Client, copy: Client, ends: Mapping[int, int], patience_seconds: float) -> dict[bytes, Meta]:
    """Return what the copy has of these vbuckets; its own vbuckets may be others."""
    same = origin.map.vbuckets == copy.map.vbuckets
    reading = copy.batches(
        vbuckets=list(ends) if same else None, until="now", no_value=True, patience_seconds=patience_seconds
    )
    held: dict[bytes, Meta] = {}
    with reading as batches:
        for batch in batches:
            for row in _rows(batch.records, with_value=False):
                if same or origin.vbucket_of(row["key"]) in ends:
                    held[row["key"]] = _meta(row)
    return held


def _differing(
    origin: Client, held: dict[bytes, Meta], ends: Mapping[int, int], patience_seconds: float
) -> Iterator[WriteWithMeta]:
    """Yield what the source has otherwise; what it has at all leaves `held`."""
    from headwater.client.writes import WriteWithMeta

    until = {vb: end for vb, end in ends.items() if end}
    if not until:
        return
    reading = origin.batches(vbuckets=list(until), until=until, xattrs=True, patience_seconds=patience_seconds)
    with reading as batches:
        for batch in batches:
            for row in _rows(batch.records, with_value=True):
                # What is newer comes with the next batch; until then the key is not there, rather than wrong.
                if row["seqno"] > until[row["vbucket"]] or held.pop(row["key"], None) == _meta(row):
                    continue
                deleted, attributes = row["opcode"] != Opcode.DCP_MUTATION, row["datatype"] & Datatype.XATTR
                yield WriteWithMeta(
                    row["key"],
                    row["value"] if attributes or not deleted else None,
                    flags=row["flags"],
                    expiry=row["expiry"],
                    cas=row["cas"],
                    rev_seqno=row["rev_seqno"],
                    datatype=attributes,
                    deletes=deleted,
                    expired=row["opcode"] == Opcode.DCP_EXPIRATION,
                    force=True,
                )


def _removals(held: Mapping[bytes, Meta]) -> Iterator[WriteWithMeta]:
    """Yield deletions of what only the copy has, tombstones included: their revisions may be of the lost branch."""
    from headwater.client.writes import WriteWithMeta

    gone = Meta(deleted=True, cas=LOWEST, rev_seqno=LOWEST)
    for key, meta in held.items():
        if meta != gone:
            yield WriteWithMeta(key, None, flags=0, expiry=0, cas=LOWEST, rev_seqno=LOWEST, force=True)


def _rows(records: Any, *, with_value: bool) -> Iterator[dict[str, Any]]:
    names = ["vbucket", "seqno", "opcode", "key", "cas", "rev_seqno", "flags", "expiry", "datatype"]
    names += ["value"] if with_value else []
    columns = [records.column(name).to_pylist() for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _meta(row: Mapping[str, Any]) -> Meta:
    if row["opcode"] != Opcode.DCP_MUTATION:
        return Meta(True, row["cas"], row["rev_seqno"])
    return Meta(False, row["cas"], row["rev_seqno"], row["flags"], row["expiry"])


def _chunks(writes: Iterator[WriteWithMeta]) -> Iterator[list[WriteWithMeta]]:
    from itertools import islice

    while chunk := list(islice(writes, ROWS_PER_CALL)):
        yield chunk


def _force(copy: Client, writes: list[WriteWithMeta]) -> None:
    for error in copy.write_many(writes).values():
        raise error
