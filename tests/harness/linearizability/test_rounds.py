"""A round of real nodes under faults; `make linearizable` runs them for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.linearizability.judgement import judged
from harness.linearizability.record import FaultKind, Outcome
from harness.linearizability.rounds import Round
from tests.battery import few_of

# By the event that is drawn first: a node dies and is failed over, one that is cut off is, a rebalance in trouble.
SEEDS = few_of([4, 1, 2, 3, 5, 6], 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_clients_of_three_nodes_saw_is_explained(seed: int, tmp_path: Path) -> None:
    with Round(seed, tmp_path) as this:
        this.run()
    found = this.history()
    judgement = judged(found)
    assert judgement.is_good, "\n".join([*this.did, *judgement.reports])
    assert len(found.operations) > 100 and len(this.did) > 1
    if seed == 4:
        assert {FaultKind.FAILOVER, FaultKind.MOVE} <= {fault.kind for fault in found.faults}
        assert sum(operation.outcome is Outcome.DONE for operation in found.operations) > 50
