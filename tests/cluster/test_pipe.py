"""One direction of the proxy: what goes in comes out, unchanged and in order, however it is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cluster.pipe import HELD_BYTES_MAX, Pipe
from headwater.errors import BadFrame, RemoteProtocolError
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

BUFFER_BYTES = 3 * HELD_BYTES_MAX
OURS = Frame(0x80, Opcode.NOOP, opaque=0x4D560001)


def through(pipe, data, cuts, insert_at=None):
    """Put data through in pieces; what came out. Before piece number `insert_at` a frame of ours is inserted."""
    out, at, number = bytearray(), 0, 0
    while at < len(data):
        if number == insert_at:
            pipe.insert(OURS)
        drain(pipe, out)
        room = pipe.room()
        count = max(1, min(cuts[number % len(cuts)], len(room), len(data) - at))
        room[:count] = data[at : at + count]
        pipe.received(count)
        at, number = at + count, number + 1
    drain(pipe, out)
    return bytes(out)


def drain(pipe, out):
    while (piece := pipe.piece()) is not None:
        assert len(pipe.room()) == 0, "what is not sent must not be overwritten"
        count = min(len(piece), 1000)
        out += piece[:count]
        pipe.sent(count)


def mutation(vbucket, size):
    return Frame(0x80, Opcode.DCP_MUTATION, b"key", bytes(31), b"v" * size, vbucket=vbucket)


FRAMES = st.lists(
    st.one_of(
        st.builds(mutation, st.integers(0, 1023), st.sampled_from([0, 10, 5000, 30000])),
        st.builds(lambda vb: Frame(0x80, Opcode.DCP_STREAM_END, extras=bytes(4), vbucket=vb), st.integers(0, 1023)),
        st.just(Frame(0x81, Opcode.DCP_ADD_STREAM, extras=bytes(4), opaque=5)),
        st.just(Frame(0x81, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT)),
    ),
    max_size=12,
)
CUTS = st.lists(st.sampled_from([1, 7, 24, 25, 1000, 5000, 1 << 20]), min_size=1, max_size=6)


@given(FRAMES, CUTS)
def test_what_goes_in_comes_out_but_for_what_is_kept_back(frames, cuts):
    looked = []

    def look(frame):
        looked.append(frame)
        return frame.opcode != Opcode.DCP_ADD_STREAM

    pipe = Pipe((Opcode.DCP_ADD_STREAM, Opcode.DCP_STREAM_END), look, BUFFER_BYTES)
    out = through(pipe, b"".join(frame.encode() for frame in frames), cuts)
    assert out == b"".join(frame.encode() for frame in frames if frame.opcode != Opcode.DCP_ADD_STREAM)
    watched = (Opcode.DCP_ADD_STREAM, Opcode.DCP_STREAM_END)
    assert looked == [frame for frame in frames if frame.opcode in watched]


@given(FRAMES, CUTS)
def test_changes_and_their_bytes_are_counted_by_vbucket(frames, cuts):
    pipe = Pipe((), lambda frame: True, BUFFER_BYTES)
    through(pipe, b"".join(frame.encode() for frame in frames), cuts)
    for vb in {frame.vbucket for frame in frames}:
        changes = [frame for frame in frames if frame.opcode == Opcode.DCP_MUTATION and frame.vbucket == vb]
        assert pipe.changes[vb] == len(changes)
        assert pipe.change_bytes[vb] == sum(map(len, changes))


@given(FRAMES.filter(bool), CUTS, st.integers(0, 30))
def test_a_frame_of_ours_goes_between_two_frames(frames, cuts, insert_at):
    pipe = Pipe((), lambda frame: True, BUFFER_BYTES)
    data = b"".join(frame.encode() for frame in frames)
    out = through(pipe, data, cuts, insert_at)
    ours = OURS.encode()
    if ours not in out:
        assert out == data  # the data was over before
        return
    at = out.index(ours)
    ends = [0]
    for frame in frames:
        ends.append(ends[-1] + len(frame))
    assert at in ends
    assert out[:at] + out[at + len(ours) :] == data


@pytest.mark.parametrize(
    "data",
    [
        b"\x42" + bytes(23),
        bytes.fromhex("80 57 ffff ff 00 0000 00000010 00000000 0000000000000000"),
        bytes.fromhex("80 57 0003 1f 00 0000 01e00001 00000000 0000000000000000"),
    ],
    ids=["no magic", "sections longer than the body", "a body over 30 MiB"],
)
def test_lengths_that_lie_are_refused_before_anything_is_passed(data):
    pipe = Pipe((), lambda frame: True)
    with pytest.raises(BadFrame):
        through(pipe, data, [5])
    assert pipe.passed_bytes == 0


def test_a_frame_that_must_be_looked_at_may_not_be_large():
    pipe = Pipe((Opcode.DCP_ADD_STREAM,), lambda frame: True, BUFFER_BYTES)
    with pytest.raises(RemoteProtocolError, match="4096 are allowed"):
        through(pipe, Frame(0x81, Opcode.DCP_ADD_STREAM, value=bytes(5000)).encode(), [2000])
