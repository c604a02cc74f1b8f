"""Options that had another name before."""

from pathlib import Path
from typing import Any

import pytest
import typer

from headwater.cli.app import app
from headwater.cli.renamed import RENAMED
from tests.cli.support import Run
from tests.cli.test_forms import ALL

OLD = [(name, new, old) for name, renamed in RENAMED.items() for new, old in renamed.items()]


def parsed(command: Any, *typed: str) -> dict[str, Any]:
    context = command.make_context("it", list(typed))
    with context:
        return dict(context.params)


@pytest.mark.parametrize(("name", "new", "old"), OLD)
def test_an_old_name_means_the_same(name: str, new: str, old: str) -> None:
    assert parsed(ALL[name], "a:1", old, "7") == parsed(ALL[name], "a:1", new, "7") != parsed(ALL[name], "a:1")


@pytest.mark.parametrize(("name", "new", "old"), OLD)
def test_an_old_name_is_not_shown(run: Run, name: str, new: str, old: str) -> None:
    _, shown, _ = run(*name.split(), "--help")
    assert f"{new} " in shown and old not in shown


def test_an_old_name_stands_in_files_of_settings_as_before(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text("[cluster.rebalance]\npatience-seconds = 7.0\nat-once = 3\n")
    assert run("config", "check", str(file))[0] == 0
    status, shown, problems = run("--config", str(file), "config", "show", "--for", "cluster rebalance", "--changed")
    assert (status, problems) == (0, "")
    told = dict(line.split()[:2] for line in shown.splitlines())
    assert (told["concurrency"], told["patience"]) == ('"3"', '"7.0"') and not {"at-once", "patience-seconds"} & {*told}


def test_what_waits_for_a_vbucket_is_called_the_same_everywhere() -> None:
    """Both of `move` and `rebalance`, whoever knows one knows the other."""
    group: Any = typer.main.get_command(app)
    for name in ("patience", "concurrency"):
        for command in (group.commands["move"], group.commands["cluster"].commands["rebalance"]):
            (option,) = (param for param in command.params if f"--{name}" in param.opts)
            assert option.help, f"{command.name} --{name}"
