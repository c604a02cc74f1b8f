"""A mirror's tasks: their ranges, and the way from a node's changes to files beside the table.

A task gets ranges of some vbuckets; it reads them from the nodes, writes their rows (lake/writer.py) and answers in one
short message. It runs wherever there is Python and the table's folder: in a Spark executor or in a worker process of
our own. Between tasks a process keeps objects that are slow to create: its view of the table's log, mapped indexes, and
a connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from headwater.errors import TableAway, TableChanged
from headwater.failpoints import failpoint
from headwater.lake.changes import ChangeWriter, has_befores, known
from headwater.lake.commit import record_of
from headwater.lake.forms import form_of
from headwater.lake.index import Indexes
from headwater.lake.log import AWAY, TableLog, TableState
from headwater.lake.places import store_of
from headwater.lake.quarantine import QuarantineShape
from headwater.lake.shape import CHANGES, SOURCE, TableShape
from headwater.lake.versions import BEFORES
from headwater.lake.widening import widenings_of
from headwater.lake.writer import Portion, TaskQuarantine, TaskResult, write
from headwater.spark.columns import RowMaker
from headwater.spark.nodes import connect
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range, ranges
from headwater.spark.reader import further, read
from headwater.spark.settings import SourceSettings

if TYPE_CHECKING:
    from headwater.client import Client

SEED = "headwater.indexSeed"
"""The table's property with the seed of its indexes, in hex."""

TASK_CHANGES = 20_000
"""A batch is cut into more tasks only where each has so much to do: a task costs some tens of milliseconds."""


@dataclass(frozen=True)
class TablesBeside:
    """The tables beside a mirror's, each as (place, id); None where there is none.

    Attributes:
        logged_anew: vbuckets of which the change log takes back all rows, wherever the batch returns to.
    """

    changelog: tuple[str, str] | None = None
    quarantine: tuple[str, str] | None = None
    logged_anew: frozenset[int] = frozenset()


@dataclass(frozen=True)
class MirrorTask:
    """The work of one task; travels to it pickled.

    Args:
        place: the table's folder.
        table: the table's id, since another table may have taken its place by now.
        settings: the settings of the source, with the nodes that the planner knows.
        parts: ranges to read.
        fresh: vbuckets of which the table has no row yet.
        neighbours: the tables beside it.
    """

    place: str
    table: str
    settings: SourceSettings
    parts: tuple[Range, ...]
    fresh: frozenset[int]
    neighbours: TablesBeside = TablesBeside()

    def answer(self) -> bytes:
        """Do the task; return its `TaskResult` as bytes."""
        return run(self).to_bytes()

    @property
    def portion(self) -> Portion:
        """The task's vbuckets, as the writer needs them."""
        replaced = frozenset(part.vbucket for part in self.parts if part.rollback)
        return Portion(frozenset(part.vbucket for part in self.parts), self.fresh - replaced, replaced)


