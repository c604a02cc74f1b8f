"""`headwater load`: store a file's rows as documents, pipelined."""

import codecs
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, cast

import typer

from headwater.cli.failures import CommandError, InputError, system
from headwater.cli.forms import remark, report
from headwater.cli.options import (
    DEFAULT_URL,
    CollectionName,
    DurabilityName,
    DurabilityTimeout,
    NodeUrl,
    Password,
    User,
    connect,
    documents,
    durability,
    examples,
    typed,
)
from headwater.cli.stopping import Stopped
from headwater.client.collections import parse_path
from headwater.errors import BucketMadeAnew, CollectionMadeAnew, HeadwaterError

if TYPE_CHECKING:
    from headwater.cli.readers import InputDocument, Reading
    from headwater.client import Client, Documents, Durability
    from headwater.client.routing import ClusterMap

    Stored: TypeAlias = Callable[[Documents, bytes, list[InputDocument], Durability | None], "Refused"]

PART = ("first", 60)
EXAMPLES = examples(
    "headwater load orders.jsonl --key id",
    "headwater load people.csv --key email --prefix person:",
    "headwater load people.csv --key zip --types age=int,vip=bool --encoding latin-1",
    "headwater load orders.jsonl --key order.id --dry-run",
    "headwater load copy.jsonl --format changes",
    "headwater load copy.parquet",
    "headwater load orders.jsonl --key id --collection shop.orders",
    "headwater load orders.jsonl --key id --durability majority",
    "zcat orders.jsonl.gz | headwater load - --format jsonl --key id",
    "headwater load events.parquet --key event_id --node couchbase://10.0.0.7:11210/events",
)
EXITS = {1: "a row is no document, or the node refused one; the line says how many are stored, and --skip"}
KEY = "The field whose value becomes the key; order.id is a path. Left out: headwater export wrote FILE."
FORMAT = "How to read the file; by its name when left out. changes: what tail --json prints, deletions too."
COLUMNS = "CSV columns that are not text: count=int,price=float,ok=bool."
BAD_ROWS_TOLD = 20
DOCUMENTS_PER_CALL = 20_000
"""The documents of one call: enough to fill the pipeline; few enough that the bar moves and Ctrl-C is noticed soon."""


class Format(StrEnum):
    """File formats."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    CHANGES = "changes"


def load(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines, CSV or Parquet; - reads standard input.")],
    key: Annotated[str, typer.Option("--key", metavar="FIELD", help=KEY)] = "",
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Put this before each key.")] = "",
    file_format: Annotated[Format | None, typer.Option("--format", help=FORMAT)] = None,
    types: Annotated[str, typer.Option("--types", metavar="LIST", help=COLUMNS)] = "",
    infer: Annotated[
        bool, typer.Option("--infer", help="Give CSV columns the type that their first megabyte has.")
    ] = False,
    encoding: Annotated[
        str, typer.Option("--encoding", metavar="NAME", help="Of text files, e.g. latin-1 or utf-16.")
    ] = "utf-8",
    skip: Annotated[
        int,
        typer.Option("--skip", min=0, metavar="N", help="Leave out the first N; a failed load says which."),
    ] = 0,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out rows that can't be documents, and tell of each.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check all of the file, store nothing.")] = False,
    durability_level: DurabilityName = None,
    durability_timeout: DurabilityTimeout = None,
    collection: CollectionName = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Store every row of FILE as a JSON document, or what headwater export wrote as it was.

    A row's key is the value of one of its fields; a later row with the same key replaces the earlier one. CSV is text
    as it stands: 00501 stays 00501 unless a type is given. What was stored before a failure stays stored: loading again
    does no harm, and --skip goes on behind it. With --durability other copies have each document as well; how many are
    SYNC_WRITE_AMBIGUOUS, so that nobody knows whether they were stored, is said at the end.
    """
    from headwater.cli.meter import Meter
    from headwater.cli.readers import open_source

    path = Path("/dev/stdin") if str(file) == "-" else file
    if not path.exists():
        raise typer.BadParameter(f"file {str(path)!r} does not exist.")
    if collection is not None:
        parse_path(collection)
    durability_ = durability(durability_level, durability_timeout)
    bad_rows = BadRows() if skip_bad else None
    how = reading(file_format, encoding, types, infer)._replace(skip_bad=bad_rows)
    rows, total = open_source(path, key, how)
    if dry_run:
        _tell_dry(sum(1 for _ in rows), bad_rows)
        return
    is_changes = not key or file_format is Format.CHANGES
    load = Load(file.name, node, skip, _stored_changes if is_changes else _stored_rows, durability_)
    with connect(node, user, password) as client, Meter(file.name, "documents") as meter, load.reported_end():
        for part in _parts(islice(rows, skip, None)):
            load.store(client, collection, typed(prefix), part)
            meter.show(part[-1].position, total, this_run=load.stored)
    _tell(load, bad_rows, meter.seconds)


