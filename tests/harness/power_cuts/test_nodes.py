"""A few power cuts under a node; `make power-cuts` has a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.checker import Violation
from harness.power_cuts import nodes
from harness.power_cuts.mounted import mounted, why_not
from harness.power_cuts.nodes import CutNode
from headwater import testing
from tests.battery import few_of

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no power cuts: {why_not()}")


@pytest.mark.parametrize("cuts", few_of([4, 40], 4))
def test_power_cuts_lose_nothing_of_a_node(tmp_path: Path, cuts: int) -> None:
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk") as disk:
        node = CutNode(disk, tmp_path / "disk", seed=3)
        try:
            for _ in range(cuts):
                node.round()
            node.end()
        finally:
            node.close()
    assert node.cuts.total() >= cuts and node.ledger.acknowledged > cuts


def test_a_node_whose_syncs_are_left_out_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LOSSES", (1.0,))
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk") as disk:
        node = CutNode(disk, tmp_path / "disk", seed=4)
        try:
            node.round()
            disk.lie()
            with pytest.raises((Violation, testing.NodeError)):
                for _ in range(3):
                    node.round()
        finally:
            node.close()
