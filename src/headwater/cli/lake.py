"""`headwater lake`: manual work on a mirror's table: show it, fold its files, remove old ones, compare it with a
bucket.
"""

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headwater.cli.ages import read_age
from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, report
from headwater.cli.meter import Meter
from headwater.cli.options import (
    Conf,
    DryRun,
    Password,
    TableName,
    User,
    connect,
    examples,
    paragraphs,
)
from headwater.cli.screen import count
from headwater.cluster.work import WorkOutcome, WorkPlan
from headwater.errors import OptionError, TableError
from headwater.pipelines.jobs.declared import session_settings

if TYPE_CHECKING:
    from headwater.lake.index import Indexes
    from headwater.lake.log import TableLog, TableState
    from headwater.lake.store import TableStore
    from headwater.lake.verify import Held

PART = ("follow", 70)
HELP = """A mirror's table by hand: look at it, fold its files, remove old ones, compare it with the bucket.

A running mirror does all of it by itself, unless told --no-upkeep."""
EXAMPLES = examples(
    "headwater lake describe ./lake/default",
    "headwater lake verify ./lake/default --bucket couchbase://127.0.0.1:11210/default",
    "headwater lake vacuum ./lake/default --dry-run",
    "headwater lake describe --table spark_catalog.shop.orders --conf spark.sql.catalogImplementation=hive",
)
EXITS_OF = {
    "describe": {1: "there is no table"},
    "verify": {1: "an index, a row or the comparison is wrong; each is a line"},
    "optimize": {1: "there is no table"},
    "vacuum": {1: "there is no table"},
    "repair": {1: "there is no table, or nothing of its log can be trusted"},
}
HOUR = timedelta(hours=1)

Place = Annotated[str | None, typer.Argument(metavar="DIR", help="The table's folder or url, or that of a change log.")]


def describe(place: Place = None, table: TableName = None, conf: Conf = None) -> None:
    """Print what a table is, in numbers, as JSON."""
    from headwater.lake import facts

    description = facts.describe(_table(_resolved_place(place, table, conf))[0])
    answer(json.dumps(description, indent=1), **description)


def optimize(
    place: Place = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Fold all files, not only the small and dead ones.")
    ] = False,
    dry: DryRun = False,
    table: TableName = None,
    conf: Conf = None,
) -> None:
    """Fold small files into larger ones, and rewrite those that are mostly dead.

    A mirror may run meanwhile: it looks its rows up anew.
    """
    from headwater.pipelines import tables

    folder = _resolved_place(place, table, conf)
    with Meter("optimize", "files") as meter:
        outcome = (tables.fold_plan if dry else tables.fold)(folder, meter.show, everything=everything)
    _tell(outcome)


def vacuum(
    place: Place = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="12h, 2d, ..., instead of the table's own retention, 7 days."),
    ] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only tell which files would go.")] = False,
    table: TableName = None,
    conf: Conf = None,
) -> None:
    """Remove files that no version of the table within the retention needs, and those of attempts that failed.

    Versions older than that can't be read any more.
    """
    from headwater.pipelines import tables

    age = None if older_than is None else read_age("older-than", older_than, before="h", at_least=HOUR)
    folder, seconds = _resolved_place(place, table, conf), None if age is None else age.total_seconds()
    with Meter("vacuum", "files") as meter:
        outcome = (tables.vacuum_plan if dry else tables.vacuum)(folder, meter.show, seconds=seconds)
    _tell(outcome)


def _tell(outcome: WorkPlan | WorkOutcome) -> None:
    if isinstance(outcome, WorkPlan):
        answer("\n".join([*outcome.facts.get("files", ()), *outcome.lines]), **outcome.facts)
    else:
        report(outcome.line, **outcome.facts)


def verify(
    place: Place = None,
    bucket: Annotated[
        str | None, typer.Option("--bucket", metavar="URL", help="Compare with this bucket, which nobody writes to.")
    ] = None,
    table: TableName = None,
    conf: Conf = None,
    user: User = None,
    password: Password = None,
) -> None:
    """Check that the log has no gap and no file is missing, each index against its file, that no key has two rows, and
    that the table is what the bucket is.

    Exit status 1 when something is wrong; `repair` mends it. Keys and seqnos of all documents are held in memory.
    """
    from headwater.lake.iceberg.entry import differences as published_differences
    from headwater.lake.verify import check_indexes, check_quarantine, missing, of_table, strays, without
    from headwater.pipelines.repair import TableDamage

    log, indexes = _table(_resolved_place(place, table, conf))
    missing_files = missing(log.store, log.state)
    problems = TableDamage(strays(log), missing_files, []).lines()
    state = without(log.state, missing_files)
    files = len(state.files) * (1 if indexes is None else 2)
    with Meter("verify", "files") as meter:
        table_rows, twice = of_table(log.store, state, lambda rows_done: meter.show(rows_done, files))
        problems += twice if indexes is not None else []
        if indexes is not None:
            read = len(state.files)
            problems += check_indexes(log.store, state, indexes, lambda rows_done: meter.show(read + rows_done, files))
    if (quarantine := _quarantine_of(log)) is not None:
        quarantine_rows, twice = of_table(*quarantine)
        problems += twice + check_quarantine(table_rows, quarantine_rows)
        table_rows = quarantine_rows | table_rows  # of a document without text for a key the only row is there
    problems += published_differences(log)
    summary = f"{count(len(table_rows))} rows"
    if bucket is not None:
        differences, line = _differences(
            table_rows, _of_bucket(bucket, user, password), None if quarantine else log.state
        )
        problems += differences
        summary += line
    line = "\n".join(problems) or f"{summary}: all is well"
    (answer if problems else report)(line, rows=len(table_rows), problems=problems)
    if problems:
        raise CommandError(f"{summary}: {count(len(problems))} problems")


