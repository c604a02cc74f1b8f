"""The time up to which a mirror's table has everything, from its record: for people, and for readers of other tools.

It is in the table's record with the offset (`completeUntil`, a CAS), in the metrics of each commit (DESCRIBE HISTORY),
and a property of the Iceberg table. It is no property of the Delta table: that would be a change of its metadata with
each batch, which Delta lets no other writer's commit come in beside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from headwater.protocol.dcp.complete import NANOSECONDS, as_time

__all__ = ["METRIC", "PROPERTY", "complete_ms", "complete_text", "complete_text_of"]

PROPERTY: Final = "headwater.complete-until"
"""The property of an Iceberg table: the time in ISO 8601, UTC, to the millisecond."""
METRIC: Final = "completeUntilMs"
"""The metric of a commit: the time in Unix milliseconds."""


def complete_text(end: Mapping[str, Any]) -> str | None:
    """Return the time of an offset as text; None if it is not known."""
    time = as_time(int(end.get("completeUntil", 0)))
    return None if time is None else time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def complete_ms(end: Mapping[str, Any]) -> int | None:
    """Return the time of an offset in Unix milliseconds; None if it is not known."""
    return int(end.get("completeUntil", 0)) * 1000 // NANOSECONDS or None


def complete_text_of(record: str | None) -> str | None:
    """Return the time in the text of a table's record; None without one."""
    return None if record is None else complete_text(json.loads(record).get("end", {}))
