"""The commands of `headwater cluster`: help, wrong command lines, nodes that are not there. Work: tests/cluster."""

import pytest
import typer

from headwater.cli.app import app
from tests.cli.test_app import invoke
from tests.client.seeds import refusing_port

COMMANDS = sorted(typer.main.get_command(app).commands["cluster"].commands)


def test_the_group_lists_its_commands():
    assert COMMANDS == ["failover", "init", "rebalance", "status", "tls"]
    shown = invoke("cluster", "--help")[1]
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_in_its_help(command):
    status, shown, _ = invoke("cluster", command, "--help")
    assert status == 0 and "Examples:" in shown and f"$ headwater cluster {command}" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("init",),
        ("init", "a:1", "--replicas", "4"),
        ("status", "a:x"),
        ("status", "https://a:1"),
        ("rebalance", "a:1", "--at-once", "0"),
        ("init", "a:1", "b:1/beer"),
        ("failover", "a:1", "--dead", "b:x"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_told_in_one_line_with_status_2(arguments):
    status, shown, told = invoke("cluster", *arguments)
    assert (status, shown) == (2, "") and told.startswith("headwater: ") and told.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [("init",), ("status",), ("rebalance", "--yes"), ("failover", "--yes", "--dead", "127.0.0.1:1")],
    ids=" ".join,
)
def test_a_node_that_does_not_answer_is_told_in_one_line_with_status_1(arguments):
    address = refusing_port()
    status, shown, told = invoke("cluster", arguments[0], address, *arguments[1:])
    assert (status, shown) == (1, "")
    assert told.startswith("headwater: ") and address in told and told.count("\n") == 1
