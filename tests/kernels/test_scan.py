"""Finding frames: the kernel and its checked build agree with the plain codec about every buffer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadFrame
from headwater.kernels import builds
from headwater.kernels.scan import Scanned, Stop, scan
from headwater.wire.header import HEADER_BYTES, Frame, Magic, lengths
from tests.kernels.conversation import garbled, talks

CHECKED = builds.debug_copy("headwater.kernels.scan")

GET = Frame(Magic.CLIENT_REQUEST, 0x00, key=b"Hello").encode()
SET = Frame(Magic.CLIENT_REQUEST, 0x01, key=b"Hello", extras=bytes(8), value=b"World").encode()


def plainly(data: bytes) -> tuple[list[int], bool]:
    """(where frames start and the last ends, whether a bad header follows) by the plain codec."""
    bounds = [0]
    try:
        while len(data) - bounds[-1] >= HEADER_BYTES:
            end = bounds[-1] + lengths(data, bounds[-1]).frame
            if end > len(data):
                break
            bounds.append(end)
    except BadFrame:
        return bounds, True
    return bounds, False


def assert_same(ours: Scanned, theirs: Scanned) -> None:
    assert ours.offsets.tolist() == theirs.offsets.tolist()
    assert (ours.consumed, ours.needed, int(ours.stop)) == (theirs.consumed, theirs.needed, int(theirs.stop))


def test_whole_frames_are_found_and_the_rest_is_told() -> None:
    found = scan(GET + SET + GET[:10])
    assert found.offsets.tolist() == [0, 29]
    assert (found.consumed, found.needed, found.stop) == (29 + 42, 24, Stop.NEED_MORE)
    assert scan(GET[:24]).needed == 29


def test_the_capacity_is_kept() -> None:
    found = scan(GET * 5, capacity=2)
    assert (found.offsets.tolist(), found.consumed, found.stop) == ([0, 29], 58, Stop.FULL)


@pytest.mark.parametrize(
    ("header", "stop"),
    [
        ("8400000000000000000000000000000000000000000000", Stop.BAD_MAGIC),
        ("0000000000000000000000000000000000000000000000", Stop.BAD_MAGIC),
        ("8001000908000000000000100000000000000000000000", Stop.LENGTHS_EXCEED_BODY),
        ("0801030108000000000000090000000000000000000000", Stop.LENGTHS_EXCEED_BODY),
        ("8001000000000000ffffffff0000000000000000000000", Stop.BODY_TOO_LARGE),
        ("800100000000000001e000010000000000000000000000", Stop.BODY_TOO_LARGE),
    ],
)
def test_a_header_that_lies_is_refused_before_its_body_comes(header: str, stop: Stop) -> None:
    data = bytes.fromhex(header) + b"\0"
    assert len(data) == HEADER_BYTES
    found = scan(GET + data)
    assert (found.consumed, found.stop, found.stop.refused) == (len(GET), stop, True)


def test_thirty_mebibytes_are_allowed() -> None:
    header = bytes.fromhex("800100000000000001e00000000000000000000000000000")
    assert (scan(header).stop, scan(header).needed) == (Stop.NEED_MORE, 24 + 30 * 1024 * 1024)


@pytest.mark.parametrize("magic", list(Magic))
def test_every_magic_of_the_specification_is_taken(magic: Magic) -> None:
    assert scan(Frame(magic, 0x0A, key=b"k").encode()).offsets.tolist() == [0]


@given(data=st.one_of(talks(), garbled(), st.binary(max_size=100)), cut=st.integers(0, 500))
def test_kernel_checked_build_and_codec_find_the_same_frames(data: bytes, cut: int) -> None:
    data = data[: max(0, len(data) - cut)] if cut < len(data) else data
    found = scan(data)
    assert_same(CHECKED.scan(np.frombuffer(data, np.uint8).copy()), found)
    bounds, bad = plainly(data)
    assert [*found.offsets.tolist(), found.consumed] == bounds
    assert found.stop.refused == bad
