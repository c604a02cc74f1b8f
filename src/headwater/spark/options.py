"""Every option of the `dcp` data source, in two tables.

`OPTIONS` is what the reader obeys, `WRITE_OPTIONS` what the writer does; both are what an error message quotes and
what docs/reference/spark-options.md prints. A wrong value, or an option nobody knows, is an error
before the first byte is asked for: a misspelt `maxChangesPerTriger` that is silently ignored costs somebody an evening.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headwater.errors import OptionError
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.persistence import COPIES_MAX, read_min_persisted
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset, parse_positions
from headwater.wire.vbucket import vbucket_set


@dataclass(frozen=True, slots=True)
class SourceOption:
    """One option: how it is written, read and explained.

    Args:
        name: as users write it, camel case like Spark's own.
        parse: turns the text into the value; raises ValueError for what it can't take.
        default: the value when the option is not given; None for "required" or "decided at run time".
        allowed: completes "... is not ...": "a whole number from 1 on".
        meaning: one sentence for the reference page.
        example: a value that `parse` takes.
        streaming: whether a streaming read takes it; `batch`: whether a batch read does.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    allowed: str
    meaning: str
    example: str
    streaming: bool = True
    batch: bool = True

    def read(self, text: str) -> Any:
        """Return the option's value, or raise the OptionError that says what would have been right."""
        try:
            return self.parse(text)
        except ValueError as error:
            if isinstance(error, OptionError):
                raise
            shown = "..." if self.name == "password" else text
            raise OptionError(self.name, shown, self.allowed) from None


def _url(text: str) -> str:
    if not text.strip() or any(letter.isspace() for letter in text):
        raise ValueError(text)
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 86_400:
        raise ValueError(text)
    return number


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _refuse(text)


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        return text.lower() if text.lower() in words else str(_refuse(text))

    return parse


def _starting(text: str) -> Offset:
    word = text.strip().lower()
    if word == "earliest":
        return Offset()
    if word == "latest":
        return Offset(latest=True)
    given = json.loads(text)
    coverage = Coverage.from_json(given["collections"]) if isinstance(given, dict) and "collections" in given else None
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
    given = json.loads(text)
    # An offset copied from a checkpoint or a progress report will do as well.
    return parse_positions(option, given["vb"] if isinstance(given, dict) and "vb" in given else given)


_POSITIONS = 'JSON such as {"0": 120, "7": ["00a1b2c3d4e5f607", 9]} (vbucket: seqno, or vb uuid and seqno)'
_WHOLE = "a whole number from 1 on"
_SECONDS = "a number of seconds, 0 to 86400"

OPTIONS: tuple[SourceOption, ...] = (
    SourceOption(
        "url",
        _url,
        None,
        "an address such as couchbase://host:11210/bucket",
        "Where the nodes are, and which bucket to read; `load(url)` says the same. Required.",
        "couchbase://127.0.0.1:11210/default",
    ),
    SourceOption("user", str, None, "a user name", "Who asks; without it nobody logs in.", "reader"),
    SourceOption(
        "password", str, None, "a password", "The user's password. Spark shows it nowhere we know of.", "secret"
    ),
    SourceOption(
        "vbuckets",
        vbucket_set,
        None,
        "a vbucket list such as 0-511,700",
        "Which vbuckets to read; all that are active when left out.",
        "0-511,700",
    ),
    SourceOption(
        "startingOffsets",
        _starting,
        Offset(),
        f"earliest, latest (streaming only), or {_POSITIONS}",
        "Where to begin when there is no checkpoint: `earliest` (default), `latest`, or JSON positions; a vbucket that "
        "the JSON leaves out begins at its beginning.",
        '{"0": 120}',
    ),
    SourceOption(
        "endingOffsets",
        _ending,
        None,
        f"latest, or {_POSITIONS}",
        "Where a batch read ends: `latest` (default), which is what the nodes hold when the read is planned, or JSON; "
        "a vbucket that the JSON leaves out is not read.",
        '{"0": 900}',
        streaming=False,
    ),
    SourceOption(
        "minPartitions",
        _positive,
        None,
        _WHOLE,
        "Into how many Spark partitions (tasks, DCP connections a node) the vbuckets are packed. Left out: as many as "
        "there are slots (`headwater.spark.register(spark)` tells), else cores of the driver. Never one a vbucket: a "
        "Python task alone costs 12 to 50 ms.",
        "8",
    ),
    SourceOption(
        "maxChangesPerTrigger",
        _positive,
        None,
        _WHOLE,
        "How many changes a micro-batch takes at most, shared out among the vbuckets that have any. What replaces a "
        "lost branch of history comes on top: it always shares the batch of its `rollback` row.",
        "100000",
        batch=False,
    ),
    SourceOption(
        "keyFormat",
        _one_of("binary", "string"),
        "binary",
        "binary or string",
        "Type of the `key` column. `string` needs keys that are UTF-8; one that is not fails the read and is named.",
        "string",
    ),
    SourceOption(
        "valueFormat",
        _one_of("binary", "string"),
        "binary",
        "binary or string",
        "Type of the `value` column, as for `keyFormat`.",
        "string",
    ),
    SourceOption(
        "rollbackPolicy",
        _one_of("emit", "fail"),
        "emit",
        "emit or fail",
        "What to do when a failover took back changes that were delivered: `emit` a row `event = 'rollback'` and "
        "replay, or `fail` the query.",
        "fail",
    ),
    SourceOption(
        "pollIntervalSeconds",
        _seconds,
        0.25,
        _SECONDS,
        "How long what the nodes said is believed while nothing moves; Spark itself asks 100 times a second.",
        "1",
        batch=False,
    ),
    SourceOption(
        "retrySeconds",
        _seconds,
        60.0,
        _SECONDS,
        "How long a node that does not answer is tried again, in the planner and in a task, before the query fails.",
        "300",
    ),
    SourceOption(
        "windowBytes",
        _positive,
        10 << 20,
        _WHOLE,
        "DCP flow-control window of a connection: what a node may send ahead of us. Bounds a task's memory.",
        "33554432",
    ),
    SourceOption(
        "xattrs",
        _flag,
        False,
        "true or false",
        "Ask for extended attributes too; `value` then begins with them where bit 4 of `datatype` says so.",
        "true",
    ),
    SourceOption(
        "collections",
        _collections,
        None,
        "all, or names like scope.collection with commas between them",
        "Which collections to read; without it and without `scope` the default one alone. Rows then have the columns "
        "`scope` and `collection`, and a checkpoint goes on with the same choice only.",
        "shop.orders,shop.carts",
    ),
    SourceOption(
        "scope",
        _url,
        None,
        "the name of a scope",
        "All collections of this scope, those too that are made later; instead of `collections`.",
        "shop",
    ),
    SourceOption(
        "failOnDataLoss",
        _flag,
        False,
        "true or false",
        "What to do when deletions were purged before they were read: `true` fails the read with the vbuckets, `false` "
        "logs them, emits a `rollback` row to 0 (`snapshot_end` says up to where) and reads the vbucket again whole.",
        "true",
    ),
    SourceOption(
        "minPersisted",
        read_min_persisted,
        None,
        f"a number of copies from 1 to {COPIES_MAX}, majority or all",
        "Read only what so many copies of a vbucket have on disk, the active one included: a failover to one of those "
        "takes back nothing that was read, though a vbucket of which one batch was read may come again whole, behind a "
        "`rollback` row to 0. Copies that the cluster map does not name are not waited for.",
        "majority",
    ),
    SourceOption(
        "transactionRecords",
        _flag,
        False,
        "true or false",
        "Read the records that SDKs keep of their transactions, too: documents whose key begins with `_txn:`, which no "
        "application stored. What a transaction stored comes in any case, once it is committed.",
        "true",
    ),
)


