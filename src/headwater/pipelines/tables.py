"""A mirror's table opened by hand: its log, and the index by which its rows are found."""

from __future__ import annotations

from headwater.errors import TableError
from headwater.lake.commit import record_of
from headwater.lake.index import Indexes
from headwater.lake.log import TableLog
from headwater.lake.places import store_of
from headwater.pipelines.tasks import SEED

__all__ = ["open_table"]


def open_table(place: str) -> tuple[TableLog, Indexes | None]:
    """Return the log of a table, read up to its newest version, and its indexes; a log of changes has none.

    Raises:
        TableError: there is no table, or it is none of a mirror's.
    """
    log = TableLog(store_of(place))
    log.refresh()
    if not log.exists:
        raise TableError(log.store.root, "there is no table here")
    kind = record_of(log.store.root, log.state).kind
    seed = bytes.fromhex(log.state.properties[SEED])
    return log, Indexes(log.store, log.state.id, seed) if kind != "changes" else None
