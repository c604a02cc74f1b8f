"""The vacuum: removes files that no version of a table within its retention needs, and those of failed attempts.

A file goes by its age, by the clock of the disk, and only if neither the table nor a recent removal names it. Old
commits and checkpoints go below a checkpoint that is known to be readable.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence

from headwater.errors import TableAway
from headwater.lake import checkpoints, index, removals
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.log import AWAY, FOLDER, Action, TableLog, TableState, names_of
from headwater.lake.places import store_of
from headwater.lake.store import DRAFT_PREFIX, Listed

UNDER_WAY_SECONDS = 3600.0
"""The longest time that a batch may be under way. A vacuum by the clock leaves files that are not older than the newest
commit by this much: the clock may be wrong, and removing the files of a batch before its commit breaks the table."""

LOOK_EVERY = 100
"""The number of removed files after which a vacuum checks again that the table is still in its place."""

DAY = 86_400.0
RETENTION, LOG_RETENTION = 7 * DAY, 30 * DAY
_SECONDS = {"microsecond": 1e-6, "millisecond": 1e-3, "second": 1.0, "minute": 60.0, "hour": 3600.0}
_SECONDS |= {"day": DAY, "week": 7 * DAY, "month": 30 * DAY}
_INTERVAL = re.compile(r"\s*(?:interval\s+)?((?:\d+\s+[a-z]+\s*)+)", re.IGNORECASE)
_UNITS = re.compile(r"(\d+)\s+([a-z]+?)s?(?![a-z])", re.IGNORECASE)


def seconds_of(text: str | None, otherwise: float) -> float:
    """Return a property such as `interval 30 days 12 hours` in seconds; `otherwise` if it is None.

    A text that can't be read gives infinity, so that no file is removed that the owner may want to keep.
    """
    if text is None:
        return otherwise
    match = _INTERVAL.fullmatch(text)
    units = _UNITS.findall(match[1]) if match else [("1", "")]
    # An unknown unit weighs infinitely, as a text that can't be read does: rather keep too much.
    return sum(int(count) * _SECONDS.get(unit.lower(), math.inf) for count, unit in units)


def vacuum_at(place: str, table: str) -> list[str]:
    """Vacuum the table with this id at a place, by the clock; see `vacuum`."""
    return vacuum(opened_log(place, table))


def opened_log(place: str, table: str) -> TableLog:
    """Return the log of the table with this id at a place.

    Raises:
        TableAway: there is no table, or another one.
    """
    log = TableLog(store_of(place))
    # The work may begin long after it was ordered, when another table lies at the place.
    if log.refresh().version < 0 or log.state.id != table:
        raise TableAway(log.store.root, AWAY)
    return log


def with_removals(log: TableLog) -> TableLog:
    """Return the same table's log, read anew with its removals; a log that is only followed does not keep them.

    Raises:
        TableAway: there is no table, or another one than the one that was read.
    """
    log.refresh(sure=True)
    log_with_removals = TableLog(log.store, removals=True)
    if log_with_removals.refresh().version < 0 or log_with_removals.state.id != log.state.id:
        raise TableAway(log.store.root, AWAY)
    return log_with_removals


def retention(state: TableState) -> float:
    """Return the number of seconds for which a removed file stays for readers of older versions."""
    return seconds_of(state.properties.get("delta.deletedFileRetentionDuration"), RETENTION)


def _nobody(done: int, total: int) -> None:
    pass


def vacuum(
    log: TableLog,
    seconds: float | None = None,
    now: float | None = None,
    *,
    dry: bool = False,
    tell: Callable[[int, int], None] = _nobody,
) -> list[str]:
    """Remove files that no version within the retention needs: removed files, and files of failed attempts.

    Args:
        log: log of the table.
        seconds: the retention; None for the table's own (7 days unless it says otherwise).
        now: Unix seconds.
        dry: remove nothing, only return the paths.
        tell: called with the number of removed files and the total.

    Returns: the paths.

    Raises:
        TableAway: there is no table, or another one; without the log every file would seem unneeded.
    """
    clock = now or time.time()
    kept_for = retention(log.refresh(sure=True)) if seconds is None else seconds
    if not dry:
        iceberg.expire(log, kept_for, clock)  # its newest snapshot may have files that the log has no more
    log = with_removals(log)
    # The state is read before the folder is listed. A file that is committed in between looks unneeded; its age
    # protects it, see below.
    state = log.state
    oldest = clock - kept_for
    # By the bare name, for the log may give a path as a url or absolute; names are random, so no two files share one.
    names = {name for file in state.files.values() for name in _bare_names(file.add)}
    live = {file.path.rpartition("/")[2] for file in state.files.values()}
    places = state.layout.folders
    listing = {folder: log.store.list(folder) for folder in (*places, FOLDER, index.FOLDER)}
    unneeded = [file for place in places for file in listing[place] if _is_data(file) and file.name not in names]
    unneeded += [file for file in listing[index.FOLDER] if file.name.removesuffix(index.SUFFIX) not in live]
    unneeded += [file for files in listing.values() for file in files if _is_half(file)]
    # The newest commit's own time comes from the same disk as the files' times, so a clock of ours that is ahead can't
    # make the files of a batch under way look old.
    if seconds is None:
        oldest = min(oldest, max((file.modified for file in listing[FOLDER]), default=oldest) - UNDER_WAY_SECONDS)
    aged = [file for file in unneeded if file.modified < oldest]
    # Age alone does not do: a file that was written long ago may have been removed from the table a minute ago, and
    # readers of the version before still need it.
    still = _still_needed(log, {file.name for file in aged if _is_data(file)}, 1000 * (clock - kept_for))
    old = [file.path for file in aged if file.name not in still]
    if seconds is None:
        old += _old_log(log, clock, listing[FOLDER])
    old += [file.path for file in iceberg.unneeded(log, clock)]
    if not dry:
        for count, path in enumerate(old):
            tell(count, len(old))
            # Removing thousands of files takes minutes, in which the table may be moved away and another made here.
            if count % LOOK_EVERY == 0:
                log.look()
            # Commits of another table that is made here meanwhile have the same names.
            if path.startswith(f"{FOLDER}/"):
                with log.holding() as is_still_ours:
                    log.store.remove(path, is_still_ours)
            else:
                log.store.remove(path)
    return old


def _still_needed(log: TableLog, candidates: set[str], since_ms: float) -> set[str]:
    """Return those of `candidates`, file names, that were removed from the table at `since_ms` or later.

    Readers of older versions still need these files.

    Args:
        since_ms: time in milliseconds.
    """
    if not candidates:
        return set()
    return candidates.intersection(name.rpartition("/")[2] for name in removals.names(log.removals(), since_ms))


def _bare_names(action: Action) -> Iterator[str]:
    """Yield the names of an action's files without folders, since the log may write the same path in several forms."""
    return (path.rpartition("/")[2] for path in names_of(action))


