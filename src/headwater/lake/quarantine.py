"""The quarantine of a mirror's table: a second table of the documents that do not fit the table's shape, and why.

A table that unfolds JSON keeps every document whole in `value`, including those that are not JSON; their columns are
null. The second table, `<table>_quarantine`, has one row for each document that does not fit *now*, with the reason. A
document whose key is not text has a row only here. The row is removed when the document is mended or deleted.

**How the two tables stay consistent.** The quarantine is written as the table is, from the same changes in the same
task (lake/writer.py): a change of a key kills the row that either table has of it, and a vbucket that was rolled back
is replaced whole in both. A batch is committed to the quarantine first and then to the table, whose record names the
quarantine's version (`lake/commit.py`). Only the version that the record names counts. A process that dies between the
two commits leaves a version that no record names; so does a second mirror that lost the race. The driver finds such a
version before it plans the next batch, and restores, in one commit, the files and vectors of the named version. So the
rows are always those of the table's own batch, even if a batch is repeated, planned anew or rolled back. Folds change
no row; the log marks their files with `dataChange: false`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.errors import TableChanged
from headwater.lake.commit import DOMAIN, record_of
from headwater.lake.log import Action, TableLog, TableState, identity, names_of, removal
from headwater.lake.shape import TableShape, arrow_schema, delta_field, fields

REASON = "reason"
_MEANS = "what does not fit, in words"


def columns() -> list[dict[str, Any]]:
    """Return the columns of a quarantine: those of a table with binary keys, and the reason."""
    return [*fields(), delta_field(REASON, "string", _MEANS)]


class QuarantineShape:
    """Makes the rows of a quarantine.

    Args:
        columns: its columns, as its log describes them.

    Attributes:
        schema: schema of its rows.
    """

    def __init__(self, columns: Sequence[dict[str, Any]]) -> None:
        self._documents = TableShape([column for column in columns if column["name"] != REASON])
        self.schema: pa.Schema = arrow_schema(columns)

    def rows(self, batch: pa.RecordBatch, reasons: Sequence[str]) -> pa.RecordBatch:
        """Return a row for each document, with the reason why it does not fit."""
        rows = self._documents.rows(batch)
        columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | {REASON: pa.array(reasons, pa.string())}
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def is_level(log: TableLog, version: int) -> bool:
    """Return True if a quarantine's rows are those of `version`: the commits after it are folds, or were taken back.

    Args:
        log: refreshed.
        version: the version that the table's record names.
    """
    if log.state.version < version:
        return False
    level = True
    try:
        for actions in log.commits(version):
            # Only a commit that changes data leaves the version, and only one that restores this very version returns
            # to it.
            if any((action.get("add") or action.get("remove") or {}).get("dataChange") for action in actions):
                level = _brings_back(actions) == version
    except TableChanged:
        return False  # the log of that time is gone
    return level


def _brings_back(actions: Sequence[Action]) -> int | None:
    domains = (action.get("domainMetadata") or {} for action in actions)
    texts = [domain["configuration"] for domain in domains if domain.get("domain") == DOMAIN]
    version: int | None = json.loads(texts[-1]).get("quarantine") if texts else None
    return version


def bring_back(log: TableLog, version: int) -> bool:
    """Restore a quarantine to a version; return False, with nothing changed, if that version's files are gone.

    Args:
        log: refreshed.
        version: the version that the table's record names.
    """
    target = log.at(version) if version <= log.state.version else None
    if target is None or not all(
        log.store.exists(path) for file in target.files.values() for path in names_of(file.add)
    ):
        return False
    while True:
        record = record_of(log.store.root, log.state)
        # Another batch number makes another digest: a batch that was planned from the version that is taken back is
        # refused.
        record_action = replace(record, batch=record.batch + 1, quarantine=version).to_action()
        if log.commit([record_action, *_undo_actions(log.state, target)], "RESTORE"):
            return True
        log.refresh()


def clear(log: TableLog) -> None:
    """Remove every row from a quarantine; they are collected anew."""
    while True:
        record, clock = record_of(log.store.root, log.state), int(time.time() * 1000)
        # As in `bring_back`: whatever was planned from the rows that go now must not be committed.
        record_action = replace(record, batch=record.batch + 1, quarantine=None).to_action()
        if log.commit([record_action, *(removal(file, clock) for file in log.state.files.values())], "DELETE"):
            return
        log.refresh()


def _undo_actions(current: TableState, target: TableState) -> list[Action]:
    clock = int(time.time() * 1000)
    unchanged = {identity(file.add) for file in current.files.values()} & {
        identity(file.add) for file in target.files.values()
    }
    removals = [removal(file, clock) for file in current.files.values() if identity(file.add) not in unchanged]
    # Data, unlike a fold: `is_level` must see that the rows are other ones from here on.
    added_files = (
        file.add | {"dataChange": True} for file in target.files.values() if identity(file.add) not in unchanged
    )
    return [*removals, *({"add": add} for add in added_files)]
