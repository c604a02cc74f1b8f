"""The quarantine beside a mirror's table: the documents that are not what its shape asks for, and why.

A table that unfolds JSON keeps every document whole in `value`, those too that are no JSON; their columns are null.
Which these are, and what is wrong with each, says a second table, `<table>_quarantine`: one row for each document that
does not fit *now*. Documents whose key is no text have no row in the table at all, and their only one here. The row of
a document goes when it is mended or deleted.

**How the two stay one.** The quarantine is kept as the table is, from the same changes in the same task
(lake/writer.py): a change of a key kills the row that either has of it, a vbucket that was rolled back is replaced
whole in both. A batch is committed to the quarantine first and then to the table, whose record names the quarantine's
version (`lake/commit.py`). That name alone counts. A process that dies between the two commits leaves a version that
no record names; so does a second mirror that lost the race. It is found before the next batch is planned, and one
commit brings back the files and vectors that the named version had. So whatever is repeated, planned anew or
rolled back, the rows are those of the table's own batch. Folds, which change no row, are told from that by the log.
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
    """Return the columns of a quarantine: those of a table whose keys are bytes, and the reason."""
    return [*fields(), delta_field(REASON, "string", _MEANS)]


class QuarantineShape:
    """Makes a quarantine's rows.

    Args:
        described: its columns, as its log describes them.

    Attributes:
        schema: of its rows.
    """

    def __init__(self, described: Sequence[dict[str, Any]]) -> None:
        self._documents = TableShape([column for column in described if column["name"] != REASON])
        self.schema: pa.Schema = arrow_schema(described)

    def rows(self, batch: pa.RecordBatch, reasons: Sequence[str]) -> pa.RecordBatch:
        """Return the rows of documents, and why each is here."""
        made = self._documents.rows(batch)
        named = dict(zip(made.schema.names, made.columns, strict=True)) | {REASON: pa.array(reasons, pa.string())}
        return pa.RecordBatch.from_arrays([named[name] for name in self.schema.names], schema=self.schema)


def is_level(log: TableLog, version: int) -> bool:
    """Whether a quarantine's rows are those of a version: after it there were folds only, if anything, or what was more
    has been taken back.

    Args:
        log: refreshed.
        version: the one that the table's record names.
    """
    if log.state.version < version:
        return False
    level = True
    try:
        for actions in log.commits(version):
            if any((action.get("add") or action.get("remove") or {}).get("dataChange") for action in actions):
                level = _brings_back(actions) == version
    except TableChanged:
        return False  # the log of that time is gone
    return level


def _brings_back(actions: Sequence[Action]) -> int | None:
    told = (action.get("domainMetadata") or {} for action in actions)
    texts = [each["configuration"] for each in told if each.get("domain") == DOMAIN]
    found: int | None = json.loads(texts[-1]).get("quarantine") if texts else None
    return found


def bring_back(log: TableLog, version: int) -> bool:
    """Make a quarantine what it was at a version; return False, having done nothing, where that can't be had any more.

    Args:
        log: refreshed.
        version: the one that the table's record names.
    """
    then = log.at(version) if version <= log.state.version else None
    if then is None or not all(log.store.exists(path) for file in then.files.values() for path in names_of(file.add)):
        return False
    while True:
        record = record_of(log.store.root, log.state)
        told = replace(record, batch=record.batch + 1, quarantine=version).to_action()
        if log.commit([told, *_back(log.state, then)], "RESTORE"):
            return True
        log.refresh()


def clear(log: TableLog) -> None:
    """Take every row out of a quarantine: which belong there is found out anew."""
    while True:
        record, clock = record_of(log.store.root, log.state), int(time.time() * 1000)
        told = replace(record, batch=record.batch + 1, quarantine=None).to_action()
        if log.commit([told, *(removal(file, clock) for file in log.state.files.values())], "DELETE"):
            return
        log.refresh()


def _back(now: TableState, then: TableState) -> list[Action]:
    clock = int(time.time() * 1000)
    kept = {identity(file.add) for file in now.files.values()} & {identity(file.add) for file in then.files.values()}
    gone = [removal(file, clock) for file in now.files.values() if identity(file.add) not in kept]
    added = (file.add | {"dataChange": True} for file in then.files.values() if identity(file.add) not in kept)
    return [*gone, *({"add": add} for add in added)]
