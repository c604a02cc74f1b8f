"""The list of commands says what the commands say, and makes none that nobody runs."""

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.listed import LIST, LISTED, ListedCommand, ListedCommands
from headwater.cli.options import escaped

HEAVY = ("numpy", "pyarrow", "asyncio", "rich", "pydantic", "cryptography", "prometheus_client", "importlib.metadata")
OURS = ("headwater.node", "headwater.kernels", "headwater.cluster", "headwater.pipelines", "headwater.lake")


@pytest.mark.parametrize("listed", LISTED, ids=lambda listed: listed.name)
def test_the_list_has_the_first_paragraph_of_each_commands_own_help(listed: ListedCommand) -> None:
    command = listed.command()
    assert (command.name, command.rich_help_panel) == (listed.name, listed.part)
    assert command.help.split("\n\n")[0] == escaped(listed.line)


def test_the_list_is_what_the_files_of_the_commands_declare() -> None:
    page = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "list_commands.py"))["page"]
    assert LIST.read_text("utf-8") == page(), "stale: make man"


def test_names_are_known_before_any_command_is_made() -> None:
    commands = ListedCommands([LISTED[1]._replace(place="cli.nowhere:nothing")])
    assert list(commands) == ["set"] and "set" in commands and len(commands) == 1
    assert commands.stand_ins()["set"].help == escaped(LISTED[1].line)
    assert commands.get("get") is None
    with pytest.raises(ModuleNotFoundError):
        commands.get("set")


def test_a_key_error_while_a_command_is_imported_does_not_mean_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(place: str) -> None:
        raise KeyError(place)

    monkeypatch.setattr("headwater.cli.listed.import_module", fail)
    with pytest.raises(KeyError):
        ListedCommands().get("get")


def test_a_command_is_made_once_and_others_are_put_beside_it() -> None:
    commands: Any = ListedCommands()
    assert commands["get"] is commands.get("get") is commands.stand_ins()["get"]
    commands["brew"] = commands["get"]
    assert list(commands)[-1] == "brew" and len(commands) == len(LISTED) + 1
    del commands["brew"]
    assert "brew" not in commands


def imported(*words: str) -> Iterator[str]:
    """The modules that a process of the command line has imported in the end."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('modules', *sys.modules))\n"
        f"sys.argv = ['headwater', *{words!r}]\n"
        "from headwater.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    yield from done.stdout.rpartition("modules ")[2].split()


@pytest.mark.parametrize("command", [("get", "k"), ("set", "k", "v"), ("delete", "k")], ids=lambda words: words[0])
def test_a_command_of_one_request_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    found = set(imported(*command, "--node", "127.0.0.1:1"))
    assert "headwater.client" in found and not found & {*HEAVY, *OURS}
    assert {name for name in found if name.startswith("headwater.cli.") and name.rpartition(".")[2] in NAMES} == {
        f"headwater.cli.{command[0]}"
    }


def test_the_list_of_commands_imports_none() -> None:
    found = set(imported("--help"))
    assert "headwater.cli.listed" in found and not found & {"headwater.client", *OURS}
    assert not {name for name in found if name.startswith("headwater.cli.") and name.rpartition(".")[2] in NAMES}


NAMES = {listed.place.partition(":")[0].rpartition(".")[2] for listed in LISTED} - {"options", "jobs"}
