"""The mirror of a bucket's collections: a table for each existing one, `<folder>/<scope>/<collection>`.

Each table is a mirror by itself (mirror.py), with its own record, positions, commits and streams, on which the nodes
send the changes of its collection. So no table depends on another, and a crash between two commits harms neither. This
file follows all of them: it looks up the bucket's collections, brings the tables with news up to date, one after the
other, and handles dropped collections.

A collection is identified by its id: one that was dropped and created again under the same name is another one, without
the old documents. So its table begins anew. The old table is removed, or moved aside as `<collection>.dropped-<id>`; no
collection's name has a dot.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headwater.client.collections import collection_id, parse_path, read_names, scope_id
from headwater.errors import HeadwaterError, OptionError, TableAway, TableError
from headwater.lake.commit import Record, record_of
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.iceberg.place import OWN, CatalogFolder
from headwater.lake.layout import DATA, METADATA, VECTORS
from headwater.lake.log import FOLDER, TableLog
from headwater.lake.places import CHANGES, QUARANTINE, is_url, place_of, store_of
from headwater.lake.store import TableStore
from headwater.lake.upkeep import Maintenance
from headwater.lake.writer import TaskResult
from headwater.pipelines.attempts import Attempts, attempts_of
from headwater.pipelines.held import HeldTables, is_of_catalog
from headwater.pipelines.job import engine_of
from headwater.pipelines.jobs import Mirror
from headwater.pipelines.local import Folds
from headwater.pipelines.mirror import MirrorProgress, do_upkeep, end_upkeep, retry_options, sink_of
from headwater.pipelines.query import session_of
from headwater.pipelines.sink import TableSink, changes_in
from headwater.pipelines.table import DOCUMENTS, Making
from headwater.pipelines.tasks import TASK_CHANGES
from headwater.spark.history import BranchHistory
from headwater.spark.nodes import SourceNodes
from headwater.spark.offsets import Offset
from headwater.spark.settings import parse
from headwater.wire.manifest import CollectionsManifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Dropped = Literal["keep", "drop"]
"""The fate of a table whose collection was dropped."""

ASIDE, REMOVING = ".dropped-", ".removing-"
TRACES = "_dropped"
"""The folder with a small file for each collection whose table was put away, called like the collection."""

HIDDEN_SECONDS = 60.0
"""The time between two looks, and reports, at tables whose collection is not shown."""

ENDS = ("", CHANGES, QUARANTINE)
"""The ends of the names of a table, its change log and its quarantine."""


class MirroredCollection(NamedTuple):
    """A collection with a table."""

    scope: str
    name: str
    id: int

    @property
    def path(self) -> str:
        """The collection's name, in the form of `--collections`."""
        return f"{self.scope}.{self.name}"


@dataclass(frozen=True)
class ChosenCollections:
    """The collections to mirror.

    Args:
        collections: names "scope.collection"; None for all of the scope, or of the bucket.
        scope: the only scope; None for all.
    """

    collections: frozenset[str] | None = None
    scope: str | None = None

    @classmethod
    def of(cls, collections: str | None, scope: str | None) -> ChosenCollections:
        """Read a user's choice: names with commas or "all", or a scope.

        Raises:
            OptionError: both or neither, or an invalid name.
        """
        if scope is not None and collections is not None:
            raise OptionError("scope", scope, "given without collections: it is one or the other")
        if scope is None and collections is None:
            raise OptionError("collections", "", '"all", or names like "scope.collection"; or a scope is given')
        names = None if collections is None else read_names(collections)
        return cls(None if names is None else frozenset(".".join(parse_path(name)) for name in names), scope)

    def has(self, scope: str, name: str) -> bool:
        """Return True if a collection of this name is chosen."""
        if self.collections is not None:
            return f"{scope}.{name}" in self.collections
        return self.scope in (None, scope)

    def found_in(self, manifest: CollectionsManifest) -> list[MirroredCollection]:
        """Return the chosen collections that exist."""
        every = ((scope.name, collection) for scope, collection in manifest.each_collection())
        return [MirroredCollection(scope, each.name, each.id) for scope, each in every if self.has(scope, each.name)]

    def check(self, manifest: CollectionsManifest, present: frozenset[str]) -> None:
        """Check that each chosen name is a scope or collection of the bucket, or has a table already.

        Args:
            present: the paths of tables.

        Raises:
            UnknownCollection, UnknownScope: a name is neither.
        """
        for path in sorted((self.collections or frozenset()) - present):
            collection_id(manifest, *parse_path(path))
        if self.scope is not None and not any(path.startswith(f"{self.scope}.") for path in present):
            scope_id(manifest, self.scope)


