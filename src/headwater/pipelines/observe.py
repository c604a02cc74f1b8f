"""Rates, sizes, expiries and hot keys of a bucket by prefix, in windows of the nodes' clock.

    node -> task: counts of its changes by window and prefix, a sketch of keys -> driver: windows, closed by a watermark

Open windows and the position in the bucket's history move by one transaction (ledger.py), and changes that a replay
brings again after a node's restart or a failover are left out, so each change is counted once even after a crash.
Closed windows are reported, and written to Parquet, one file for each batch, whose name a repeated batch uses again.
The name begins with that of the ledger: observers that begin anew, or work at the same time, leave each other's files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.pipelines.attempts import Attempts
from headwater.pipelines.job import follow_into
from headwater.pipelines.jobs import ObserveProgress, Observer
from headwater.pipelines.ledger_sink import LedgerAnswer, LedgerSink
from headwater.pipelines.windows import (
    BETWEEN,
    HotKeys,
    PrefixCounts,
    Window,
    WindowRules,
    Windows,
    instant,
    split,
    whose_of,
)
from headwater.spark.deadletters import filesystem, located, prepare_folder, remove, reveal
from headwater.spark.settings import parse

NAMES = ("event", "key", "cas", "expiry")
OF_COLLECTIONS = ("scope", "collection")
_NOT_KEPT = ("hot", "prefixes_max", "by_collection")
"""Rules that may change from run to run, and the one that the positions hold: which collections were chosen."""

_NAME = "name"
"""The note with the name of the ledger, for its files."""

_COUNTS = ("stored", "deleted", "expired", "expiring", "bytes", "largest")
_TIME = pa.timestamp("us", "UTC")
_RATES: dict[str, Any] = {"window": _TIME, "seconds": pa.int32()}
_HOT: dict[str, Any] = {"changes": pa.int64(), "error": pa.int64()}
_WHOSE: dict[str, Any] = dict.fromkeys(OF_COLLECTIONS, pa.string())


def schemas(rules: WindowRules) -> tuple[pa.Schema, pa.Schema]:
    """Return the columns of the files `rates` and `hot`."""
    head = _RATES | (_WHOSE if rules.by_collection else {})
    rates = head | {"prefix": pa.string()} | dict.fromkeys(_COUNTS, pa.int64())
    return pa.schema(list(rates.items())), pa.schema(list((head | {"key": pa.string()} | _HOT).items()))


@dataclass(frozen=True)
class WindowLook:
    """A counter of a task's changes by `rules`; with `sizes` it also reads values, for their sizes."""

    rules: WindowRules
    sizes: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the counts need, `value` only for its size."""
        return (*NAMES, *(["value"] if self.sizes else []), *(OF_COLLECTIONS if self.rules.by_collection else ()))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        """Return the windows of these changes, as JSON types."""
        windows = Windows()
        for batch in batches:
            windows.count(self.rules, batch)
        return windows.to_json()


class ObserveSink(LedgerSink):
    """Windows as the engines update them.

    Args:
        to: the folder of the Parquet files; None for no files.

    Attributes:
        closed: the windows that the last batch closed. windows: the open ones.
    """

    KIND: ClassVar[str] = "observation"
    FILE: ClassVar[str] = "windows.sqlite"

    def __init__(
        self,
        place: str | Path,
        bucket: str,
        look: WindowLook,
        *,
        to: str | None = None,
        beginning: Mapping[str, Any] | None = None,
    ) -> None:
        self.rules: WindowRules = look.rules
        shape = {name: value for name, value in asdict(self.rules).items() if name not in _NOT_KEPT}
        super().__init__(place, bucket, look, shape=shape, beginning=beginning)
        self._output_folder = to
        name = self.ledger.note_of_new(_NAME, uuid4().hex[:16])
        self._name = f"windows-{name}" if name else "windows"  # a release of before gave none
        self.closed: list[tuple[int, Window]] = []
        self.windows: Windows = Windows.from_json(self.ledger.notes)

    def bring(self, after: str, end: Mapping[str, Any], findings: Sequence[Any]) -> None:
        """Count a batch, and close the windows before the watermark."""
        self._close(after, end, findings)

    def flush(self) -> None:
        """Close all windows, because no later run continues from here."""
        record = self.refresh()
        self._close(record.digest, record.end, [], all_of_them=True)

    def _close(self, after: str, end: Mapping[str, Any], findings: Sequence[Any], *, all_of_them: bool = False) -> None:
        windows = Windows.from_json(self.ledger.notes)
        windows.merge(self.rules, map(Windows.from_json, findings))
        closed = windows.close(self.rules, all_of_them=all_of_them)
        name_notes = {_NAME: self.ledger.notes.get(_NAME, "")}
        # Files are written before the commit: a repeated batch writes the same names again, while windows that are
        # closed by a commit come never again.
        with self.ledger.advance(after, end, windows.to_json() | name_notes):
            self._keep(closed, self.refresh().batch + 1)
        self.windows, self.closed = windows, closed

    def count(self, progress: ObserveProgress, answers: Sequence[LedgerAnswer]) -> None:
        """Add the counts of the last batch, and the windows that it closed."""
        super().count(progress, answers)
        progress.changes += sum(answer.changes for answer in answers)
        progress.late, progress.unclocked = self.windows.late, self.windows.unclocked
        progress.windows += len(self.closed)
        progress.closed = [described(start, window, self.rules) for start, window in self.closed]
        newest = max(self.windows.open, default=None)
        progress.newest = None if newest is None else described(newest, self.windows.open[newest], self.rules)

    def _keep(self, closed: Sequence[tuple[int, Window]], batch: int) -> None:
        if self._output_folder is None:
            return
        rates = [row for start, window in closed for row in _rates(start, window, self.rules)]
        hot = [row for start, window in closed for row in _hot_rows(start, window, self.rules)]
        for name, rows, schema in zip(("rates", "hot"), (rates, hot), schemas(self.rules), strict=True):
            _write(
                f"{self._output_folder}/{name}",
                f"{self._name}-{batch:08d}",
                pa.Table.from_pylist(rows, schema) if closed else None,
            )


def _rates(start: int, window: Window, rules: WindowRules) -> list[dict[str, Any]]:
    head = {"window": instant(start), "seconds": rules.seconds}
    prefixes = sorted(window.prefixes.items())
    return [head | _parts_of("prefix", prefix, rules) | asdict(counts) for prefix, counts in prefixes]


def _hot_rows(start: int, window: Window, rules: WindowRules) -> list[dict[str, Any]]:
    head = {"window": instant(start), "seconds": rules.seconds}
    hot_keys = (window.hot or HotKeys()).top(rules.hot) if rules.hot else []
    return [head | asdict(key) | _parts_of("key", key.key, rules) for key in hot_keys]


def _parts_of(column: str, name: str, rules: WindowRules) -> dict[str, str]:
    """Return the columns that a row has for a prefix or key, with its scope and collection if these are counted."""
    parts = split(name, by_collection=rules.by_collection)
    return {part or column: text for part, text in parts.items()}


def _write(place: str, name: str, rows: pa.Table | None) -> None:
    """Write a file that appears whole or not at all, and replaces a file of its name.

    Without rows, remove the file that the same batch left when it was not committed.
    """
    files, base = filesystem(prepare_folder(place))
    if rows is None:
        remove(files, f"{base}/{name}.parquet")
        return
    # Readers of folders pass over names that begin with an underscore.
    pq.write_table(rows, f"{base}/_{name}.parquet", filesystem=files)
    # On the disk before the commit behind which no batch writes these windows again.
    reveal(files, f"{base}/_{name}.parquet", f"{base}/{name}.parquet")


def described(start: int, window: Window, rules: WindowRules) -> dict[str, Any]:
    """Return a window as JSON types: its start, its length, counts by prefix (the busiest first), hot keys; and counts
    by collection, if they are kept.
    """
    busiest = sorted(window.prefixes.items(), key=lambda entry: (-entry[1].changes, entry[0]))
    total = PrefixCounts()
    for counts in window.prefixes.values():
        total.add(counts)
    hot = window.hot.top(rules.hot) if window.hot is not None else []
    return {
        "window": instant(start).isoformat(),
        "seconds": rules.seconds,
        "total": asdict(total),
        **({"collections": _by_collection(window)} if rules.by_collection else {}),
        "prefixes": {prefix: asdict(counts) for prefix, counts in busiest},
        "hot": [asdict(key) for key in hot],
    }


def _by_collection(window: Window) -> dict[str, dict[str, int]]:
    """Return the counts of each collection, the busiest first."""
    by_name: dict[str, PrefixCounts] = {}
    for prefix, counts in window.prefixes.items():
        by_name.setdefault(whose_of(prefix).removesuffix(BETWEEN), PrefixCounts()).add(counts)
    busiest = sorted(by_name.items(), key=lambda entry: (-entry[1].changes, entry[0]))
    return {path: asdict(counts) for path, counts in busiest}


def work(job: Observer) -> ObserveProgress:
    """Count the changes of a bucket, by prefix and window, until `job.stop` returns True; return the last progress.

    Without a checkpoint no run continues from here, so the windows that are open at the end are closed then.

    Raises:
        LedgerError: the checkpoint is another job's, or was created with other windows.
        OptionError: an option is wrong, or datasketches is not installed (not with `hot` 0).
        HeadwaterError: a failure that does not pass; the next run counts the remaining changes.
    """
    settings = parse(job.source_options(), streaming=True)
    look = WindowLook(rules_of(job, by_collection=settings.chooses), sizes=not job.keys_only)
    beginning, place = job.beginning(), None if job.to is None else located(job.to)
    sinks: list[ObserveSink] = []

    def end(attempts: Attempts[ObserveProgress]) -> None:
        if job.checkpoint is None and sinks:
            sinks[0].flush()
            sinks[0].count(attempts.progress, [])
            attempts.batch_done()

    with ExitStack() as stack:
        state = job.checkpoint or stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-observe-"))

        def open_sink() -> ObserveSink:
            if place is not None:
                prepare_folder(place)
            sinks[:] = [ObserveSink(state, job.bucket, look, to=place, beginning=beginning)]
            return sinks[0]

        return follow_into(job, open_sink, end)


def rules_of(job: Observer, *, by_collection: bool) -> WindowRules:
    """Return the rules of a job's counts. Raises OptionError."""
    if job.hot:
        HotKeys()  # that datasketches is missing is told before Spark's start
    shape = job.window_seconds, job.delay_seconds, job.separator, job.depth, job.prefixes_max, job.hot
    return WindowRules(*shape, by_collection=by_collection)
