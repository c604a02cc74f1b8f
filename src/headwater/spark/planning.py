"""The planner's memory between the batches of an endless read, driven by Spark or by a loop of our own.

Offsets go in and out in Spark's form, dicts of JSON types (offsets.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from headwater.errors import DataLoss, OptionError, RollbackRequired
from headwater.protocol.dcp.complete import NANOSECONDS
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import Position
from headwater.spark.behind import complete_entry, ownerless_entry
from headwater.spark.history import BranchHistory, HeldPoints
from headwater.spark.nodes import SourceNodes
from headwater.spark.offsets import Offset
from headwater.spark.planner import newest, plan, settled
from headwater.spark.settings import SourceSettings

log: logging.Logger = logging.getLogger(__name__)


def check(policy: str, start: Offset, end: Offset) -> None:
    """Check that a plan takes no delivered changes back, if the policy forbids it.

    Raises:
        RollbackRequired: the policy is `fail` and the plan has a rollback.
    """
    if policy == "fail" and end.rollbacks:
        vb = min(end.rollbacks)
        reason = f"a failover or a purge, in {len(end.rollbacks)} vbuckets; rollbackPolicy is fail"
        raise RollbackRequired(vb, start.position(vb).seqno, end.position(vb).snapshot_start, reason)


def check_loss(start: Offset, end: Offset, *, fails: bool) -> None:
    """Log that deletions were purged before they were read; the batch reads their vbuckets again whole.

    Raises:
        DataLoss: the option `failOnDataLoss` is set.
    """
    if not end.losses:
        return
    loss = DataLoss(end.losses, start.position(min(end.losses)).seqno)
    if fails:
        raise loss
    log.warning("%s", loss)


def check_fits(start: Offset, vbuckets: int, url: str) -> None:
    """Check that the bucket has all vbuckets of the offset: a vbucket that is missing would take its documents away
    unreported.

    Raises:
        OptionError: the bucket has fewer: it was created anew, or it is another bucket.
    """
    if start.positions and (highest := max(start.positions)) >= vbuckets:
        advice = f"a bucket with vbucket {highest}, at which the read begins: it has {vbuckets} vbuckets"
        remedy = "begin anew, in another place, with an empty checkpoint"
        raise OptionError(
            "url", url, f"{advice}. Name its own in startingOffsets; if another one was read before, {remedy}"
        )


def check_ends(ends: Mapping[int, int], histories: Mapping[int, BranchHistory], vbuckets: int) -> None:
    """Check that each vbucket has reached its end: the rows up to a later end would be taken for complete.

    Raises:
        OptionError: a vbucket has not; the message has the bucket's present seqno.
    """
    for vbucket, seqno in ends.items():
        if vbucket >= vbuckets:
            raise OptionError("endingOffsets", str(vbucket), f"a vbucket of this bucket: it has {vbuckets}")
        if vbucket in histories and seqno > histories[vbucket].readable_seqno:
            problem = f"a seqno that vbucket {vbucket} has come to: it is at {histories[vbucket].readable_seqno}"
            raise OptionError("endingOffsets", str(seqno), f"{problem}. latest, or no such option, reads what there is")


FURTHER_MAX = 3
"""The number of times that a run to the end moves its goal."""

TELL_SECONDS = 60.0
"""While nothing changes, the offset of a job with a record of its own moves on after so long, for its time alone."""

SETTLE_SECONDS = 3.0
"""After so many seconds without changes, an endless read reports that it has everything."""


class Planning:
    """The planner's memory: the last observation, points to return to, and the goal of an AvailableNow run.

    Args:
        settings: options of the read.
        settle: True to end an AvailableNow run, or a time without changes, with an offset that marks the vbuckets read
            to the end of a history that did not change meanwhile. A later start from it need not read them again if
            that history gets another vb uuid.
    """

    def __init__(self, settings: SourceSettings, *, settle: bool = False) -> None:
        self.settings: SourceSettings = settings
        self.nodes: Final = SourceNodes(settings)
        self.held: Final = HeldPoints()
        self._settle = settle
        self.targets: dict[int, int] | None = None
        self.reported: dict[str, Any] | None = None
        self._histories: dict[int, BranchHistory] = {}
        self._observed_at = float("-inf")
        self._start: dict[str, Any] | None = None
        self._offset: Offset | None = None
        self._calm_since = float("inf")
        self._idle = False
        self._coverage: tuple[Coverage | None] | None = None
        self._start_offset: Offset | None = None
        self._further = FURTHER_MAX
        self._new_notes: Final = uuid4().hex

    def close(self) -> None:
        """Close the connection."""
        self.nodes.close()

    def look_again(self) -> None:
        """Drop the last observation, so that the next plan requests a new one from the nodes."""
        self._observed_at, self._idle, self._offset = float("-inf"), False, None

    def aim(self) -> None:
        """Set the goal of this run: the bucket's present end."""
        self._observe(all_owners=True)
        self.targets = {vb: history.readable_seqno for vb, history in self._histories.items()}

    def latest(self, start: dict[str, Any], changes_max: int | None) -> dict[str, Any]:
        """Return the end of the batch that begins at `start`; `start` if there is nothing to do.

        Spark calls this a hundred times a second while nothing changes, so an observation is reused for a while. Not
        after a new `start`: its batch has just been read, and only a later observation shows whether it was whole.

        Args:
            changes_max: the most changes of the batch; None for no limit.
        """
        if start != self._start or time.monotonic() >= self._observed_at + self.settings.poll_interval_seconds:
            # A run to the end is over when nothing is left; what nobody has at the moment is left, too. And a start at
            # the newest needs a place in each vbucket: one without would be read from its beginning, once it has one.
            at = Offset.from_json(start)
            all_owners = self.targets is not None or at.latest
            resting = () if all_owners else self._resting_vbuckets(at)
            self._observe(all_owners=all_owners, idle=self._idle and start == self._start, resting=resting)
            self._offset = at
            self._calm_since = self._calm_since if start == self._start else float("inf")
            self._start = start
        start_offset = self._covered_offset(Offset.from_json(start))
        self._report_complete(start_offset)
        check_fits(start_offset, self.nodes.vbuckets, self.settings.url)
        if start_offset.latest:
            return self._complete(
                replace(newest(self._histories), coverage=start_offset.coverage), start_offset
            ).to_json()
        self._start_offset = self._start_offset or start_offset
        self.held.record(start_offset.positions, self._histories, start_offset.rollbacks)
        end = self._plan(start_offset, changes_max)
        if end is start_offset and self._goes_further(start_offset):
            end = self._plan(start_offset, changes_max)
        self._idle = end is start_offset
        if end is start_offset:
            settled_offset = settled(start_offset, self._histories) if self._settles() else start_offset
            end_offset = self._complete(settled_offset, start_offset)
            return (
                start
                if settled_offset is start_offset and not self._tells(start_offset, end_offset)
                else end_offset.to_json()
            )
        check_loss(start_offset, end, fails=self.settings.fail_on_data_loss)
        check(self.settings.rollback_policy, start_offset, end)
        return self._complete(end, start_offset).to_json()

    def _plan(self, start_offset: Offset, changes_max: int | None) -> Offset:
        return plan(
            start_offset,
            self._histories,
            held_points=self.held,
            changes_max=changes_max,
            targets=self.targets,
            counts=self.settings.undo_folder is not None,
        )

    def _complete(self, end: Offset, start_offset: Offset) -> Offset:
        """Return an offset with the time until which it lacks no change, that of `start_offset` or a later one.

        It has the id of the reader's notes, too.
        """
        seqnos = {vb: position.seqno for vb, position in end.positions.items() if self._is_on_log(vb, position)}
        notes = (start_offset.notes or self._new_notes) if self.settings.undo_folder is not None else ""
        until = self.nodes.complete.until(seqnos, start_offset.complete_until)
        return replace(end, complete_until=until, notes=notes)

    def _is_on_log(self, vb: int, position: Position) -> bool:
        """Return True if a position is in the history that the node has: another branch's seqno says nothing of it."""
        history = self._histories.get(vb)
        return history is not None and any(entry[0] == position.vb_uuid for entry in history.log)

    def _tells(self, start_offset: Offset, end: Offset) -> bool:
        """Return True if the offset of a job with a record of its own moves on for the time alone, now and then:
        whoever reads the table sees that it is fresh though nothing changes.
        """
        return self._settle and end.complete_until >= start_offset.complete_until + round(TELL_SECONDS * NANOSECONDS)

    def _report_complete(self, start_offset: Offset) -> None:
        """Add to the report the time up to which a reader at `start_offset` has everything."""
        if self.reported is not None:
            until, complete = self._complete(start_offset, start_offset).complete_until, self.nodes.complete
            self.reported = self.reported | complete_entry(until, complete.problem)

    def _resting_vbuckets(self, start: Offset) -> set[int]:
        """Return the vbuckets that the reader had read to their end at the last observation, and has not read since."""
        if self._offset is None:
            return set()
        last, now = self._offset.positions, start.positions
        return {
            vb
            for vb, history in self._histories.items()
            if (at := now.get(vb)) is not None and at == last.get(vb) and at.seqno == history.high_seqno
        }

    def _goes_further(self, start_offset: Offset) -> bool:
        """Move the goal of a run that has reached it, if there were writes while it read; return True if the goal was
        moved.

        A server that can't show the state of the goal leaves out versions that were replaced after it, so a document
        that existed all the time would be missing. Its replacement is read now, not by a daily job's next run. A run's
        goal moves a limited number of times.
        """
        if self.targets is None or self._start_offset is None or not self._further:
            return False
        new_targets = {
            vb: history.readable_seqno
            for vb, history in self._histories.items()
            if self._start_offset.position(vb) != start_offset.position(vb)
            and start_offset.position(vb).seqno < history.readable_seqno
        }
        self._further -= bool(new_targets)
        self.targets |= new_targets
        return bool(new_targets)

    def _covered_offset(self, start: Offset) -> Offset:
        """Return an offset with the collections to read, by id; for a start without positions, those that the names
        mean now.

        Raises:
            OptionError: the offset has another choice. UnknownCollection, UnknownScope: a name does not exist.
        """
        if self._coverage is None:
            self._coverage = (self.nodes.covered(start),)
        return replace(start, coverage=self._coverage[0])

    def _settles(self) -> bool:
        self._calm_since = min(self._calm_since, self._observed_at)
        calm_seconds = self._observed_at - self._calm_since
        return self._settle and (self.targets is not None or calm_seconds >= SETTLE_SECONDS)

    def _observe(self, *, all_owners: bool = False, idle: bool = False, resting: Collection[int] = ()) -> None:
        self._histories = self.nodes.observe(all_owners=all_owners, idle=idle, resting=resting)
        self._observed_at = time.monotonic()
        self.reported = newest(self._histories).to_json() | ownerless_entry(*self.nodes.ownerless)