WRITE_OPTIONS: tuple[SourceOption, ...] = (
    replace(
        OPTIONS[0],
        meaning="Where the nodes are, and which bucket to write to; `save(url)` says the same. Required.",
    ),
    replace(OPTIONS[1], meaning="Who writes; without it nobody logs in.", example="writer"),
    OPTIONS[2],
    SourceOption(
        "deadLetters",
        _url,
        None,
        "a directory or a URL without spaces",
        "Where rows go that a node refuses for good, as Parquet files with the reason; without it the first such row "
        "fails the task. A path, or a URL that Arrow knows (s3, gs, abfs, hdfs).",
        "/data/refused",
    ),
    SourceOption(
        "withMeta",
        _flag,
        False,
        "true or false",
        "Store revision, CAS and expiry as the columns `rev_seqno`, `cas` and `expiry` have them, as in another "
        "bucket. Whoever has the higher (rev_seqno, cas) wins; a row that is behind changes nothing.",
        "true",
    ),
    SourceOption(
        "retrySeconds",
        _seconds,
        60.0,
        _SECONDS,
        'How long a node that does not answer, or says "not now", is tried again before the task fails.',
        "300",
    ),
    SourceOption(
        "collection",
        _collection,
        None,
        "a name like scope.collection",
        "Into which collection all rows go; without it into the one that the columns `scope` and `collection` name, or "
        "into the default one where there are no such columns.",
        "shop.orders",
    ),
)
"""Options of `df.write.format("dcp")` and `writeStream.format("dcp")`."""


def reference_page() -> str:
    """Return docs/reference/spark-options.md: the tables above, for readers."""
    head = (
        "# Options of the `dcp` source and writer\n\n"
        "Printed from `headwater.spark.options` by `python -m headwater.spark.options`. Case does not matter.\n"
        "An unknown option, or a value that is not allowed, fails the read or write at once.\n\n"
    )
    return head + "## Reading\n\n" + _table(OPTIONS) + "\n## Writing\n\n" + _table(WRITE_OPTIONS)


def _table(options: tuple[SourceOption, ...]) -> str:
    rows = ["| option | default | for | meaning | example |", "|---|---|---|---|---|"]
    for option in options:
        kind = "both" if option.batch and option.streaming else "batch" if option.batch else "streaming"
        rows.append(f"| `{option.name}` | {_shown(option)} | {kind} | {option.meaning} | `{option.example}` |")
    return "\n".join(rows) + "\n"


def _shown(option: SourceOption) -> str:
    if option.name == "startingOffsets":
        return "`earliest`"
    if option.default is None:
        return {"url": "required", "endingOffsets": "`latest`", "vbuckets": "all"}.get(option.name, "none")
    return f"`{str(option.default).lower()}`"


if __name__ == "__main__":
    print(reference_page(), end="")
