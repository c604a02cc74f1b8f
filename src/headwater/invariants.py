"""Invariants: rules of our own on which data rests, checked wherever a broken one would lose some (decision 0129).

    invariant(rows <= capacity, "vbucket {}: {} rows in columns for {}", vbucket, rows, capacity)

A rule that does not hold is a fault of this program, or of the memory that it runs in; no peer, disk or user can break
one. Nothing is written or acknowledged past it:

* `invariant` raises: the connection, batch or job that met it ends, and nothing of it counts.
* `node_invariant` is for what all connections of a node share, its log, index and vbuckets: the process ends there and
  then, as in a crash, and the next start reads what is on disk. In a process that is no node it raises as well.

The text is made when a rule is broken and not before. `python -O` takes none of this away, as it does `assert`.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.errors import InvariantBroken

__all__ = ["invariant", "listeners", "node_invariant"]

listeners: list[Callable[[InvariantBroken, bool], object]] = []
"""Functions that hear of each broken invariant before it is raised, and whether it is one of a node's."""


def invariant(holds: object, rule: str, *numbers: object) -> None:
    """Check a rule of one connection, batch or job.

    Args:
        holds: true if the rule holds.
        rule: what is wrong if it does not, with a `{}` for each number.
        numbers: for the text.

    Raises:
        InvariantBroken: it does not hold.
    """
    if not holds:
        _broken(rule, numbers, of_node=False)


def node_invariant(holds: object, rule: str, *numbers: object) -> None:
    """Check a rule of what all connections of a node share: a node's process ends where it does not hold.

    Args and errors are those of `invariant`.
    """
    if not holds:
        _broken(rule, numbers, of_node=True)


def _broken(rule: str, numbers: tuple[object, ...], *, of_node: bool) -> None:
    error = InvariantBroken(rule, *numbers)
    for hear in listeners:
        hear(error, of_node)
    raise error
