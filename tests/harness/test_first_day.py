"""The newcomer's first day: its own parts; the day itself is `make first-day`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from harness import first_day
from harness.first_day import CONFIGURATION, RULES, Day, Unlike


def here(folder: Path) -> Day:
    """A day whose commands are those of this environment."""
    day = Day(folder, 1)
    day.environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return day


def test_a_command_that_ends_otherwise_than_it_should_ends_the_day(tmp_path: Path) -> None:
    day = here(tmp_path)
    assert day.run("--version").startswith("headwater ")
    with pytest.raises(Unlike, match=r"headwater nonsense: status 2: .*No such command"):
        day.run("nonsense")
    day.run("nonsense", status=2)


def test_a_program_that_ends_before_it_says_it_is_ready_is_told_with_its_log(tmp_path: Path) -> None:
    day = here(tmp_path)
    assert day.begin("headwater", "nonsense") == ""
    assert "No such command" in (tmp_path / "0.log").read_text()
    day.end()


def test_what_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_day, "PATIENCE_SECONDS", 0)
    with pytest.raises(Unlike, match="not within 0 s: a pony"):
        first_day.wait(lambda: None, "a pony")


def test_the_configuration_of_prometheus_names_rules_and_targets() -> None:
    yaml = pytest.importorskip("yaml")
    told = yaml.safe_load(CONFIGURATION.format(rules=RULES, targets=json.dumps(["a:1", "b:2"])))
    assert RULES.exists() and told["rule_files"] == [str(RULES)]
    assert told["scrape_configs"][0]["static_configs"] == [{"targets": ["a:1", "b:2"]}]
