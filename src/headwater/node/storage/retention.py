"""The retention of superseded versions: find the beginning of the history in each vbucket.

A history consists of a vbucket's newest rows. The versions that these rows superseded are kept, so every version above
the first row's seqno can be read, and so can the state before it (decision 0151).

By seconds, a history begins with the first row whose CAS is young enough. A CAS contains the time of the write, except
that of a document written with its metadata, so an old CAS after a young one counts as young. By bytes, a history
begins where the superseded versions have used up the vbucket's share; shares are equal, and the unused part of a share
goes to the others. With both limits the shorter history counts. The rows that a rollback may undo (`least`) always
belong to the history.
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
"""The limits of a bucket's setting; the largest are more than a century, and more than a disk."""
FOREVER: Final = (1 << 62) - 1
"""A limit that no history reaches."""
Drops: TypeAlias = tuple[tuple[int, int], ...]
"""The drops of a vbucket's collections, newest first: (seqno, bytes of the documents that it superseded)."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The setting of a bucket: limits for the age and the size of its history. If both are 0, it keeps no history.

    Attributes:
        seconds: the longest age; 0 for no limit by age.
        bytes: the most bytes of superseded versions; 0 for no limit by size.
    """

    seconds: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.seconds or self.bytes)

    def __str__(self) -> str:
        parts = [f"{self.seconds} s" * bool(self.seconds), f"{self.bytes} bytes" * bool(self.bytes)]
        return f"{' and at most '.join(filter(None, parts))} of history" if self else "no history on purpose"


class HistoryLimits(NamedTuple):
    """The present limits of histories.

    Attributes:
        since_cas: a history begins with the first CAS of at least this; 0 for no limit by age.
        bytes: the most bytes of superseded versions in all vbuckets together.
    """

    since_cas: int
    bytes: int


class HistoryRows(NamedTuple):
    """The present rows of a vbucket.

    Attributes:
        columns: the vbucket's columns.
        rows: the number of durable rows.
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
    """Return the beginning of each vbucket's history. Any thread may call this. Takes time: reads the rows of all
    histories.

    Args:
        vbuckets: the rows of each vbucket.
        segments: the store's table of segments.
        limits: the present limits.
    """
    longest = {vb: _longest(vbucket, segments, limits.since_cas) for vb, vbucket in vbuckets.items()}
    if sum(each.bytes for each in longest.values()) <= limits.bytes:
        return longest
    least = {vb: _within(vbucket, segments, vbucket.rows - vbucket.least) for vb, vbucket in vbuckets.items()}
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
    """Return the beginnings of histories that have at most `most` bytes together. The unused rest of a vbucket's share
    goes to the next vbucket.
    """
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
    """Return each vbucket's share in bytes. Shares are equal, but not below `least` nor above `longest`; their sum is
    at most `most`, unless `least` needs more.
    """

    def at(level: int) -> NDArray[np.int64]:
        return np.maximum(least, np.minimum(longest, level))

    low, high = 0, int(longest.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(at(middle).sum()) <= most else (low, middle - 1)
    return at(low)
