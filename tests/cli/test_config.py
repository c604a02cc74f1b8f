"""`headwater config`, and the options of commands that come from a file."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.errors import OptionError
from headwater.node.config import config_from

WRONG = """port = 11211
prot = 1

[mirror]
engine = 'locl'
once = 1
to = 7

[backup.create]
fulll = true

[backup.crate]
"""


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_every_fault_of_node_and_commands_is_a_line_with_its_place(tmp_path: Path) -> None:
    file = write(tmp_path / "node.toml", WRONG)
    status, shown, problems = invoke("config", "check", file)
    assert (status, problems) == (1, f"headwater: {file}: 6 faults\n")
    places = [line.removeprefix(f"{file}:").split(": ")[:2] for line in shown.splitlines()]
    assert places == [
        ["2", "prot"],
        ["5", "mirror.engine"],
        ["6", "mirror.once"],
        ["7", "mirror.to"],
        ["10", "backup.create.fulll"],
        ["12", "backup.crate"],
    ]
    told = json.loads(invoke("config", "check", file, "--json")[1])
    assert [fault["line"] for fault in told["faults"]] == [2, 5, 6, 7, 10, 12]


def test_a_duration_in_a_commands_table_may_be_a_text_as_on_the_command_line(tmp_path: Path) -> None:
    file = write(tmp_path / "node.toml", 'idle-seconds = "5m"\n[mirror]\nretry = "5m"\n')
    assert invoke("config", "check", file)[0] == 0
    _, shown, _ = invoke("config", "check", write(tmp_path / "node.toml", '[mirror]\nretry = "soon"\n'))
    assert shown.endswith("retry: 'soon' is not a number of seconds, 0 or more; or such as 30s, 5m or 2h\n")


def test_a_file_that_is_well_has_status_0(tmp_path: Path) -> None:
    text = "port = 0\n[mirror]\nengine = 'local'\nonce = true\nretry = 5\n[observe]\nretry = '5m'\nwindow = '1m'\n"
    text += "[load]\nskip = 7\n[move]\nfrom = 'a:1'\n"
    assert invoke("config", "check", write(tmp_path / "a.toml", text))[:1] == (0,)


def test_a_file_that_cannot_be_read_is_a_wrong_argument(tmp_path: Path) -> None:
    status, shown, problems = invoke("config", "check", str(tmp_path / "none.toml"))
    assert (status, shown) == (2, "") and "can be read" in problems and problems.count("\n") == 1
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert invoke("config", "check", str(tmp_path / "bytes.toml"))[0] == 2


def test_settings_are_shown_with_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "node.toml", "vbuckets = 64\n")
    monkeypatch.setenv("HEADWATER_BUCKET", "orders")
    status, shown, _ = invoke("config", "show", file, "--changed")
    assert (status, [line.split() for line in shown.splitlines()]) == (
        0,
        [["bucket", '"orders"', "HEADWATER_BUCKET"], ["vbuckets", "64", f"{file}:1"]],
    )
    told = json.loads(invoke("config", "show", file, "--json")[1])
    assert told["port"] == {"value": 11210, "from": "default"}


def test_a_table_that_is_no_commands_is_found_by_the_commands_and_passed_over_by_a_node(tmp_path: Path) -> None:
    file = write(tmp_path / "node.toml", 'vbuckets = 64\n\n[mirorr]\nto = "./lake"\n')
    assert config_from({"config": file}, {}).vbuckets == 64
    status, shown, _ = invoke("config", "check", file)
    assert (status, shown.splitlines()) == (1, [f"{file}:3: mirorr: no command; headwater --help lists them"])


def test_a_table_named_serve_is_refused_by_a_node_and_by_the_commands(tmp_path: Path) -> None:
    file = write(tmp_path / "node.toml", "[serve]\nvbuckets = 64\n")
    with pytest.raises(OptionError, match=r'"serve".* is not an option of serve'):
        config_from({"config": file}, {})
    assert invoke("config", "check", file)[0] == 1


def test_the_file_of_the_guide_is_well(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs/howto/configure.md").read_text("utf-8")
    place = tmp_path / "node.toml"
    place.write_text(guide.split("```toml\n")[1].split("```")[0], "utf-8")
    result = CliRunner().invoke(app, ["config", "check", str(place), "--skip-files"])
    assert result.exit_code == 0, result.output
    place.write_text(guide.split("```toml\n")[2].split("```")[0], "utf-8")
    result = CliRunner().invoke(app, ["config", "check", str(place), "--skip-files"])
    assert result.exit_code == 0, result.output
