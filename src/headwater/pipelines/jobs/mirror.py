"""The mirror, as users see it: its options, its progress and its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headwater.errors import OptionError
from headwater.options import option
from headwater.pipelines.jobs.declared import JobBucket, OnEngines, losses_line, session_settings
from headwater.protocol.dcp.persistence import MinPersisted, read_min_persisted

if TYPE_CHECKING:
    from headwater.lake.writer import TaskResult


@dataclass
class MirrorProgress:
    """Progress of a mirror, reported after each batch.

    Attributes:
        batch: how many batches are in the table, over all runs.
        changes: seqnos of the bucket that the table covers, over all vbuckets. Equal to the sum of the nodes' high
            seqnos when the table is level with them.
        mutations, deletions: changes of this run (expirations count as deletions).
        rollbacks: vbuckets whose lost changes this run took back.
        data_loss: vbuckets of which deletions were purged before this run read them; each was read again whole.
        quarantined: how many changes of this run brought a document that does not fit into the quarantine.
        seconds: since this run began.
        retries: how often this run began anew after a failure that passed.
        problem: the failure of the last retry, until a batch succeeded.
        conflicts: JSON fields that do not fit their column (only when values are unfolded).
        collection: the collection of the last batch, in a mirror with a table for each collection; the numbers are of
            all tables together then.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("mutations", "deletions")

    batch: int = 0
    changes: int = 0
    mutations: int = 0
    deletions: int = 0
    rollbacks: int = 0
    quarantined: int = 0
    seconds: float = 0.0
    retries: int = 0
    problem: str = ""
    conflicts: list[str] = field(default_factory=list)
    data_loss: list[int] = field(default_factory=list)
    collection: str = ""

    def count(self, results: Sequence[TaskResult]) -> None:
        """Add the results of a batch's tasks."""
        for result in results:
            self.mutations += result.counts.get("mutations", 0)
            self.deletions += result.counts.get("deletions", 0)
            self.rollbacks += result.counts.get("rollbacks", 0)
            self.quarantined += result.counts.get("quarantined", 0)
        self.conflicts = sorted({*self.conflicts, *(line for result in results for line in result.conflicts)})

    def note_losses(self, end: Mapping[str, Any]) -> None:
        """Note the data losses that the offset of a batch names."""
        self.data_loss = sorted({*self.data_loss, *map(int, end.get("dataLoss", ()))})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON types."""
        return asdict(self)


@dataclass
class Mirror(OnEngines[MirrorProgress]):
    """Mirror a bucket into a Delta table: each document a row; deletions and rollbacks arrive there too.

    Ended at any moment, it goes on where the table stands when started again with the same DIR. Ctrl-C and SIGTERM end
    it with exit status 0, with --once 130 and 143. A node that is away or a disk that is full for a while is waited
    for, and reported.
    """

    NAME: ClassVar[str] = "mirror"
    PART: ClassVar[tuple[str, int]] = ("follow", 10)
    WORK: ClassVar[str] = "headwater.pipelines.mirror:work"
    DONE: ClassVar[str] = "in the table"
    SOURCE: ClassVar[tuple[str, ...]] = (
        "user",
        "password",
        "min_persisted",
    )  # collections have a table each, and a read each
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater mirror couchbase://127.0.0.1:11210/default --to ./lake/default",
        "headwater mirror couchbase://127.0.0.1:11210/default --to ./lake/default --engine local",
        "headwater mirror couchbase://10.0.0.7:11210/orders --to ./lake/orders --unfold --once",
        "headwater mirror couchbase://10.0.0.7:11210/orders --to ./lake/orders --changelog --progress json",
        "headwater mirror couchbase://10.0.0.7:11210/store --to ./lake/store --collections shop.orders,shop.carts",
        "headwater mirror couchbase://10.0.0.7:11210/orders --to s3://lake/orders --engine local",
        "headwater mirror couchbase://10.0.0.7:11210/orders --table spark_catalog.shop.orders"
        " --conf spark.sql.catalogImplementation=hive",
    )

    source: str = option(..., "couchbase://HOST:PORT/BUCKET", positional=True, metavar="URL", env="HEADWATER_NODE")
    to: str | Path | None = option(None, "The table's folder, or s3://BUCKET/PATH; made if missing.", metavar="DIR")
    _: KW_ONLY
    table: str | None = option(
        None, "The table's name in a catalog of Spark's session: catalog.schema.name.", metavar="NAME"
    )
    changelog: bool = option(False, "Keep every change as a row, too, in a table named DIR_changes.")
    history: bool = option(False, "With --changelog: keep every version that the nodes still have, not only the last.")
    before: bool = option(
        False, "With --changelog: keep with every version what it replaced; the bucket keeps a history."
    )
    upkeep: bool = option(True, "Fold small files and remove old ones on the way.", flag="upkeep/--no-upkeep")
    unfold: bool = option(False, "Unfold JSON documents into columns.")
    json: bool = option(False, "The name that --unfold had.", hidden=True)
    copy_on_write: bool = option(False, "For readers without deletion vectors: write whole files anew.")
    variant: bool = option(False, "Keep JSON documents as VARIANT, in one column.")
    format: str = option(
        "delta", "The table's format; delta,iceberg: the same data files for readers of both.",
        choices=("delta", "iceberg", "delta,iceberg"),
    )  # fmt: skip
    catalog: str | None = option(
        None,
        "A catalog of Iceberg that follows the table, NAME:NAMESPACE.TABLE; with --collections NAME or NAME:NAMESPACE. "
        "NAME is in pyiceberg's settings.",
        metavar="NAME",
    )  # fmt: skip
    row_ids: bool = option(
        False, "Let rows keep their ids through updates: row tracking of Delta, row lineage of Iceberg."
    )
    widen: bool = option(
        False, "With --unfold: let columns of numbers get wider types. delta-rs and Polars can't read such a table."
    )
    quarantine: bool = option(False, "List documents that are no JSON in a table named DIR_quarantine.")
    collections: str | None = option(
        None, "A table for each, DIR/SCOPE/COLLECTION: all, or shop.orders,...", metavar="NAMES"
    )
    scope: str | None = option(None, "Likewise, all collections of a scope.", metavar="NAME")
    dropped: str = option("keep", "What becomes of a dropped collection's table.", choices=("keep", "drop"))
    min_persisted: MinPersisted | None = option(
        None, "Take only what 1 to 4, majority or all copies have on disk.", metavar="COPIES", read=read_min_persisted
    )
    conf: Mapping[str, str] = option(
        {}, "A setting of Spark's session; may be given more than once.",
        metavar="NAME=VALUE", many=True, read=session_settings,
    )  # fmt: skip

    def source_options(self) -> dict[str, str]:
        """Return the options of the source, with the versions that the change log keeps."""
        versions = {name: "true" for name in ("history", "before") if getattr(self, name)}
        return {**versions, **super().source_options()}

    @property
    def by_collection(self) -> bool:
        """Return True if each collection has a table of its own."""
        return self.collections is not None or self.scope is not None

    @property
    def work(self) -> str:
        """The function that does the work, as "module:function"."""
        return "headwater.pipelines.collections:work" if self.by_collection else self.WORK

    @property
    def LEVEL(self) -> str:  # type: ignore[override]  # noqa: N802 - of a mirror it depends on the options
        """The message of a run with --once that found nothing to do."""
        return "each table is level with its collection" if self.by_collection else "the table is level with the bucket"

    def check(self) -> None:
        """Check each option, the table's place and name, and the choice of collections. Raises OptionError."""
        super().check()
        if self.by_collection:
            self._check_collections()
        elif self.dropped != "keep":
            raise OptionError("dropped", self.dropped, "given with --collections or --scope")
        if self.table is None and self.to is None:
            raise OptionError("to", "", "the table's folder or url; or give its name in a catalog, with --table")
        for name in ("history", "before"):
            if getattr(self, name) and not self.changelog:
                text = "given with --changelog: the table has the last version of each document alone"
                raise OptionError(name, "true", text)
        if self.widen and not (self.unfold or self.json):
            raise OptionError("widen", "true", "given with --unfold: other tables have no columns of documents")
        if self.catalog is not None:
            self._check_catalog(self.catalog)
        if self.conf and self.engine == "local":
            raise OptionError(
                "conf", next(iter(self.conf)), "given with --engine spark: the local engine has no session"
            )
        if self.table is None:
            return
        if self.format == "iceberg":
            text = "given with --to: the table's name is for a catalog that has it as a table of Delta"
            raise OptionError("table", self.table, text)
        if self.by_collection:
            text = "given without --collections and --scope: those make a table for each below the folder of --to"
            name = "CREATE TABLE ... USING delta LOCATION 'FOLDER/SCOPE/COLLECTION'"
            raise OptionError("table", self.table, f"{text}; give those their names, in Spark SQL: {name}")
        if self.engine == "local":
            text = "given with --engine spark: the local engine has no catalog; give the table's folder with --to"
            raise OptionError("table", self.table, text)

    def _check_catalog(self, name: str) -> None:
        from headwater.lake.iceberg.place import CatalogFolder, CatalogName

        (CatalogFolder if self.by_collection else CatalogName).parse(name)
        if "iceberg" not in self.format:
            raise OptionError("catalog", name, "given with --format iceberg or delta,iceberg")

    def _check_collections(self) -> None:
        from headwater.client.collections import parse_path, read_names

        if self.scope is not None and self.collections is not None:
            raise OptionError("scope", self.scope, "given without collections: it is one or the other")
        for name in () if self.collections is None else read_names(self.collections) or ():
            parse_path(name)

    def prepare(self) -> None:
        """Check that Spark can be started; without Spark, start the server of worker processes.

        With `once` and an existing table the server is not started yet, since there may be nothing to do. The check for
        Spark comes before that for the libraries of tables, which are easier to install. Raises SparkUnavailable.
        """
        to = str(self.to or "")
        if self.engine == "spark":
            from headwater.pipelines.session import check_spark

            check_spark(delta=True)
        elif not (self.once and ("://" in to or Path(to, "_delta_log").exists())):
            from headwater.pipelines import early

            early.begin()

    def remarks(self) -> Iterator[str]:
        """Yield a remark about the new meaning of --json, and one about names in Spark's own catalog when that is in
        memory.
        """
        if self.json:
            yield "--json unfolds documents into columns: its name is --unfold; for lines of JSON: --progress json"
        if self.table is None or self.engine == "local":
            return
        from headwater.pipelines.table_names import IN_MEMORY, SESSION_CATALOG, parse_name

        parts = parse_name(self.table)
        in_memory = self.conf.get("spark.sql.catalogImplementation", IN_MEMORY) == IN_MEMORY
        if in_memory and (len(parts) < 3 or parts[0] == SESSION_CATALOG):
            text = "Spark's own catalog is in memory, so the name is gone when this ends"
            yield f"{text}: --conf spark.sql.catalogImplementation=hive keeps it"

    def buckets(self) -> Iterator[JobBucket]:
        """Yield the bucket."""
        yield JobBucket(self.source, self.user, self.password, not self.by_collection)

    def line(self, progress: MirrorProgress) -> str:
        """Return the progress after a batch as a line for people."""
        tables_text = f", of {progress.collection}: the tables hold" if progress.collection else ": the table holds"
        parts = [
            f"batch {progress.batch}{tables_text} {progress.changes:,} changes",
            f"{progress.mutations:,} stored and {progress.deletions:,} deleted in {progress.seconds:.1f} s",
        ]
        if progress.rollbacks:
            parts.append(f"{progress.rollbacks} vbuckets rolled back")
        parts += losses_line(progress.data_loss)
        if progress.quarantined:
            parts.append(f"{progress.quarantined:,} put into quarantine")
        parts += [f"does not fit its column: {conflict}" for conflict in progress.conflicts]
        return ", ".join(parts)
