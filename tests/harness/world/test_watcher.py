"""The watcher: who serves, who was superseded, and two owners."""

import pytest

from harness.simulation.histories import Broken
from harness.world.watcher import Interval, Turn, Turns, Watcher


def test_two_nodes_in_one_branch_are_one_too_many() -> None:
    owned = Turns(0)
    owned.became_active("n0", [(7, 0)], 5, restarted=False)
    with pytest.raises(Broken, match="owners: n1 and"):
        owned.became_active("n1", [(7, 0)], 5, restarted=False)


def test_a_turn_tells_a_hand_over_from_a_promotion_and_a_restart() -> None:
    found: list[tuple[object, ...]] = []
    owned = Turns(3, on_turn=lambda *told: found.append(told))
    owned.became_active("n0", [(7, 0)], 5, restarted=False)
    owned.demoted("n0")
    owned.became_active("n1", [(7, 0)], 5, restarted=False)
    owned.became_active("n1", [(8, 5), (7, 0)], 5, restarted=True)
    assert found == [(3, "n0", False, False), (3, "n1", True, False), (3, "n1", False, True)]
    assert [Turn(0.0, *told).is_failover for told in found] == [True, False, False]  # type: ignore[arg-type]


def test_an_answer_is_that_of_a_superseded_node_if_it_was_one_at_any_moment_of_the_operation() -> None:
    watcher = Watcher([], 1, lambda: 0.0)
    watcher.superseded = [Interval("n0", 0, 5.0, 6.0), Interval("n1", 0, 9.0)]
    asked = [("n0", 1.0, 4.9), ("n0", 4.0, 5.1), ("n0", 6.1, 7.0), ("n1", 20.0, 21.0), ("n2", 5.0, 6.0)]
    assert [watcher.was_superseded(node, 0, began, ended) for node, began, ended in asked] == [
        False, True, False, True, False,
    ]  # fmt: skip
    assert not watcher.was_superseded("n0", 1, 5.0, 6.0)
