"""The twin in numpy, by itself: what the kernel is held to must be right without it."""

import numpy as np
from hypothesis import given

from harness import columns_numpy
from headwater.kernels.columns import Arena, Stop, StreamTable
from headwater.wire import dcp
from tests.kernels.conversation import garbled
from tests.kernels.decoding import CHECKED, MARKER, MUTATION, drain, small, streams


@given(data=garbled())
def test_an_unchecked_table_takes_any_frames_and_the_twin_agrees(data: bytes) -> None:
    checked = drain(data, [], small(CHECKED.Arena), CHECKED.StreamTable(checked=False))
    kernel = drain(data, [], small(Arena), StreamTable(checked=False))
    twin = drain(data, [], small(Arena, decoder=columns_numpy.decode), StreamTable(checked=False))
    for other in (twin, checked):
        assert (other.rows, other.controls, other.stop) == (kernel.rows, kernel.controls, kernel.stop)
        assert np.array_equal(other.table.rows, kernel.table.rows)


def test_the_twin_alone_makes_the_rows_that_the_fields_say() -> None:
    arena, table = Arena(decoder=columns_numpy.decode), streams()
    gone = dcp.Deletion(vbucket=7, opaque=1007, key=b"k", by_seqno=9, rev_seqno=4)
    decoded = arena.decode(MARKER.encode() + MUTATION.encode() + gone.encode(), table)
    assert (decoded.stop, decoded.rows, decoded.controls.tolist()) == (Stop.NEED_MORE, 2, [[0, 0]])
    rows = arena.batch().to_pylist()
    assert [(row["seqno"], row["key"], row["value"], row["opcode"]) for row in rows] == [
        (6, b"hello", b"world", 0x57),
        (9, b"k", b"", 0x58),
    ]


def test_the_twin_refuses_a_seqno_outside_of_its_snapshot() -> None:
    late = dcp.Deletion(vbucket=7, opaque=1007, key=b"k", by_seqno=10, rev_seqno=4)
    decoded = Arena(decoder=columns_numpy.decode).decode(MARKER.encode() + late.encode(), streams())
    assert decoded.stop.refused
    assert decoded.rows == 0
