"""Simulated worlds from the command line."""

import pytest

from harness.world import __main__ as program
from harness.world.plan import plan_of
from harness.world.run import WorldOutcome


def test_a_seed_that_holds_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--seed", "3", "--seeds", "1", "--operations", "30"]) == 0
    told = capsys.readouterr().out
    assert "1 seeds, " in told and "0 broken" in told and "seeds a minute" in told


def test_a_failure_is_told_with_how_to_run_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = WorldOutcome(plan_of(17, 30), "kept: a write is lost", trace="where")
    monkeypatch.setattr(program, "run_seed", lambda *_, times: broken)
    assert program.main(["--seed", "17", "--seeds", "1", "--operations", "30", "--as-it-is"]) == 1
    told = capsys.readouterr().out
    assert "kept: a write is lost" in told
    assert "python -m harness.world --seed 17 --seeds 1 --operations 30" in told


def test_a_failure_is_made_smaller(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = WorldOutcome(plan_of(17, 30), "kept: a write is lost")
    monkeypatch.setattr(program, "run_seed", lambda *_, times: broken)
    monkeypatch.setattr(program, "shrink", lambda outcome: ([0, 2], outcome))
    assert program.main(["--seed", "17", "--seeds", "1", "--operations", "30"]) == 1
    assert "--without 0,2" in capsys.readouterr().out
