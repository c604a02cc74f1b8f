"""`headwater mirror`: keep a table equal to a bucket, until it is ended."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.forms import remark
from headwater.cli.options import (
    Bucket,
    Conf,
    Engine,
    EngineName,
    Loss,
    OnDataLoss,
    Password,
    Retry,
    TableName,
    User,
    check_answers,
    examples,
    loss_option,
    spark_settings,
)
from headwater.cli.reporting import (
    IdleRun,
    MetricsPort,
    ProgressFormat,
    ProgressOption,
    metered,
    reporter,
    told_losses,
)
from headwater.cli.screen import count
from headwater.cli.stopping import asked
from headwater.errors import OptionError
from headwater.protocol.dcp.persistence import read_min_persisted

if TYPE_CHECKING:
    from headwater.pipelines.mirror import MirrorProgress

EXAMPLES = examples(
    "headwater mirror couchbase://127.0.0.1:11210/default --to ./lake/default",
    "headwater mirror couchbase://127.0.0.1:11210/default --to ./lake/default --engine local",
    "headwater mirror couchbase://10.0.0.7:11210/orders --to ./lake/orders --unfold --once",
    "headwater mirror couchbase://10.0.0.7:11210/orders --to ./lake/orders --changelog --progress json",
    "headwater mirror couchbase://10.0.0.7:11210/store --to ./lake/store --collections shop.orders,shop.carts",
    "headwater mirror couchbase://10.0.0.7:11210/orders --to s3://lake/orders --engine local",
    "headwater mirror couchbase://10.0.0.7:11210/orders --table spark_catalog.shop.orders"
    " --conf spark.sql.catalogImplementation=hive",
)

Changelog = Annotated[
    bool, typer.Option("--changelog", help="Keep every change as a row, too, in a table named DIR_changes.")
]
Upkeep = Annotated[bool, typer.Option("--upkeep/--no-upkeep", help="Fold small files and remove old ones on the way.")]
Unfold = Annotated[bool, typer.Option("--unfold", help="Unfold JSON documents into columns.")]
UnfoldBefore = Annotated[bool, typer.Option("--json", hidden=True)]
"""The name that --unfold had: everywhere else --json is how a result is printed."""
CopyOnWrite = Annotated[
    bool, typer.Option("--copy-on-write", help="For readers without deletion vectors: write whole files anew.")
]
AsVariant = Annotated[bool, typer.Option("--variant", help="Keep JSON documents as VARIANT, in one column.")]
Aside = Annotated[
    bool, typer.Option("--quarantine", help="List documents that are no JSON in a table named DIR_quarantine.")
]
Collections = Annotated[
    str | None,
    typer.Option(
        "--collections", metavar="NAMES", help="A table for each, DIR/SCOPE/COLLECTION: all, or shop.orders,..."
    ),
]
OfScope = Annotated[str | None, typer.Option("--scope", metavar="NAME", help="Likewise, all collections of a scope.")]

MinPersisted = Annotated[
    str | None,
    typer.Option(
        "--min-persisted", metavar="COPIES", help="Take only what 1 to 4, majority or all copies have on disk."
    ),
]


class DroppedTables(StrEnum):
    """The fate of a table whose collection was dropped."""

    KEEP = "keep"
    DROP = "drop"


Dropped = Annotated[DroppedTables, typer.Option("--dropped", help="What becomes of a dropped collection's table.")]


def mirror(
    url: Bucket,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="DIR", help="The table's folder, or s3://BUCKET/PATH; made if missing."),
    ] = None,
    table: TableName = None,
    engine: Engine = EngineName.SPARK,
    once: Annotated[bool, typer.Option("--once", help="End when all changes of now are in the table.")] = False,
    changelog: Changelog = False,
    upkeep: Upkeep = True,
    unfold: Unfold = False,
    unfold_before: UnfoldBefore = False,
    copy_on_write: CopyOnWrite = False,
    variant: AsVariant = False,
    quarantine: Aside = False,
    collections: Collections = None,
    scope: OfScope = None,
    dropped: Dropped = DroppedTables.KEEP,
    min_persisted: MinPersisted = None,
    conf: Conf = None,
    on_data_loss: Loss = OnDataLoss.WARN,
    retry: Retry = None,
    shown: ProgressOption = ProgressFormat.TEXT,
    metrics: MetricsPort = None,
    user: User = None,
    password: Password = None,
) -> None:
    """Mirror a bucket into a Delta table: each document a row; deletions and rollbacks arrive there too.

    Ended at any moment, it goes on where the table stands when started again with the same DIR. Ctrl-C and SIGTERM end
    it with exit status 0, with --once 130 and 143. A node that is away or a disk that is full for a while is waited
    for, and reported.
    """
    if unfold_before:
        remark("--json unfolds documents into columns: its name is --unfold; for lines of JSON: --progress json")
    by_collection = _by_collection(collections, scope, dropped)
    named = _named(to, table, engine, spark_settings(conf), by_collection=bool(by_collection))
    _prepare(engine, is_quick=once and _stands(to or ""))
    reading = {} if min_persisted is None else {"minPersisted": str(read_min_persisted(min_persisted))}
    reading |= loss_option(on_data_loss)
    check_answers(url, user, password, retry, say_unread=not by_collection)
    shape = {"changelog": changelog, "json": unfold or unfold_before, "copy_on_write": copy_on_write}
    shape |= {"variant": variant, "quarantine": quarantine, "upkeep": upkeep, "once": once}
    level = "each table is level with its collection" if by_collection else "the table is level with the bucket"
    idle = IdleRun(_line, level)
    with asked(has_end=once) as stop, metered("mirror", metrics, reporter(shown, idle.line)) as told:
        run: Callable[..., Any] = _pipeline(by_collection)
        login = {"user": user, "password": password, "retry_seconds": retry, "reading": reading}
        run(url, to, engine=engine.value, stop=stop, **shape, **login, **named, **by_collection, **told)
        idle.tell(shown, unless=not once or stop())


def _prepare(engine: EngineName, *, is_quick: bool) -> None:
    """Look for Spark before the libraries of tables, which are the lesser part without it; begin what takes its time.

    Raises: SparkUnavailable.
    """
    if engine is EngineName.SPARK:
        from headwater.pipelines.session import check_spark

        check_spark(delta=True)
    elif not is_quick:
        from headwater.pipelines import early

        early.begin()


def _by_collection(collections: str | None, scope: str | None, dropped: DroppedTables) -> dict[str, Any]:
    """The arguments of a mirror with a table for each collection; none for a single table.

    Raises: OptionError.
    """
    if collections is None and scope is None:
        if dropped is not DroppedTables.KEEP:
            raise OptionError("dropped", dropped.value, "given with --collections or --scope")
        return {}
    from headwater.pipelines.collections import ChosenCollections

    ChosenCollections.of(collections, scope)
    return {"collections": collections, "scope": scope, "dropped": dropped.value}


def _named(
    to: str | None, table: str | None, engine: EngineName, conf: dict[str, str], *, by_collection: bool
) -> dict[str, Any]:
    """The arguments of a mirror about its table's name and Spark's session.

    Raises: OptionError.
    """
    if table is None and to is None:
        raise OptionError("to", "", "the table's folder or url; or give its name in a catalog, with --table")
    if conf and engine is EngineName.LOCAL:
        raise OptionError("conf", next(iter(conf)), "given with --engine spark: the local engine has no session")
    if table is None:
        return {"conf": conf} if conf else {}
    if by_collection:
        told = "given without --collections and --scope: those make a table for each below the folder of --to"
        name = "CREATE TABLE ... USING delta LOCATION 'FOLDER/SCOPE/COLLECTION'"
        raise OptionError("table", table, f"{told}; give those their names, in Spark SQL: {name}")
    from headwater.pipelines.catalog import IN_MEMORY, parse_name

    parts = parse_name(table)
    if engine is EngineName.LOCAL:
        told = "given with --engine spark: the local engine has no catalog; give the table's folder with --to"
        raise OptionError("table", table, told)
    kept = conf.get("spark.sql.catalogImplementation", IN_MEMORY) == IN_MEMORY
    if kept and (len(parts) < 3 or parts[0] == "spark_catalog"):
        told = "Spark's own catalog is in memory, so the name is gone when this ends"
        remark(f"{told}: --conf spark.sql.catalogImplementation=hive keeps it")
    return {"table": table, "conf": conf}


def _pipeline(by_collection: dict[str, Any]) -> Callable[..., Any]:
    if by_collection:
        from headwater.pipelines.collections import run as run_collections

        return run_collections
    from headwater.pipelines.mirror import run

    return run


def _stands(to: str) -> bool:
    """Whether there is a table already: then `--once` may well have nothing to do, and no worker is needed."""
    return "://" in to or Path(to, "_delta_log").exists()


def _line(progress: "MirrorProgress") -> str:
    parts = [
        f"batch {progress.batch}: the table holds {count(progress.changes)} changes",
        f"{count(progress.mutations)} stored and {count(progress.deletions)} deleted in {progress.seconds:.1f} s",
    ]
    if progress.collection:
        parts[0] = (
            f"batch {progress.batch}, of {progress.collection}: the tables hold {count(progress.changes)} changes"
        )
    if progress.rollbacks:
        parts.append(f"{progress.rollbacks} vbuckets rolled back")
    parts += told_losses(progress.data_loss)
    if progress.quarantined:
        parts.append(f"{count(progress.quarantined)} put into quarantine")
    parts += [f"does not fit its column: {field}" for field in progress.conflicts]
    return ", ".join(parts)