def _is_data(file: Listed) -> bool:
    name = file.name
    return name.endswith(".parquet") or (name.startswith("deletion_vector_") and name.endswith(".bin"))


def _is_half(file: Listed) -> bool:
    return file.name.startswith(DRAFT_PREFIX)


def _old_log(log: TableLog, now: float, listing: Sequence[Listed]) -> list[str]:
    """Return the paths of the oldest commits and checkpoints that can be removed, without a gap up to the first that
    stays.

    They are older than the log's retention, and older than a readable checkpoint that is past the retention itself.
    """
    if not log.state.says("delta.enableExpiredLogCleanup", otherwise=True):
        return []
    oldest = now - seconds_of(log.state.properties.get("delta.logRetentionDuration"), LOG_RETENTION)
    # Commits, checkpoints and compactions all begin with the 20 digits of their version.
    numbered = [(int(file.name[:20]), file) for file in listing if file.name[:20].isdigit()]
    young = {file.path for _, file in numbered if file.modified >= oldest}
    # A checkpoint that is young itself does not count: readers of a version within the retention may need the commits
    # below it.
    bases = [number for number, parts in checkpoints.complete(listing).items() if not young.intersection(parts)]
    # Only up to the checkpoint that this process began with: of that one it knows that it can be read.
    first = max((number for number in bases if number <= log.checkpointed), default=0)
    first = min([first, *(number for number, file in numbered if file.path in young)])
    # After a feature was dropped the versions before that one go all at once or not at all (checkpointProtection).
    if first < int(log.state.properties.get("delta.requireCheckpointProtectionBeforeVersion", 0)):
        return []
    old = [(number, file) for number, file in numbered if file.modified < oldest]
    return [file.path for number, file in old if number < first or (number == first and _is_compaction(file))]


def _is_compaction(file: Listed) -> bool:
    """Return True for a file with several compacted commits, which the log also has one by one."""
    return file.path.endswith(".compacted.json")
