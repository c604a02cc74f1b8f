"""Frames to columns: the kernel, its numpy twin, its checked build and the declared messages agree on every input."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import columns, columns_numpy, jit
from headwater.kernels.columns import SCHEMA, Arena, Stop, StreamState, StreamTable
from headwater.wire import dcp
from tests.kernels.conversation import OPENED_AT, VBUCKETS, garbled, opaque_of, talks
from tests.kernels.plain import Plain, Vbucket

CHECKED = jit.debug_copy("headwater.kernels.columns")

MUTATION = dcp.Mutation(
    vbucket=7, opaque=1007, cas=0x1122334455667788, datatype=1, key=b"hello", value=b"world",
    by_seqno=6, rev_seqno=3, flags=0x2000006, expiration=1_800_000_000, nru=2,
)  # fmt: skip
MARKER = dcp.SnapshotMarker(vbucket=7, opaque=1007, start_seqno=6, end_seqno=9, flags=1)


def streams(kind: Any = StreamTable, dropping: frozenset[int] = frozenset()) -> Any:
    table = kind()
    for vbucket in VBUCKETS:
        table.open(vbucket, opaque_of(vbucket), OPENED_AT, OPENED_AT, OPENED_AT)
        if vbucket in dropping:
            table.drop(vbucket)
    return table


@dataclass
class Outcome:
    """All that decoding some pieces came to."""

    table: Any
    rows: list[dict[str, object]] = field(default_factory=list)
    controls: list[tuple[int, int]] = field(default_factory=list)
    flow_bytes: int = 0
    dropped: int = 0
    consumed: int = 0
    stop: Stop = Stop.NEED_MORE


def drain(data: bytes, cuts: list[int], arena: Any, table: Any) -> Outcome:
    """Receive `data` in pieces, as a consumer does: what is left of one piece stands before the next."""
    outcome, at = Outcome(table), 0
    for end in [*sorted(cut for cut in cuts if cut <= len(data)), len(data)]:
        while True:
            piece = np.frombuffer(data[at:end], np.uint8).copy()
            decoded = arena.decode(piece, table)
            before = len(outcome.rows)
            outcome.controls += [(at + offset, before + row) for offset, row in decoded.controls.tolist()]
            outcome.flow_bytes += decoded.flow_bytes
            outcome.dropped += decoded.dropped
            at += decoded.consumed
            outcome.stop = Stop(int(decoded.stop))
            if outcome.stop == Stop.FULL:
                outcome.rows += arena.batch().to_pylist()
            elif outcome.stop == Stop.FRAME_TOO_LARGE:
                arena.grow(decoded.needed)
            elif outcome.stop != Stop.CONTROLS_FULL:
                break
        if outcome.stop.refused:
            break
    outcome.rows += arena.batch().to_pylist()
    outcome.consumed = at
    return outcome


def small(kind: Any, **options: Any) -> Any:
    return kind(value_bytes=20, key_bytes=12, rows=4, controls=3, **options)


def assert_all_agree(data: bytes, cuts: list[int], dropping: frozenset[int]) -> None:
    # The checked build goes first: what would crash the compiled one is a KernelFault there.
    checked = drain(data, cuts, small(CHECKED.Arena), streams(CHECKED.StreamTable, dropping))
    kernel = drain(data, cuts, small(Arena), streams(dropping=dropping))
    twin = drain(data, cuts, small(Arena, decoder=columns_numpy.decode), streams(dropping=dropping))
    for other in (twin, checked):
        assert (other.rows, other.controls, other.stop) == (kernel.rows, kernel.controls, kernel.stop)
        assert (other.flow_bytes, other.dropped) == (kernel.flow_bytes, kernel.dropped)
        assert other.consumed == kernel.consumed
        assert np.array_equal(other.table.rows, kernel.table.rows)
    state = {v: StreamState.DROPPING if v in dropping else StreamState.OPEN for v in VBUCKETS}
    opened = {v: Vbucket(state[v], opaque_of(v), OPENED_AT, OPENED_AT, OPENED_AT) for v in VBUCKETS}
    plain = Plain(opened).decode(data)
    assert kernel.rows == [{name: row[name] for name in SCHEMA.names} for row in plain.rows]
    assert kernel.controls == plain.controls
    assert (kernel.flow_bytes, kernel.dropped, kernel.consumed) == (plain.flow_bytes, plain.dropped, plain.consumed)
    assert kernel.stop in plain.refusal if plain.refusal else kernel.stop is Stop.NEED_MORE
    for vbucket, expected in plain.vbuckets.items():
        row = kernel.table.stream(vbucket)
        assert (row.state, row.seqno) == (expected.state, expected.seqno)
        assert (row.snapshot_start, row.snapshot_end) == (expected.start, expected.end)


cuts_anywhere = st.lists(st.integers(0, 2000), max_size=4)
some_vbuckets = st.frozensets(st.sampled_from(VBUCKETS), max_size=1)


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


@given(data=garbled())
def test_an_unchecked_table_takes_any_frames_and_the_twin_agrees(data: bytes) -> None:
    checked = drain(data, [], small(CHECKED.Arena), CHECKED.StreamTable(checked=False))
    kernel = drain(data, [], small(Arena), StreamTable(checked=False))
    twin = drain(data, [], small(Arena, decoder=columns_numpy.decode), StreamTable(checked=False))
    for other in (twin, checked):
        assert (other.rows, other.controls, other.stop) == (kernel.rows, kernel.controls, kernel.stop)
        assert np.array_equal(other.table.rows, kernel.table.rows)


def test_a_mutation_becomes_the_row_its_fields_say() -> None:
    arena, table = Arena(), streams()
    decoded = arena.decode(MARKER.encode() + MUTATION.encode(), table)
    assert (decoded.stop, decoded.rows, decoded.controls.tolist()) == (Stop.NEED_MORE, 1, [[0, 0]])
    assert decoded.flow_bytes == 44 + 55 + 10
    batch = arena.batch()
    assert batch.schema == SCHEMA
    batch.validate(full=True)
    assert batch.to_pylist() == [
        {
            "vbucket": 7, "opcode": 0x57, "seqno": 6, "rev_seqno": 3, "cas": 0x1122334455667788, "flags": 0x2000006,
            "expiry": 1_800_000_000, "datatype": 1, "snapshot_start": 6, "snapshot_end": 9,
            "key": b"hello", "value": b"world",
        }
    ]  # fmt: skip


def test_rows_of_many_receives_gather_in_one_batch() -> None:
    arena, table, data = Arena(), streams(), MARKER.encode() + MUTATION.encode()
    decoded = arena.decode(data, table)
    for seqno in (7, 8, 9):
        change = dcp.Deletion(vbucket=7, opaque=1007, key=b"k", by_seqno=seqno, rev_seqno=1)
        decoded = arena.decode(change.encode(), table)
    assert (decoded.rows, arena.rows, arena.bytes) == (4, 4, 13)
    assert arena.batch().column("seqno").to_pylist() == [6, 7, 8, 9]
    assert arena.rows == 0
    assert arena.batch().num_rows == 0


def test_a_frame_that_is_incomplete_tells_its_size() -> None:
    data = MUTATION.encode()
    assert Arena().decode(data[:23], streams()).needed == 24
    assert Arena().decode(data[:24], streams()).needed == len(data) == 65


def test_a_batch_keeps_its_values_while_the_arena_goes_on() -> None:
    arena, table = Arena(), StreamTable(checked=False)
    arena.decode(MUTATION.encode(), table)
    held = arena.batch()
    for _ in range(5):
        arena.decode(dcp.Deletion(vbucket=7, key=b"other", by_seqno=6, rev_seqno=9).encode() * 3, table)
        assert arena.batch().num_rows == 3
    assert held.column("key").to_pylist() == [b"hello"]
    assert held.column("rev_seqno").to_pylist() == [3]


def test_memory_is_used_again_once_its_batch_and_all_slices_are_gone() -> None:
    arena, table = Arena(), StreamTable(checked=False)

    def batch() -> pa.RecordBatch:
        arena.decode(MUTATION.encode(), table)
        return arena.batch()

    def address(of: pa.RecordBatch) -> int:
        return int(of.column("seqno").buffers()[1].address)

    first = batch()
    home = address(first)
    second = batch()
    assert address(second) != home
    view = first.column("value").slice(0, 1)
    numbers = first.column("seqno").to_numpy()
    del first
    gc.collect()
    assert address(batch()) != home
    del view
    third = batch()
    assert address(third) != home
    del numbers
    assert address(batch()) == home


def test_a_frame_larger_than_the_arena_says_so_and_fits_after_growing() -> None:
    arena, table = small(Arena), StreamTable(checked=False)
    large = dcp.Mutation(vbucket=1, key=b"k" * 40, value=bytes(1000), by_seqno=1, rev_seqno=1).encode()
    decoded = arena.decode(large, table)
    assert (decoded.stop, decoded.consumed, decoded.needed) == (Stop.FRAME_TOO_LARGE, 0, len(large))
    arena.grow(decoded.needed)
    assert arena.decode(large, table).rows == 1
    with pytest.raises(ValueError, match="while it is empty"):
        arena.grow(decoded.needed)
    with pytest.raises(ValueError, match="at most 31457304 bytes"):
        Arena().grow(31457305)


def test_a_full_arena_stops_before_a_frame_and_takes_it_after_the_batch() -> None:
    arena, table = small(Arena), StreamTable(checked=False)
    frames = [dcp.Mutation(key=b"k", value=b"v", by_seqno=n, rev_seqno=1).encode() for n in range(1, 7)]
    decoded = arena.decode(b"".join(frames), table)
    assert (decoded.stop, decoded.rows, decoded.consumed) == (Stop.FULL, 4, 4 * len(frames[0]))
    assert arena.batch().num_rows == 4
    assert arena.decode(b"".join(frames[4:]), table).rows == 2


def test_a_stream_that_ended_takes_no_more_changes() -> None:
    arena, table = Arena(), streams()
    end = dcp.StreamEnd(vbucket=7, opaque=1007, status=0)
    decoded = arena.decode(MARKER.encode() + end.encode() + MUTATION.encode(), table)
    assert (decoded.stop, decoded.rows, decoded.consumed) == (Stop.NO_STREAM, 0, 44 + 28)
    assert table.stream(7).state is StreamState.NONE


def test_frames_of_a_closed_stream_are_counted_and_dropped() -> None:
    arena, table = Arena(), streams()
    table.drop(7)
    decoded = arena.decode(MARKER.encode() + MUTATION.encode(), table)
    assert (decoded.rows, decoded.dropped, decoded.flow_bytes, len(decoded.controls)) == (0, 2, 109, 0)
    table.close(7)
    assert arena.decode(MUTATION.encode(), table).stop is Stop.NO_STREAM


@pytest.mark.parametrize(
    ("message", "counted"),
    [
        (dcp.Noop(), 0),
        (dcp.StreamEnd(status=0), 28),
        (dcp.SetVbucketState(state=1), 25),
        (dcp.SeqnoAdvanced(seqno=3), 32),
        (dcp.OsoSnapshot(flags=1), 28),
        (dcp.Prepare(by_seqno=3, rev_seqno=1, durability_level=1, key=b"k", value=b"vv"), 57 + 3),
        (dcp.Commit(prepared_seqno=1, commit_seqno=2, key=b"k"), 41),
        (dcp.StreamResponse(failover_log=[(1, 0)]), 0),
        (dcp.SnapshotMarkerV2(start_seqno=1, end_seqno=2, flags=1, max_visible_seqno=2, high_completed_seqno=0), 61),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_flow_control_counts_what_the_table_of_the_specification_says(message: Any, counted: int) -> None:
    assert Arena().decode(message.encode(), StreamTable(checked=False)).flow_bytes == counted


def test_an_arena_needs_room_for_something() -> None:
    for options in ({"rows": 0}, {"controls": 0}, {"value_bytes": 1 << 31}):
        with pytest.raises(ValueError, match="an arena holds"):
            Arena(**options)  # type: ignore[arg-type]


def test_every_column_has_its_place_in_the_schema() -> None:
    names = [name for name in columns.Columns._fields if not name.endswith(("_offsets", "_data"))]
    assert SCHEMA.names == [*names, "key", "value"]
    assert all(a != b for a, b in pairwise(SCHEMA.names))