def _tell(load: "Load", bad_rows: "BadRows | None", seconds: float) -> None:
    from headwater.cli.screen import count, rate

    report(
        f"{count(load.stored)} documents stored in {seconds:.1f} s, {rate(load.stored, seconds)}{bad_rows or ''}",
        stored=load.stored,
        skipped=load.skipped,
        left_out=bad_rows.rows if bad_rows else 0,
        seconds=round(seconds, 3),
    )


def _tell_dry(documents: int, bad_rows: "BadRows | None") -> None:
    from headwater.cli.screen import count

    left_out = bad_rows.rows if bad_rows else 0
    report(
        f"{count(documents)} documents, nothing was stored{bad_rows or ''}",
        documents=documents,
        stored=0,
        left_out=left_out,
    )


Refused: TypeAlias = dict[bytes, HeadwaterError]
"""The errors of the documents that a node refused, by their keys."""


def _by_collection(part: list["InputDocument"], collection: str | None) -> dict[str | None, list["InputDocument"]]:
    """Sort a part by its collections: that of `--collection`, or else the rows' own. Keys in different collections
    never mean the same document, so the order between these does not matter.
    """
    by_collection: dict[str | None, list[InputDocument]] = {}
    for each in part:
        by_collection.setdefault(collection or each.collection, []).append(each)
    return by_collection


def _stored_rows(
    client: "Documents", prefix: bytes, part: list["InputDocument"], durability: "Durability | None"
) -> Refused:
    """Store documents that only have values."""
    pairs = ((prefix + each.key, cast(bytes, each.value)) for each in part)
    return {**client.set_many(pairs, durability=durability)}


def _stored_changes(
    client: "Documents", prefix: bytes, part: list["InputDocument"], durability: "Durability | None"
) -> Refused:
    """Store and delete documents by changes; a missing document counts as deleted."""
    from headwater.client import KeyNotFound, Write

    writes = (Write(prefix + each.key, each.value, each.flags, each.expiry) for each in part)
    errors = client.write_many(writes, durability=durability)
    return {prefix + part[at].key: error for at, error in errors.items() if not isinstance(error, KeyNotFound)}


def reading(file_format: Format | None, encoding: str, types: str, infer: bool) -> "Reading":
    """Return the checked options about the file, those of `export` as well; raises typer.BadParameter."""
    from headwater.cli.readers import TYPES, Reading

    try:
        codecs.lookup(encoding)
    except LookupError:
        raise typer.BadParameter(f"{encoding!r} is no encoding Python knows; latin-1, utf-16 and cp1252 are.") from None
    columns: dict[str, str] = {}
    for entry in filter(None, types.split(",")):
        column, _, kind = entry.rpartition("=")
        if not column:
            raise typer.BadParameter(f"{entry!r} is not COLUMN=TYPE.")
        if kind not in TYPES:
            raise typer.BadParameter(f"{kind!r} is none of {', '.join(TYPES)}.")
        columns[column] = kind
    return Reading(file_format.value if file_format else None, encoding, columns, infer)