class Tables:
    """The tables of one bucket's collections in a folder.

    Args:
        folder: a path or url.
        bucket: the name of the bucket.
        dropped: the rule for a table whose collection was dropped.

    Raises:
        TableError: the folder is a table itself.
    """

    def __init__(self, folder: str | Path, bucket: str, dropped: Dropped = "keep") -> None:
        self.folder: str = place_of(folder)
        self.bucket: str = bucket
        self.dropped = dropped
        if store_of(self.folder).list(FOLDER):
            log = TableLog(store_of(self.folder))
            message = f"it is a table itself, with {len(log.refresh().files)} files"
            raise TableError(self.folder, f"{message}: choose another place for the tables of collections")

    def place(self, scope: str, name: str) -> str:
        """Return the place of a collection's table."""
        return f"{self.folder}/{scope}/{name}"

    def known(self, choice: ChosenCollections) -> dict[str, tuple[str, str]]:
        """Return the tables of chosen collections: path to (scope, name)."""
        names = ((scope, name) for scope in self._folders("") for name in self._folders(scope))
        return {f"{scope}.{name}": (scope, name) for scope, name in names if choice.has(scope, name)}

    def paths_ever_mirrored(self, choice: ChosenCollections) -> frozenset[str]:
        """Return the paths of chosen collections that have a table, or had one that was removed or moved aside."""
        traced_paths = (file.path.rpartition("/")[2] for file in store_of(self.folder).list(TRACES))
        return frozenset(self.known(choice)) | {path for path in traced_paths if choice.has(*path.split(".", 1))}

    def settle(
        self,
        manifest: CollectionsManifest,
        choice: ChosenCollections,
        newest_manifest: Callable[[str, str], CollectionsManifest],
        held: HeldTables | None = None,
    ) -> list[str]:
        """Handle the tables of dropped collections; return the places that were removed or moved aside.

        Args:
            manifest: a node's manifest; it may lack collections in which the user has no rights.
            choice: the chosen collections.
            newest_manifest: returns a manifest with all collections, or raises; called with the path of a collection
                that `manifest` lacks, and its table's place.
            held: the tables to leave alone; one that its catalog does not drop gets there. None: that is an error.

        Raises:
            CatalogRefused, CatalogAway: a table's catalog does not drop it, without `held`.
            TableError: another bucket's table; or one on an object store that would have to be moved aside.
        """
        left_places = []
        if not is_url(self.folder):
            for scope in self._folders(""):
                self._remove_moved(f"{self.folder}/{scope}")
        for path, named in self.known(choice).items():
            if held is not None and path in held:
                continue
            try:
                left_places += self._settle(named, manifest, newest_manifest)
            except HeadwaterError as error:
                if held is None or not is_of_catalog(error):
                    raise
                held.hold(path, error)
        return left_places

    def _settle(
        self,
        named: tuple[str, str],
        manifest: CollectionsManifest,
        newest_manifest: Callable[[str, str], CollectionsManifest],
    ) -> list[str]:
        """Handle a table if its collection was dropped; as `settle`."""
        scope, name = named
        place, left_places = self.place(scope, name), list[str]()
        collection_id = self._to_put_away(scope, name, manifest)
        if collection_id is not None:
            collection_id = self._to_put_away(scope, name, newest_manifest(f"{scope}.{name}", place))
        elif manifest.collection(scope, name) is None and self._is_half_removed(scope, name):
            left_places += self._remove_objects(place)
        if collection_id is not None:
            # Whoever names it goes on when he starts again, though nothing else tells of it any more.
            store_of(self.folder).write(f"{TRACES}/{scope}.{name}", f"{collection_id:x}\n".encode())
            left_places += self._put_away(place, collection_id)
        return left_places

    def _folders(self, below: str) -> Iterator[str]:
        """Yield the names of the folders of scopes or tables; neither those of moved tables, nor the mirror's own."""
        names = store_of(self.folder).folders(below)
        own_prefixes = (".", "_delta", "_iceberg", "_index", "_check", TRACES)
        return (name for name in names if not name.startswith(own_prefixes) and "." not in name)

    def _to_put_away(self, scope: str, name: str, manifest: CollectionsManifest) -> int | None:
        """Return the id of a dropped collection whose table must be removed or moved aside; None if there is none.

        Its table goes if the rule is "drop", or if the collection was created again under its name.
        """
        collection_id = self._dropped_id(scope, name, manifest)
        return collection_id if self.dropped == "drop" or manifest.collection(scope, name) is not None else None

    def _dropped_id(self, scope: str, name: str, manifest: CollectionsManifest) -> int | None:
        """Return the id of a table's collection if it no longer exists."""
        place = self.place(scope, name)
        record = recorded(place)
        if record is None or record.kind != DOCUMENTS:
            return None
        if record.bucket != self.bucket:
            raise TableError(place, f'it is of the bucket "{record.bucket}", not "{self.bucket}": choose another place')
        coverage, ids = Offset.from_json(record.end).coverage, _ids(record)
        # An id never gets another name: the bucket was made anew, whose manifests are numbered from the beginning.
        if (renamed := _renamed(ids, scope, name, manifest)) is not None:
            return renamed
        if coverage is not None and manifest.uid < coverage.manifest_uid:
            return None  # a node that does not know of the newest yet
        return next((number for number in ids if not manifest.has(number)), None)

    def _is_half_removed(self, scope: str, name: str) -> bool:
        """Return True if the table of a collection was half removed by an earlier run that was cut off."""
        if not (is_url(self.folder) and self.dropped == "drop" and self.was_put_away(scope, name)):
            return False
        # One that says which collection it has is whole: the node that answered does not know of that yet.
        return not _ids(recorded(self.place(scope, name)))

    def was_put_away(self, scope: str, name: str) -> bool:
        """Return True if a collection of this name had a table that was removed or moved aside with it."""
        return store_of(self.folder).exists(f"{TRACES}/{scope}.{name}")

    def _put_away(self, place: str, number: int) -> list[str]:
        if is_url(place):
            return self._remove_objects(place, number)
        ends = [end for end in ENDS if not end or _is_beside(f"{place}{end}")]
        if not self._leave_catalogs(place, ends, number):
            return []  # another mirror was first, and this is the new one's
        new_place = self._free_name(place, number, ends)
        moved_ends: list[str] = []
        # The table goes last, for it tells that there is something to put away: a run that is cut off before that is
        # gone on with. Those beside it would be taken for the next table's.
        for end in reversed(ends):
            Path(f"{place}{end}").rename(f"{new_place}{end}")
            moved_ends.append(end)
        if number not in _ids(recorded(new_place)):  # as above, but just now
            for end in reversed(moved_ends):
                Path(f"{new_place}{end}").rename(f"{place}{end}")
            return []
        if self.dropped == "drop":
            self._remove_moved(str(Path(place).parent))
        return [f"{place}{end}" for end in ends]

    def _leave_catalogs(self, place: str, ends: Sequence[str], number: int | None) -> bool:
        """Drop a table, and those beside it, from the catalogs that follow them, before their files are moved or
        removed.

        Args:
            place: of the table.
            ends: of the tables.
            number: the id of the table's collection; None if the table was half removed by an earlier run.

        Returns: False if another mirror has put the table away.
        """
        # The table's own is opened last. While it has the id nobody has put it away, nor made those beside the next
        # one; from here on the tables that were opened leave, whatever lies at their places.
        logs = [_opened_log(f"{place}{end}") for end in reversed(ends)]
        ids = _ids(_record_in(logs[-1]))
        if ids if number is None else number not in ids:
            return False
        try:
            for log in reversed(logs):
                _leave_catalog(log, self.bucket)
        except TableAway:
            return False
        return True

    def _free_name(self, place: str, number: int, ends: Sequence[str]) -> str:
        """Return a free name for a table to be moved, also free with each of `ends` for its neighbours.

        An id may come again in a bucket that was created anew, so the plain name may be taken.
        """
        name = f"{place}{REMOVING if self.dropped == 'drop' else ASIDE}{number:x}"
        names = itertools.chain([name], (f"{name}-{count}" for count in itertools.count(2)))
        return next(each for each in names if not any(Path(f"{each}{end}").exists() for end in ends))

    @staticmethod
    def _remove_moved(scope: str) -> None:
        """Remove the tables of a scope's folder that were moved away for removal, also by an earlier run."""
        for each in Path(scope).glob(f"*{REMOVING}[0-9a-f]*"):
            with suppress(FileNotFoundError):  # another mirror does the same
                shutil.rmtree(each)

    def _remove_objects(self, place: str, number: int | None = None) -> list[str]:
        if self.dropped == "keep":
            message = "its collection was dropped and made again, and a table on an object store can't be moved aside"
            raise TableError(place, f"{message}: mirror with --dropped drop, or into another place")
        ends = [end for end in ENDS if not end or _is_beside(f"{place}{end}")]
        if not self._leave_catalogs(place, ends, number):
            return []
        places = [f"{place}{end}" for end in ends]
        # What tells that there is something to remove goes last: the table after those beside it, of each its log at
        # the end, and of that the first commit.
        for each in reversed(places):
            store = store_of(each)
            for folder in ("", DATA, VECTORS, METADATA, "_index", OWN, FOLDER):
                for file in reversed(store.list(folder)):
                    store.remove(file.path)
            _remove_stragglers(store)
        return places


