"""Collection ids in front of keys, read by the kernel and by the plain codec alike; which rows a reader is shown."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import RemoteProtocolError
from headwater.kernels import choices
from headwater.kernels.builds import debug_copy, kernel
from headwater.kernels.choices import EVENTS_OF_COLLECTIONS, EVENTS_OF_SCOPES, MODIFICATIONS
from headwater.kernels.guard import register
from headwater.node.storage.records import deletion_frame, event_frame, event_parts, mutation_frame
from headwater.wire import leb128
from headwater.wire.manifest import EventKind, ManifestEvent

CHECKED = debug_copy("headwater.kernels.choices")
META = {"seqno": 1, "cas": 1, "rev_seqno": 1}


@kernel
def read_collection(key: Any) -> Any:
    return choices.collection_of(np.uintp(key.ctypes.data), np.uintp(len(key)))


def plainly(key: bytes) -> tuple[int, int]:
    """As the codec of headwater.wire reads it; (0, 0) where it refuses."""
    with suppress(RemoteProtocolError):
        collection, logical = leb128.split_key(key)
        return collection, len(key) - len(logical)
    return 0, 0


EDGES = [b"", b"\0", b"\0k", b"\x80\0k", b"\x7fk", b"\x80\x01k", b"\xff\xff\xff\xff\x0fk", b"\xff\xff\xff\xff\x10k"]


def test_ids_that_are_cut_overlong_or_beyond_32_bits_are_none() -> None:
    for key in (*EDGES, b"\x80", b"\x80\x80\x80\x80\x80k", b"\xff\xff\xff\xff\xffk", b"\x88\x80\0k"):
        assert tuple(map(int, read_collection(np.frombuffer(key, np.uint8)))) == plainly(key), key


@given(st.binary(max_size=12))
def test_the_kernel_reads_ids_as_the_codec_does(key: bytes) -> None:
    assert tuple(map(int, read_collection(np.frombuffer(key, np.uint8)))) == plainly(key)


def event(kind: int, scope: int, collection: int | None) -> bytes:
    made = ManifestEvent(EventKind(kind), 1, scope, collection)
    return event_frame(0, event_parts(made), seqno=1, cas=1)


FRAMES = [
    (mutation_frame(0, b"k", b"v", **META), 0),
    (mutation_frame(0, b"k", b"v", **META, collection=8), 8),
    (deletion_frame(0, b"\x08k", delete_time=1, **META), 0),
    (deletion_frame(0, b"k", delete_time=1, **META, collection=300), 300),
    (event(0, 8, 300), EVENTS_OF_COLLECTIONS + 300),
    (event(3, 8, None), EVENTS_OF_SCOPES + 8),
    (event(5, 8, 300), MODIFICATIONS + 300),
    (mutation_frame(0, b"k", b"v", **META, collection=0xFFFF_FFFF), 0xFFFF_FFFF),
]


@given(st.sets(st.sampled_from([number for _, number in FRAMES])))
def test_a_reader_is_shown_what_it_chose(chosen: set[int]) -> None:
    data = np.frombuffer(b"".join(frame for frame, _ in FRAMES), np.uint8).copy()
    register(data)
    ends = np.cumsum([len(frame) for frame, _ in FRAMES])
    locs = np.array([0, *ends[:-1]], np.uint64)
    nexts, rows = np.full(len(FRAMES), 0xFFFFFFFF, np.uint32), len(FRAMES)
    segments = np.array([[data.ctypes.data, len(data)]], np.uint64)
    shown = np.array(sorted(chosen), np.uint64)
    expected = [row for row, (_, number) in enumerate(FRAMES) if number in chosen]
    for build in (choices, CHECKED):
        seen, row = [], 0
        while (row := int(build.next_shown(locs, nexts, row, rows, segments, shown))) < rows:
            seen.append(row)
            row += 1
        assert seen == expected
        assert int(build.last_shown(locs, nexts, 0, rows, segments, shown)) == (expected[-1] if expected else -1)
        count, size = build.count_shown(locs, nexts, 0, rows, segments, shown)
        assert (int(count), int(size)) == (len(expected), sum(len(FRAMES[each][0]) for each in expected))


@given(
    st.sets(st.sampled_from([number for _, number in FRAMES])),
    st.lists(st.sampled_from([0xFFFFFFFF, 3, 7, 9]), min_size=len(FRAMES), max_size=len(FRAMES)),
    st.integers(0, len(FRAMES)),
)
def test_rows_of_what_has_no_history_keep_their_successors_and_others_lose_them(
    plain: set[int], successors: list[int], first: int
) -> None:
    data = np.frombuffer(b"".join(frame for frame, _ in FRAMES), np.uint8).copy()
    register(data)
    ends = np.cumsum([len(frame) for frame, _ in FRAMES])
    locs = np.array([0, *ends[:-1]], np.uint64)
    segments = np.array([[data.ctypes.data, len(data)]], np.uint64)
    nexts, numbers = np.array(successors, np.uint32), np.array(sorted(plain), np.uint64)
    expected = [
        after if row >= first and number in plain else 0xFFFFFFFF
        for row, ((_, number), after) in enumerate(zip(FRAMES, successors, strict=True))
    ]
    for build in (choices, CHECKED):
        links = np.full(len(FRAMES), 0xFFFFFFFF, np.uint32)
        build.link_newest(locs, nexts, first, len(FRAMES), segments, numbers, links)
        assert links.tolist() == expected
