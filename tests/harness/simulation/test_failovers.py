"""Owners that are failed over by maps under durable writes, with any faults before and behind that."""

from __future__ import annotations

import pytest

from harness.simulation.failovers import play
from tests.battery import few_of


@pytest.mark.parametrize("seed", few_of(range(40), 0, 1))
def test_what_was_told_to_have_happened_is_there_after_any_failover(seed: int) -> None:
    play(seed, rounds=4)
