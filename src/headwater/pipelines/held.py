"""The tables of collections that a catalog of Iceberg holds up, while their mirror goes on with the others.

A catalog that is away, or that refuses one table, is no reason for the other tables to wait. The table that it holds up
is left as it is, with its record, and tried again after a while: nothing of it is lost, for it goes on from its record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headwater import errors
from headwater.errors import CatalogAway, CatalogRefused
from headwater.first_line import OURS
from headwater.pipelines.failures import passes, reason
from headwater.transport.backoff import Backoff

__all__ = ["HeldTables", "is_of_catalog"]

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 60.0
"""The first and the longest time after which a table that is held up is tried again."""


def is_of_catalog(error: BaseException) -> bool:
    """Return True for an error of a catalog that concerns one table; also for one in a text of Spark's."""
    if isinstance(error, errors.HeadwaterError):
        return isinstance(error, CatalogAway | CatalogRefused)
    names = [name for name, _ in OURS.findall(str(error))]
    return bool(names) and names[-1] in (CatalogAway.__name__, CatalogRefused.__name__)


@dataclass
class _HeldTable:
    """A table that is held up: the last error, and when it is tried again."""

    error: BaseException
    until: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_SECONDS, LONGEST_SECONDS))


class HeldTables:
    """The tables that catalogs hold up, by their collections' paths, round by round.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[str, _HeldTable] = {}
        self._closed: set[str] = set()

    def __contains__(self, path: object) -> bool:
        """Return True if a table is left alone in this round."""
        return path in self._closed

    def begin_round(self) -> None:
        """Let the tables be tried whose time has come; the answer of `in` is the same until the round ends."""
        now = self._clock()
        self._closed = {path for path, each in self._held.items() if each.until > now}

    def hold(self, path: str, error: BaseException) -> None:
        """Leave a table alone, in this round and for some time."""
        each = self._held.setdefault(path, _HeldTable(error))
        each.error, each.until = error, self._clock() + each.backoff.next_seconds()
        self._closed.add(path)

    def end_round(self) -> None:
        """Forget the tables that were tried in this round and not held up again."""
        self._held = {path: each for path, each in self._held.items() if path in self._closed}

    @property
    def text(self) -> str:
        """The tables that are held up, with the first one's reason; empty if none is."""
        if not self._held:
            return ""
        first, *others = sorted(self._held)
        named = f"; so {'is' if len(others) == 1 else 'are'} {', '.join(others)}" if others else ""
        return f"{first} is held up: {reason(self._held[first].error)}{named}"

    @property
    def error(self) -> BaseException | None:
        """The error by which a mirror ends or begins anew; one that may pass before one that does not. None if no table
        is held up.
        """
        reasons = (each.error for _, each in sorted(self._held.items()))
        return min(reasons, key=lambda error: not passes(error), default=None)
