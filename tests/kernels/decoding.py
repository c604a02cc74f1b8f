"""Decoding a conversation in pieces, by the kernel, its numpy twin and its checked build, and holding them together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness import columns_numpy
from headwater.kernels import builds
from headwater.kernels.batches import schema_of
from headwater.kernels.columns import Arena, Stop, StreamTable, TrackedState
from headwater.wire import dcp
from tests.kernels.conversation import OPENED_AT, VBUCKETS, opaque_of
from tests.kernels.plain import Plain, Vbucket

CHECKED = builds.debug_copy("headwater.kernels.columns")

MUTATION = dcp.Mutation(
    vbucket=7, opaque=1007, cas=0x1122334455667788, datatype=1, key=b"hello", value=b"world",
    by_seqno=6, rev_seqno=3, flags=0x2000006, expiration=1_800_000_000, nru=2,
)  # fmt: skip
MARKER = dcp.SnapshotMarker(vbucket=7, opaque=1007, start_seqno=6, end_seqno=9, flags=1)


def streams(kind: Any = StreamTable, dropping: frozenset[int] = frozenset(), *, with_ids: bool = False) -> Any:
    table = kind(with_ids=with_ids)
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


def assert_all_agree(
    data: bytes, cuts: list[int], dropping: frozenset[int], *, with_ids: bool = False, with_befores: bool = False
) -> None:
    """Decode by all of them; what changes replaced is none of the numpy twin's."""
    # The checked build goes first: what would crash the compiled one is a KernelFault there.
    ids = {"with_ids": with_ids}
    columns = ids | {"with_befores": with_befores}
    checked = drain(data, cuts, small(CHECKED.Arena, **columns), streams(CHECKED.StreamTable, dropping, **ids))
    kernel = drain(data, cuts, small(Arena, **columns), streams(dropping=dropping, **ids))
    others = [checked]
    if not with_befores:
        twin = small(Arena, decoder=columns_numpy.decode, **ids)
        others.append(drain(data, cuts, twin, streams(dropping=dropping, **ids)))
    for other in others:
        assert (other.rows, other.controls, other.stop) == (kernel.rows, kernel.controls, kernel.stop)
        assert (other.flow_bytes, other.dropped) == (kernel.flow_bytes, kernel.dropped)
        assert other.consumed == kernel.consumed
        assert np.array_equal(other.table.rows, kernel.table.rows)
    state = {v: TrackedState.DROPPING if v in dropping else TrackedState.OPEN for v in VBUCKETS}
    opened = {v: Vbucket(state[v], opaque_of(v), OPENED_AT, OPENED_AT, OPENED_AT) for v in VBUCKETS}
    plain = Plain(opened, with_ids, with_befores).decode(data)
    names = schema_of(**columns).names
    assert kernel.rows == [{name: row[name] for name in names} for row in plain.rows]
    assert kernel.controls == plain.controls
    assert (kernel.flow_bytes, kernel.dropped, kernel.consumed) == (plain.flow_bytes, plain.dropped, plain.consumed)
    assert kernel.stop in plain.refusal if plain.refusal else kernel.stop is Stop.NEED_MORE
    for vbucket, expected in plain.vbuckets.items():
        row = kernel.table.stream(vbucket)
        assert (row.state, row.seqno) == (expected.state, expected.seqno)
        assert (row.snapshot_start, row.snapshot_end) == (expected.start, expected.end)


cuts_anywhere = st.lists(st.integers(0, 2000), max_size=4)
some_vbuckets = st.frozensets(st.sampled_from(VBUCKETS), max_size=1)