def _remove_stragglers(store: TableStore) -> None:
    """Remove commits that another mirror wrote behind removed ones, before the next table would include them. A log
    that begins at version 0 belongs to the next table already.
    """
    commits = store.list(FOLDER)
    if not any(file.path.endswith(f"/{0:020d}.json") for file in commits):
        for file in commits:
            store.remove(file.path)


def _ids(record: Record | None) -> tuple[int, ...]:
    """Return the ids of a table's collections."""
    coverage = Offset.from_json(record.end).coverage if record else None
    return tuple(coverage.collections or ()) if coverage else ()


def _renamed(ids: Iterable[int], scope: str, name: str, manifest: CollectionsManifest) -> int | None:
    """Return the first of some ids that is another collection's than the one with this name; None if there is none."""
    others = (
        collection.id
        for there, collection in manifest.each_collection()
        if (there.name, collection.name) != (scope, name)
    )
    return next(iter(set(ids).intersection(others)), None)


def _is_beside(place: str) -> bool:
    """Return True if the place has a change log or quarantine, rather than the table of a collection with that name."""
    record = recorded(place)
    return record is not None and record.kind != DOCUMENTS


def _leave_catalog(log: TableLog, bucket: str) -> None:
    """Drop a table of a bucket from the catalog that follows it."""
    record = _record_in(log)
    if record is not None and record.bucket == bucket:
        iceberg.leave_catalog(log)


