"""The frames of a buffer as arrays: where they lie, and why they end."""

import numpy as np
import pytest

from harness.frames_numpy import find, numbers
from headwater.kernels.scan import Stop
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

PLAIN = Frame(0x80, Opcode.DCP_MUTATION, b"key", bytes(31), b"value", 1, 7, 0x11223344, 0x5566778899AABBCC)
FLEXIBLE = Frame(0x08, Opcode.DCP_MUTATION, b"key", bytes(31), b"value", vbucket=8, framing=b"\x22\x00\x47")
ANSWER = Frame(0x81, Opcode.DCP_MUTATION, vbucket=4)


def view(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def test_each_part_of_each_frame_is_where_its_header_says() -> None:
    frames, stop, needed = find(view(PLAIN.encode() + FLEXIBLE.encode() + ANSWER.encode()))
    assert (stop, needed) == (0, 24)
    assert frames.start.tolist() == [0, 63, 129] and frames.size.tolist() == [63, 66, 24]
    assert frames.request.tolist() == [True, True, False]
    assert frames.vbucket.tolist() == [7, 8, 4] and frames.datatype.tolist() == [1, 0, 0]
    assert frames.opaque.tolist() == [0x11223344, 0, 0] and frames.cas.tolist() == [0x5566778899AABBCC, 0, 0]
    assert frames.extras_at.tolist() == [24, 90, 153] and frames.extras.tolist() == [31, 31, 0]
    assert frames.key_at.tolist() == [55, 121, 153] and frames.key.tolist() == [3, 3, 0]
    assert frames.value.tolist() == [5, 5, 0]
    assert frames.only(Opcode.DCP_MUTATION).tolist() == [True, True, False]


@pytest.mark.parametrize(("cut", "whole", "needed"), [(0, 0, 24), (23, 0, 24), (24, 0, 63), (62, 0, 63), (64, 1, 24)])
def test_a_frame_that_is_not_all_here_says_how_much_it_needs(cut: int, whole: int, needed: int) -> None:
    frames, stop, wanted = find(view((PLAIN.encode() * 2)[:cut]))
    assert (len(frames.start), stop, wanted) == (whole, 0, needed)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("55570000000000000000000000000000", Stop.BAD_MAGIC),
        ("80570010ff0000000000001000000000", Stop.LENGTHS_EXCEED_BODY),
        ("80570000000000000200000000000000", Stop.BODY_TOO_LARGE),
        ("08572203000000000000000400000000", Stop.LENGTHS_EXCEED_BODY),
    ],
)
def test_a_header_that_lies_ends_it_after_the_frames_before(header: str, reason: Stop) -> None:
    frames, stop, _ = find(view(ANSWER.encode() + bytes.fromhex(header) + bytes(8)))
    assert (frames.start.tolist(), stop) == ([0], reason)


def test_numbers_are_read_anywhere_and_only_where_asked() -> None:
    at, where = np.array([1, 0, 99]), np.array([True, True, False])
    assert numbers(view(b"\x01\x02\x03\x04"), ">u2", at, where).tolist() == [0x0203, 0x0102, 0]
