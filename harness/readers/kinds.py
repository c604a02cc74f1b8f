"""The kinds of tables: each is written by a mirror in some batches, and its rows are known from the bucket.

All batches but the first overwrite and delete documents of those before, so each table has rows that are dead: in
deletion vectors, or in files that were left behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness.readers.reading import ROW_ID, Rows, plain
from headwater import testing
from headwater.client import Client
from headwater.errors import HeadwaterError
from headwater.lake import folds, upkeep
from headwater.pipelines.mirror import mirror
from headwater.pipelines.tables import open_table
from headwater.testing.node import Node
from headwater.wire.opcodes import Opcode

VBUCKETS = 4
DOCUMENTS = 160
FORMATS = ("delta", "iceberg", "delta,iceberg")
METADATA = (*("vbucket", "key", "seqno", "vb_uuid", "cas", "rev_seqno", "flags", "expiry", "datatype", "modified_at"),)
WHOLE = (*METADATA, "value")
LOGGED = ("vbucket", "seqno", "vb_uuid", "key", "value", "event")
NO_JSON = "no JSON: "
ODD_KEYS = (b"\0", b"\xff\xfe", b"a\nb", "größe ☃".encode(), b'"', b"%41")
_EVENTS = {Opcode.DCP_MUTATION: "mutation", Opcode.DCP_DELETION: "deletion", Opcode.DCP_EXPIRATION: "expiration"}


@dataclass(frozen=True)
class Expected:
    """The rows that a reader must see at a place.

    Attributes:
        kind: in words, as on the page.
        form: the option `--format`.
        place: the table's folder.
        columns: those which are compared.
        rows: all of them, in any order.
        ids: True if they have `row_id`.
        refused: the mirror's words where it writes no such table.
    """

    kind: str
    form: str
    place: str = ""
    columns: tuple[str, ...] = ()
    rows: Rows = field(default_factory=list)
    ids: bool = False
    refused: str = ""


class Writing:
    """A bucket and a table that follows it, batch by batch.

    Args:
        bucket: with `VBUCKETS` vbuckets.
        place: the table's folder.
        options: of the mirror.
    """

    def __init__(self, bucket: Node, place: Path, **options: Any) -> None:
        self.bucket, self.place, self.options = bucket, place, options
        self.changes: Rows = []
        self._logged: dict[int, int] = {}

    def batch(self, stage: int, keys: range, gone: range = range(0), **more: bytes) -> None:
        """Store documents and delete others, and let the table follow.

        Args:
            stage: the number of the batch, which is in its documents.
            keys: numbers of those that are stored.
            gone: numbers of those that are deleted.
            more: documents besides.
        """
        with self.bucket.client() as client:
            told = {f"k{i}".encode(): json.dumps(document(stage, i)).encode() for i in keys}
            odd = [] if self.options.keys() & {"json", "variant"} else [(key, b"%d" % stage) for key in ODD_KEYS]
            refused = client.set_many([*told.items(), *odd, *((key.encode(), value) for key, value in more.items())])
            refused |= client.delete_many([f"k{i}" for i in gone])
            if refused:
                raise RuntimeError(f"not stored: {refused}")
            self._note_changes(client)
        self.follow()

    def follow(self) -> None:
        """Run the mirror to the end of what there is."""
        mirror(None, self.bucket.url, self.place, once=True, workers=0, upkeep=False, **self.options)

    def documents(self) -> Rows:
        """Return the rows of a table with the whole documents, by the bucket's own history."""
        held: dict[tuple[int, bytes], dict[str, Any]] = {}
        with self.bucket.client() as client:
            branches = {vb: log[0][0] for vb, log in client.failover_logs().items()}
            with client.batches(until="now") as batches:
                for row in (row for batch in batches for row in batch.records.to_pylist()):
                    place = (row["vbucket"], bytes(row["key"]))
                    held.pop(place, None)
                    if row["opcode"] == Opcode.DCP_MUTATION:
                        held[place] = _row(row, branches[row["vbucket"]])
        return list(held.values())

    def _note_changes(self, client: Client) -> None:
        branches = {vb: log[0][0] for vb, log in client.failover_logs().items()}
        before = dict(self._logged)
        with client.batches(until="now") as batches:
            for row in (row for batch in batches for row in batch.records.to_pylist()):
                if row["seqno"] > before.get(row["vbucket"], 0) and row["opcode"] in _EVENTS:
                    self._logged[row["vbucket"]] = row["seqno"]
                    self.changes.append(_change(row, branches[row["vbucket"]]))


def document(stage: int, number: int) -> dict[str, Any]:
    """Return a document; later ones have a field more, and wider numbers."""
    told = {
        "a": number,
        "b": f"stage {stage}" if number % 3 else None,
        "in": {"c": number + 0.5},
        "xs": [stage, number],
    }
    return told | ({"z": number % 2 == 0, "a": number + (1 << 40)} if stage > 1 else {})