def recorded(place: str) -> Record | None:
    """Return the record of a table; None if there is none."""
    return _record_in(_opened_log(place))


def _opened_log(place: str) -> TableLog:
    log = TableLog(store_of(place))
    log.refresh()
    return log


def _record_in(log: TableLog) -> Record | None:
    return record_of(log.store.root, log.state) if log.exists else None


class _Table:
    """A followed table: its sink and upkeep, kept between its batches."""

    def __init__(self, sink: TableSink, folds: Folds | None, *, upkeep: bool) -> None:
        self.sink = sink
        self.maintenance: list[Maintenance] = sink.maintenance(folds) if upkeep else []

    def has_news(self, highs: Mapping[int, int], histories: Mapping[int, BranchHistory]) -> bool:
        """Return True if the collection has new changes, or a vbucket has another history than the table.

        Args:
            highs: the collection's high seqnos, by vbucket.
            histories: the vbuckets.
        """
        end = Offset.from_json(self.sink.refresh().end)
        for vb, history in histories.items():
            at = end.position(vb)
            # A node that is behind the table has lost what the table has: that is news as well.
            is_moved = highs.get(vb, 0) > at.seqno or history.high_seqno < at.seqno
            if is_moved or (at.seqno and at.vb_uuid != history.vb_uuid):
                return True
        return False

    def backlog(self, highs: Mapping[int, int]) -> int:
        """Return the most seqnos that the table can be behind its collection."""
        end = Offset.from_json(self.sink.refresh().end)
        return sum(max(0, high - end.position(vb).seqno) for vb, high in highs.items())


