"""The owner's side of a takeover: the steps by which a vbucket moves to another node, and the way back if a step fails.

    CATCHING_UP --pending is sent--> ASKED_PENDING --answered: dead here--> DRAINING --active is sent--> ASKED_ACTIVE
                                                                                     --answered--> DONE

There are never two owners: before this node asks the other one to become active, the vbucket is dead here, on disk too.
No acknowledged change is lost: all changes written until then are sent first. If the other node refuses either step,
this node restores the former state. If the connection breaks, the states stay as they are, and the mover decides
(failover 4, failures). The same holds if a batch is lost or a fence comes after the other node has become pending.

Under load, catching up might never end: after `seconds_max` the vbucket refuses writes until the handover is over.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from headwater.failpoints import failpoint
from headwater.invariants import node_invariant
from headwater.wire.dcp import EndReason
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.vbucket.vbucket import VBucket

TAKEOVER_SECONDS_MAX = 60.0
"""The reference server's dcp_takeover_max_time."""

ANSWER_SECONDS_MAX = 10.0
"""The longest wait for a UPR consumer: "a UPR producer that gets no reply within its time-out proceeds" (dcp 14)."""


class HandoverStage(Enum):
    """The stage of a handover."""

    CATCHING_UP = "catching up"
    ASKED_PENDING = "asked to be pending"
    DRAINING = "draining"
    ASKED_ACTIVE = "asked to be active"
    DONE = "done"


class FormerOwner(Protocol):
    """The part of a bucket that a handover needs."""

    def may_hand_over(self, vbucket: int) -> bool:
        """Return True if no durable write or lost batch still has to be settled before the handover."""

    def hand_over(self, vbucket: int) -> None:
        """Stop serving the vbucket."""


class Handover:
    """The handover of one vbucket to another node.

    Args:
        vbucket: the vbucket; its attribute `handover` is this object until `close`.
        bucket: the bucket of the vbucket.
        clock: returns seconds of a monotonic clock.
        hold_until: called with a batch number: later output is sent only once that batch is durable.
        seconds_max: the time, from `begin` on, after which writes are refused.

    Attributes:
        stage: the present stage.
        deadline: the time of the next `tick`, in seconds of `clock`; None for never.
        on_silence: called if the consumer does not answer a state in time; None to wait without limit.
    """

    def __init__(
        self,
        vbucket: VBucket,
        bucket: FormerOwner,
        clock: Callable[[], float],
        hold_until: Callable[[int], None],
        seconds_max: float = TAKEOVER_SECONDS_MAX,
    ) -> None:
        self.stage: HandoverStage = HandoverStage.CATCHING_UP
        self.deadline: float | None = None
        self.on_silence: Callable[[], None] | None = None
        self._vbucket, self._bucket = vbucket, bucket
        self._clock = clock
        self._hold_until = hold_until
        self._seconds_max = seconds_max
        # With this mark the reconciler leaves the vbucket alone, and a second takeover is refused.
        vbucket.handover = self

    def begin(self) -> None:
        """Start the clock of the handover, because the backfill is sent."""
        self.deadline = self._clock() + self._seconds_max

    def tick(self, now: float) -> None:
        """If the deadline has passed, refuse writes ("client writes on that vb get ETMPFAIL until done, so the tail
        becomes finite"), or call `on_silence` while an answer is due.
        """
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            if self.on_silence is not None and self.stage in (HandoverStage.ASKED_PENDING, HandoverStage.ASKED_ACTIVE):
                self.on_silence()
            # Later stages have no writes to refuse: the vbucket is dead here.
            elif self.stage in (HandoverStage.CATCHING_UP, HandoverStage.ASKED_PENDING):
                self._vbucket.back_up(True)

    def may_go_on(self, position: int) -> bool:
        """Return True if the next state may be sent to a consumer that has the changes up to `position`.

        It must have all durable changes before it becomes pending, and earlier durable writes must be settled; it must
        have all changes before it becomes active.
        """
        # The high seqno, durable or not: the handover itself has staged aborts, which must be sent before the other
        # node becomes active.
        if self.stage is HandoverStage.DRAINING:
            return position >= self._vbucket.high_seqno
        if self.stage is not HandoverStage.CATCHING_UP or position < self._vbucket.durable_seqno:
            return False
        return self._bucket.may_hand_over(self._vbucket.id)

    def next_state(self) -> State:
        """Enter the next stage, and return the state to send: PENDING (step 6) or ACTIVE (step 10)."""
        if self.stage is HandoverStage.CATCHING_UP:
            # The vbucket is still active here: should the answer never come, nothing has happened (failover 4, "lost
            # between 6 and 7").
            self.stage = HandoverStage.ASKED_PENDING
            return State.PENDING
        state = self._vbucket.state
        is_drained = self.stage is HandoverStage.DRAINING
        node_invariant(is_drained, "vbucket {} is handed over while {}", self._vbucket.id, self.stage.value)
        node_invariant(state is State.DEAD, "vbucket {} is handed over while {}", self._vbucket.id, state.name)
        # If this node crashed and forgot that the vbucket is dead, there would be two owners.
        self._hold_until(self._vbucket.gate)
        self.stage = HandoverStage.ASKED_ACTIVE
        return State.ACTIVE

    def sent(self) -> None:
        """Note that the state has been sent."""
        if self.on_silence is not None:
            self.deadline = self._clock() + ANSWER_SECONDS_MAX
        failpoint("takeover.pending_sent" if self.stage is HandoverStage.ASKED_PENDING else "takeover.active_sent")

    def answered(self, status: int) -> EndReason | None:
        """Handle the answer to the last state; return the reason to end the stream, None if it continues.

        "A careful implementation treats a non-success status as failed takeover: end the stream, restore."
        """
        is_asked = self.stage in (HandoverStage.ASKED_PENDING, HandoverStage.ASKED_ACTIVE)
        node_invariant(is_asked, "vbucket {}: a state is answered while {}", self._vbucket.id, self.stage.value)
        if self.stage is HandoverStage.ASKED_PENDING:
            # If the target refuses to be pending (it lacks changes), nothing must be undone: the owner never stopped
            # serving.
            if status != Status.SUCCESS:
                return EndReason.STATE_CHANGED
            failpoint("takeover.pending_acked")
            # The batch with settled durable writes may have been lost by now, or a fence may have come.
            if not self._bucket.may_hand_over(self._vbucket.id):
                return EndReason.STATE_CHANGED
            # Step 8 stands before step 10, and DEAD is durable before ACTIVE leaves: at no instant can both nodes take
            # a write.
            self._bucket.hand_over(self._vbucket.id)
            failpoint("takeover.dead")
            self.stage = HandoverStage.DRAINING
            return None
        if status != Status.SUCCESS:
            # The target has answered that it is not active, so this node can serve again without a second owner.
            self._vbucket.take_back()
            return EndReason.STATE_CHANGED
        failpoint("takeover.active_acked")
        self.stage = HandoverStage.DONE
        return EndReason.OK

    def close(self) -> None:
        """Undo or complete the handover, because its stream is over."""
        self.deadline = None
        if self._vbucket.handover is self:
            # Cleared before the streams end: a consumer that requests a stream again at once must not meet a handover
            # that is still under way.
            self._vbucket.handover = None
            self._vbucket.back_up(False)
            # After step 8 this node does not know whether the target became active, and taking the vbucket back could
            # make two owners. The mover decides (failover 4, failures).
            if self._vbucket.state is State.DEAD:
                self._vbucket.handed_over()
