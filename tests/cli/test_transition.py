"""The guide to transitions, followed; the job is tested in tests/pipelines."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.testing.node import Node, node
from tests.cli.guides import HOWTO, commands, follow
from tests.pipelines.test_transition import states


@pytest.fixture
def three() -> Iterator[tuple[Node, Node, Node]]:
    with (
        node(vbuckets=8) as owner,
        node(vbuckets=8, vbucket_state="none") as one,
        node(vbuckets=8, vbucket_state="none") as other,
    ):
        yield owner, one, other


def test_the_guide_works_in_an_empty_folder(
    three: tuple[Node, Node, Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with three[0].client() as client:
        assert client.set_many((f"k{i}", b"v") for i in range(100)) == {}
    (first,) = commands("transition.md")
    instead = {f"{name}:11210": each.address for name, each in zip("abc", three, strict=True)}
    lines = follow(f"{first} --engine local --batch 2", instead).splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "batch 1: 4 of 8 vbuckets moved",
        "batch 2: 8 of 8 vbuckets moved",
    ]
    assert (states(three[1]), states(three[2])) == (
        dict.fromkeys(range(0, 8, 2), "active"),
        dict.fromkeys(range(1, 8, 2), "active"),
    )
    asked = (HOWTO / "transition.md").read_text("utf-8").split("```sql\n")[1].split("```")[0]
    with sqlite3.connect("expansion/transition.sqlite3") as base:
        rows = base.execute(asked).fetchall()
    assert {target: count for target, count, *_ in rows} == {each.address: 4 for each in three[1:]}
    assert sum(changes for _, _, changes, _ in rows) == 100


def test_what_is_wrong_is_told_in_one_line(three: tuple[Node, Node, Node], tmp_path: Path) -> None:
    for asked, told in (
        ("--to a:1", "each named once"),
        ("--to 127.0.0.1:1 --retry 0", "127.0.0.1:1"),
    ):
        nodes = asked.replace("a:1", three[0].address) if "named" in told else asked
        line = f"transition --from {three[0].address} {nodes} --journal {tmp_path}/j --engine local"
        done = CliRunner().invoke(app, shlex.split(line))
        assert done.exit_code in (1, 2) and told in done.stderr
        assert done.stderr.startswith("headwater: ") and done.stderr.count("\n") == 1
