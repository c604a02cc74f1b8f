"""Every option of the `dcp` data source, in two tables.

`OPTIONS` has the reader's options, `WRITE_OPTIONS` the writer's; error messages quote both tables, and
docs/reference/spark-options.md is printed from them. A wrong value or an unknown option is an error before the first
request is sent: a misspelt `maxChangesPerTriger` that is silently ignored would cost its user an evening.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.options import BYTES, SECONDS, Option, option, options_of
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.persistence import COPIES_MAX, MinPersisted, read_min_persisted
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset, parse_positions
from headwater.wire.vbucket import vbucket_set


def _url(text: str) -> str:
    if not text.strip() or any(letter.isspace() for letter in text):
        raise ValueError(text)
    return text


def _shared_folder(text: str) -> str:
    # An object store's URL, or a relative path, would be a local folder of its own on each machine, and a rollback
    # would undo what this machine delivered alone.
    if not text.startswith("/") or any(letter.isspace() for letter in text):
        raise ValueError(text)
    return text


def _starting(text: str) -> Offset:
    word = text.strip().lower()
    if word == "earliest":
        return Offset()
    if word == "latest":
        return Offset(latest=True)
    content = json.loads(text)
    coverage = (
        Coverage.from_json(content["collections"]) if isinstance(content, dict) and "collections" in content else None
    )
    return Offset(_json_positions("startingOffsets", text), coverage=coverage)


def _ending(text: str) -> Mapping[int, int] | None:
    if text.strip().lower() == "latest":
        return None
    return {vbucket: position.seqno for vbucket, position in _json_positions("endingOffsets", text).items()}


def _collections(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if names != ("all",) and not all(name.count(".") == 1 and len(name) > 1 for name in names):
        raise ValueError(text)
    return names


def _collection(text: str) -> str:
    if text.count(".") != 1 or any(letter in ", \t\n" for letter in text):
        raise ValueError(text)
    return text


def _json_positions(option: str, text: str) -> dict[int, Position]:
    content = json.loads(text)
    # An offset copied from a checkpoint or a progress report will do as well.
    return parse_positions(option, content["vb"] if isinstance(content, dict) and "vb" in content else content)


_POSITIONS = 'JSON such as {"0": 120, "7": ["00a1b2c3d4e5f607", 9]} (vbucket: seqno, or vb uuid and seqno)'
_WHOLE = "a whole number from 1 on"
FLAG: Mapping[str, Any] = {
    "read": lambda text: {"true": True, "false": False}[text.lower()],
    "allowed": "true or false",
}
DURATION: Mapping[str, Any] = {"unit": SECONDS, "least": 0, "most": 86_400}


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The options of one read, checked and typed; pickled to every task.

    Attributes:
        coverage: no option: the choice of collections by ids, as a batch was planned.
        notes: no option: the id of `undo_folder`, as the batch's offset has it.
        map_version: no option: (epoch, rev) of the cluster map that a batch was planned by. A task accepts no older
            map.
    """

    url: str = option(
        "",
        "Where the nodes are, and which bucket to read; `load(url)` says the same. Required.",
        read=_url,
        allowed="an address such as couchbase://host:11210/bucket",
        example="couchbase://127.0.0.1:11210/default",
    )
    user: str | None = option(
        None,
        "Who asks; without it nobody logs in.",
        allowed="a user name",
        example="reader",
    )
    password: str | None = option(
        None,
        "The user's password. Spark shows it nowhere we know of.",
        allowed="a password",
        secret=True,
        example="secret",
    )
    vbuckets: tuple[int, ...] | None = option(
        None,
        "Which vbuckets to read; all that are active when left out.",
        read=vbucket_set,
        allowed="a vbucket list such as 0-511,700",
        example="0-511,700",
    )
    starting_offsets: Offset = option(
        Offset(),
        "Where to begin when there is no checkpoint: `earliest` (default), `latest`, or JSON positions; a vbucket "
        "that the JSON leaves out begins at its beginning.",
        read=_starting,
        allowed=f"earliest, latest (streaming only), or {_POSITIONS}",
        text="startingOffsets",
        example='{"0": 120}',
    )
    ending_seqnos: Mapping[int, int] | None = option(
        None,
        "Where a batch read ends: `latest` (default), which is what the nodes hold when the read is planned, or "
        "JSON; a vbucket that the JSON leaves out is not read.",
        read=_ending,
        allowed=f"latest, or {_POSITIONS}",
        text="endingOffsets",
        uses="batch",
        example='{"0": 900}',
    )
    partitions: int | None = option(
        None,
        "Into how many Spark partitions (tasks, DCP connections a node) the vbuckets are packed. Left out: as "
        "many as there are slots (`headwater.spark.register(spark)` tells), else cores of the driver. Never one a "
        "vbucket: a Python task alone costs 12 to 50 ms.",
        least=1,
        allowed=_WHOLE,
        text="minPartitions",
        example="8",
    )
    max_changes: int | None = option(
        None,
        "How many changes a micro-batch takes at most, shared out among the vbuckets that have any. What replaces "
        "a lost branch of history comes on top: it always shares the batch of its `rollback` row.",
        least=1,
        allowed=_WHOLE,
        text="maxChangesPerTrigger",
        uses="streaming",
        example="100000",
    )
    key_format: str = option(
        "binary",
        "Type of the `key` column. `string` needs keys that are UTF-8; one that is not fails the read and is named.",
        choices=("binary", "string"),
        example="string",
    )
    value_format: str = option(
        "binary",
        "Type of the `value` column, as for `keyFormat`.",
        choices=("binary", "string"),
        example="string",
    )
    rollback_policy: str = option(
        "emit",
        "What to do when a failover took back changes that were delivered: `emit` a row `event = 'rollback'` and "
        "replay, or `fail` the query.",
        choices=("emit", "fail"),
        example="fail",
    )
    poll_interval_seconds: float = option(
        0.25,
        "How long what the nodes said is believed while nothing moves; Spark itself asks 100 times a second.",
        **DURATION,
        uses="streaming",
        example="1s",
    )
    retry_seconds: float = option(
        60.0,
        "How long a node that does not answer is tried again, in the planner and in a task, before the query fails.",
        **DURATION,
        example="5m",
    )
    window_bytes: int = option(
        10 << 20,
        "DCP flow-control window of a connection: what a node may send ahead of us. Bounds a task's memory.",
        unit=BYTES,
        least=1,
        allowed=_WHOLE,
        example="32MiB",
    )
    xattrs: bool = option(
        False,
        "Ask for extended attributes too; `value` then begins with them where bit 4 of `datatype` says so.",
        **FLAG,
        example="true",
    )
    collections: tuple[str, ...] | None = option(
        None,
        "Which collections to read; without it and without `scope` the default one alone. Rows then have the "
        "columns `scope` and `collection`, and a checkpoint goes on with the same choice only.",
        read=_collections,
        allowed="all, or names like scope.collection with commas between them",
        example="shop.orders,shop.carts",
    )
    scope: str | None = option(
        None,
        "All collections of this scope, those too that are made later; instead of `collections`.",
        read=_url,
        allowed="the name of a scope",
        example="shop",
    )
    fail_on_data_loss: bool = option(
        False,
        "What to do when deletions were purged before they were read: `true` fails the read with the vbuckets, "
        "`false` logs them, emits a `rollback` row to 0 (`snapshot_end` says up to where) and reads the vbucket "
        "again whole.",
        **FLAG,
        example="true",
    )
    min_persisted: MinPersisted | None = option(
        None,
        "Read only what so many copies of a vbucket have on disk, the active one included: a failover to one of "
        "those takes back nothing that was read, though a vbucket of which one batch was read may come again "
        "whole, behind a `rollback` row to 0. Copies that the cluster map does not name are not waited for.",
        read=read_min_persisted,
        allowed=f"a number of copies from 1 to {COPIES_MAX}, majority or all",
        example="majority",
    )
    transaction_records: bool = option(
        False,
        "Read the records that SDKs keep of their transactions, too: documents whose key begins with `_txn:`, "
        "which no application stored; with `xattrs` also what a transaction has staged in deletions. What a "
        "transaction stored comes in any case, once it is committed.",
        **FLAG,
        example="true",
    )
    history: bool = option(
        False,
        "Read every version of each document that the nodes still keep, not the last one of what a batch finds: a row "
        "each, in the order of seqnos. Of what is older than their history the last version comes, and the task logs "
        "it. A node that keeps none at all fails the read and is named.",
        **FLAG,
        example="true",
    )
    before: bool = option(
        False,
        "Read every version, as with `history`, and with each the one that it replaced: columns `before`, "
        "`before_known` and `operation`. A node that does not say it fails the read and is named.",
        **FLAG,
        example="true",
    )
    undo_folder: str | None = option(
        None,
        "For a flow that applies changes by key (Auto CDC, MERGE): a folder of this query alone that the driver and "
        "all executors see; one that is lost, or another query's, fails the read. The source notes there the keys that "
        "it delivered; a rollback then comes as the rows that undo it, upserts and deletions, instead of a `rollback` "
        "row, and each row has `sequence`, a struct of `generation` and `seqno` that orders the versions of a key "
        "right across failovers.",
        read=_shared_folder,
        allowed="an absolute path without spaces, of a folder that all machines share; not an object store's",
        uses="streaming",
        example="/data/orders-undo",
    )
    coverage: Coverage | None = None
    map_version: tuple[int, int] = (0, 0)
    notes: str = ""

    def __repr__(self) -> str:
        return f"Settings({self.url})"

    @property
    def chooses(self) -> bool:
        """True if anything but the default collection alone is read."""
        return self.collections is not None or self.scope is not None


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """The options of one write, `df.write.format("dcp")`, checked and typed; pickled to every task."""

    url: str = option(
        "",
        "Where the nodes are, and which bucket to write to; `save(url)` says the same. Required.",
        read=_url,
        allowed="an address such as couchbase://host:11210/bucket",
        example="couchbase://127.0.0.1:11210/default",
    )
    user: str | None = option(
        None,
        "Who writes; without it nobody logs in.",
        allowed="a user name",
        example="writer",
    )
    password: str | None = option(
        None,
        "The user's password. Spark shows it nowhere we know of.",
        allowed="a password",
        secret=True,
        example="secret",
    )
    dead_letters: str | None = option(
        None,
        "Where rows go that a node refuses for good, as Parquet files with the reason; without it the first such "
        "row fails the task. A path, or a URL that Arrow knows (s3, gs, abfs, hdfs).",
        read=_url,
        allowed="a directory or a URL without spaces",
        example="/data/refused",
    )
    with_meta: bool = option(
        False,
        "Store revision, CAS and expiry as the columns `rev_seqno`, `cas` and `expiry` have them, as in another "
        "bucket. Whoever has the higher (rev_seqno, cas) wins; a row that is behind changes nothing.",
        **FLAG,
        example="true",
    )
    retry_seconds: float = option(
        60.0,
        'How long a node that does not answer, or says "not now", is tried again before the task fails.',
        **DURATION,
        example="5m",
    )
    collection: str | None = option(
        None,
        "Into which collection all rows go; without it into the one that the columns `scope` and `collection` "
        "name, or into the default one where there are no such columns.",
        read=_collection,
        allowed="a name like scope.collection",
        example="shop.orders",
    )
    force: bool = False
    """True to write over newer versions as well, with metadata. It is no option of Spark: a restore sets it."""

    def __repr__(self) -> str:
        return f"WriteSettings({self.url})"


