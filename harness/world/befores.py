"""The judge of what a change replaced, as a reader with `before` receives it.

A producer that sends the replaced version promises: it is the version of the same key, in the same history, with the
highest seqno below that of the change; or there was no document; or the node does not keep it any more (decision 0158).
Every other version is a violation. A replaced version that is not kept any more is counted, and is no violation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from harness.simulation.histories import Broken, Change
from headwater.client.befores import Before, Lack

if TYPE_CHECKING:
    from collections import Counter

    from harness.simulation.histories import Log
    from harness.world.watcher import Branches
    from headwater.client.befores import Replaced

State: TypeAlias = "tuple[int, Change] | None"
"""The seqno of a document's newest change, and the change; None without a document."""


class Replacing(Protocol):
    """The parts of a mutation, deletion or expiration that are needed here."""

    @property
    def vbucket(self) -> int:
        """Return its vbucket."""

    @property
    def seqno(self) -> int:
        """Return its seqno."""

    @property
    def key(self) -> bytes:
        """Return the key of its document."""

    @property
    def before(self) -> Replaced:
        """Return what it replaced."""


@dataclass(frozen=True, slots=True)
class BeforesJudge:
    """Compares what readers receive with the histories.

    Attributes:
        branches: the histories of all branches. counts: the world's.
    """

    branches: Branches
    counts: Counter[str]

    def judge(self, who: str, log: Log, event: Replacing) -> None:
        """Check what the change of an event replaced, in the history of `log`.

        Raises:
            Broken: it replaced something else.
        """
        vb, seqno, key = event.vbucket, event.seqno, event.key
        if event.before is Lack.NOT_KEPT:
            self.counts["replaced versions not kept"] += 1
            return
        if not log or log[-1][1]:  # the history before the oldest branch of this log is not known
            return
        self.counts["replaced versions judged"] += 1
        was, shown = self._state(vb, log, seqno - 1, key), self._shown(key, event.before)
        if was != shown:
            raise Broken(f"before: {who} was shown that seqno {seqno} of vbucket {vb} replaced {shown}; it was {was}")

    def _state(self, vb: int, log: Log, upto: int, key: bytes) -> State:
        newest = self.branches.newest(vb, log, upto).get(key)
        return None if newest is None or newest[1].value is None else newest

    def _shown(self, key: bytes, before: Replaced) -> State:
        if not isinstance(before, Before):
            return None
        change = Change(key, before.value, before.cas, before.rev_seqno, before.flags, before.expiry)
        return before.seqno, self.branches.as_written(change)
