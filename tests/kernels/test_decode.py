"""Frames to rows: the kernel, its numpy twin, its checked build and the declared messages agree on every input."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import columns_numpy
from headwater.kernels.columns import SCHEMA_WITH_IDS, Arena, Stop, StreamTable
from headwater.wire import dcp
from tests.kernels.conversation import NAMED_KEYS, PLAIN_KEYS, garbled, talks
from tests.kernels.decoding import MARKER, MUTATION, assert_all_agree, cuts_anywhere, small, some_vbuckets, streams


@given(data=talks(slips=False), cuts=cuts_anywhere, dropping=some_vbuckets)
def test_how_an_honest_conversation_is_cut_changes_nothing(
    data: bytes, cuts: list[int], dropping: frozenset[int]
) -> None:
    assert_all_agree(data, cuts, dropping)


@given(data=talks(), cuts=cuts_anywhere, dropping=some_vbuckets)
def test_a_broken_rule_is_found_at_the_same_frame(data: bytes, cuts: list[int], dropping: frozenset[int]) -> None:
    assert_all_agree(data, cuts, dropping)


@given(data=garbled(), cuts=cuts_anywhere)
def test_lying_headers_make_nobody_read_outside_the_buffer(data: bytes, cuts: list[int]) -> None:
    assert_all_agree(data, cuts, frozenset())


@given(data=st.binary(max_size=200))
def test_whatever_arrives_is_understood_or_refused(data: bytes) -> None:
    assert_all_agree(data, [], frozenset())


@given(data=talks(slips=False, keys=NAMED_KEYS), cuts=cuts_anywhere, dropping=some_vbuckets)
def test_ids_of_collections_are_taken_off_wherever_it_is_cut(
    data: bytes, cuts: list[int], dropping: frozenset[int]
) -> None:
    assert_all_agree(data, cuts, dropping, with_ids=True)


@given(data=talks(keys=NAMED_KEYS | PLAIN_KEYS), cuts=cuts_anywhere, dropping=some_vbuckets)
def test_a_key_that_begins_with_no_id_is_found_at_the_same_frame(
    data: bytes, cuts: list[int], dropping: frozenset[int]
) -> None:
    assert_all_agree(data, cuts, dropping, with_ids=True)


GOOD = [
    ("00 6b", 0, b"k"), ("08 6b", 8, b"k"), ("7f 00", 0x7F, b"\0"), ("80 01 6b 6b", 0x80, b"kk"),
    ("ff 7f 6b", 0x3FFF, b"k"), ("80 80 01 6b", 0x4000, b"k"), ("ff ff ff ff 0f 6b", 0xFFFF_FFFF, b"k"),
    ("08" + "6b" * 40, 8, b"k" * 40),
]  # fmt: skip
BAD = {
    "cut": ("80", "ff ff", "80 80 80 80", "ff ff ff ff"),
    "nothing behind it": ("00", "08", "80 01", "ff ff ff ff 0f"),
    "overlong": ("80 00 6b", "88 80 00 6b", "80 80 80 80 00 6b"),
    "beyond 32 bits": ("ff ff ff ff 10 6b", "80 80 80 80 10 6b", "ff ff ff ff 7f 6b"),
    "no last byte within five": ("80 80 80 80 80 01 6b", "ff ff ff ff ff 6b"),
}
KINDS = (
    dcp.Mutation(vbucket=7, opaque=1007, by_seqno=6, rev_seqno=1, value=b"v", key=b"?"),
    dcp.DeletionV2(vbucket=7, opaque=1007, by_seqno=6, rev_seqno=1, delete_time=9, key=b"?"),
    dcp.Expiration(vbucket=7, opaque=1007, by_seqno=6, rev_seqno=1, delete_time=9, key=b"?"),
)
DECODERS = pytest.mark.parametrize("decoder", [{}, {"decoder": columns_numpy.decode}], ids=["kernel", "numpy"])


@DECODERS
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize(("key", "collection", "logical"), GOOD)
def test_the_id_in_front_of_a_key_is_a_column(
    key: str, collection: int, logical: bytes, kind: dcp.Mutation, decoder: dict[str, Any]
) -> None:
    arena, table = Arena(with_ids=True, **decoder), streams(with_ids=True)
    decoded = arena.decode(MARKER.encode() + replace(kind, key=bytes.fromhex(key)).encode(), table)
    batch = arena.batch()
    batch.validate(full=True)
    assert (decoded.stop, batch.schema) == (Stop.NEED_MORE, SCHEMA_WITH_IDS)
    (row,) = batch.to_pylist()
    assert (row["collection_id"], row["key"], row["value"]) == (collection, logical, kind.value)


@DECODERS
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("key", [key for keys in BAD.values() for key in keys])
def test_a_key_without_a_proper_id_is_refused_at_its_frame(
    key: str, kind: dcp.Mutation, decoder: dict[str, Any]
) -> None:
    arena, table = Arena(with_ids=True, **decoder), streams(with_ids=True)
    decoded = arena.decode(MARKER.encode() + replace(kind, key=bytes.fromhex(key)).encode(), table)
    assert (decoded.stop, decoded.consumed, decoded.rows) == (Stop.BAD_COLLECTION, len(MARKER.encode()), 0)


def test_a_connection_without_ids_fills_an_arena_with_ids_with_the_default_collection() -> None:
    arena = Arena(with_ids=True)
    named = replace(KINDS[0], key=b"\x08k").encode()
    arena.decode(MARKER.encode() + named, streams(with_ids=True))
    arena.decode(MARKER.encode() + named, streams())
    rows = arena.batch().to_pylist()
    assert [(row["collection_id"], row["key"]) for row in rows] == [(8, b"k"), (0, b"\x08k")]


def test_a_frame_that_is_incomplete_tells_its_size() -> None:
    data = MUTATION.encode()
    assert Arena().decode(data[:23], streams()).needed == 24
    assert Arena().decode(data[:24], streams()).needed == len(data) == 65


def test_a_full_arena_stops_before_a_frame_and_takes_it_after_the_batch() -> None:
    arena, table = small(Arena), StreamTable(checked=False)
    frames = [dcp.Mutation(key=b"k", value=b"v", by_seqno=n, rev_seqno=1).encode() for n in range(1, 7)]
    decoded = arena.decode(b"".join(frames), table)
    assert (decoded.stop, decoded.rows, decoded.consumed) == (Stop.FULL, 4, 4 * len(frames[0]))
    assert arena.batch().num_rows == 4
    assert arena.decode(b"".join(frames[4:]), table).rows == 2
