"""The state after a broken hand-over, and the action that repairs it: the failure table of failover 4, pure.

    source     target                        cause                             repair
    active     not active                    before step 8, or nothing yet     BEGIN: the target is a replica (again)
    dead       pending, has everything       after step 8                      FINISH: the target becomes active
    dead       pending, lacks something      after step 8                      GIVE_BACK: the source becomes active
    dead       pending, has a flaw           after step 8, its disk since      GIVE_BACK, if the source is sound
    dead       does not answer, never asked  B crashed before step 10          GIVE_BACK
    dead       does not answer               perhaps after step 10             WAIT: it may be active
    no answer  pending, asked to be active   A crashed after step 10           FINISH: it has everything
    no answer  pending                       A crashed, perhaps before step 8  WAIT: it may be active
    any        active                        after step 11                     DONE
    active     active                        no hand-over does that            REFUSE

The order of the steps keeps the rule "never two active owners": no node is made active unless the other is known to be
dead, on disk, or known never to have got the order to become active. "Known" means that this run of the mover has
passed it on itself; a new run asks both nodes.

A copy with a flaw is not made active here either: "has everything" only compares seqnos, and changes damaged on a disk
still have theirs. Either the other copy is whole, or the operator must decide. A damaged source gets its vbucket back,
damaged as it is, if the target is sound but lacks changes: only the source has those.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headwater.cluster.answers import IS_DAMAGED
from headwater.wire.vbucket import State

FailoverLog = tuple[tuple[int, int], ...]


class Action(Enum):
    """The action that repairs a vbucket's hand-over."""

    BEGIN = "begin"
    """The source owns it: make the target a replica, and move."""
    FINISH = "finish"
    """Make the target active; the source is dead."""
    GIVE_BACK = "give back"
    """Make the source active; the target, once it answers, a replica."""
    DONE = "done"
    """The target owns it."""
    WAIT = "wait"
    """The owner is unknown while a node can't be asked."""
    REFUSE = "refuse"
    """This is not a hand-over from source to target; nothing may be touched."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """One node's copy of the vbucket, as the node reports it.

    Attributes:
        state: None if the vbucket is not on that node.
        high_seqno: the durable high seqno. failover_log: (vb uuid, seqno), newest first.
        flaw: the flaw of a copy between owners, for people: it refused changes, or is damaged; empty for none.
    """

    state: State | None
    high_seqno: int = 0
    failover_log: FailoverLog = ()
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """All known facts about a vbucket.

    Attributes:
        source, target: their copies; None while the node does not answer, for `source_problem` or `target_problem`.
        active_sent: True if the target got the order to become active (step 10), False if not; None if this run of the
            mover can't know, because it did not pass the stream.
        owner: the owner by the newest cluster map, if that is a third node; else empty.
    """

    source: CopyState | None
    target: CopyState | None
    active_sent: bool | None = None
    owner: str = ""
    source_problem: str = "no answer"
    target_problem: str = "no answer"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An action, and its reason in words."""

    action: Action
    reason: str


def decide(now: Situation) -> Verdict:
    """Return the repair for a vbucket that is to go from source to target."""
    if now.source is None:
        return _without_source(now)
    if now.target is None:
        return _without_target(now, now.source)
    return _with_both(now, now.source, now.target)


def _with_both(now: Situation, source: CopyState, target: CopyState) -> Verdict:
    if target.state is State.ACTIVE:
        if source.state is State.ACTIVE:
            return Verdict(Action.REFUSE, "both nodes say that they own it; one of them must be made dead by hand")
        return Verdict(Action.DONE, "the target owns it")
    if source.state is State.ACTIVE:
        return Verdict(Action.BEGIN, "the source owns it")
    if now.owner:
        return Verdict(Action.REFUSE, f"it belongs to {now.owner}, says the cluster map")
    if source.state is State.DEAD and target.state is State.PENDING:
        return _verdict_between(source, target)
    return Verdict(
        Action.REFUSE, f"the source does not own it (there: {_name(source)}, on the target: {_name(target)})"
    )


def _verdict_between(source: CopyState, target: CopyState) -> Verdict:
    """Return the repair for a vbucket without an active owner ("lost after 8", failover 4). "Finish ... only if B has
    everything".
    """
    if target.high_seqno > source.high_seqno or not _same_history(source, target):
        return Verdict(Action.REFUSE, "the target was being handed it by another node than this source")
    missing_count = source.high_seqno - target.high_seqno
    if not missing_count and not target.flaw:
        return Verdict(Action.FINISH, "the hand-over broke off, and the target has everything")
    reason = f"the hand-over broke off, and the target {target.flaw or f'lacks {missing_count} changes'}"
    if source.flaw and (target.flaw or source.flaw != IS_DAMAGED):
        return Verdict(Action.REFUSE, f"{reason}; the source {source.flaw}")
    return Verdict(Action.GIVE_BACK, reason)


def _same_history(source: CopyState, target: CopyState) -> bool:
    """Return True if both logs begin with the same branch: a hand-over continues the source's newest branch."""
    return source.failover_log[:1] == target.failover_log[:1]


def _without_target(now: Situation, source: CopyState) -> Verdict:
    if source.state is State.ACTIVE:
        return Verdict(Action.WAIT, f"the target can't be asked ({now.target_problem}); the source owns it as before")
    if source.state is State.DEAD and now.active_sent is False:
        reason = "the target is gone, and was never told to become active"
        if source.flaw:
            return Verdict(Action.WAIT, f"{reason}; the source {source.flaw}")
        return Verdict(Action.GIVE_BACK, reason)
    return Verdict(
        Action.WAIT,
        f"it is {_name(source)} at the source; the target, which may own it, can't be asked ({now.target_problem})",
    )


def _without_source(now: Situation) -> Verdict:
    target = now.target
    if target is not None and target.state is State.ACTIVE:
        return Verdict(Action.DONE, "the target owns it")
    if target is not None and target.state is State.PENDING and now.active_sent and target.flaw:
        return Verdict(Action.WAIT, f"the target was to own it and {target.flaw}; the source can't be asked for them")
    if target is not None and target.state is State.PENDING and now.active_sent:
        return Verdict(Action.FINISH, "the source is gone; it was dead there, and all of it had been sent")
    return Verdict(Action.WAIT, f"the source, which may own it, can't be asked ({now.source_problem})")


def _name(copy: CopyState) -> str:
    return "missing" if copy.state is None else copy.state.name.lower()
