"""Compares the table with the active nodes, key by key, and checks the promise of the change log.

The nodes are read by DCP from the beginning, the tables by Polars: neither goes through the mirror's code.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from headwater.client import Client
from headwater.protocol.dcp.position import FailoverLog
from headwater.spark.history import BranchHistory, branches
from headwater.wire.opcodes import Opcode

SHOWN_MAX = 3
COLUMNS = ("vbucket", "key", "value", "seqno", "vb_uuid", "cas", "rev_seqno", "flags", "expiry", "datatype")
LOGGED = ("vbucket", "seqno", "vb_uuid", "event", "key", "value", "batch")
BRANCHES_MAX = 25
"""The most entries of a failover log that a node keeps."""

CAS_MASK = (1 << 64) - 1
Key = tuple[int, bytes]
"""Vbucket and key."""


class Document(NamedTuple):
    """The fields of a document that are compared."""

    value: bytes
    seqno: int
    cas: int
    rev_seqno: int
    flags: int
    expiry: int
    datatype: int
    vb_uuid: int


@dataclass
class Bucket:
    """The documents of the active nodes, and the histories of their vbuckets."""

    documents: dict[Key, Document]
    histories: dict[int, BranchHistory]


class Wrong(AssertionError):  # noqa: N818 -- says what is the matter
    """The table differs from the bucket."""


def of_nodes(client: Client) -> Bucket:
    """Return the documents of the active nodes; no writer may run meanwhile."""
    logs = {vb: tuple(log) for vb, log in client.failover_logs().items()}
    histories = {vb: BranchHistory(logs[vb], high) for vb, high in client.seqnos().items()}
    documents: dict[Key, Document] = {}
    with client.batches(until="now") as batches:
        for batch in batches:
            for row in batch.records.to_pylist():
                place = (row["vbucket"], bytes(row["key"]))
                documents.pop(place, None)
                if row["opcode"] == Opcode.DCP_MUTATION:
                    documents[place] = _document(row, _branch_of(logs[row["vbucket"]], row["seqno"]))
    return Bucket(documents, histories)


def _branch_of(log: FailoverLog, seqno: int) -> int:
    """Return the branch that wrote a seqno: the newest whose own seqno lies below it."""
    begins, uuids = branches(log)
    return uuids[max(bisect_left(begins, seqno) - 1, 0)]


def of_table(place: Path) -> dict[Key, Document]:
    """Return the documents that a reader sees in the table.

    Raises:
        Wrong: a key has two rows.
    """
    return of_rows(pl.read_delta(str(place), columns=list(COLUMNS)).to_dicts())


def of_rows(rows: list[dict[str, Any]]) -> dict[Key, Document]:
    """Return the documents of a reader's rows.

    Raises:
        Wrong: a key has two rows.
    """
    for row in rows:
        row["key"] = row["key"].encode() if isinstance(row["key"], str) else row["key"]
    found = {(row["vbucket"], row["key"]): _document(row, int(row["vb_uuid"], 16)) for row in rows}
    if len(found) < len(rows):
        raise Wrong(f"{len(rows) - len(found)} rows too many: keys have more than one")
    return found


def by_pyiceberg(place: Path, columns: Sequence[str] = COLUMNS) -> list[dict[str, Any]]:
    """Return the rows of a table of Iceberg, read from its folder by pyiceberg."""
    from pyiceberg.table import StaticTable  # noqa: PLC0415 -- a second to import

    return StaticTable.from_metadata(str(place)).scan(selected_fields=tuple(columns)).to_arrow().to_pylist()


def by_duckdb(place: Path, columns: Sequence[str] = COLUMNS) -> list[dict[str, Any]]:
    """Return the same by DuckDB, whose extensions come as packages; by pyiceberg where there are none."""
    try:
        from harness.readers.reading import duckdb  # noqa: PLC0415

        read = duckdb("iceberg_scan", "_row_id", "avro", "iceberg")
    except ImportError:
        return by_pyiceberg(place, columns)
    return read(str(place), columns, False)


def of_catalog(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a table as a catalog has it."""
    return list(table.scan(selected_fields=COLUMNS).to_arrow().to_pylist())


class SnapshotCounts(NamedTuple):
    """The snapshots that were compared with their versions, and those whose versions can't be read any more."""

    compared: int
    skipped: int


def check_snapshots(log: Path, place: Path) -> SnapshotCounts:
    """Compare each snapshot of a table of Iceberg with the version of the log that it names; return how many there are.

    Versions of which files were vacuumed, or that a checkpoint has replaced, can't be read any more, and are left out;
    the newest is none of these.

    Raises:
        Wrong: one has other rows than its version, or the newest was not compared.
    """
    from pyiceberg.table import StaticTable  # noqa: PLC0415

    table = StaticTable.from_metadata(str(place))
    newest, compared, skipped = table.metadata.current_snapshot_id, set[int](), 0
    for snapshot in table.metadata.snapshots:
        version = _version_of(snapshot, table.metadata.properties.get("headwater.shown", ""))
        try:
            its = pl.read_delta(str(log), version=version, columns=["key", "seqno"])
        except Exception:  # delta-rs says in many ways that a version is gone
            skipped += 1
            continue
        mine = table.scan(selected_fields=("key", "seqno"), snapshot_id=snapshot.snapshot_id).to_arrow()
        if sorted(map(_bare, mine.to_pylist())) != sorted(map(_bare, its.to_dicts())):
            raise Wrong(f"snapshot {snapshot.snapshot_id} has other rows than version {version} of the log")
        compared.add(snapshot.snapshot_id)
    if newest is not None and newest not in compared:
        raise Wrong(f"the version of the newest snapshot can't be read: {len(compared)} compared, {skipped} left out")
    return SnapshotCounts(len(compared), skipped)


