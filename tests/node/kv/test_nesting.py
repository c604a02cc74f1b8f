"""JSON that is nested without end, in every request that takes JSON: an answer, and no traceback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.testing.node import Node, node
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.wire import Client

NAMES = iter(range(1000))


@pytest.fixture(scope="module")
def running() -> Iterator[Node]:
    with node(vbuckets=2) as made:  # a traceback in its log fails the test
        yield made


@pytest.fixture(params=[65, 900, 2000, 100_000], ids=str)
def deep(request: pytest.FixtureRequest) -> bytes:
    """JSON, so many levels deep."""
    depth: int = request.param
    return b'{"topology":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def requests(deep: bytes) -> list[Frame]:
    name = b"deep-%d" % next(NAMES)
    return [
        Frame(0x80, Opcode.SET_CLUSTER_CONFIG, extras=bytes(7) + b"\1" + bytes(7) + b"\1", value=deep),
        Frame(0x80, Opcode.SET_VBUCKET, extras=b"\1", value=deep, datatype=1),
        Frame(0x80, Opcode.IOCTL_SET, b"replicate", value=deep),
        Frame(0x80, Opcode.DCP_OPEN, name, bytes(8), deep, 1),
        Frame(0x80, Opcode.DCP_OPEN, name, bytes(7) + b"\1"),
        Frame(0x80, Opcode.DCP_STREAM_REQ, extras=bytes(48), value=deep),
    ]


def test_deep_json_is_invalid_wherever_json_is_read(running: Node, deep: bytes) -> None:
    with Client(running.port) as client:
        client.ask(Opcode.HELLO, value=b"\0\x07\0\x0b")
        for asked in requests(deep):
            client.send(asked.encode())
            answer = client.read()
            assert answer is not None, f"the node hung up on opcode 0x{asked.opcode:02x}"
            expected = Status.EINVAL if asked.value else Status.SUCCESS
            assert (answer.opcode, answer.status) == (asked.opcode, expected)


def test_a_deep_document_is_a_document(running: Node, deep: bytes) -> None:
    with Client(running.port) as client:
        assert client.ask(Opcode.SET, key=b"deep", value=deep, extras=bytes(8)).status == Status.SUCCESS
        assert client.ask(Opcode.GET, key=b"deep").value == deep
