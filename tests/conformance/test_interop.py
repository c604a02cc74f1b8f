"""interop.md on a live socket: what clients say that no other test says to a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.testing import Node, node
from headwater.wire import dcp
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.conformance.seeds import Line

REQUEST = 0x80


@pytest.fixture(scope="module")
def live() -> Iterator[Node]:
    with node(vbuckets=4) as made:
        yield made


def control(line: Line, key: str, value: str) -> int:
    return line.ask(Frame(REQUEST, Opcode.DCP_CONTROL, key.encode(), value=value.encode())).status


@pytest.mark.parametrize(
    "controls",
    [
        # The Java client goes through a map: the interval may come before what it is the interval of.
        [
            ("enable_expiry_opcode", "true"),
            ("connection_buffer_size", "10485760"),
            ("set_noop_interval", "120"),
            ("enable_noop", "true"),
        ],
        [
            ("enable_noop", "true"),
            ("set_noop_interval", "180"),
            ("set_priority", "low"),
            ("enable_expiry_opcode", "true"),
            ("enable_out_of_order_snapshots", "true_with_seqno_advanced"),
            ("backfill_order", "sequential"),
            ("connection_buffer_size", "16777216"),
            ("send_stream_end_on_client_close_stream", "true"),
        ],
    ],
    ids=["java-dcp-client", "gocbcore"],
)
def test_the_controls_of_a_client_are_taken_in_its_order(live: Node, controls: list[tuple[str, str]]) -> None:
    with Line(live.port) as line:
        line.done(dcp.Open(key=b"controls %d" % len(controls), flags=1))
        assert [control(line, key, value) for key, value in controls] == [Status.SUCCESS] * len(controls)


@pytest.mark.parametrize(("key", "value"), [("max_marker_version", "2.2"), ("cache_transfer", "true")])
def test_what_a_client_asks_for_only_if_told_to_is_refused(live: Node, key: str, value: str) -> None:
    with Line(live.port) as line:
        line.done(dcp.Open(key=b"more", flags=1))
        assert control(line, key, value) == Status.NOT_SUPPORTED


def test_who_wants_every_version_is_taken_at_his_word(live: Node) -> None:
    """As gocbcore with UseChangeStreams."""
    with Line(live.port) as line:
        line.done(dcp.Open(key=b"versions", flags=1))
        assert control(line, "change_streams", "true") == Status.SUCCESS
        assert control(line, "change_streams", "false") == Status.EINVAL


def test_a_raw_peer_needs_no_map(live: Node) -> None:
    """As gomemcached, what XDCR and the indexer use; the opaque is its own number and the vbucket's."""
    opaque = 0x00AB_0003
    with Line(live.port) as line:
        line.done(Frame(REQUEST, Opcode.SASL_LIST_MECHS))
        line.done(Frame(REQUEST, Opcode.SASL_AUTH, b"PLAIN", value=b"\0default\0"))
        line.done(Frame(REQUEST, Opcode.SELECT_BUCKET, b"default"))
        line.done(Frame(REQUEST, Opcode.SET, b"k", bytes(8), b"v", vbucket=3))
        seqnos = line.ask(Frame(REQUEST, Opcode.GET_ALL_VB_SEQNOS)).value
        assert seqnos == b"".join(vb.to_bytes(2) + (vb == 3).to_bytes(8) for vb in range(4))
        line.done(dcp.Open(key=b"raw peer", flags=1))
        for key, value in (
            ("connection_buffer_size", "20971520"),
            ("enable_noop", "true"),
            ("set_noop_interval", "120"),
        ):
            assert control(line, key, value) == Status.SUCCESS
        asked = dcp.StreamRequest(
            vbucket=3,
            opaque=opaque,
            flags=0,
            start_seqno=0,
            end_seqno=(1 << 64) - 1,
            vb_uuid=0,
            snap_start_seqno=0,
            snap_end_seqno=0,
        )
        assert [line.ask(asked).opaque, line.frame().opaque, line.frame().opaque] == [opaque] * 3