def tasks_of(
    start: Offset,
    end: Offset,
    settings: SourceSettings,
    table: tuple[str, str],
    count: int,
    neighbours: TablesBeside = TablesBeside(),
) -> list[MirrorTask]:
    """Return the tasks of the batch between two offsets, at most `count`.

    Each task has neighbouring vbuckets, since these share files, which other tasks then need not search.

    Args:
        table: the table's place and id.
    """
    parts = ranges(start, end)
    new_vbuckets = frozenset(part.vbucket for part in parts if start.position(part.vbucket).seqno == 0)
    changes = sum(part.end_seqno - part.start_seqno for part in parts)
    task_count = max(1, min(count, -(-changes // TASK_CHANGES)))
    groups = _neighbours(parts, task_count)
    return [
        MirrorTask(*table, settings, tuple(group), new_vbuckets & {part.vbucket for part in group}, neighbours)
        for group in groups
    ]


def whole(part: Range) -> Range:
    """Return the range that a task reads: for a rolled-back vbucket all of it, from 0, so that the result is one
    state.
    """
    return replace(part, start_seqno=0, rollback=False) if part.rollback else part


def reached_rows(reached: Mapping[int, tuple[int, int]] | None) -> list[tuple[int, int, int]]:
    """Return `reached` in the form of a task's answer."""
    return [(vb, *place) for vb, place in sorted((reached or {}).items())]


def advanced(end: Mapping[str, Any], positions: Iterable[Sequence[int]]) -> Mapping[str, Any]:
    """Return the end of a batch that was planned to end at `end`, and went further in some vbuckets."""
    planned = Offset.from_json(end)
    places = {
        vb: replace(at, vb_uuid=uuid, seqno=seqno, snapshot_end=max(at.snapshot_end, seqno))
        for vb, uuid, seqno in positions
        if (at := planned.position(vb)).seqno < seqno
    }
    return replace(planned, positions={**planned.positions, **places}).to_json() if places else end


def _neighbours(parts: Sequence[Range], count: int) -> list[list[Range]]:
    """Cut ranges, in the order of their vbuckets, into at most `count` groups of about equal cost."""
    groups: list[list[Range]] = []
    remaining_cost, filled = sum(part.cost for part in parts), 0
    for part in parts:
        share = remaining_cost / max(count - len(groups) + 1, 1) if groups else 0
        if not groups or (filled >= share and len(groups) < count):
            remaining_cost -= filled
            groups.append([])
            filled = 0
        groups[-1].append(part)
        filled += part.cost
    return groups


class _View:
    """A process's view of a table, kept between tasks."""

    def __init__(self, place: str) -> None:
        self.store: Final = store_of(place)
        self.log: Final = TableLog(self.store)
        state = self.log.refresh()
        if not self.log.exists:
            raise TableAway(place, AWAY)
        self.indexes: Final = Indexes(self.store, state.id, bytes.fromhex(state.properties[SEED]))


class _KeptObjects(threading.local):
    """The objects that a thread keeps between tasks: tables by place, clients by login."""

    def __init__(self) -> None:
        self.views: dict[str, _View] = {}
        self.clients: dict[tuple[str, str | None, str | None], Client] = {}


_kept = _KeptObjects()


def forget() -> None:
    """Drop the objects that this thread keeps between tasks; ending workers need not call this."""
    for client in _kept.clients.values():
        client.close()
    _kept.clients.clear()
    _kept.views.clear()


def view_of(place: str, table: str) -> _View:
    """Return this process's view of a table, level with its log.

    Raises:
        TableAway: there is no table.
        TableChanged: another table has taken its place.
    """
    view = _kept.views.get(place)
    if view is not None:
        try:
            view.log.refresh(sure=True)
        except TableAway:
            view = None  # what the driver found there since is what counts
    if view is None or view.log.state.id != table:
        view = _kept.views[place] = _View(place)
    if view.log.state.id != table:
        raise TableChanged(place, "the table was made anew meanwhile")
    return view


def run(task: MirrorTask) -> TaskResult:
    """Run the task: read, write, look up."""
    view = view_of(task.place, task.table)
    state = view.log.state
    shape = shape_of(state)
    logging = _Logging(task) if task.neighbours.changelog else None
    quarantine = _quarantine_of(task.neighbours.quarantine) if task.neighbours.quarantine else None
    unread_vbuckets: set[int] = set()
    positions = further(task.settings)
    times = {"began": time.time()}
    try:
        names = logging.names if logging else SOURCE
        batches = _with_times(
            read(task.settings, names, _wholes(task), _borrowed, unread_vbuckets, reached=positions), times
        )
        tapped = logging.tap(batches) if logging else batches
        result = write(view.store, state, view.indexes, shape, task.portion, tapped, quarantine)
        if logging is not None:
            logging.finish(result)
    except BaseException:
        if logging is not None:
            logging.discard()
        # The next task must not find the rest of a stream that this one left in the middle.
        _hang_up(task.settings)
        raise
    result.unread, result.reached = sorted(unread_vbuckets), reached_rows(positions)
    if unread_vbuckets:
        _hang_up(task.settings)  # whom it asked may own these vbuckets no more
    failpoint("lake.files_written")
    result.times = times | {"ended": time.time()}
    return result


def shape_of(state: TableState) -> TableShape:
    """Return the shape that makes the rows of a table."""
    return form_of(state.fields).shape(state.fields, widenings_of(state))


def _quarantine_of(table: tuple[str, str]) -> TaskQuarantine:
    view = view_of(*table)
    state = view.log.state
    return TaskQuarantine(view.store, state, view.indexes, QuarantineShape(state.fields))


def _with_times(batches: Iterator[Any], times: dict[str, float]) -> Iterator[Any]:
    """Yield the batches, and note the times of the first and of the last."""
    for batch in batches:
        if "first" not in times:
            times["first"] = time.time()
            failpoint("lake.reading")
        yield batch
    times["read"] = time.time()


def _wholes(task: MirrorTask) -> list[Range]:
    return [whole(part) for part in task.parts]


class _Logging:
    """The writer of the change log's part of a task: rollback rows first, then every change that the log lacks."""

    def __init__(self, task: MirrorTask) -> None:
        self.names: tuple[str, ...] = tuple(CHANGES)[:-1] + (tuple(BEFORES) if task.settings.before else ())
        place, table = cast("tuple[str, str]", task.neighbours.changelog)
        view = view_of(place, table)
        record = record_of(place, view.log.state)
        logged = Offset.from_json(record.end)
        self._digest_before = record.digest
        anew = task.neighbours.logged_anew
        self._rollback_parts = [
            replace(part, start_seqno=0) if part.vbucket in anew else part for part in task.parts if part.rollback
        ]
        # Of these the log has changes of a batch that never got into the table (changelog.py): they are not logged
        # twice.
        rollback_vbuckets = {
            part.vbucket: part.start_seqno
            for part in task.parts
            if not part.rollback and logged.position(part.vbucket).seqno > part.start_seqno
        }
        logged_seqnos = known(view.store, view.log.state, rollback_vbuckets)
        floors = {part.vbucket: part.start_seqno for part in self._rollback_parts}
        state = view.log.state
        befores = has_befores(state)
        self._writer = ChangeWriter(view.store, record.batch + 1, logged_seqnos, floors, state.layout, befores=befores)

    def tap(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches unchanged, after logging them."""
        if self._rollback_parts:
            # Above its floor a rollback row itself is no change of the vbucket: it is written first, as it is.
            rows_ = RowMaker(self.names, "binary", "binary").rollbacks(self._rollback_parts)
            self._writer.take(rows_, always=True)
        for batch in batches:
            self._writer.take(batch)
            yield batch

    def finish(self, result: TaskResult) -> None:
        """Add the logged files to the task's result."""
        result.changes = [file.to_add() for file in self._writer.close()]
        result.changes_after = self._digest_before

    def discard(self) -> None:
        """Remove the logged files."""
        self._writer.discard()


class _BorrowedClient:
    """A context manager around a client that leaves it open, for the next task."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> Client:
        return self._client

    def __exit__(self, *error: object) -> None:
        return None


def _borrowed(settings: SourceSettings) -> Client:
    who = _client_key(settings)
    # One from before the bucket was made anew asks for no vbucket that the old bucket did not have.
    if who in _kept.clients and _kept.clients[who].map.version < settings.map_version:
        _hang_up(settings)
    if who not in _kept.clients:
        _kept.clients[who] = connect(settings)
    return cast("Client", _BorrowedClient(_kept.clients[who]))


def _hang_up(settings: SourceSettings) -> None:
    client = _kept.clients.pop(_client_key(settings), None)
    if client is not None:
        client.close()


def _client_key(settings: SourceSettings) -> tuple[str, str | None, str | None]:
    return settings.url, settings.user, settings.password
