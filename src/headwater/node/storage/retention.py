"""The retention of superseded versions: finds the beginning of the history in each vbucket.

A history consists of a vbucket's newest rows: the version that each of them superseded is kept, so every version above
the first row's seqno can be read, and the state before it (decision 0151). By seconds, a history begins with the first
row whose CAS is young enough: a CAS contains the time, except that of a document written with its metadata, so an old
CAS after a young one counts as young. By bytes, it begins where the superseded versions have used up the vbucket's
share. Shares are equal, and the unused part of one goes to the others. With both limits the shorter history counts.

The rows that a rollback may undo (`least`) always belong to the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headwater.kernels import compact as kernels

if TYPE_CHECKING:
    from headwater.node.storage.columns import Columns

__all__ = [
    "FOREVER",
    "HISTORY_BYTES_MAX",
    "HISTORY_BYTES_MIN",
    "HISTORY_SECONDS_MAX",
    "Drops",
    "HistoryLimits",
    "HistoryRows",
    "HistoryStart",
    "Retention",
    "begin",
]  # fmt: skip

HISTORY_SECONDS_MAX: Final = (1 << 32) - 1
HISTORY_BYTES_MIN: Final = 1 << 20
HISTORY_BYTES_MAX: Final = 1 << 60
"""A bucket may be given so much: at most more than a century, and more than a disk."""
FOREVER: Final = (1 << 62) - 1
"""A limit that no history reaches."""
Drops: TypeAlias = tuple[tuple[int, int], ...]
"""The drops of a vbucket's collections, newest first: (seqno, bytes of the documents that it superseded)."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The setting of a bucket: limits for the age in seconds and the size in bytes of its history; 0 for no such limit.
    With neither limit, the bucket keeps no history.
    """

    seconds: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.seconds or self.bytes)

    def __str__(self) -> str:
        parts = [f"{self.seconds} s" * bool(self.seconds), f"{self.bytes} bytes" * bool(self.bytes)]
        return f"{' and at most '.join(filter(None, parts))} of history" if self else "no history on purpose"


class HistoryLimits(NamedTuple):
    """The present limits of histories: they begin with the first CAS of at least `since_cas` (0: no limit by age), and
    have at most `bytes` superseded bytes in all vbuckets together.
    """

    since_cas: int
    bytes: int


class HistoryRows(NamedTuple):
    """The present rows of a vbucket.

    Attributes:
        rows: number of durable rows.
        gone: number of rows up to the rollback floor, before which no history is left.
        least: number of the newest rows that always belong to the history.
        dropped: int64[n, 2], for each drop of a collection, newest first, its seqno and the bytes of the documents that
            it superseded.
    """

    columns: Columns
    rows: int
    gone: int
    least: int
    dropped: NDArray[np.int64]


class HistoryStart(NamedTuple):
    """The beginning of a history: its first row, and the bytes that its rows superseded."""

    row: int
    bytes: int


def begin(
    vbuckets: Mapping[int, HistoryRows], segments: NDArray[np.uint64], limits: HistoryLimits
) -> dict[int, HistoryStart]:
    """Return the beginning of each vbucket's history. Any thread; reads the rows of all histories."""
    longest = {vb: _longest(each, segments, limits.since_cas) for vb, each in vbuckets.items()}
    if sum(each.bytes for each in longest.values()) <= limits.bytes:
        return longest
    least = {vb: _within(each, segments, each.rows - each.least) for vb, each in vbuckets.items()}
    return _shared(vbuckets, segments, limits.bytes, longest, least)


def _longest(each: HistoryRows, segments: NDArray[np.uint64], since_cas: int) -> HistoryStart:
    """Return the beginning of the history by the limit of seconds."""
    first = min(each.gone, each.rows)
    if since_cas:
        first = int(kernels.first_younger(each.columns.loc, first, each.rows, segments, np.uint64(since_cas)))
    return _within(each, segments, min(first, each.rows - each.least))


def _within(each: HistoryRows, segments: NDArray[np.uint64], first: int, budget: int = FOREVER) -> HistoryStart:
    """Return the beginning of the longest history, from row `first` on, that fits into `budget` bytes."""
    columns = each.columns.seq, each.columns.loc, each.columns.prev
    row, used = kernels.history_within(columns, max(0, first), each.rows, segments, budget, each.dropped)
    return HistoryStart(int(row), int(used))


def _shared(
    vbuckets: Mapping[int, HistoryRows],
    segments: NDArray[np.uint64],
    most: int,
    longest: Mapping[int, HistoryStart],
    least: Mapping[int, HistoryStart],
) -> dict[int, HistoryStart]:
    """Return histories of at most `most` bytes together; the unused rest of a share goes to the next vbucket."""
    shares = _shares(
        np.array([longest[vb].bytes for vb in vbuckets]), np.array([least[vb].bytes for vb in vbuckets]), most
    )
    starts, rest = dict[int, HistoryStart](), 0
    for (vb, each), share in zip(vbuckets.items(), shares.tolist(), strict=True):
        part = _within(each, segments, longest[vb].row, share + rest)
        starts[vb] = least[vb] if part.row > least[vb].row else part
        rest = max(0, share + rest - starts[vb].bytes)
    return starts


def _shares(longest: NDArray[np.int64], least: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return each vbucket's share in bytes: between `least` and `longest`, otherwise equal, and `most` in all if
    possible.
    """

    def at(level: int) -> NDArray[np.int64]:
        return np.maximum(least, np.minimum(longest, level))

    low, high = 0, int(longest.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(at(middle).sum()) <= most else (low, middle - 1)
    return at(low)
