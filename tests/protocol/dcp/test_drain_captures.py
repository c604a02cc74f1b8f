"""The consumer's end, fed with what a real server sent."""

import json
from pathlib import Path

import pytest

from headwater.protocol.dcp.drain import Drain
from headwater.protocol.dcp.events import Ended, Refused, RollbackNeeded
from headwater.protocol.dcp.position import Position
from headwater.wire import dcp
from headwater.wire.layout import Done
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.protocol.dcp.drain_talk import (
    a_drain,
    feed,
    happened,
)

CAPTURES = Path(__file__).parents[2] / "data" / "captures"


def recorded(name: str, note: str) -> tuple[dcp.StreamRequest, bytes, list[bytes]]:
    """The stream request with this note, and what a server of the 4.6 generation answered, until the next open."""
    lines = [json.loads(line) for line in (CAPTURES / name).read_text().splitlines()]
    at = next(i for i, line in enumerate(lines) if note in line["note"] and line["hex"].startswith("8053"))
    request = dcp.StreamRequest.decode(bytes.fromhex(lines[at]["hex"]))
    frames = []
    for line in lines[at + 1 :]:
        if line["hex"].startswith(("8050", "8053")):
            break
        if line["dir"] == "S>C" and line["hex"]:
            frames.append(bytes.fromhex(line["hex"]))
    return request, b"".join(frames), frames


def replay(name: str, note: str) -> Drain:
    request, _, frames = recorded(name, note)
    start = (request.start_seqno, request.snap_start_seqno, request.snap_end_seqno)
    drain = a_drain(arena_bytes=1 << 20)
    drain.request(Position(request.vbucket, request.vb_uuid, *start), request.end_seqno, 100.0)
    drain.data_to_send()
    ours = request.opaque.to_bytes(4)
    for frame in frames:
        if frame[1] in range(0x53, 0x5D) and frame[1] != 0x54:
            feed(drain, frame.replace(ours, (1).to_bytes(4), 1) if frame[12:16] == ours else frame)
    return drain


def seqnos_of(drain: Drain) -> list[tuple[int, int]]:
    return [(row["opcode"], row["seqno"]) for row in drain.arena.batch().to_pylist()]


def test_the_recorded_stream_of_a_real_server():
    drain = replay("02-dcp-producer-stream.jsonl", "stream request 0..5")
    assert drain.position(10) == Position(10, 0x2E35EB0CCAD8, 5, 5, 5)
    rows = drain.arena.batch().to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [
        (b"doc0", b'{"n":0}'),
        (b"doc1", b'{"n":1,"v":2}'),
        (b"doc2", b""),
    ]
    assert happened(drain.events)[-1] == (3, Ended, 10, 0)


def test_the_recorded_refusals_of_a_real_server():
    missing = replay("03-dcp-stream-errors.jsonl", "a vbucket that does not exist")
    assert happened(missing.events) == [(0, Refused, 1000, Status.NOT_MY_VBUCKET, b"")]
    unknown = replay("03-dcp-stream-errors.jsonl", "unknown vbucket uuid, start 3")
    assert happened(unknown.events) == [(0, RollbackNeeded, 10, 0, "the node does not know our history")]
    assert unknown.streams[10].request_seqno == 3
    ahead = replay("03-dcp-stream-errors.jsonl", "beyond the high seqno")
    assert happened(ahead.events) == [(0, RollbackNeeded, 10, 5, "another history begins after it")]
    assert ahead.streams[10].request_seqno == 100
    twice = replay("03-dcp-stream-errors.jsonl", "second stream on the same vbucket")
    assert happened(twice.events)[0] == (0, Refused, 10, Status.KEY_EEXISTS, b"Data exists for key")


def test_a_resume_inside_a_snapshot_of_a_real_server():
    drain = replay("03-dcp-stream-errors.jsonl", "resume inside a snapshot, right uuid")
    assert seqnos_of(drain) == [(0x58, 5)] and drain.position(10) == Position(10, 0x2E35EB0CCAD8, 5, 5, 5)


def test_live_snapshots_and_a_state_change_of_a_real_server():
    drain = replay("04-dcp-live-and-state-change.jsonl", "open-ended stream on an empty vbucket")
    assert seqnos_of(drain) == [(0x57, 1), (0x57, 2), (0x57, 3), (0x58, 4), (0x58, 5), (0x57, 6)]
    assert happened(drain.events)[-1] == (6, Ended, 11, 2)


@pytest.mark.parametrize("note", ["datatype-aware", "value compression", "ext metadata", "no HELLO"])
def test_datatypes_and_compression_of_a_real_server(note: str):
    drain = replay("05-dcp-datatype-compression.jsonl", note)
    rows = drain.arena.batch().to_pylist()
    compressed = note in ("value compression", "ext metadata")
    assert [row["datatype"] for row in rows] == [1, 2 if compressed else 0, 0]
    assert drain.position(12).seqno == 3


def test_a_window_of_a_real_server_and_its_noop():
    drain = replay("06-dcp-flow-control-noop.jsonl", "40 x 1000-byte values")
    assert drain.data_to_send() == Done(opcode=Opcode.DCP_NOOP, opaque=0x81969800).encode()
    # The recording client let ten frames fill the window of 8192 bytes: marker and eight changes are 8524 bytes.
    assert drain.window.received_bytes >= 44 + 8 * 1060


def test_the_noop_of_an_idle_stream_of_a_real_server():
    drain = replay("07-dcp-noop-unanswered.jsonl", "an idle open-ended stream")
    assert drain.data_to_send() == Done(opcode=Opcode.DCP_NOOP, opaque=0x81969800).encode()


@pytest.mark.parametrize("note", ["flag 2", "flag 4", "flag 8", "flag 64"])
def test_streams_with_flags_of_a_real_server(note: str):
    drain = replay("18-dcp-stream-flags.jsonl", note)
    assert drain.position(41) == Position(41, 0xE52CBA88117, 5, 5, 5)
