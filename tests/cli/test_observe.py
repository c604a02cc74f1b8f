"""The guide to observing, followed; counting is tested in tests/pipelines."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from headwater.cli.observe import table_of
from headwater.pipelines.jobs import ObserveProgress, Observer
from headwater.pipelines.observe import described
from headwater.pipelines.windows import NANOSECONDS, WindowRules
from tests.cli.guides import commands, follow
from tests.cli.support import Run
from tests.pipelines.test_windows import T0, counted


def test_the_guide_works_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, third, *others = commands("observe.md")
    with testing.node(vbuckets=8) as node, node.client() as client:
        client.set_many({"user:1": "a", "user:2": "b", "order:1": "c"})
        instead = {"couchbase://127.0.0.1:11210/default": node.url, "couchbase://10.0.0.7/users": node.url}
        lines = follow(f"{first} --engine local --once", instead).splitlines()
        assert [line.split("  ")[1] for line in lines if "hot: " not in line] == ["user:", "order:"]
        assert "user:  2 stored, 0 deleted, 0 expired, 14 bytes" in lines[0]
        report = follow(f"{second} --engine local --once --progress json --from earliest", instead).splitlines()
        assert json.loads(report[-1])["changes"] == 3
        assert CliRunner().invoke(app, ["collection", "create", "shop.orders", "--node", node.url]).exit_code == 0
        client.collection("shop.orders").set("user:1", "a")
        instead["couchbase://10.0.0.7/store"] = node.url
        lines = follow(f"{third} --engine local --once", instead).splitlines()
        named = {line.split("  ")[1] for line in lines if "hot: " not in line}
        assert {"_default._default", "_default._default/user:", "shop.orders", "shop.orders/user:"} <= named
        assert others == []
    assert [path.name for path in tmp_path.iterdir()] == ["users-state"]


@pytest.mark.parametrize("option", ["--to", "--checkpoint"])
def test_a_folder_that_can_not_be_is_told_before_anything_is_counted(option: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    place = str(tmp_path / "file" / "rates")
    url = os.environ["HEADWATER_NODE"]
    status, shown, problems = run("observe", url, option, place, "--engine", "local", "--from", "latest", "--once")
    assert (status, shown, problems.count("\n")) == (1, "", 1)
    assert problems.startswith("headwater: ") and place in problems and "ot a directory" in problems


def test_a_terminal_shows_the_newest_window_with_rates() -> None:
    rules = WindowRules(seconds=10, hot=1)
    found = counted(("mutation", "user:1", 1), ("mutation", "user:1", 2), ("deletion", "x", 3), rules=rules)
    window = described(T0, found.open[T0], rules)
    progress = ObserveProgress(closed=[window], changes=3, late=1)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table_of(progress))
    shown = console.export_text()
    assert "2023-11-14T22:13:20+00:00, 10 s" in shown and "3 changes, 1 late" in shown
    assert [line.split()[1:3] for line in shown.splitlines() if "user:  " in line or "(none)" in line]
    assert Observer("").line(progress).splitlines()[0].endswith("user:  2 stored, 0 deleted, 0 expired, 22 bytes")
    console.print(table_of(ObserveProgress()))
    assert "nothing is written" in console.export_text() and T0 % (10 * NANOSECONDS) == 0