def _row(row: dict[str, Any], vb_uuid: int) -> dict[str, Any]:
    named = {name: row[name] for name in ("vbucket", "seqno", "cas", "rev_seqno", "flags", "expiry", "datatype")}
    texts = {"key": plain(bytes(row["key"])), "value": plain(bytes(row["value"] or b"")), "vb_uuid": f"{vb_uuid:016x}"}
    return named | texts | {"modified_at": row["cas"] // 1000}


def _change(row: dict[str, Any], vb_uuid: int) -> dict[str, Any]:
    event = _EVENTS[row["opcode"]]
    value = plain(bytes(row["value"] or b"")) if event == "mutation" else None
    rest = {"vb_uuid": f"{vb_uuid:016x}", "event": event, "value": value}
    return {"vbucket": row["vbucket"], "seqno": row["seqno"], "key": plain(bytes(row["key"]))} | rest


Written = Iterator[tuple[str, Path, tuple[str, ...], Rows]]
"""Kind, place, columns and rows of each table."""


def _usual(table: Writing) -> None:
    table.batch(1, range(DOCUMENTS))
    table.batch(2, range(60), range(100, 120))
    table.batch(3, range(20))


def whole(table: Writing, kind: str) -> Written:
    """Documents whole, in three batches."""
    _usual(table)
    yield kind, table.place, WHOLE, table.documents()


def folded(table: Writing, kind: str) -> Written:
    """The same, folded into one file, with a checkpoint, and overwritten again."""
    _usual(table)
    log, indexes = open_table(str(table.place))
    folds.optimize(log, indexes, everything=True)
    upkeep.checkpoint(log)
    table.batch(4, range(10, 30))
    yield kind, table.place, WHOLE, table.documents()


def unfolded(table: Writing, kind: str) -> Written:
    """Columns of JSON, one of which is new in the second batch, and the quarantine of what is no JSON."""
    table.batch(1, range(DOCUMENTS), odd1=NO_JSON.encode() + b"1", odd2=NO_JSON.encode() + b"2")
    table.batch(2, range(60), range(100, 120), odd1=NO_JSON.encode() + b"3")
    table.batch(3, range(20))
    rows = [row | _fields(row["value"]) for row in table.documents()]
    yield kind, table.place, (*METADATA, "a", "b", "in", "xs", "z", "_rest"), rows
    if table.options.get("quarantine"):
        held = [row for row in table.documents() if row["value"].startswith(NO_JSON)]
        yield "quarantine", Path(f"{table.place}_quarantine"), WHOLE, held


def _fields(value: str) -> dict[str, Any]:
    told = {} if value.startswith(NO_JSON) else json.loads(value)
    return {name: told.get(name) for name in ("a", "b", "in", "xs", "z")} | {"_rest": None}


def variant(table: Writing, kind: str) -> Written:
    """Documents as VARIANT."""
    table.batch(1, range(DOCUMENTS))
    table.batch(2, range(60), range(100, 120))
    rows = [row | {"document": json.loads(row["value"])} for row in table.documents()]
    yield kind, table.place, (*METADATA, "document"), rows


def with_ids(table: Writing, kind: str) -> Written:
    """Rows that keep their ids: those which they got in the first batch, by the log of Delta."""
    table.batch(1, range(DOCUMENTS))
    first = _first_ids(table.place)
    table.batch(2, range(60), range(100, 120))
    table.batch(3, range(20))
    yield kind, table.place, WHOLE, table.documents()
    yield (
        f"{kind}: the ids",
        table.place,
        (*WHOLE, ROW_ID),
        [row | {ROW_ID: first[row["key"]]} for row in table.documents()],
    )


def _first_ids(place: Path) -> dict[str, int]:
    """Return the ids of the rows of a table's first batch: the file's first id, and the row's place in it."""
    found: dict[str, int] = {}
    for commit in sorted((place / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            if add := json.loads(line).get("add"):
                keys = pq.read_table(place / add["path"], columns=["key"]).column("key").to_pylist()
                found |= {plain(key): add["baseRowId"] + number for number, key in enumerate(keys)}
    return found


def logged(table: Writing, kind: str) -> Written:
    """A change log."""
    _usual(table)
    yield kind, Path(f"{table.place}_changes"), LOGGED, table.changes


@dataclass(frozen=True)
class Kind:
    """A kind of tables.

    Attributes:
        name: on the page.
        write: writes one, and tells what it must have.
        options: of the mirror.
    """

    name: str
    write: Callable[[Writing, str], Written]
    options: dict[str, Any] = field(default_factory=dict)


KINDS = (
    Kind("whole documents, with deletion vectors", whole),
    Kind("folded, with a checkpoint", folded),
    Kind("`--copy-on-write`", whole, {"copy_on_write": True}),
    Kind("`--unfold`", unfolded, {"json": True, "quarantine": True}),
    Kind("`--unfold --widen`", unfolded, {"json": True, "widen": True}),
    Kind("`--variant`", variant, {"variant": True}),
    Kind("`--row-ids`", with_ids, {"row_ids": True}),
    Kind("`--changelog`", logged, {"changelog": True}),
)


def written(folder: Path, kinds: tuple[Kind, ...] = KINDS, forms: tuple[str, ...] = FORMATS) -> Iterator[Expected]:
    """Write tables of all kinds and formats; yield what must be read from each.

    Args:
        folder: an empty one.
    """
    for number, kind in enumerate(kinds):
        for form in forms:
            yield from _written(folder / f"{number}-{form.replace(',', '-')}" / "t", kind, form)


def _written(place: Path, kind: Kind, form: str) -> Iterator[Expected]:
    with testing.node(vbuckets=VBUCKETS) as bucket:
        try:
            table = Writing(bucket, place, format=form, **kind.options)
            for name, where, columns, rows in kind.write(table, kind.name):
                yield Expected(name, form, str(where), columns, rows, ids=ROW_ID in columns)
        except HeadwaterError as refusal:
            yield Expected(kind.name, form, refused=str(refusal).partition(": ")[2] or str(refusal))
