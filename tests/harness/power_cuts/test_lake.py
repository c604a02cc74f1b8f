"""A few power cuts under a mirror's table; `make power-cuts` has two hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.lake_faults.judge import Wrong
from harness.power_cuts import lake
from harness.power_cuts.lake import CutTable
from harness.power_cuts.mounted import mounted, why_not
from headwater import testing
from tests.battery import few_of

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no power cuts: {why_not()}")


@pytest.mark.parametrize("cuts", few_of([2, 20], 2))
def test_after_a_power_cut_the_table_is_the_bucket(tmp_path: Path, cuts: int) -> None:
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk") as disk, testing.node(vbuckets=4) as node:
        table = CutTable(disk, tmp_path / "disk" / "lake" / "table", node, seed=3)
        for _ in range(cuts):
            table.round()
    assert table.cuts.total() == cuts


def test_a_mirror_whose_syncs_are_left_out_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "LOSSES", (1.0,))
    monkeypatch.setattr(lake, "CHANGES_MAX", (1_000_000,))
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk") as disk, testing.node(vbuckets=4) as node:
        table = CutTable(disk, tmp_path / "disk" / "table", node, seed=5)
        table.round()
        disk.lie()
        with pytest.raises((Wrong, OSError, ValueError)):
            table.round()
