"""Cutting the stream into frames, and what framing extras hold."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadFrame, BadMessage, LocalProtocolError
from headwater.testing.strategies import any_message, cut
from headwater.wire.framing import (
    FrameBuffer,
    FrameInfo,
    RequestInfo,
    decode_framing,
    encode_framing,
    stream_id_framing,
    stream_id_of,
)
from headwater.wire.header import BODY_BYTES_MAX, HEADER, Frame

TALK = [Frame(0x80, 1, b"k", bytes(8), b"value"), Frame(0x80, 0x0A), Frame(0x08, 0x57, b"k", framing=b"\x22\x00\x47")]
BYTES = b"".join(frame.encode() for frame in TALK)


@given(st.lists(any_message(), max_size=5), st.lists(st.integers(0, 1 << 16), max_size=8))
def test_how_the_bytes_are_cut_changes_nothing(messages, places):
    frames, buffer = [message.frame() for message in messages], FrameBuffer()
    data = b"".join(frame.encode() for frame in frames)
    assert [frame for piece in cut(data, places) for frame in buffer.receive_data(piece)] == frames
    assert buffer.pending_bytes == 0


def test_byte_by_byte_gives_the_same_frames():
    buffer = FrameBuffer()
    assert [frame for byte in BYTES for frame in buffer.receive_data(bytes([byte]))] == TALK


def test_a_frame_is_kept_until_it_is_whole():
    buffer = FrameBuffer()
    assert buffer.receive_data(memoryview(BYTES)[:30]) == [] and buffer.pending_bytes == 30
    assert buffer.receive_data(BYTES[30:]) == TALK and buffer.pending_bytes == 0


@given(st.integers(0, len(BYTES)), st.binary(max_size=60))
def test_whatever_arrives_is_cut_or_refused(keep, junk):
    buffer = FrameBuffer()
    try:
        frames = buffer.receive_data(BYTES[:keep] + junk)
    except BadFrame:
        assert buffer.failure
    else:
        assert b"".join(frame.encode() for frame in frames) == (BYTES[:keep] + junk)[: sum(map(len, frames))]


@given(st.lists(st.integers(0, 200), max_size=6))
def test_frames_before_a_bad_header_come_however_the_bytes_are_cut(places):
    buffer, frames = FrameBuffer(), []
    for piece in cut(BYTES + b"a" * 24, places):
        with suppress(BadFrame):
            frames += buffer.receive_data(piece)
    assert frames == TALK
    with pytest.raises(BadFrame, match="0x61"):
        buffer.receive_data(BYTES)
    assert buffer.pending_bytes == 0


def test_a_body_announced_too_large_is_refused_before_it_is_kept():
    buffer = FrameBuffer()
    with pytest.raises(BadFrame, match="31457281 bytes"):
        buffer.receive_data(HEADER.pack(0x80, 1, 0, 0, 0, 0, BODY_BYTES_MAX + 1, 0, 0))
    assert buffer.pending_bytes == 0


def test_sections_longer_than_their_body_are_refused_with_the_header():
    with pytest.raises(BadFrame, match="do not fit"):
        FrameBuffer().receive_data(HEADER.pack(0x80, 1, 10, 0, 0, 0, 9, 0, 0))


@given(st.lists(st.builds(FrameInfo, st.integers(0, 270), st.binary(max_size=270)), max_size=4))
def test_framing_objects_both_ways(infos):
    assert decode_framing(encode_framing(infos)) == infos


@given(st.binary(max_size=40))
def test_framing_extras_are_read_or_refused(data):
    try:
        infos = decode_framing(data)
    except BadMessage:
        return
    assert encode_framing(infos) == data


def test_a_framing_object_cut_short_is_told():
    with pytest.raises(BadMessage, match="2 bytes expected at offset 1 of 2"):
        decode_framing(b"\x22\x00")
    with pytest.raises(BadMessage, match="1 bytes expected at offset 1 of 1"):
        decode_framing(b"\xf0")


def test_a_framing_object_too_large_never_leaves():
    with pytest.raises(LocalProtocolError, match="frame info 271"):
        encode_framing([FrameInfo(271, b"")])


def test_a_stream_id_is_22_hi_lo():
    assert stream_id_framing(0x47) == b"\x22\x00\x47"
    assert stream_id_of(b"\x22\x00\x47") == 0x47
    assert stream_id_of(encode_framing([FrameInfo(RequestInfo.BARRIER, b""), FrameInfo(2, b"\x01\x00")])) == 256
    assert stream_id_of(b"") is None
    with pytest.raises(BadMessage, match="3 bytes, expected 2"):
        stream_id_of(b"\x23\x00\x00\x47")
