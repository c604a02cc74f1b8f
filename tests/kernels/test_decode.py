"""Frames to rows: the kernel, its numpy twin, its checked build and the declared messages agree on every input."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels.columns import Arena, Stop, StreamTable
from headwater.wire import dcp
from tests.kernels.conversation import garbled, talks
from tests.kernels.decoding import MUTATION, assert_all_agree, cuts_anywhere, small, some_vbuckets, streams


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
