"""The progress of a drain, vbucket by vbucket: the position to save, the end wanted, errors to retry.

Positions are made only on demand: a batch of a megabyte arrives every fraction of a millisecond, and a thousand
position objects for each would cost more than decoding it. `Positions` keeps the numbers that they are made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.tracker import HELD_END, HELD_START, LAST
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import FailoverLog, Position, place
from headwater.transport.backoff import Backoff

HELD = [LAST, HELD_START, HELD_END]

STEADY_SECONDS = 10.0
"""A stream that was open for so long is out of trouble; a later failure begins a new one."""


@dataclass(slots=True)
class VBucketProgress:
    """One vbucket of a drain.

    Attributes:
        position: end of the last stream, or the start.
        end_seqno: the stream ends after the snapshot that holds it.
        done: True when no more changes are to come.
        purge_seqno: the purge seqno of the last marker, up to which no deletion is missing at `position`; 0 for none.
        opened_at: the time at which its stream was accepted; None before.
        trouble_since: time of the first failure since its last progress; None for no trouble.
    """

    position: Position
    end_seqno: int
    done: bool = False
    purge_seqno: int = 0
    opened_at: float | None = None
    trouble_since: float | None = None
    backoff: Backoff = field(default_factory=Backoff)
    _trouble_seqno: int = -1

    def note_failure(self, now: float) -> float:
        """Note a failure; return the seconds to wait before the next attempt.

        Progress by a change, or a stream that lasts for a while, ends a trouble.
        """
        was_steady = self.opened_at is not None and now - self.opened_at >= STEADY_SECONDS
        if was_steady or self.trouble_since is None or self.position.seqno != self._trouble_seqno:
            self.trouble_since = now
            self.backoff.reset()
        self._trouble_seqno, self.opened_at = self.position.seqno, None
        return self.backoff.next_seconds()


@dataclass(slots=True)
class Part:
    """The open streams of one connection at one moment: their vbuckets, and the row of each (kernels/tracker.py)."""

    vbuckets: NDArray[Any]
    rows: NDArray[np.uint64]


@dataclass(slots=True)
class Positions:
    """All positions of a drain at one time, as numbers."""

    resting: Mapping[int, Position]
    parts: list[Part]
    logs: Mapping[int, FailoverLog]
    coverage: Coverage | None = None

    def by_vbucket(self) -> dict[int, Position]:
        """Make the positions: vbucket to position, ordered by vbucket."""
        # The open streams replace some of these positions: `resting` has the beginning of each.
        positions = dict(self.resting)
        for part in self.parts:
            for vbucket, (last, start, end) in zip(part.vbuckets.tolist(), part.rows[:, HELD].tolist(), strict=True):
                positions[vbucket] = place(vbucket, last, start, end, self.logs.get(vbucket, ()), self.coverage)
        return dict(sorted(positions.items()))
