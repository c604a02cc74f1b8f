"""The files for running a node as a service: each is checked by the tool that will read it, where that can be had."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headwater.node.config import OPTIONS
from headwater.node.metrics import HISTOGRAM, METRICS

FOLDER = Path(__file__).parent.parent / "deploy"
UNIT, RULES = FOLDER / "systemd" / "headwater.service", FOLDER / "prometheus" / "headwater.rules.yml"
BOARD = FOLDER / "grafana" / "headwater.json"
METRIC = re.compile(r"\bheadwater_[a-z_]+")


def told() -> set[str]:
    """Each name that a node's page has."""
    names = {each.full_name for each in METRICS if each.kind != HISTOGRAM}
    return names | {
        f"{each.full_name}_{part}" for each in METRICS if each.kind == HISTOGRAM for part in ("bucket", "sum")
    }


def labels() -> set[str]:
    return {label for each in METRICS for label in each.labels} | {"instance", "job", "le"}


def test_the_unit_starts_with_options_that_there_are() -> None:
    (command,) = re.findall(r"^ExecStart=(.+)$", UNIT.read_text(), re.MULTILINE)
    named = set(re.findall(r" --([a-z-]+)", command))
    assert named and named <= {option.name for option in OPTIONS}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", UNIT], capture_output=True, text=True, timeout=120, check=False
    )
    assert [line for line in done.stderr.splitlines() if "headwater" in line] == []


@pytest.mark.parametrize("path", [RULES, BOARD], ids=lambda path: path.name)
def test_what_is_looked_at_is_what_a_node_tells(path: Path) -> None:
    expressions = (
        [target["expr"] for panel in json.loads(path.read_text())["panels"] for target in panel["targets"]]
        if path == BOARD
        else re.findall(r"^ +expr: (.+)$", path.read_text(), re.MULTILINE)
    )
    named = {name for each in expressions for name in METRIC.findall(each)}
    assert len(named) > 8 and named <= told()
    by = {
        label.strip()
        for each in expressions
        for found in re.findall(r"by \(([^)]*)\)", each)
        for label in found.split(",")
    }
    assert by <= labels()


def test_the_panels_of_the_board_do_not_lie_on_each_other() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) == len({panel["id"] for panel in panels})


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_the_rules_and_they_fire_when_they_should() -> None:
    for words in (["check", "rules", RULES.name], ["test", "rules", "tests.yml"]):
        done = subprocess.run(
            ["promtool", *words], cwd=RULES.parent, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