def repair(
    place: Place = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Let the bucket be read anew, though nothing seems wrong with the table.")
    ] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only tell what is wrong.")] = False,
    table: TableName = None,
    conf: Conf = None,
) -> None:
    """Mend a table that `verify` finds broken: commits behind a gap in its log, files that are missing, keys with two
    rows.

    What is missing is not guessed: the mirror's next batch reads the whole bucket anew, and replaces every row.
    """
    from headwater.pipelines.repair import repair as mended

    folder = _resolved_place(place, table, conf)
    with Meter("repair", "files") as meter:
        lines = mended(folder, anew=anew, dry=dry, tell=lambda count: meter.show(count, None))
    text = "\n".join(lines) or "nothing is wrong that a repair mends"
    (answer if dry else report)(text, problems=lines)


def _resolved_place(place: str | None, table: str | None, conf: list[str] | None) -> str:
    """Return the table's place; for its name in a catalog Spark is started, and ended again.

    Raises: OptionError, TableError.
    """
    if (place is None) == (table is None):
        raise OptionError("table", table or "", "the table's name, given instead of DIR: one of the two is needed")
    settings = session_settings(conf or ())
    if place is not None:
        if settings:
            raise OptionError("conf", next(iter(settings)), "given with --table: for a folder no Spark is started")
        return place
    from headwater.pipelines.catalog import NamedTable
    from headwater.pipelines.query import own_session
    from headwater.pipelines.table_names import parse_name

    parse_name(table or "")
    with own_session("headwater-lake", delta=True, settings=settings) as spark:
        named_table = NamedTable(spark, table or "")
        if (located := named_table.registered_place()) is None:
            raise TableError(
                named_table.name, "the catalog has no table of this name: SHOW TABLES lists them, or give DIR"
            )
        return located


def _table(place: str) -> "tuple[TableLog, Indexes | None]":
    from headwater.pipelines.tables import open_table

    return open_table(place)


def _quarantine_of(log: "TableLog") -> "tuple[TableStore, TableState] | None":
    """Return the quarantine in the table's record; None if it has none."""
    from headwater.lake.commit import record_of
    from headwater.lake.log import TableLog
    from headwater.lake.places import QUARANTINE, store_of

    record = record_of(log.store.root, log.state)
    if record.kind != "documents" or record.quarantine is None:
        return None
    quarantine_log = TableLog(store_of(f"{log.store.root}{QUARANTINE}"))
    state = quarantine_log.at(record.quarantine)
    return (quarantine_log.store, state) if state is not None else None


def _differences(table_rows: "Held", bucket_rows: "Held", texts: "TableState | None") -> tuple[list[str], str]:
    """Return the differences between rows and a bucket, and the line about the bucket; `texts` is the table's state if
    it leaves out documents whose keys are no text.
    """
    from headwater.lake.verify import compare, left_out, stale_records

    unkept = left_out(texts, bucket_rows) if texts is not None else {}
    line = f", {count(len(bucket_rows))} documents"
    line += f", {count(len(unkept))} of them left out, for their keys are not UTF-8" if unkept else ""
    stale = stale_records(table_rows, bucket_rows)
    line += f", {count(stale)} rows are old records of transactions (repair --anew takes them out)" if stale else ""
    return compare(table_rows, {name: place for name, place in bucket_rows.items() if name not in unkept}), line


def _of_bucket(url: str, user: str | None, password: str | None) -> "Held":
    from headwater.wire.opcodes import Opcode

    rows: dict[tuple[int, bytes], tuple[int, int]] = {}
    count = 0
    with connect(url, user, password) as client, Meter("compare", "changes") as meter:
        total = sum(client.seqnos().values())
        for batch in client.batches(until="now", no_value=True):
            names = ("opcode", "vbucket", "key", "seqno", "cas")
            columns: list[Any] = [batch.records.column(name).to_pylist() for name in names]
            for opcode, vbucket, key, seqno, cas in zip(*columns, strict=True):
                if opcode == Opcode.DCP_MUTATION:
                    rows[vbucket, key] = (seqno, cas - (1 << 64) if cas >> 63 else cas)
                else:
                    rows.pop((vbucket, key), None)
            count += len(columns[0])
            meter.show(min(count, total), total)
    return rows


group: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for _name, _command, _examples in (
    ("describe", describe, examples("headwater lake describe ./lake/default")),
    ("verify", verify, examples("headwater lake verify ./lake/default --bucket couchbase://127.0.0.1:11210/default")),
    (
        "optimize",
        optimize,
        examples("headwater lake optimize ./lake/default", "headwater lake optimize ./lake/default --all"),
    ),
    ("vacuum", vacuum, examples("headwater lake vacuum ./lake/default --older-than 24h")),
    (
        "repair",
        repair,
        examples("headwater lake repair ./lake/default --dry-run", "headwater lake repair ./lake/default"),
    ),
):
    group.command(_name, help=paragraphs(_command.__doc__), epilog=_examples)(_command)
