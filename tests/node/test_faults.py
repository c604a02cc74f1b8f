"""A real node whose crashes and disk errors come at named places."""

from __future__ import annotations

import pytest

from headwater import testing
from headwater.wire.header import Frame
from tests.node.wire import Client

NOOP = Frame(0x80, 0x0A).encode()


def write_until_it_ends(port: int) -> int:
    """Sets one after the other, each acknowledged; returns how many were."""
    with Client(port) as client:
        for number in range(10_000):
            try:
                client.send(Frame(0x80, 1, b"k%d" % number, bytes(8), b"v", vbucket=number % 4).encode())
            except OSError:
                return number
            if client.read() is None:
                return number
    raise AssertionError("the fault never came")


@pytest.mark.parametrize("place", ["log.append", "log.before_sync", "log.after_sync"])
def test_killed_at_any_step_of_a_commit_nothing_acknowledged_is_lost(place: str) -> None:
    with testing.node(vbuckets=4, environment={"HEADWATER_FAILPOINTS": f"{place}=kill@20"}) as node:
        acknowledged = write_until_it_ends(node.port)
        assert node.wait() == -9 and acknowledged > 0
        node.environment.clear()
        node.start()
        with Client(node.port) as client:
            for number in range(acknowledged):
                assert client.ask(0, key=b"k%d" % number, vbucket=number % 4).value == b"v"
            assert client.ask(0, key=b"k%d" % (acknowledged + 1), vbucket=(acknowledged + 1) % 4).status == 1


@pytest.mark.parametrize("action", ["eio", "enospc"])
def test_a_batch_that_can_not_be_written_is_nobodys_and_the_node_goes_on(action: str) -> None:
    with testing.node(vbuckets=4, environment={"HEADWATER_FAILPOINTS": f"log.before_sync={action}@10"}) as node:
        acknowledged = write_until_it_ends(node.port)
        assert node.is_running and "could not be written" in node.log
        with Client(node.port) as client:
            assert client.ask(0, key=b"k%d" % acknowledged, vbucket=acknowledged % 4).status == 1
            for number in range(acknowledged):
                assert client.ask(0, key=b"k%d" % number, vbucket=number % 4).value == b"v"
            assert client.ask(1, key=b"again", extras=bytes(8), value=b"v").status == 0
        node.kill()
        node.start()
        with Client(node.port) as client:
            assert client.ask(0, key=b"again").value == b"v"
            assert client.ask(0, key=b"k%d" % acknowledged, vbucket=acknowledged % 4).status == 1


def test_quiet_writers_of_a_lost_batch_are_hung_up_on() -> None:
    with (
        testing.node(vbuckets=4, environment={"HEADWATER_FAILPOINTS": "log.before_sync=eio@3"}) as node,
        Client(node.port) as bystander,
        Client(node.port) as quiet,
    ):
        assert bystander.ask(1, key=b"k", extras=bytes(8)).status == 0
        quiet.send(Frame(0x80, 0x11, b"lost", bytes(8), b"v").encode())
        assert quiet.read() is None
        assert bystander.ask(0, key=b"lost").status == 1


@pytest.mark.parametrize(
    "place", ["compact.planned", "compact.copied", "compact.before_rename", "compact.after_rename"]
)
def test_killed_while_compacting_every_document_is_there(place: str) -> None:
    with testing.node(vbuckets=4, environment={"HEADWATER_FAILPOINTS": f"{place}=kill"}) as node:
        with Client(node.port) as client:
            for turn in range(3):
                for number in range(40):
                    value = b"%d" % turn
                    assert client.ask(1, key=b"%d" % number, extras=bytes(8), value=value, vbucket=1).status == 0
            for number in range(10):
                assert client.ask(4, key=b"%d" % number, vbucket=1).status == 0
            client.send(Frame(0x80, 0xB3, extras=bytes(16) + b"\1" + bytes(7), vbucket=1).encode())
            assert client.read() is None
        assert node.wait() == -9
        node.environment.clear()
        node.start()
        with Client(node.port) as client:
            for number in range(40):
                found = client.ask(0, key=b"%d" % number, vbucket=1)
                assert (found.status, found.value) == ((1, b"") if number < 10 else (0, b"2"))
            extras = bytes(16) + b"\1" + bytes(7)
            assert client.ask(0xB3, extras=extras, vbucket=1).status == 0
            assert client.ask(0, key=b"39", vbucket=1).value == b"2"