class BadRows:
    """The rows that were left out: each is a line on stderr, up to a limit."""

    def __init__(self) -> None:
        self.rows: int = 0

    def __call__(self, error: InputError) -> None:
        """Report one row."""
        self.rows += 1
        if self.rows <= BAD_ROWS_TOLD:
            remark(f"{error}; left out")

    def __str__(self) -> str:
        return f"; {self.rows} rows left out" if self.rows else ""


class Load:
    """The progress of a load: the number of the file's documents that are acknowledged, that is on the node's
    disk.
    """

    def __init__(
        self, name: str, url: str, skipped: int, stored: "Stored", durability: "Durability | None" = None
    ) -> None:
        self.name: str = name
        self.url: str = url
        self.skipped: Final = skipped
        self.stored: int = 0
        self._store_part = stored
        self._durability = durability
        self._map: ClusterMap | None = None  # of the bucket that has all documents so far
        self._ids: dict[str, int] = {}  # of the collections that have documents, by name

    @contextmanager
    def reported_end(self) -> Iterator[None]:
        """Report the durable documents and the way to go on, whatever ends the load."""
        try:
            yield
        except (BucketMadeAnew, CollectionMadeAnew) as error:  # what earlier parts have stored is gone: no --skip
            raise CommandError(f"{error}; load {self.name} from its beginning, without --skip") from None
        except (HeadwaterError, OSError) as error:
            reason = system(error) if isinstance(error, OSError) else str(error)
            raise CommandError(f"{reason}; {self._durable()}") from None
        except Stopped as stop:
            stop.args = (f"{stop}; {self._durable()}",)
            raise

    def _check_place(self, client: "Client", place: "Documents") -> None:
        """Check that a part went to the bucket of the first one, and to the same collection. Errors as `store`."""
        from headwater.client.blocking import CollectionClient
        from headwater.client.collections import check_ids

        before = self._map or client.map
        if not before.is_same_bucket(client.map):
            raise BucketMadeAnew(self.url, *((each.uuid, each.vbuckets) for each in (before, client.map)))
        if isinstance(place, CollectionClient) and place.collection_id:
            check_ids(self._ids, {f"{place.scope}.{place.name}": place.collection_id})

    def _durable(self) -> str:
        total = self.skipped + self.stored
        if total == 0:
            return f"nothing of {self.name} is known to be stored"
        return f"the first {total} documents of it are stored; go on behind them with --skip {total}"

    def store(self, client: "Client", collection: str | None, prefix: bytes, part: list["InputDocument"]) -> None:
        """Store one part; the first refused document ends the command.

        Raises:
            BucketMadeAnew, CollectionMadeAnew: earlier parts went to another bucket, or collection, of the same name.
        """
        self._map = self._map or client.map
        for path_, some in _by_collection(part, collection).items():
            place = documents(client, path_)
            refusals = self._store_part(place, prefix, some, self._durability)
            self._check_place(client, place)
            if refusals:
                raise CommandError(_refusal_text(refusals))
        # Counted when all of the part is acknowledged: what a failed part stored is stored once more, which does no
        # harm.
        self.stored += len(part)


def _refusal_text(errors: Refused) -> str:
    """Return the error for documents that were not stored, or whose outcome is unknown."""
    from headwater.client import SyncWriteAmbiguous

    unknown_count = sum(isinstance(error, SyncWriteAmbiguous) for error in errors.values())
    key, error = next(iter(errors.items()))
    first = f"the first is {key.decode(errors='backslashreplace')!r}: {error}"
    if not unknown_count:
        return f"{len(errors)} documents were refused, {first}"
    refusals = (
        f"{len(errors) - unknown_count} documents were refused, and of " if len(errors) > unknown_count else "of "
    )
    return f"{refusals}{unknown_count} it is not known whether they were stored, {first}"


def _parts(documents: Iterator["InputDocument"]) -> Iterator[list["InputDocument"]]:
    """Cut the documents into lists that fit one pipelined call, also at a broken row."""
    part: list[InputDocument] = []
    try:
        for document in documents:
            part.append(document)
            if len(part) == DOCUMENTS_PER_CALL:
                yield part
                part = []
    except InputError:
        if part:
            yield part
        raise
    if part:
        yield part
