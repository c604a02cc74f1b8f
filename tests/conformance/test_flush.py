"""A memcached FLUSH, as it is told over TAP and UPR: a deletion of each document, also to who resumes.

Why neither 0x43 nor 0x5a is sent: docs/decisions/0041.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.client import tap
from headwater.testing import Node, node
from headwater.wire import upr
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.tap import Delete, Mutation, Opaque
from tests.conformance.seeds import SECONDS_MAX, Line, open_reader

KEYS = [b"a", b"b", b"c"]
MUTATION, DELETION = int(Opcode.DCP_MUTATION), int(Opcode.DCP_DELETION)
Told = list[tuple[int, bytes]]


@pytest.fixture
def kept() -> Iterator[Node]:
    with node(vbuckets=1, tap_keep_alive_seconds=600) as made, Line(made.port) as writer:
        for key in KEYS:
            writer.done(Frame(0x80, Opcode.SET, key, bytes(8), b"v"))
        yield made


def flush(at: Node) -> None:
    with Line(at.port) as writer:
        writer.done(Frame(0x80, Opcode.FLUSH))
        writer.done(Frame(0x80, Opcode.SET, b"after", bytes(8), b"v"))


def told_by_tap(stream: tap.TapStream, count: int) -> list[tuple[type, bytes]]:
    """The next messages that are no OPAQUE."""
    found: list[tuple[type, bytes]] = []
    while len(found) < count:
        message = stream.next(timeout_seconds=SECONDS_MAX)
        assert message is not None
        if not isinstance(message, Opaque):
            found.append((type(message), message.key))
    return found


def told_by_upr(line: Line, count: int) -> Told:
    """The next messages that are no marker."""
    found: Told = []
    while len(found) < count:
        frame = line.frame()
        if not frame.is_response and frame.opcode != Opcode.DCP_SNAPSHOT_MARKER:
            found.append((frame.opcode, frame.key))
    return found


def test_tap_sessions_get_a_deletion_of_each_document(kept: Node) -> None:
    with tap.connect(kept.url, name="observer") as stream:
        assert told_by_tap(stream, 3) == [(Mutation, key) for key in KEYS]
        flush(kept)
        assert told_by_tap(stream, 4) == [*((Delete, key) for key in KEYS), (Mutation, b"after")]


def test_a_tap_session_that_was_away_is_told_the_same(kept: Node) -> None:
    with tap.connect(kept.url, name="observer") as stream:
        assert told_by_tap(stream, 3) == [(Mutation, key) for key in KEYS]
        while (message := stream.next(timeout_seconds=1)) is not None:
            assert isinstance(message, Opaque)
    flush(kept)
    with tap.connect(kept.url, name="observer") as stream:
        assert told_by_tap(stream, 4) == [*((Delete, key) for key in KEYS), (Mutation, b"after")]


def test_upr_sessions_get_a_deletion_of_each_document_also_those_that_resume(kept: Node) -> None:
    deletions = [*((DELETION, key) for key in KEYS), (MUTATION, b"after")]
    with Line(kept.port) as line, kept.client() as reader:
        open_reader(line, b"observer")
        line.send(upr.StreamRequest(vbucket=0, opaque=1, start_seqno=0, end_seqno=(1 << 64) - 1))
        assert told_by_upr(line, 3) == [(MUTATION, key) for key in KEYS]
        uuid, _ = reader.failover_log(0)[0]
        flush(kept)
        assert told_by_upr(line, 4) == deletions
    with Line(kept.port) as line:
        open_reader(line, b"resumed")
        resumed = {"start_seqno": 3, "end_seqno": (1 << 64) - 1, "vb_uuid": uuid, "high_seqno": 0}
        line.send(upr.StreamRequest(vbucket=0, opaque=1, **resumed))
        assert told_by_upr(line, 4) == deletions
