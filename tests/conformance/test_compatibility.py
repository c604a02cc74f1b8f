"""docs/compatibility.md, line by line, against a node that runs; and each declared request that it says is served."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from harness.nodes import Line
from headwater import testing
from headwater.errors import BadMessage
from headwater.testing.node import Node
from headwater.wire import admin, bootstrap, dcp, documents, meta, subdoc
from headwater.wire.dialect import answers_of, messages
from headwater.wire.failure import Failure
from headwater.wire.features import PREREQUISITES, Feature
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, Magic
from headwater.wire.layout import REQUIRED, Done, Message, Request
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.conformance.tables import table

PAGE = "compatibility.md"
NO_DATATYPE = 0xF0
"""A datatype that none has: what is served is answered with EINVAL then, and not done."""
NOT_SERVED = {Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND}
FAMILIES = (bootstrap, documents, subdoc, meta, admin)
KEYS = {bootstrap.SaslAuth: b"PLAIN", bootstrap.SelectBucket: b"default"}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=4) as running:
        yield running


def told(row: dict[str, str]) -> int:
    """The number in a cell such as "NOT_SUPPORTED (0x83)"."""
    found = re.search(r"\(0x([0-9a-f]+)\)", row["answer"])
    assert found is not None
    return int(found[1], 16)


def test_every_opcode_is_served_or_refused_as_the_page_says(node: Node) -> None:
    rows = {int(row["opcode"], 16): row for row in table(PAGE, "Commands")}
    wrong = []
    with Line(node.port) as line:
        assert line.call(Opcode.HELLO, b"walker", Feature.XERROR.to_bytes(2)).status == 0
        for opcode in range(256):
            line.send(Frame(0x80, opcode, datatype=NO_DATATYPE))
            status, row = line.read().status, rows.get(opcode)
            expected = Status.UNKNOWN_COMMAND if row is None else Status.EINVAL if row["served"] else told(row)
            if status != expected:
                wrong.append((opcode, status, expected))
    assert wrong == [] and len(rows) > 150


def test_every_feature_is_granted_or_left_out_as_the_page_says(node: Node) -> None:
    rows = list(table(PAGE, "Features"))
    with Line(node.port) as line:
        for row in rows:
            asked = {int(row["code"], 16), *PREREQUISITES.get(int(row["code"], 16), ())}
            answer = line.call(Opcode.HELLO, b"walker", b"".join(code.to_bytes(2) for code in sorted(asked)))
            granted = {int.from_bytes(answer.value[at : at + 2]) for at in range(0, len(answer.value), 2)}
            assert (answer.status, int(row["code"], 16) in granted) == (0, bool(row["granted"])), row
            if row["needs"]:
                alone = line.call(Opcode.HELLO, b"walker", bytes.fromhex("00" + row["code"][2:]))
                assert alone.status == Status.EINVAL, row
    assert {int(row["code"], 16) for row in rows} == set(Feature)


def test_every_control_is_answered_as_the_page_says(node: Node) -> None:
    rows = list(table(PAGE, "Controls of DCP"))
    for row in rows:
        with Line(node.port) as line:
            features = b"".join(each.to_bytes(2) for each in (Feature.XERROR, Feature.SNAPPY))
            assert line.call(Opcode.HELLO, b"walker", features).status == 0
            line.send(dcp.Open(key=b"walker", flags=dcp.OpenFlag.PRODUCER).frame())
            assert line.read().status == 0
            key, value = (row[name].strip("`").encode() for name in ("control", "for example"))
            assert line.call(Opcode.DCP_CONTROL, key, value).status == told(row), row
    assert len(rows) > 20


def flags_of(section: str) -> dict[int, dict[str, str]]:
    return {int(row["flag"], 16): row for row in table(PAGE, section)}


def status_in(cell: str) -> int:
    return told({"answer": cell})


def test_every_flag_of_an_open_is_answered_as_the_page_says(node: Node) -> None:
    rows = flags_of("Flags of DCP_OPEN")
    for flag in (1 << bit for bit in range(32)):
        row = rows.get(flag)
        expected = {flag: status_in(row["alone"]) if row else Status.EINVAL}
        if row and row["needs"]:
            expected[flag | int(row["needs"], 16)] = Status.SUCCESS
        for flags, status in expected.items():
            with Line(node.port) as line:
                assert line.call(Opcode.DCP_OPEN, b"walker", extras=bytes(4) + flags.to_bytes(4)).status == status, row
    assert set(rows) == set(dcp.OpenFlag)


def test_every_flag_of_a_stream_is_answered_as_the_page_says(node: Node) -> None:
    rows = flags_of("Flags of DCP_STREAM_REQ")
    for flag in (1 << bit for bit in range(32)):
        row = rows.get(flag)
        expected = {flag: status_in(row["alone"]) if row else Status.EINVAL}
        if row and row["needs"]:
            expected[flag | int(row["needs"], 16)] = Status.SUCCESS
        for flags, status in expected.items():
            with Line(node.port) as line:
                line.send(PRODUCER.frame())
                assert line.read().status == 0
                extras = flags.to_bytes(4) + bytes(4 + 5 * 8)
                assert line.call(Opcode.DCP_STREAM_REQ, extras=extras, vbucket=EMPTY).status == status, row
    assert set(rows) == set(dcp.StreamFlag)


EMPTY = 3
"""A vbucket that nobody writes to."""


def served() -> list[type[Request]]:
    """The declared requests of clients that the node answers by itself, one after the other."""
    declared = (message for family in FAMILIES for message in messages(family) if issubclass(message, Request))
    return [each for each in declared if each.layout.magic == Magic.CLIENT_REQUEST and not each.layout.refused]


def sample(request_type: type[Request]) -> Request:
    """The least that can be asked so."""
    layout = request_type.layout
    given: dict[str, Any] = {field.name: _least(field) for field in layout.fields if not field.optional}
    if layout.key is REQUIRED:
        given["key"] = KEYS.get(request_type, b"key")
    if layout.value is REQUIRED:
        given["value"] = b"value"
    return request_type(**given)


def _least(field: Any) -> object:
    if field.only:
        return field.only[0]
    if field.codec.size is not None:
        return 1
    return [(0, b"key")] if field.name == "keys" else []


@pytest.mark.parametrize("request_type", served(), ids=lambda each: each.__name__)
def test_a_declared_request_is_answered_as_it_is_declared(node: Node, request_type: type[Request]) -> None:
    wanted: list[type[Message]] = [*answers_of(request_type), Failure]
    for answer in conversation(node, sample(request_type)):
        if answer.status:
            assert answer.status not in NOT_SERVED
        else:
            assert any(_reads(each, answer) for each in wanted), answer


def conversation(node: Node, *requests: Request) -> list[Frame]:
    """All that the node answers to these requests, until it hangs up for there comes no more."""
    hello = bootstrap.Hello(key=b"walker", features=[Feature.XERROR])
    with socket.create_connection((node.host, node.port), 120) as sock:
        sock.sendall(b"".join(request.encode() for request in (hello, *requests)))
        sock.shutdown(socket.SHUT_WR)
        buffer, frames = FrameBuffer(), list[Frame]()
        while data := sock.recv(1 << 16):
            frames += buffer.receive_data(data)
    assert [frame.opcode for frame in frames[:1]] == [Opcode.HELLO] and len(frames) > 1
    return frames[1:]


PRODUCER = dcp.Open(key=b"walker", flags=dcp.OpenFlag.PRODUCER)
HERE = 1
"""A vbucket to which none of the samples above did anything: they name vbucket 0."""
STREAM = dcp.StreamRequest(vbucket=HERE, start_seqno=0, end_seqno=0, snap_start_seqno=0, snap_end_seqno=0, opaque=9)
FUTURE = dcp.StreamRequest(vbucket=HERE, start_seqno=7, vb_uuid=1, snap_start_seqno=7, snap_end_seqno=7)
ENDLESS = dcp.StreamRequest(vbucket=HERE, start_seqno=0, snap_start_seqno=0, snap_end_seqno=0)


@pytest.mark.parametrize(
    ("before", "request_", "answer"),
    [
        ([], PRODUCER, Done),
        ([PRODUCER], dcp.Control(key=b"enable_noop", value=b"true"), Done),
        ([PRODUCER], dcp.GetFailoverLog(vbucket=HERE), dcp.GetFailoverLogResponse),
        ([PRODUCER], STREAM, dcp.StreamResponse),
        ([PRODUCER], FUTURE, dcp.StreamRollback),
        ([PRODUCER, ENDLESS], dcp.CloseStream(vbucket=HERE), Done),
        ([dcp.Open(key=b"walker", flags=0)], dcp.AddStream(vbucket=HERE, flags=0), dcp.AddStreamResponse),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Request) else None,
)
def test_a_request_of_dcp_is_answered_as_it_is_declared(
    node: Node, before: list[Request], request_: Request, answer: type[Message]
) -> None:
    found = [frame for frame in conversation(node, *before, request_) if frame.opcode == request_.layout.opcode]
    assert found and answer in request_.layout.answers
    assert _reads(answer, found[-1]), found


def _reads(answer: type[Message], frame: Frame) -> bool:
    try:
        answer.decode(frame)
    except BadMessage:
        return False
    return True
