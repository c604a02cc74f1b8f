"""Clients that asked for it hear of a new map, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

import pytest

from headwater.testing.node import Node, node
from headwater.wire.dcp import OpenFlag
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.node.membership.support import EPOCH, VBUCKETS, cluster_map, send_map
from tests.node.replication.support import Line

FULL = (Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE_NOTIFICATION)
BRIEF = (Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF)


@pytest.fixture
def alone() -> Iterator[Node]:
    with node(vbuckets=VBUCKETS) as made:
        yield made


def line(to: Node, *features: int) -> Line:
    made = Line(to.port)
    value = b"".join(code.to_bytes(2) for code in features)
    assert made.call(Opcode.HELLO, value=value).value == value
    return made


def is_quiet(listener: Line) -> bool:
    """A notification would have been sent before the map was answered, and so before the answer to this."""
    return listener.call(Opcode.NOOP).opcode == Opcode.NOOP


def open_dcp(reader: Line, flags: int = OpenFlag.PRODUCER) -> Frame:
    return reader.call(Opcode.DCP_OPEN, b"reader", extras=pack(">II", 0, flags))


def my_map(of: Node, rev: int) -> bytes:
    return cluster_map(rev, [of.address], [[0]] * VBUCKETS, this=0)


def test_the_notification_in_bytes(alone: Node) -> None:
    config = my_map(alone, 1)
    with line(alone, *FULL) as plain, line(alone, *FULL, Feature.JSON) as typed, line(alone, *BRIEF) as brief:
        assert send_map(alone, 1, config) == 0
        version = pack(">qq", EPOCH, 1)
        total = 16 + len(b"default") + len(config)
        header = pack(">BBHBBHIIQ", 0x82, 1, 7, 16, 0, 0, total, 0, 0)
        assert plain.file.read(24 + total) == header + version + b"default" + config
        assert typed.file.read(24 + total) == header[:5] + b"\1" + header[6:] + version + b"default" + config
        told = pack(">BBHBBHIIQ", 0x82, 1, 7, 16, 0, 0, 16 + 7, 0, 0) + version + b"default"
        assert brief.file.read(len(told)) == told
        # "Reply optional": it is taken without a word.
        plain.sock.sendall(pack(">BBHBBHIIQ", 0x83, 1, 0, 0, 0, 0, 0, 0, 0))
        assert plain.call(Opcode.NOOP).status == 0


def test_whoever_has_seen_the_map_or_did_not_ask_hears_nothing(alone: Node) -> None:
    with line(alone, Feature.DUPLEX) as deaf, line(alone, *BRIEF) as seen, line(alone, *BRIEF) as homeless:
        assert homeless.call(Opcode.SELECT_BUCKET, b"").status == 0
        assert send_map(alone, 1, my_map(alone, 1)) == 0
        assert seen.read().magic == 0x82
        assert send_map(alone, 1, my_map(alone, 1)) == 0
        assert is_quiet(deaf) and is_quiet(seen) and is_quiet(homeless)


def test_selecting_the_bucket_again_forgets_what_was_seen(alone: Node) -> None:
    with line(alone, *BRIEF) as listener:
        assert send_map(alone, 1, my_map(alone, 1)) == 0
        assert listener.read().magic == 0x82
        assert listener.call(Opcode.SELECT_BUCKET, b"default").status == 0
        assert send_map(alone, 1, my_map(alone, 1)) == 0
        assert listener.read().magic == 0x82


TABLE = b'"vBucketServerMap":{"serverList":["a:1"],"vBucketMap":[[0]]}'


def test_a_map_that_names_no_node_is_told_as_well(alone: Node) -> None:
    with line(alone, *FULL) as listener:
        config = b"{%b}" % TABLE
        assert send_map(alone, 9, config) == 0
        frame = listener.read()
        assert (frame.extras, frame.value) == (pack(">qq", EPOCH, 9), config)


def test_brief_wins_over_full() -> None:
    with node(vbuckets=VBUCKETS) as made, line(made, *BRIEF, Feature.CLUSTERMAP_CHANGE_NOTIFICATION) as listener:
        assert send_map(made, 1, my_map(made, 1)) == 0
        assert listener.read().value == b""


@pytest.mark.parametrize("flags", [OpenFlag.PRODUCER, OpenFlag(0)], ids=["producer", "consumer"])
def test_a_dcp_connection_hears_of_a_new_map_as_others_do(alone: Node, flags: OpenFlag) -> None:
    config = my_map(alone, 1)
    with line(alone, *FULL) as reader:
        assert open_dcp(reader, flags).status == 0
        assert send_map(alone, 1, config) == 0
        total = 16 + len(b"default") + len(config)
        header = pack(">BBHBBHIIQ", 0x82, 1, 7, 16, 0, 0, total, 0, 0)
        assert reader.file.read(24 + total) == header + pack(">qq", EPOCH, 1) + b"default" + config
        assert is_quiet(reader)


def test_a_dcp_connection_that_asked_for_the_map_hears_of_the_next_one_only(alone: Node) -> None:
    with line(alone, *BRIEF) as reader:
        assert open_dcp(reader).status == 0
        assert send_map(alone, 1, my_map(alone, 1)) == 0
        assert reader.read().magic == 0x82
        assert reader.call(Opcode.GET_CLUSTER_CONFIG).status == 0
        assert send_map(alone, 1, my_map(alone, 1)) == 0
        assert is_quiet(reader)
        assert send_map(alone, 2, my_map(alone, 2)) == 0
        assert reader.read().extras == pack(">qq", EPOCH, 2)


def test_a_map_comes_between_two_messages_of_a_stream(alone: Node) -> None:
    with line(alone, *FULL) as reader, line(alone) as writer:
        assert open_dcp(reader).status == 0
        end = (1 << 64) - 1
        request = pack(">IIQQQQQ", 0, 0, 0, end, 0, 0, 0)
        assert reader.call(Opcode.DCP_STREAM_REQ, extras=request).status == 0
        for rev in (1, 2):
            assert writer.call(Opcode.SET, b"k%d" % rev, b"v" * 1000, bytes(8)).status == 0
            assert reader.read().opcode == Opcode.DCP_SNAPSHOT_MARKER
            assert reader.read().key == b"k%d" % rev
            assert send_map(alone, rev, my_map(alone, rev)) == 0
            assert reader.read().magic == 0x82
