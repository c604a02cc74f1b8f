"""A node that all tests of commands share, and a way to run a command line against it."""

from collections.abc import Iterator

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
