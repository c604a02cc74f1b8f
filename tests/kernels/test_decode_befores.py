"""The versions that changes replaced: the kernel, its checked build and the declared messages agree on every input."""

from __future__ import annotations

import pytest
from hypothesis import given

from headwater.kernels.columns import Arena, Stop
from headwater.wire import dcp
from headwater.wire.dcp import BeforeState
from tests.kernels.conversation import NAMED_KEYS, garbled, talks
from tests.kernels.decoding import MARKER, MUTATION, assert_all_agree, cuts_anywhere, some_vbuckets, streams

BEFORE = dcp.Before(
    vbucket=7, opaque=1007, by_seqno=6, state=BeforeState.VERSION, before_seqno=5, rev_seqno=2, cas=0x0102030405060708,
    flags=0x2000006, expiration=9, datatype=1, value=b"was",
)  # fmt: skip


@given(data=talks(slips=False, befores=True), cuts=cuts_anywhere, dropping=some_vbuckets)
def test_how_an_honest_conversation_is_cut_changes_nothing(
    data: bytes, cuts: list[int], dropping: frozenset[int]
) -> None:
    assert_all_agree(data, cuts, dropping, with_befores=True)


@given(data=talks(befores=True), cuts=cuts_anywhere, dropping=some_vbuckets)
def test_a_broken_rule_is_found_at_the_same_frame(data: bytes, cuts: list[int], dropping: frozenset[int]) -> None:
    assert_all_agree(data, cuts, dropping, with_befores=True)


@given(data=garbled(befores=True), cuts=cuts_anywhere)
def test_lying_headers_make_nobody_read_outside_the_buffer(data: bytes, cuts: list[int]) -> None:
    assert_all_agree(data, cuts, frozenset(), with_befores=True)


@given(data=talks(slips=False, keys=NAMED_KEYS, befores=True), cuts=cuts_anywhere, dropping=some_vbuckets)
def test_ids_of_collections_are_taken_off_as_ever(data: bytes, cuts: list[int], dropping: frozenset[int]) -> None:
    assert_all_agree(data, cuts, dropping, with_ids=True, with_befores=True)


def test_a_version_becomes_columns_of_its_change() -> None:
    arena = Arena(with_befores=True)
    data = bytes.fromhex(
        "80560000 14000007 00000014 000003ef 0000000000000000 0000000000000006 0000000000000009 00000001"
        "806f0000 21010007 00000024 000003ef 0102030405060708"
        "0000000000000006 0000000000000005 0000000000000002 02000006 00000009 01 776173"
    )
    assert data == MARKER.encode() + BEFORE.encode()
    decoded = arena.decode(data + MUTATION.encode(), streams())
    assert (decoded.stop, decoded.flow_bytes) == (Stop.NEED_MORE, len(data + MUTATION.encode()))
    (row,) = arena.batch().to_pylist()
    assert {name: value for name, value in row.items() if name.startswith("before")} == {
        "before_state": 1,
        "before_seqno": 5,
        "before_rev_seqno": 2,
        "before_cas": 0x0102030405060708,
        "before_flags": 0x2000006,
        "before_expiry": 9,
        "before_datatype": 1,
        "before_value": b"was",
    }
    assert (row["seqno"], row["value"]) == (6, b"world")


def test_it_is_taken_together_with_its_change() -> None:
    arena, table, data = Arena(with_befores=True), streams(), BEFORE.encode() + MUTATION.encode()
    arena.decode(MARKER.encode(), table)
    for end in (24, 50, len(BEFORE.encode()), len(data) - 1):
        decoded = arena.decode(data[:end], table)
        assert (decoded.consumed, decoded.rows, decoded.flow_bytes) == (0, 0, 0)
    assert decoded.needed == len(data)
    assert arena.decode(data, table).consumed == len(data)


@pytest.mark.parametrize(
    "frames",
    [
        [MUTATION],
        [BEFORE, BEFORE, MUTATION],
        [BEFORE, dcp.Noop(opaque=9), MUTATION],
        [dcp.Before(vbucket=7, opaque=1007, by_seqno=7, state=2), MUTATION],
        [dcp.Before(vbucket=0, opaque=1000, by_seqno=6, state=2), MUTATION],
        [dcp.Before(vbucket=7, opaque=1007, by_seqno=6, before_seqno=6, state=1), MUTATION],
        [dcp.Before(vbucket=7, opaque=1007, by_seqno=6, before_seqno=0, state=1), MUTATION],
        [dcp.Before(vbucket=7, opaque=1007, by_seqno=6, before_seqno=5, state=2), MUTATION],
        [dcp.Before(vbucket=7, opaque=1007, by_seqno=6, value=b"v", state=3), MUTATION],
    ],
    ids=["missing", "twice", "apart", "other seqno", "other vbucket", "of itself", "no seqno", "none", "not kept"],
)
def test_what_is_not_the_version_in_front_of_its_own_change_is_refused(frames: list[dcp.Before]) -> None:
    arena, table = Arena(with_befores=True), streams()
    decoded = arena.decode(MARKER.encode() + b"".join(frame.encode() for frame in frames), table)
    assert decoded.stop is Stop.BAD_BEFORE and arena.rows == 0


def test_who_did_not_ask_for_it_finds_a_message_that_is_no_change() -> None:
    arena = Arena()
    decoded = arena.decode(MARKER.encode() + BEFORE.encode() + MUTATION.encode(), streams())
    assert len(decoded.controls) == 2 and decoded.rows == 1


def test_values_of_both_make_the_arena_grow() -> None:
    arena, table, value = Arena(value_bytes=64, with_befores=True), streams(), b"v" * 5000
    before = dcp.Before(vbucket=7, opaque=1007, by_seqno=6, state=1, before_seqno=5, value=value)
    change = dcp.Mutation(vbucket=7, opaque=1007, by_seqno=6, rev_seqno=1, key=b"k", value=value)
    data = before.encode() + change.encode()
    arena.decode(MARKER.encode(), table)
    while (decoded := arena.decode(data, table)).stop is Stop.FRAME_TOO_LARGE:
        arena.grow(decoded.needed)
    assert decoded.consumed == len(data)
    (row,) = arena.batch().to_pylist()
    assert row["before_value"] == row["value"] == value
