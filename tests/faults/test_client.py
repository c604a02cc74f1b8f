"""The client against servers that lie while it gets to know them, or that crash; tests/client has those that lie in the
stream."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from headwater import client
from headwater.client import Mutation
from headwater.errors import HeadwaterError
from headwater.testing.node import node
from headwater.testing.peers import Peer, history, serve
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

CHANGES = 12
PATIENCE_SECONDS = 0.25
FIELDS = {  # name: (offset, format, values)
    "magic": (0, "B", (0x00, 0x80, 0x18, 0x83, 0xFF)),
    "opcode": (1, "B", (0x00, 0x57, 0xFF)),
    "key length": (2, ">H", (1, 0x7FFF, 0xFFFF)),
    "extras length": (4, "B", (1, 8, 255)),
    "datatype": (5, "B", (2, 4, 0xFF)),
    "status": (6, ">H", (0x01, 0x07, 0x20, 0x23, 0x86, 0xFFFF)),
    "body length": (8, ">I", (0, 1, 30 << 20, (30 << 20) + 1, 0xFFFFFFFF)),
    "opaque": (12, ">I", (0, 0xFFFFFFFF)),
    "cas": (16, ">Q", ((1 << 64) - 1,)),
}
STEPS = [
    Opcode.HELLO,
    Opcode.SELECT_BUCKET,
    Opcode.GET_CLUSTER_CONFIG,
    Opcode.GET_ALL_VB_SEQNOS,
    Opcode.DCP_OPEN,
    Opcode.DCP_CONTROL,
    Opcode.DCP_STREAM_REQ,
]


def drained(address: str) -> list[int]:
    """The seqnos of all changes there are now."""
    settings = {"connect_timeout_seconds": PATIENCE_SECONDS, "timeout_seconds": PATIENCE_SECONDS}
    patience = {"patience_seconds": PATIENCE_SECONDS, "answer_seconds": PATIENCE_SECONDS}
    with (
        client.connect(f"couchbase://{address}/default", **settings) as bucket,
        bucket.batches(until="now", **patience) as batches,
    ):
        return [seqno for batch in batches for seqno in batch.records.column("seqno").to_pylist()]


def right_or_refused(mutate: Callable[[Frame], bytes | None]) -> None:
    """Check that a client which is lied to ends in time with an error of ours, or with nothing but the truth."""
    with serve(Peer(histories={0: history(CHANGES)}, mutate=mutate)) as address, suppress(HeadwaterError):
        assert drained(address) in ([], list(range(1, CHANGES + 1)))


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("step", STEPS)
def test_each_field_of_each_first_answer_may_lie(step: Opcode, field: str) -> None:
    offset, form, values = FIELDS[field]
    for value in values:

        def lie(frame: Frame, value: int = value) -> bytes:
            data = bytearray(frame.encode())
            if frame.opcode == step:
                struct.pack_into(form, data, offset, value)
            return bytes(data)

        right_or_refused(lie)


@pytest.mark.parametrize("step", STEPS)
def test_a_body_of_garbage_at_each_step_is_refused_or_of_no_account(step: Opcode) -> None:
    random = Random(int(step))
    for size in (0, 1, 7, 8, 10, 16, 24, 300):

        def garbage(frame: Frame, size: int = size) -> bytes:
            if frame.opcode != step:
                return frame.encode()
            return Frame(frame.magic, frame.opcode, value=random.randbytes(size), opaque=frame.opaque).encode()

        right_or_refused(garbage)


@pytest.mark.parametrize("step", STEPS)
def test_random_bytes_instead_of_an_answer_are_an_error_in_time(step: Opcode) -> None:
    random = Random(int(step))
    for size in (1, 24, 5000):

        def noise(frame: Frame, size: int = size) -> bytes:
            return random.randbytes(size) if frame.opcode == step else frame.encode()

        right_or_refused(noise)


def test_a_reader_cut_off_inside_a_snapshot_that_spans_a_crash_goes_on_where_it_was() -> None:
    """The snapshot came from the history after the crash; to say it were the one before would cost all of it."""
    with node(vbuckets=1) as bucket:
        for name in ("a", "b"):
            with bucket.client() as client:
                assert client.set_many((f"{name}{i}", b"v") for i in range(10)) == {}
            bucket.kill()
            bucket.restart()
        with bucket.client() as client, client.changes(until="now") as changes:
            for change in changes:
                if isinstance(change, Mutation) and change.seqno == 5:
                    break
            (position,) = changes.positions.values()
        assert (position.seqno, position.snapshot_start, position.snapshot_end) == (5, 0, 20)
        with bucket.client() as client, client.changes({0: position}, until="now") as changes:
            assert [change.seqno for change in changes if isinstance(change, Mutation)] == list(range(6, 21))
