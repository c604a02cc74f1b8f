"""Commands on a cluster that is only told of: what its nodes would answer is written down by the test."""

import pytest
from typer.testing import CliRunner

from headwater.cli.app import app


@pytest.fixture
def told(monkeypatch):
    """`told(members, "cluster", "status", ..., answers="y")`: (status, stdout, stderr) of the command on them."""

    def invoke(members, *arguments, answers=None):
        monkeypatch.setattr("headwater.cluster.members.Members", lambda bucket, user, password: members)
        result = CliRunner().invoke(app, list(arguments), input=answers)
        return result.exit_code, result.stdout, result.stderr

    return invoke
