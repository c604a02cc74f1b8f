"""Buckets with all that a document can have, archives, and what stands in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headwater.backup.archive import Archive
from headwater.backup.create import Choice, create
from headwater.backup.manifest import BackupManifest
from headwater.backup.place import BackupPlace, place_of
from headwater.backup.restore import RestorePoint, point_of, restore
from headwater.client import WriteWithMeta, connect
from headwater.spark.settings import parse_write
from headwater.spark.writing import WriteCounts
from headwater.testing import Node
from headwater.wire.xattr import join

ATTRIBUTES = join({"_mine": b'{"a":1}'})


class Held(NamedTuple):
    """All that a bucket tells of a key."""

    opcode: int
    value: bytes
    cas: int
    rev_seqno: int
    flags: int
    expiry: int
    datatype: int


def held(bucket: Node) -> dict[bytes, Held]:
    """Return every key of a bucket, deleted ones included, by its own history."""
    found: dict[bytes, Held] = {}
    with bucket.client() as client, client.batches(until="now", xattrs=True, deleted_xattrs=True) as batches:
        for batch in batches:
            for row in batch.records.to_pylist():
                # When a deletion happened is the node's to say.
                expiry = row["expiry"] if row["opcode"] == 0x57 else 0
                found[row["key"]] = Held(
                    row["opcode"], row["value"], row["cas"], row["rev_seqno"], row["flags"], expiry, row["datatype"]
                )
    return found


def backed_up(bucket: Node, place: Path | BackupPlace, **choice: Any) -> BackupManifest:
    """Make a backup."""
    where = place_of(str(place)) if isinstance(place, Path) else place
    with bucket.client() as client:
        return create(where, client, "default", Choice(**choice))


class Target(Protocol):
    """A bucket by its URL."""

    @property
    def url(self) -> str: ...


def restored(
    place: Path | BackupPlace,
    bucket: Target,
    backup: str | None = None,
    *,
    force: bool = False,
    point: RestorePoint | None = None,
) -> WriteCounts:
    """Restore the end of a backup."""
    archive = Archive(place_of(str(place)) if isinstance(place, Path) else place)
    target = parse_write({"url": bucket.url, "withMeta": "true"})
    return restore(archive, point or point_of(archive, backup), target, force=force)


def fill(bucket: Node, name: str, count: int = 60) -> None:
    """Store, overwrite and delete, with flags, expiry, JSON and attributes among it."""
    with bucket.client() as client:
        assert client.set_many((f"{name}{i}", f"{name} {i}") for i in range(count)) == {}
        assert client.delete_many([f"{name}{i}" for i in range(0, count, 7)]) == {}
        client.set(f"{name}-flags", b"\x00\xff", flags=0xDEADBEEF)
        client.set(f"{name}-expiry", "soon", expiry=4_000_000_000)
        client.set_json(f"{name}-json", {"a": 1})
    with connect(bucket.url, xattrs=True) as client:
        value = ATTRIBUTES + b"value"
        write = WriteWithMeta(f"{name}-xattr", value, 7, 0, cas=5 << 32, rev_seqno=9, datatype=4, force=True)
        assert client.write_many([write]) == {}