OPTIONS = options_of(SourceSettings)
WRITE_OPTIONS = options_of(WriteSettings)


def reference_page() -> str:
    """Return docs/reference/spark-options.md: the tables above, for readers."""
    head = (
        "# Options of the `dcp` source and writer\n\n"
        "Printed from `headwater.spark.options` by `python -m headwater.spark.options`. Case does not matter.\n"
        "An unknown option, or a value that is not allowed, fails the read or write at once.\n"
        "A duration may be written as `30s`, `5m` or `2h`, a size as `512KiB` or `64MiB`; a number alone counts\n"
        "seconds or bytes.\n\n"
    )
    return head + "## Reading\n\n" + _table(OPTIONS) + "\n## Writing\n\n" + _table(WRITE_OPTIONS)


def _table(options: tuple[Option, ...]) -> str:
    rows = ["| option | default | for | meaning | example |", "|---|---|---|---|---|"]
    for entry in options:
        rows.append(
            f"| `{entry.camel}` | {_default(entry)} | {entry.uses or 'both'} | {entry.about} | `{entry.example}` |"
        )
    return "\n".join(rows) + "\n"


def _default(each: Option) -> str:
    special = {"url": "required", "startingOffsets": "`earliest`", "endingOffsets": "`latest`", "vbuckets": "all"}
    if each.default is None or each.camel in special:
        return special.get(each.camel, "none")
    return f"`{str(each.default).lower()}`"


if __name__ == "__main__":
    print(reference_page(), end="")
