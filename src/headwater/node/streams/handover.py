"""The owner's side of a takeover: the steps by which a vbucket moves to another node, and the way back if a step fails.

    CATCHING_UP --pending is sent--> ASKED_PENDING --answered: dead here--> DRAINING --active is sent--> ASKED_ACTIVE
                                                                                     --answered--> DONE

There are never two owners: the vbucket is dead here, and that is on disk, before the other node is told to become
active. Nothing acknowledged is lost: all changes written until then are sent first. If either step is refused,
everything is restored; if the connection breaks, the states stay as they are, and the mover decides (failover 4,
failures). The same holds for a lost batch or a fence after the other node has answered that it is pending.

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
        """Return True if nothing has to be settled before the handover."""

    def hand_over(self, vbucket: int) -> None:
        """Stop serving the vbucket."""


class Handover:
    """The handover of one vbucket to another node.

    Args:
        vbucket: the vbucket, which is marked as being handed over until `close`. bucket: its bucket.
        clock: seconds of a monotonic clock.
        hold_until: called with a batch number: later output is sent only once that batch is durable.
        seconds_max: the time after which writes are refused.

    Attributes:
        deadline: the time of the next `tick`; None for never.
        on_silence: called if a state was not answered in time; None to wait without limit.
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
        # The mark by which others keep away: the reconciler leaves the vbucket alone, a second takeover is refused.
        vbucket.handover = self

    def begin(self) -> None:
        """Start the clock of the handover, because the backfill is sent."""
        self.deadline = self._clock() + self._seconds_max

    def tick(self, now: float) -> None:
        """Act on a deadline: "client writes on that vb get ETMPFAIL until done, so the tail becomes finite"."""
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            if self.on_silence is not None and self.stage in (HandoverStage.ASKED_PENDING, HandoverStage.ASKED_ACTIVE):
                self.on_silence()
            # Later stages have no writes to refuse: the vbucket is dead here.
            elif self.stage in (HandoverStage.CATCHING_UP, HandoverStage.ASKED_PENDING):
                self._vbucket.back_up(True)

    def may_go_on(self, position: int) -> bool:
        """Return True if the next state may be sent: all durable changes are sent (for the last state, all changes),
        and earlier durable writes are settled.
        """
        # The high seqno, durable or not: aborts that the hand-over itself has staged must be sent before the other side
        # serves.
        if self.stage is HandoverStage.DRAINING:
            return position >= self._vbucket.high_seqno
        if self.stage is not HandoverStage.CATCHING_UP or position < self._vbucket.durable_seqno:
            return False
        return self._bucket.may_hand_over(self._vbucket.id)

    def next_state(self) -> State:
        """Return the state to send now: steps 6 and 10."""
        if self.stage is HandoverStage.CATCHING_UP:
            # The vbucket is still active here: should the answer never come, nothing has happened (failover 4, "lost
            # between 6 and 7").
            self.stage = HandoverStage.ASKED_PENDING
            return State.PENDING
        state = self._vbucket.state
        is_drained = self.stage is HandoverStage.DRAINING
        node_invariant(is_drained, "vbucket {} is handed over while {}", self._vbucket.id, self.stage.value)
        node_invariant(state is State.DEAD, "vbucket {} is handed over while {}", self._vbucket.id, state.name)
        # Were this node to crash and forget that it is dead, there would be two owners.
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
            # A target that refuses to be pending (it lacks changes) costs nothing: the owner never stopped serving.
            if status != Status.SUCCESS:
                return EndReason.STATE_CHANGED
            failpoint("takeover.pending_acked")
            # A batch with what was settled may have been lost by now, or a fence may have come.
            if not self._bucket.may_hand_over(self._vbucket.id):
                return EndReason.STATE_CHANGED
            # Step 8 stands before step 10, and DEAD is durable before ACTIVE leaves: at no instant can both nodes take
            # a write.
            self._bucket.hand_over(self._vbucket.id)
            failpoint("takeover.dead")
            self.stage = HandoverStage.DRAINING
            return None
        if status != Status.SUCCESS:
            # The target has said that it is not active, so serving again can't make two owners; silence would not say
            # that.
            self._vbucket.take_back()
            return EndReason.STATE_CHANGED
        failpoint("takeover.active_acked")
        self.stage = HandoverStage.DONE
        return EndReason.OK

    def close(self) -> None:
        """Undo or complete the handover, because its stream is over."""
        self.deadline = None
        if self._vbucket.handover is self:
            # Cleared before the streams hear of the end: whoever asks again at once must not find a hand-over under
            # way.
            self._vbucket.handover = None
            self._vbucket.back_up(False)
            # Broken off behind step 8: whether the target became active is not known here, and to take the vbucket back
            # on a guess could make two owners. The mover decides (failover 4, failures).
            if self._vbucket.state is State.DEAD:
                self._vbucket.handed_over()