def _version_of(snapshot: Any, shown: str) -> int:
    """Return the version of the log that a snapshot shows; later ones with the same rows are named in a property."""
    if snapshot.summary is None:
        raise Wrong(f"snapshot {snapshot.snapshot_id} names no version")
    number, _, later = shown.partition(" ")
    return int(later if number == str(snapshot.snapshot_id) else snapshot.summary["headwater.delta-version"] or 0)


def _bare(row: Mapping[str, Any]) -> tuple[bytes, int]:
    return (row["key"].encode() if isinstance(row["key"], str) else bytes(row["key"])), row["seqno"]


def _document(row: Mapping[str, Any], vb_uuid: int) -> Document:
    return Document(
        value=bytes(row["value"] or b""),
        seqno=row["seqno"],
        cas=row["cas"] & CAS_MASK,
        rev_seqno=row["rev_seqno"],
        flags=row["flags"],
        expiry=row["expiry"],
        datatype=row["datatype"],
        vb_uuid=vb_uuid,
    )


def compare(table: Mapping[Key, Document], bucket: Bucket) -> None:
    """Compare the documents of table and bucket.

    Raises:
        Wrong: with the numbers of the differences of each kind.
    """
    there = bucket.documents
    told = [
        _summary("missing in the table", there.keys() - table.keys()),
        _summary("only in the table", table.keys() - there.keys()),
    ]
    differing = {
        key for key in table.keys() & there.keys() if not _same(table[key], there[key], bucket.histories[key[0]])
    }
    told.append(_summary("different", differing))
    for key in sorted(differing)[:SHOWN_MAX]:
        pairs = zip(Document._fields, table[key], there[key], strict=True)
        told.append("; ".join(f"{name} {_short(mine)} for {_short(its)}" for name, mine, its in pairs if mine != its))
    if any(told):
        raise Wrong(f"of {len(there)} documents " + ", ".join(filter(None, told)))


def _same(mine: Document, its: Document, history: BranchHistory) -> bool:
    """Return True if a row equals a document. A node with as many branches as it keeps has forgotten the vb uuids of
    older ones.
    """
    if len(history.log) < BRANCHES_MAX or any(mine.vb_uuid == vb_uuid for vb_uuid, _ in history.log):
        return mine == its
    return mine == its._replace(vb_uuid=mine.vb_uuid)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


def _summary(what: str, keys: Iterable[Key]) -> str:
    found = sorted(keys)
    return (
        f"{len(found)} are {what} ({', '.join(f'{vb}:{key[:20]!r}' for vb, key in found[:SHOWN_MAX])})" if found else ""
    )


def check_changes(place: Path, bucket: Bucket) -> None:
    """Check a change log by the rule of the guide: the rows that count are of the living history, each change is there
    once, and the newest ones are the documents.

    Raises:
        Wrong: with the broken promise.
    """
    check_rows(_rows_of(place), bucket)


def counting_of(place: Path) -> list[dict[str, Any]]:
    """Return the changes of a change log that were not taken back."""
    return counting(_rows_of(place))


def _rows_of(place: Path) -> list[dict[str, Any]]:
    return pl.read_delta(str(place), columns=list(LOGGED)).to_dicts()


def check_rows(rows: list[dict[str, Any]], bucket: Bucket) -> None:
    """Check a change log by its rows, as `check_changes`."""
    seen: dict[tuple[int, int], Any] = {}
    held: dict[Key, tuple[int, bytes]] = {}
    for row in sorted(counting(rows), key=lambda row: row["seqno"]):
        place_of_change = (row["vbucket"], row["seqno"])
        if place_of_change in seen:
            raise Wrong(f"change log: vbucket {row['vbucket']}, seqno {row['seqno']} is there twice: {_short(row)}")
        seen[place_of_change] = row
        if row["seqno"] > bucket.histories[row["vbucket"]].shared_with(int(row["vb_uuid"], 16)):
            raise Wrong(f"change log: a row of a dead history counts: {_short(row)}")
        held.pop((row["vbucket"], row["key"]), None)
        if row["event"] == "mutation":
            held[row["vbucket"], row["key"]] = (row["seqno"], row["value"] or b"")
    there = {key: (document.seqno, document.value) for key, document in bucket.documents.items()}
    if held != there:
        missing, surplus = there.keys() - held.keys(), held.keys() - there.keys()
        other = {key for key in held.keys() & there.keys() if held[key] != there[key]}
        told = (_summary("missing", missing), _summary("surplus", surplus), _summary("different", other))
        raise Wrong(f"change log: of {len(there)} documents " + ", ".join(filter(None, told)))


def counting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a change log that are changes, and were not taken back."""
    back: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        if row["event"] == "rollback":
            back.setdefault(row["vbucket"], []).append((row["batch"], row["seqno"]))
    return [
        row
        for row in rows
        if row["event"] != "rollback"
        and not any(batch > row["batch"] and seqno < row["seqno"] for batch, seqno in back.get(row["vbucket"], ()))
    ]
