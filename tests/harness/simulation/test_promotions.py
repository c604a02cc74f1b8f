"""Replicas that are promoted amid a snapshot, under consumers of the owner before and of a third node."""

from __future__ import annotations

import pytest

from harness.simulation.promotions import play
from tests.battery import few_of


@pytest.mark.parametrize("seed", few_of(range(40), 0))
def test_the_log_of_a_promoted_replica_tells_what_it_holds(seed: int) -> None:
    play(seed, rounds=12)


def test_replicas_are_promoted_amid_a_snapshot_and_where_all_is_whole() -> None:
    assert 0 < play(2, rounds=4) < 4