class CollectionsMirror:
    """A mirror of the collections of a bucket, each in a table of its own.

    Args:
        spark: a session; None for worker processes.
        job: the shape of the tables, and the options of their upkeep.
        tables: the tables of the folder.
        choice: the chosen collections.
        attempts: begins anew after failures that may pass.
        created: for each collection the places of tables that this run has found or created; extended here.
        level: the collections that a run to the end has brought up to date; extended here.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        job: Mirror,
        tables: Tables,
        choice: ChosenCollections,
        attempts: Attempts[MirrorProgress],
        created: dict[MirroredCollection, set[str]] | None = None,
        level: set[MirroredCollection] | None = None,
    ) -> None:
        self._spark, self._job, self._tables, self._choice = spark, job, tables, choice
        self._options, self._attempts = retry_options(job), attempts
        self._catalog = CatalogFolder.parse(job.catalog) if job.catalog else None
        self._folds = Folds() if spark is None and job.workers != 0 else None
        self._highs_seen = {} if created is None else created
        self._open: dict[MirroredCollection, _Table] = {}
        self._covered_changes: dict[MirroredCollection, int] = {}
        self._hidden_at = float("-inf")
        self._level = set[MirroredCollection]() if level is None else level
        self._held = HeldTables()

    def run(self) -> None:
        """Bring the tables up to date, and keep them so unless the job runs once."""
        settings = parse(self._options | {"collections": "all"}, streaming=True)
        nodes = SourceNodes(settings)
        try:
            self._choice.check(nodes.manifest(), self._tables.paths_ever_mirrored(self._choice))
            while True:
                began = time.monotonic()
                self._round(nodes)
                self._attempts.calm()
                if self._job.once or self._attempts.stop():
                    return
                _pause_until(began + self._job.interval_seconds, self._attempts.stop)
        finally:
            nodes.close()
            self._close()
            if self._folds is not None:
                self._folds.close()

    def _round(self, nodes: SourceNodes) -> None:
        manifest = nodes.manifest()
        collections_now = self._choice.found_in(manifest)
        # Closed before they are put away, or their upkeep would write into folders that move.
        self._close(keep=collections_now)

        def whole(path: str, table: str) -> CollectionsManifest:
            return nodes.manifest_to_drop_by(path, f"remove the table {table} yourself")

        before = self._held.text
        self._held.begin_round()
        if self._tables.settle(manifest, self._choice, whole, self._held):
            self._attempts.batch_done(self._held.text)
        self._look_for_hidden(nodes, manifest)
        histories = nodes.observe(idle=True)
        for each in collections_now:
            if self._attempts.stop():
                return
            if each.path in self._held or each in self._level:
                continue
            try:
                self._follow(each, nodes, histories)
            except Exception as error:  # Spark's own say in their text only what they are
                if not nodes.manifest().has(each.id):
                    continue  # it was dropped meanwhile: the next round deals with it
                if not is_of_catalog(error):
                    raise
                self._hold(each, error)
            else:
                self._level |= {each} if self._job.once else set()
        self._held.end_round()
        self._tell_held(before, collections_now)

    def _hold(self, each: MirroredCollection, error: Exception) -> None:
        """Leave a table alone for a while. It is closed: when it is opened again, it is published before anything else,
        also without a new change.
        """
        self._held.hold(each.path, error)
        self._close_table(each)

    def _tell_held(self, before: str, collections_now: Sequence[MirroredCollection]) -> None:
        """Report the tables that catalogs hold up, when they are others than before this round.

        Raises:
            HeadwaterError: nothing else is left to do: `Attempts` says whether that is waited for.
        """
        if self._held.text != before:
            self._attempts.remark(self._held.text)
        error = self._held.error
        if error is not None and (self._job.once or all(each.path in self._held for each in collections_now)):
            raise error

    def _look_for_hidden(self, nodes: SourceNodes, manifest: CollectionsManifest) -> None:
        """Report, at intervals, the tables that make no progress because their collection may be hidden from
        the user.

        A kept table of a dropped collection makes no progress either, but is not worth a report.
        """
        hidden_paths = [
            path
            for path, path_parts in self._tables.known(self._choice).items()
            if not manifest.collection(*path_parts)
        ]
        if not hidden_paths or time.monotonic() < self._hidden_at + HIDDEN_SECONDS:
            return
        self._hidden_at = time.monotonic()
        try:
            nodes.manifest_to_drop_by(hidden_paths[0], "move its table away")
        except OptionError as hidden:
            self._attempts.remark(f"{hidden}; the tables of {', '.join(hidden_paths)} stand still until then")

    def _follow(self, each: MirroredCollection, nodes: SourceNodes, histories: Mapping[int, BranchHistory]) -> None:
        table = self._table(each)
        highs = nodes.collection_seqnos(each.id)
        if not self._job.once and not table.has_news(highs, histories):
            return
        options = self._options | table.sink.source_options | {"collections": each.path}
        workers = self._job.workers
        # A few changes are read in this process: starting workers for each collection would take longer than reading.
        small = workers is None and table.backlog(highs) < TASK_CHANGES
        engine = engine_of(self._spark, table.sink, options, 0 if small else workers, self._attempts.watch)

        def done(results: list[TaskResult], end: Mapping[str, Any]) -> None:
            self._note_batch(each, table, results, end)

        engine.follow(once=True, interval_seconds=0, on_batch=done, stop=self._attempts.stop)

    def _table(self, each: MirroredCollection) -> _Table:
        if each not in self._open:
            place = self._tables.place(each.scope, each.name)
            created = self._highs_seen.setdefault(each, set())
            table_name = self._catalog.table(each.scope, each.name) if self._catalog else None
            sink = sink_of(self._job, place, self._tables.bucket, created, self._making(each), table_name)
            self._open[each] = _Table(sink, self._folds, upkeep=self._job.upkeep)
            self._covered_changes[each] = changes_in(sink.record.end)
        return self._open[each]

    def _making(self, each: MirroredCollection) -> Making:
        return Making.ANYWHERE if self._tables.was_put_away(each.scope, each.name) else Making.CLEAR

    def _note_batch(
        self, each: MirroredCollection, table: _Table, results: list[TaskResult], end: Mapping[str, Any]
    ) -> None:
        progress = self._attempts.progress
        progress.count(results)
        progress.note_losses(end)
        self._covered_changes[each] = changes_in(end)
        progress.batch, progress.changes = progress.batch + 1, sum(self._covered_changes.values())
        progress.collection = each.path
        self._attempts.batch_done(do_upkeep(table.maintenance) or self._held.text)

    def _close(self, keep: list[MirroredCollection] | None = None) -> None:
        for each in self._open.keys() - set(keep or ()):
            self._close_table(each)
        for each in self._covered_changes.keys() - set(keep or ()):
            del self._covered_changes[each]

    def _close_table(self, each: MirroredCollection) -> None:
        if (table := self._open.pop(each, None)) is not None:
            end_upkeep(table.maintenance, self._attempts)


def work(job: Mirror) -> MirrorProgress:
    """Keep a Delta table for each collection of a bucket equal to it, `<to>/<scope>/<collection>`; return the last
    progress, over all tables.

    A collection that is created later gets its table then; the table of one that is created again begins anew.

    Raises:
        SparkUnavailable: Spark can't be started here.
        UnknownCollection, UnknownScope: a chosen name does not exist.
        HeadwaterError: a failure that does not pass; the next run continues from the tables' records.
    """
    choice = ChosenCollections.of(job.collections, job.scope)
    tables = Tables(job.to or "", job.bucket, "drop" if job.dropped == "drop" else "keep")
    attempts, created, level = (
        attempts_of(job, MirrorProgress()),
        dict[MirroredCollection, set[str]](),
        set[MirroredCollection](),
    )
    with session_of(job, "512m", settings=job.conf) as spark:
        attempts.run(lambda: CollectionsMirror(spark, job, tables, choice, attempts, created, level).run())
    return attempts.progress


def _pause_until(until: float, stop: Callable[[], bool]) -> None:
    while (remaining_seconds := until - time.monotonic()) > 0 and not stop():
        time.sleep(min(remaining_seconds, 0.05))
