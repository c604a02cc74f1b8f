"""Every request is sent at its limits: the frames are what they are said to be."""

from __future__ import annotations

from random import Random

from harness.attack import limits
from headwater.wire.header import Frame, frame_bytes
from headwater.wire.opcodes import Opcode


def test_all_declared_opcodes_have_frames_and_each_is_whole() -> None:
    found = limits.opcodes()
    assert {int(each) for each in Opcode} <= set(found)
    for opcode in found:
        frames = list(limits.small(opcode, Random(1)))
        assert len(frames) > 30
        assert all(frame_bytes(frame) == len(frame) and frame[1] == opcode for frame in frames)


def test_well_formed_extras_are_among_them() -> None:
    assert limits.extras_lengths(Opcode.SET)[-1] == 8
    assert 8 in {len(Frame.decode(each).extras) for each in limits.small(Opcode.SET, Random(1)) if each[0] == 0x80}


def test_headers_that_promise_more_than_comes_are_cut() -> None:
    assert all(frame_bytes(each) != len(each) for each in limits.cut(Opcode.GET))


def test_large_values_are_of_every_kind_and_about_as_large_as_told() -> None:
    size = 2 << 20
    assert {datatype for datatype, _ in limits.values(Random(1), size)} >= {0, 2, 4, 6}
    assert all(len(value) <= size for _, value in limits.values(Random(1), size))
    frames = list(limits.large(Opcode.SET, Random(1), size))
    assert all(frame_bytes(frame) == len(frame) for frame in frames)
