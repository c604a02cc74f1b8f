"""Messages between the changes move the streams: markers, ends, controls with a seqno; and how many bytes that is."""

from typing import Any

import pytest

from headwater.kernels.columns import Arena, Stop, StreamTable, TrackedState
from headwater.wire import dcp
from tests.kernels.decoding import MARKER, MUTATION, streams


def test_a_stream_that_ended_takes_no_more_changes() -> None:
    arena, table = Arena(), streams()
    end = dcp.StreamEnd(vbucket=7, opaque=1007, status=0)
    decoded = arena.decode(MARKER.encode() + end.encode() + MUTATION.encode(), table)
    assert (decoded.stop, decoded.rows, decoded.consumed) == (Stop.NO_STREAM, 0, 44 + 28)
    assert table.stream(7).state is TrackedState.NONE


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


def test_a_marker_that_lies_behind_what_came_is_refused() -> None:
    arena, table = Arena(), streams()
    behind = dcp.SnapshotMarker(vbucket=7, opaque=1007, start_seqno=4, end_seqno=5, flags=1)
    decoded = arena.decode(MARKER.encode() + MUTATION.encode() + behind.encode(), table)
    assert (decoded.stop, decoded.rows) == (Stop.MARKER_BEHIND, 1)


def test_a_marker_that_ends_before_it_begins_is_refused() -> None:
    backwards = dcp.SnapshotMarker(vbucket=7, opaque=1007, start_seqno=9, end_seqno=8, flags=1)
    assert Arena().decode(backwards.encode(), streams()).stop is Stop.BAD_MARKER


def test_a_bare_marker_opens_a_snapshot_whose_end_nobody_knows() -> None:
    arena, table = Arena(), streams()
    bare = bytes.fromhex("8056000000000007000000000000") + b"\x03\xef" + bytes(8)
    arena.decode(bare + MUTATION.encode(), table)
    assert table.stream(7).snapshot_end == 0xFFFF_FFFF_FFFF_FFFF


def test_a_seqno_that_is_passed_without_a_change_counts_as_received() -> None:
    arena, table = Arena(), streams()
    passed = dcp.SeqnoAdvanced(vbucket=7, opaque=1007, seqno=8)
    arena.decode(MARKER.encode() + passed.encode(), table)
    assert table.stream(7).seqno == 8
