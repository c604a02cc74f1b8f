"""The reasons for which a failover is refused, each with a name, so that an operator overrides only those that they
have seen.

    checks = {FailoverRefusal.BEHIND: lambda: check_needed(promotions)}
    overridden = judge(checks, accepted={FailoverRefusal.BEHIND})

`judge` runs all checks before it refuses, so that an operator sees all reasons at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from headwater.errors import ClusterError


class FailoverRefusal(StrEnum):
    """A reason; its value is an argument of `--accept`.

    Attributes:
        ALIVE: the dead node answers. MAJORITY: the nodes left are no majority, or a half that may be outdated.
        DAMAGED: the best copy refused changes, is damaged, or lacks changes that the former owner's damaged one has.
        PART: the best copy was never whole. HISTORIES: two copies have histories of their own.
        UNKNOWN: an earlier failover broke off before a copy that is missing now had reported its seqno.
        BEHIND: the best copy has not reached the seqno that the map requires.
        LAST_COPY: the dead node may have the only whole copies of a damaged owner's vbuckets.
    """

    ALIVE = "alive"
    MAJORITY = "majority"
    DAMAGED = "damaged"
    PART = "part"
    HISTORIES = "histories"
    UNKNOWN = "unknown"
    BEHIND = "behind"
    LAST_COPY = "last-copy"

    @property
    def option(self) -> str:
        """The option that overrides only this reason."""
        return f"--accept {self}"


def judge(
    checks: Mapping[FailoverRefusal, Callable[[], None]], accepted: Collection[FailoverRefusal]
) -> dict[FailoverRefusal, str]:
    """Run all checks; return the accepted refusals that were found, in words.

    Raises:
        ClusterError: a refusal is not accepted; the error lists all such refusals.
    """
    problems = {refusal: error for refusal, check in checks.items() if (error := _problem(check)) is not None}
    open_problems = {refusal: error for refusal, error in problems.items() if refusal not in accepted}
    if len(open_problems) == 1:
        raise next(iter(open_problems.values()))
    if open_problems:
        messages = (f"({number}) {error.problem}" for number, error in enumerate(open_problems.values(), 1))
        options = " ".join(problem.option for problem in open_problems)
        raise ClusterError(
            "; ".join(messages), f"start the dead node, or go on in spite of all {len(open_problems)}: {options}"
        )
    return {refusal: error.problem for refusal, error in problems.items()}


def _problem(check: Callable[[], None]) -> ClusterError | None:
    try:
        check()
    except ClusterError as error:
        return error
    return None
