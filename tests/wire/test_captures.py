"""The recorded frames of a real server and its client (tests/data/captures) are understood, byte for byte."""

import json
from pathlib import Path

import pytest

from headwater.errors import BadMessage
from headwater.wire import dcp, tap
from headwater.wire.dialect import decode
from headwater.wire.framing import FrameBuffer

CAPTURES = sorted((Path(__file__).parents[1] / "data" / "captures").glob("*.jsonl"))

# 01-kv-basics asks for an opcode that does not exist, on purpose.
UNKNOWN_OPCODE = 0xEE


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def frames(path, direction=None):
    """Return the frames of a capture, each direction cut by a buffer of its own."""
    buffers = {"C>S": FrameBuffer(), "S>C": FrameBuffer()}
    cut = [
        frame
        for entry in entries(path)
        if direction in (None, entry["dir"])
        for frame in buffers[entry["dir"]].receive_data(bytes.fromhex(entry["hex"]))
    ]
    assert not any(buffer.pending_bytes or buffer.failure for buffer in buffers.values())
    return cut


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_a_capture_is_understood_to_the_last_byte(path):
    for frame in frames(path):
        if frame.opcode == UNKNOWN_OPCODE and not frame.is_response:
            with pytest.raises(BadMessage, match="no such request") as caught:
                decode(frame)
            assert caught.value.status == 0x81
            continue
        assert decode(frame).encode() == frame.encode()


def test_there_are_captures():
    assert len(CAPTURES) == 14


def test_the_producer_stream_reads_as_recorded():
    path = next(capture for capture in CAPTURES if capture.stem == "02-dcp-producer-stream")
    told = [decode(frame) for frame in frames(path, "S>C")]
    kinds = [type(each) for each in told]
    first = kinds.index(dcp.SnapshotMarker)
    assert isinstance(told[first - 1], dcp.StreamResponse)
    seqnos = [each.by_seqno for each in told if isinstance(each, dcp.Mutation | dcp.Deletion)]
    assert seqnos == sorted(set(seqnos)) and seqnos[-1] == told[first].end_seqno
    assert dcp.StreamEnd in kinds[first:]


def test_the_tap_dump_reads_as_recorded():
    path = next(capture for capture in CAPTURES if capture.stem == "12-tap-dump")
    told = [decode(frame) for frame in frames(path, "S>C")]
    codes = [each.code for each in told if isinstance(each, tap.Opaque)]
    assert codes[0] == tap.OpaqueCode.INITIAL_VBUCKET_STREAM and codes[-1] == tap.OpaqueCode.CLOSE_BACKFILL
    assert {type(each) for each in told} <= {tap.Opaque, tap.Mutation, tap.Delete}
