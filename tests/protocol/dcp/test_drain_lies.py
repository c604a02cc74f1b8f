"""The consumer's end, fed with bytes that are wrong in every way: an error that says so, and no row too many."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import RemoteProtocolError
from headwater.protocol.dcp.position import Position
from headwater.wire import dcp
from headwater.wire.header import Frame
from headwater.wire.status import Status
from tests.protocol.dcp.drain_talk import (
    ACCEPTED,
    TALK,
    UUID,
    accepted,
    answer,
    asked,
    change,
    feed,
    marker,
)

LIES = {
    "marker runs backwards": marker(5, 4),
    "change before any marker": change(1),
    "change with seqno 0": marker(0, 9) + change(0),
    "seqno repeated": marker(0, 9) + change(2) + change(2),
    "seqno falls": marker(0, 9) + change(2) + change(1),
    "change behind its snapshot": marker(0, 9) + change(10),
    "change before its snapshot": marker(5, 9) + change(4),
    "marker behind the last change": marker(0, 9) + change(9) + marker(3, 8),
    "another stream's opaque": marker(0, 9) + change(1, opaque=2),
    "a vbucket nobody asked for": marker(0, 9, vbucket=1),
    "extras too short": marker(0, 9) + Frame(0x80, 0x57, b"k", bytes(7) + b"\x01", b"", opaque=1).encode(),
    "metadata nobody negotiated": marker(0, 9)
    + dcp.Mutation(vbucket=0, opaque=1, by_seqno=1, rev_seqno=1, nmeta=1, key=b"k", value=b"v").encode(),
    "marker of version 1": Frame(0x80, 0x56, b"", b"\x01", bytes(36), opaque=1).encode(),
    "prepare without durability": dcp.OsoSnapshot(vbucket=0, opaque=1, flags=1).encode(),
    "flush": Frame(0x80, 0x5A, opaque=1).encode(),
    "a request of consumers": Frame(0x80, 0x53, opaque=1).encode(),
    "an answer to nothing": answer(0, bytes(16), opaque=99),
    "the same answer twice": ACCEPTED,
    "an error for a change": Frame(0x81, 0x57, vbucket=4).encode(),
    "a server request": Frame(0x82, 0x01).encode(),
    "no magic": b"\x55" * 24,
    "31 MiB": bytes.fromhex("805700000000000001f00000") + bytes(12),
    "lengths beyond the body": bytes.fromhex("80570010ff00000000000010") + bytes(12),
    "end without a reason": Frame(0x80, 0x55, opaque=1).encode(),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_an_error_that_names_the_opcode(lie: str):
    with pytest.raises(RemoteProtocolError, match=r"opcode 0x|magic|frame"):
        feed(accepted(), LIES[lie])


@pytest.mark.parametrize("lie", ["seqno falls", "change behind its snapshot", "another stream's opaque"])
def test_the_error_tells_the_numbers(lie: str):
    with pytest.raises(RemoteProtocolError, match=r"vbucket 0, opaque \d: .*; last \d+, snapshot 0 to 9"):
        feed(accepted(), LIES[lie])


ANSWER_LIES = {
    "an empty log": answer(0),
    "half an entry": answer(0, bytes(24)),
    "a log without end": answer(0, bytes(16 * 2000)),
    "a rollback without a seqno": answer(Status.ROLLBACK),
    "a rollback forward": answer(Status.ROLLBACK, (901).to_bytes(8)),
    "changes before the answer": marker(900, 905) + change(901),
    "changes before a refusal": marker(900, 905) + change(901) + answer(Status.ROLLBACK, bytes(8)),
}


@pytest.mark.parametrize("lie", ANSWER_LIES)
def test_a_broken_answer_to_a_request_is_an_error(lie: str):
    with pytest.raises(RemoteProtocolError):
        feed(asked(Position(0, UUID, 900, 900, 900)), ANSWER_LIES[lie])


@given(keep=st.integers(0, len(TALK)), junk=st.binary(max_size=60))
def test_whatever_arrives_is_understood_or_refused(keep: int, junk: bytes):
    drain = asked()
    with suppress(RemoteProtocolError):
        drain.receive(TALK[:keep] + junk, 100.0)
    assert [row["seqno"] for row in drain.arena.batch().to_pylist()] == [1, 2, 3][: drain.position(0).seqno]


@given(st.integers(0, len(TALK) - 1), st.integers(0, 7))
def test_one_wrong_bit_never_makes_a_seqno_come_twice_or_backwards(place: int, bit: int):
    data = bytearray(TALK)
    data[place] ^= 1 << bit
    drain = asked()
    with suppress(RemoteProtocolError):
        drain.receive(bytes(data), 100.0)
    seqnos = [row["seqno"] for row in drain.arena.batch().to_pylist()]
    assert seqnos == sorted(set(seqnos))
