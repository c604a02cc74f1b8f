"""The repair of a broken table, after which its mirror can continue.

`lake/verify.py` finds the faults. Commits behind a gap are moved out of the log. A file with a missing part leaves the
table, and the table's record is put on a branch that no node has: the next batch of the mirror reads the whole bucket
anew and replaces every row. The same is done for a key with two rows, since the right one is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from headwater.errors import CorruptStore, TableError
from headwater.lake import verify
from headwater.lake.commit import Record, record_of
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.log import FOLDER, TableLog, removal
from headwater.lake.places import store_of
from headwater.lake.store import DRAFT_PREFIX
from headwater.pipelines.quarantine import read_anew
from headwater.pipelines.table import CHANGES, DOCUMENTS

OPERATION = "REPAIR"


@dataclass
class TableDamage:
    """The faults of a table that can be repaired.

    Attributes:
        strays: commits behind a gap in the log, by path.
        missing: files with their missing parts.
        twice: keys with two rows, in words.
    """

    strays: list[str]
    missing: dict[str, list[str]]
    twice: list[str]

    def lines(self) -> list[str]:
        """Return the faults in words."""
        lines = [
            f"{path}: a commit behind a gap: no reader comes to it, and some refuse the table" for path in self.strays
        ]
        lines += [f"{name} is missing: the table names it" for names in self.missing.values() for name in names]
        return lines + self.twice


def damage(log: TableLog, tell: verify.Tell = lambda done: None) -> TableDamage:
    """Return the faults of a table; all of its keys are read. `log` is refreshed."""
    missing_files = verify.missing(log.store, log.state)
    sound_state = verify.without(log.state, missing_files)
    kind = record_of(log.store.root, log.state).kind
    twice = [] if kind == CHANGES else verify.of_table(log.store, sound_state, tell)[1]
    log.refresh(sure=True)  # a mount that was away for a moment had none of the files: is it still, is all there again?
    still = {
        path: names for path, names in missing_files.items() if path in log.state.files and not _are_there(log, names)
    }
    return TableDamage(verify.strays(log), still, twice)


def _are_there(log: TableLog, names: Iterable[str]) -> bool:
    return all(map(log.store.exists, names))


def repair(place: str, *, anew: bool = False, dry: bool = False, tell: verify.Tell = lambda done: None) -> list[str]:
    """Repair a table; return the faults and the repairs in words, nothing if all is well.

    Args:
        place: a path or url.
        anew: let the bucket be read anew even without a fault.
        dry: only report the faults.
        tell: called with the number of files read.

    Raises:
        TableError: there is no table, or no part of its log can be trusted.
    """
    log = _opened_log(place)
    damages = damage(log, tell)
    lines = damages.lines()
    if dry:
        return lines
    for path in damages.strays:
        _put_away(log, path)
        lines.append(f"{path}: moved to {FOLDER}/{DRAFT_PREFIX}..., which a vacuum removes")
    if damages.missing or damages.twice or anew:
        lines.append(_begin_anew(log, damages))
        iceberg.publish(log)
    return lines


def _opened_log(place: str) -> TableLog:
    log = TableLog(store_of(place))
    try:
        log.refresh()
    except CorruptStore as error:
        advice = "nothing of it can be trusted: move the folder away and start the mirror, which makes the table anew"
        raise TableError(log.store.root, f"its log can't be repaired: {error}; {advice}") from error
    if not log.exists:
        raise TableError(log.store.root, "there is no table here")
    return log


def _put_away(log: TableLog, path: str) -> None:
    name = path.rpartition("/")[2]
    # Copied, then removed: a crash in between leaves the commit in two places, never in none.
    log.store.write(f"{FOLDER}/{DRAFT_PREFIX}stray-{name}", log.store.read(path))
    log.store.remove(path)


def _begin_anew(log: TableLog, damage: TableDamage) -> str:
    after: Callable[[Record], tuple[Record | None, str]] = _AFTER[record_of(log.store.root, log.state).kind]
    while True:
        record = record_of(log.store.root, log.state)
        new_record, line = after(record)
        clock = int(time.time() * 1000)
        removals = [removal(log.state.files[path], clock) for path in damage.missing if path in log.state.files]
        # A commit that another writer made first is no reason to give up: the repair is planned again from its record.
        if log.commit([*removals, *([new_record.to_action()] if new_record else [])], OPERATION):
            return line
        log.refresh()


def _documents(record: Record) -> tuple[Record | None, str]:
    line = "the next batch of the mirror reads the whole bucket anew and replaces every row: start it"
    return replace(record, end=read_anew(record), batch=record.batch + 1), line


def _changes(record: Record) -> tuple[Record | None, str]:
    line = "the changes of missing files are lost; with the next batch the log begins anew, with all that the table has"
    return replace(record, batch=record.batch + 1, table_digests=()), line


def _quarantine(record: Record) -> tuple[Record | None, str]:
    return None, "the next run of the mirror reads the bucket anew, for its quarantine is not what the table names"


_AFTER = {DOCUMENTS: _documents, CHANGES: _changes, "quarantine": _quarantine}
