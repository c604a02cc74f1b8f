"""A node that all tests of commands share, and a way to run a command line against it."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from tests.cli.support import Run


@pytest.fixture(scope="session")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=16) as running:
        yield running


@pytest.fixture
def run(node: testing.Node, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line against the node; returns (status, stdout, stderr)."""
    monkeypatch.setenv("HEADWATER_NODE", node.url)

    def invoke(*arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        return result.exit_code, result.stdout, result.stderr

    return invoke


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`told(members, "cluster", "status", ..., answers="y")`: (status, stdout, stderr) of a command on nodes that are
    only told of (tests/cluster/fakes.py)."""

    def invoke(members: object, *arguments: str, answers: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr("headwater.cluster.members.Members", lambda bucket, user, password, **_: members)
        result = CliRunner().invoke(app, list(arguments), input=answers)
        return result.exit_code, result.stdout, result.stderr

    return invoke
