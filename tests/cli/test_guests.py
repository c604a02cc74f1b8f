"""Commands of other packages: the guide's package, installed and run, and packages that are broken."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from headwater.cli.guests import GUESTS
from headwater.testing.node import Node
from tests.guides.blocks import blocks

PYPROJECT, PROGRAM, _ = blocks("docs/howto/own-job.md")
Site = Callable[[str, str], None]


def wheel(folder: Path) -> Path:
    """The package of the guide as a wheel, as its build makes it of these two files."""
    told = tomllib.loads(PYPROJECT.text)["project"]
    name, version = told["name"].replace("-", "_"), told["version"]
    points = "".join(
        f"[{group}]\n" + "".join(f"{each} = {place}\n" for each, place in found.items())
        for group, found in told["entry-points"].items()
    )
    info, path = f"{name}-{version}.dist-info", folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(f"{name}.py", PROGRAM.text)
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {told['name']}\nVersion: {version}\n")
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{info}/entry_points.txt", points)
        made.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel was installed into."""
    folder = tmp_path_factory.mktemp("guest")
    line = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*line, "--target", str(folder / "site"), str(wheel(folder))], check=True, timeout=240)
    return folder / "site"


def headwater(site: Path, *words: str) -> str:
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "120"}
    line = [sys.executable, "-m", "headwater", *words]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def gone(place: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(place / "ledger.sqlite")) as database:
        return sorted(database.execute("SELECT key, event FROM gone"))


def follows(bucket: Node, site: Path, place: Path, engine: str) -> None:
    line = "gone", bucket.url, str(place), "--engine", engine, "--once"
    with bucket.client() as client:
        client.set_many((f"k{i}", "v") for i in range(20))
        client.delete_many(["k1", "k2"])
    assert ": 2 gone in " in headwater(site, *line)
    with bucket.client() as client:
        client.delete("k3")
    assert ": 1 gone in " in headwater(site, *line)
    assert headwater(site, *line) == ""
    assert gone(place) == [(f"k{i}", "deletion") for i in (1, 2, 3)]


def test_the_job_of_the_guide_is_listed_and_lists_what_is_deleted_once(site: Path, tmp_path: Path) -> None:
    shown = headwater(site, "--help")
    assert GUESTS in shown and "List the documents that are deleted or expire." in shown
    assert "--on-data-loss" in headwater(site, "gone", "--help")
    with testing.node(vbuckets=4) as bucket:
        follows(bucket, site, tmp_path, "local")


@pytest.mark.spark
@pytest.mark.battery
@pytest.mark.timeout(900)  # three starts of a JVM
def test_the_job_of_the_guide_runs_on_spark_as_well(site: Path, tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as bucket:
        follows(bucket, site, tmp_path, "spark")


def test_the_program_of_the_guide_is_short() -> None:
    assert len([line for line in PROGRAM.text.splitlines() if line.strip()]) <= 60


# --------------------------------------------------------------------------- packages that are made up here


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """`package("name", points)`: as one that is installed, with what its entry_points.txt says."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, points: str) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)

    return install


def invoke(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def hello(name: str = "you") -> None:
    """Greet somebody."""
    typer.echo(f"hello {name}")


many = typer.Typer(help="Greet in several ways.")
many.command("loud")(lambda: typer.echo("HELLO"))
NOTHING = SimpleNamespace()


def test_a_package_that_cannot_be_imported_costs_a_line_and_no_other_command(package: Site) -> None:
    package("good", f"[headwater.commands]\nhello = {__name__}:hello\n")
    package("bad", f"[headwater.jobs]\nbrew = nowhere:Brew\nstir = {__name__}:NOTHING\n")
    status, shown, problems = invoke("--help")
    assert status == 0 and "Greet somebody." in shown and "brew" not in shown
    assert [line[:54] for line in problems.splitlines()] == [
        "headwater: the command brew of bad 1.0 can't be used: ",
        "headwater: the command stir of bad 1.0 can't be used: ",
    ]
    assert "No module named 'nowhere'" in problems and "is no job of headwater.pipelines.jobs" in problems
    status, shown, problems = invoke("brew", "--help")
    assert (status, shown, problems.count("\n")) == (1, "", 1) and "brew of bad 1.0 can't be used" in problems
    assert invoke("hello", "--name", "me") == (0, "hello me\n", "")
    assert invoke("lake", "--help")[::2] == (0, "")


def test_a_package_without_its_metadata_costs_no_more(package: Site, tmp_path: Path) -> None:
    package("half", "[headwater.commands]\nhello = nowhere:hello\n")
    (tmp_path / "half-1.0.dist-info" / "METADATA").unlink()
    status, _, problems = invoke("--help")
    assert status == 0 and "hello of an unknown package can't be used" in problems


def test_a_name_that_is_taken_stays_whose_it_is(package: Site) -> None:
    package("a", f"[headwater.commands]\nhello = {__name__}:hello\n")
    package("b", "[headwater.commands]\nget = nowhere:get\nhello = nowhere:hello\n")
    status, _, problems = invoke("--help")
    assert status == 0 and problems.splitlines() == [
        "headwater: the command get of b 1.0 is left out: there is one of that name",
        "headwater: the command hello of b 1.0 is left out: there is one of that name",
    ]
    assert "CAS" in invoke("get", "--help")[1] and invoke("hello") == (0, "hello you\n", "")


def test_several_commands_may_come_as_a_group_and_have_the_forms_of_all_commands(package: Site) -> None:
    package("group", f"[headwater.commands]\ngreet = {__name__}:many\n")
    assert "Greet in several ways." in invoke("--help")[1]
    assert invoke("greet", "loud") == (0, "HELLO\n", "")
    assert "--quiet" in invoke("greet", "loud", "--help")[1]


def test_a_file_of_options_knows_commands_of_other_packages(package: Site, tmp_path: Path) -> None:
    package("good", f"[headwater.commands]\nhello = {__name__}:hello\n")
    (tmp_path / "options.toml").write_text("[hello]\nname = 'file'\n")
    assert invoke("config", "check", str(tmp_path / "options.toml"))[0] == 0
    assert invoke("--config", str(tmp_path / "options.toml"), "hello") == (0, "hello file\n", "")
