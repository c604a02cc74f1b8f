"""Requests of users without the right for them are refused, whichever way they come, and logged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from harness.nodes import until
from headwater import testing
from headwater.testing.node import Node
from headwater.wire.dcp import StreamFlag
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.tap import ConnectFlag
from headwater.wire.vbucket import State
from tests.faults.test_roles import PRODUCER, login, private
from tests.node.replication.support import Line


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    users = private(tmp_path / "users", "alice:alice-s3cret\nbob:bob-s3cret\n")
    with testing.node(vbuckets=4, users_file=users) as running:
        yield running


@pytest.fixture
def bob(node: Node) -> Iterator[Line]:
    with login(node, "bob") as line:
        yield line


@pytest.mark.parametrize(
    ("opcode", "extras", "value"),
    [
        (Opcode.FLUSH, b"", b""),
        (Opcode.FLUSHQ, b"", b""),
        (Opcode.SET_VBUCKET, bytes([State.DEAD]), b""),
        (Opcode.DEL_VBUCKET, b"", b""),
        (Opcode.COMPACT_DB, bytes(24), b""),
        (Opcode.DISABLE_TRAFFIC, b"", b""),
    ],
    ids=lambda each: each.name if isinstance(each, Opcode) else "",
)
def test_what_is_the_operators_is_refused_to_other_users_and_does_nothing(
    node: Node, bob: Line, opcode: Opcode, extras: bytes, value: bytes
) -> None:
    assert bob.call(Opcode.SET, b"k", b"v", bytes(8)).status == 0
    refused = bob.call(opcode, b"", value, extras)
    assert refused.status == Status.EACCESS
    assert b"needs administer" in refused.value
    assert bob.call(Opcode.GET, b"k").value == b"v"
    until(lambda: f"user 'bob' may not {opcode.name}: it needs administer" in node.log, "it is told")


@pytest.mark.parametrize("opcode", [Opcode.SET_WITH_META, Opcode.TAP_MUTATION, Opcode.DCP_ADD_STREAM])
def test_the_history_of_others_is_written_by_replicas_only(bob: Line, opcode: Opcode) -> None:
    assert bob.call(opcode, b"k", b"v", bytes(24)).status == Status.EACCESS


def test_a_consumer_connection_takes_changes_and_so_is_the_replicas(bob: Line) -> None:
    assert bob.call(Opcode.DCP_OPEN, b"mine", b"", pack(">II", 0, 0)).status == Status.EACCESS
    assert bob.call(Opcode.DCP_OPEN, b"mine", b"", PRODUCER).status == 0


def test_a_stream_may_be_read_and_not_taken_over(node: Node, bob: Line) -> None:
    assert bob.call(Opcode.DCP_OPEN, b"mine", b"", PRODUCER).status == 0
    request = pack(">IIQQQQQ", StreamFlag.TAKEOVER, 0, 0, (1 << 64) - 1, 0, 0, 0)
    assert bob.call(Opcode.DCP_STREAM_REQ, b"", b"", request).status == Status.EACCESS
    assert bob.call(Opcode.DCP_STREAM_REQ, b"", b"", bytes(4) + request[4:]).status == 0
    with login(node, "bob") as again:
        flags = pack(">I", ConnectFlag.TAKEOVER_VBUCKETS | ConnectFlag.LIST_VBUCKETS)
        assert again.call(Opcode.TAP_CONNECT, b"", pack(">HH", 1, 0), flags).status == Status.EACCESS


def test_a_flood_of_refusals_is_told_in_a_few_lines(node: Node, bob: Line) -> None:
    for _ in range(500):
        assert bob.call(Opcode.FLUSH).status == Status.EACCESS
    assert 0 < node.log.count("may not FLUSH") < 200
