"""The memory that connections hold together."""

from __future__ import annotations

from headwater.node.connections.budget import Budget


class Guest:
    """Keeps why it had to go."""

    def __init__(self) -> None:
        self.cause = ""

    def drop(self, cause: str) -> None:
        self.cause = cause


def test_over_the_bound_the_one_that_holds_most_goes() -> None:
    budget, modest, greedy, last = Budget(100, 90, "they"), Guest(), Guest(), Guest()
    budget.hold(modest, 30)
    budget.hold(greedy, 60)
    assert (budget.held_bytes, greedy.cause) == (90, "")
    budget.hold(last, 20)
    assert (modest.cause, last.cause) == ("", "")
    assert greedy.cause == "they hold more than 100 bytes, and it 60 of them"
    assert (budget.held_bytes, budget.dropped) == (50, 1)


def test_nobody_holds_more_than_one_may() -> None:
    budget, greedy = Budget(100, 50, "they"), Guest()
    budget.hold(greedy, 50)
    assert not greedy.cause
    budget.hold(greedy, 51)
    assert greedy.cause == "holds 51 bytes of memory, 50 are allowed" and budget.held_bytes == 0


def test_what_is_given_back_counts_no_more() -> None:
    budget, guest = Budget(100, 100, "they"), Guest()
    budget.hold(guest, 80)
    budget.hold(guest, 10)
    assert budget.held_bytes == 10
    budget.release(guest)
    budget.release(guest)
    assert budget.held_bytes == 0
