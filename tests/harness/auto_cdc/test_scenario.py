"""Tables stay right through failovers; `make auto-cdc` runs a hundred of these."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.auto_cdc.ledger import differences
from harness.auto_cdc.model import ModelPipeline
from harness.auto_cdc.scenario import VBUCKETS, Scenario
from headwater.spark import undo
from headwater.testing.node import node


def wrong(folder: Path, seed: int) -> list[str]:
    with node(vbuckets=VBUCKETS) as bucket:
        model = ModelPipeline(bucket.url, str(folder / f"undo{seed}"))
        scenario = Scenario(bucket, model, seed)
        scenario.run(1)
        assert scenario.taken_back
    return differences(scenario.ledger, model.scd1(), model.scd2())


@pytest.mark.parametrize("seed", [1, 2])
def test_tables_are_right_after_failovers_that_took_back_what_they_had(tmp_path: Path, seed: int) -> None:
    assert wrong(tmp_path, seed) == []


@pytest.mark.parametrize(("rule", "seed"), [("gone", 1), ("wants", 3)])
def test_a_rule_that_is_left_out_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, seed: int
) -> None:
    broken: dict[str, Callable[..., Any]] = {
        "gone": lambda repair: [],
        "wants": lambda repair, identity, *rest: repair.seen.add(identity),
    }
    monkeypatch.setattr(undo._Repair, rule, broken[rule])
    assert wrong(tmp_path, seed)
