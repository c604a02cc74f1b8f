"""The consumer's end, fed with bytes: recorded from a real server, cut anywhere, and wrong in every way."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import PeerSilent, RemoteProtocolError
from headwater.kernels.columns import Arena
from headwater.protocol.drain import Drain
from headwater.protocol.events import Advanced, Diverged, Ended, Marked, Opened, Refused
from headwater.protocol.position import ENDLESS, Position
from headwater.protocol.stream import Phase
from headwater.wire import dcp
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

CAPTURES = Path(__file__).parent.parent / "data" / "captures"
UUID = 0xA11CE
BEGINNING = Position.beginning(0)
LOG = [(UUID, 0)]


def a_drain(arena_bytes: int = 4096, **options) -> Drain:
    settings = {"window_bytes": 1000, "silence_seconds": 240.0, "answer_seconds": 1000.0, "now": 100.0, "markers": True}
    return Drain(Arena(value_bytes=arena_bytes, key_bytes=4096), "node:11210", **(settings | options))


def asked(position: Position = BEGINNING, end_seqno: int = ENDLESS, **options) -> Drain:
    drain = a_drain(**options)
    drain.request(position, end_seqno, 100.0)
    drain.data_to_send()
    return drain


def accepted(position: Position = BEGINNING, **options) -> Drain:
    drain = asked(position, **options)
    feed(drain, ACCEPTED)
    drain.events.clear()
    return drain


def feed(drain: Drain, *frames: bytes, now: float = 100.0) -> None:
    data = b"".join(frames)
    assert drain.receive(data, now) == len(data)


def marker(start: int, end: int, flags: int = 1, opaque: int = 1, vbucket: int = 0) -> bytes:
    message = dcp.SnapshotMarker(vbucket=vbucket, opaque=opaque, start_seqno=start, end_seqno=end, flags=flags)
    return message.encode()


def change(seqno: int, key: bytes = b"k", value: bytes = b"v", opaque: int = 1, vbucket: int = 0) -> bytes:
    message = dcp.Mutation(vbucket=vbucket, opaque=opaque, cas=7, by_seqno=seqno, rev_seqno=1, key=key, value=value)
    return message.encode()


ACCEPTED = dcp.StreamResponse(opaque=1, failover_log=LOG).encode()
END = dcp.StreamEnd(vbucket=0, opaque=1, status=0).encode()
TALK = ACCEPTED + marker(0, 3) + change(1) + change(2) + dcp.Noop(opaque=9).encode() + change(3) + END


def answer(status: int, value: bytes = b"", extras: bytes = b"", opaque: int = 1) -> bytes:
    return Frame(0x81, Opcode.DCP_STREAM_REQ, b"", extras, value, vbucket=status, opaque=opaque).encode()


def outcome(drain: Drain):
    """All there is to see: rows, events, what is sent."""
    return drain.arena.batch().to_pylist(), drain.events, drain.data_to_send()


# --------------------------------------------------------------------------- what is asked


def test_the_request_carries_all_five_numbers():
    drain = a_drain()
    drain.request(Position(10, 0xFEEDDECA, 5, 3, 9), 100, 0.0)
    expected = (
        "80530000300 0000a 00000030 00000001 0000000000000000"
        "00000000 00000000 0000000000000005 0000000000000064 00000000feeddeca 0000000000000003 0000000000000009"
    )
    assert drain.data_to_send().hex() == expected.replace(" ", "")


def test_the_end_is_never_before_the_start_because_that_would_be_a_range_error():
    drain = a_drain()
    drain.request(Position(0, UUID, 50, 50, 50), 20, 0.0)
    assert dcp.StreamRequest.decode(drain.data_to_send()).end_seqno == 50


# --------------------------------------------------------------------------- what comes back


def test_a_stream_from_its_answer_to_its_end():
    drain = asked()
    feed(drain, TALK)
    rows, events, sent = outcome(drain)
    assert [row["seqno"] for row in rows] == [1, 2, 3]
    assert events == [(0, Opened(0)), (0, Marked(0, 0, 3, 1)), (3, Ended(0, 0))]
    assert sent == dcp.NoopResponse(opaque=9).encode()
    assert drain.position(0) == Position(0, UUID, 3, 3, 3)


@given(st.lists(st.integers(0, len(TALK)), max_size=8))
def test_how_the_bytes_are_cut_changes_nothing(cuts: list[int]):
    whole, pieces, rest = asked(), asked(), b""
    feed(whole, TALK)
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(TALK)], strict=True):
        rest += TALK[start:stop]
        rest = rest[pieces.receive(rest, 100.0) :]
    assert rest == b"" and outcome(pieces) == outcome(whole)


def test_a_stream_of_many_vbuckets_mixes_message_by_message():
    drain = a_drain()
    for vbucket in (3, 900):
        drain.request(Position(vbucket), ENDLESS, 0.0)
    feed(drain, *(dcp.StreamResponse(opaque=opaque, failover_log=LOG).encode() for opaque in (1, 2)))
    feed(drain, marker(0, 2, vbucket=3), marker(0, 2, opaque=2, vbucket=900))
    feed(drain, change(1, opaque=2, vbucket=900), change(1, vbucket=3), change(2, opaque=2, vbucket=900))
    assert drain.position(3) == Position(3, UUID, 1, 0, 2) and drain.position(900) == Position(900, UUID, 2, 2, 2)


@pytest.mark.parametrize("extras", [b"", (400).to_bytes(8)])
def test_a_rollback_is_reported_wherever_its_eight_bytes_are(extras: bytes):
    drain = asked(Position(0, UUID, 900, 900, 900))
    feed(drain, answer(Status.ROLLBACK, b"" if extras else (400).to_bytes(8), extras))
    assert drain.events == [(0, Diverged(0, 900, 400, "another history begins after it"))]
    assert drain.streams[0].phase is Phase.ENDED


def test_key_not_found_is_the_rollback_to_zero_of_upr():
    drain = asked(Position(0, UUID, 900, 900, 900))
    feed(drain, answer(Status.KEY_ENOENT))
    assert drain.events == [(0, Diverged(0, 900, 0, "the node does not know our history"))]


def test_a_history_that_began_where_we_stand_is_given_up_for_the_one_before():
    drain = asked(Position(0, 0xB, 900, 900, 900, ((0xB, 900), (0xA, 0))))
    feed(drain, answer(Status.ROLLBACK, bytes(8)))
    again = dcp.StreamRequest.decode(drain.data_to_send())
    assert (again.vb_uuid, again.start_seqno, again.opaque, drain.events) == (0xA, 900, 2, [])
    feed(drain, answer(Status.ROLLBACK, bytes(8), opaque=2))
    assert [type(event) for _, event in drain.events] == [Diverged]


def test_other_answers_are_handed_to_the_caller():
    drain = asked()
    feed(drain, answer(Status.NOT_MY_VBUCKET, b"{}"))
    assert drain.events == [(0, Refused(0, Status.NOT_MY_VBUCKET, b"{}"))]


def test_the_state_changes_of_a_takeover_are_always_answered():
    drain = accepted()
    feed(drain, dcp.SetVbucketState(vbucket=0, opaque=1, state=3).encode())
    assert drain.data_to_send() == dcp.SetVbucketStateResponse(opaque=1).encode()


def test_a_marker_that_wants_an_answer_gets_it_when_its_last_change_has_come():
    drain = accepted()
    feed(drain, marker(0, 2, flags=0x0D), change(1))
    assert drain.data_to_send() == b""
    feed(drain, change(2))
    assert drain.data_to_send() == dcp.SnapshotMarkerResponse(opaque=1).encode()


def test_a_seqno_that_was_passed_moves_the_position():
    drain = accepted()
    feed(drain, marker(0, 5), dcp.SeqnoAdvanced(vbucket=0, opaque=1, seqno=5).encode())
    assert drain.position(0).seqno == 5 and drain.events[-1] == (0, Advanced(0, 5))


def test_the_end_of_another_stream_is_ignored():
    drain = accepted()
    feed(drain, dcp.StreamEnd(vbucket=0, opaque=77, status=0).encode(), dcp.StreamEnd(vbucket=5, status=0).encode())
    assert drain.events == [] and drain.streams[0].phase is Phase.OPEN


def test_a_documented_but_obsolete_answer_to_an_acknowledgement_is_swallowed():
    feed(accepted(), dcp.BufferAckResponse().encode())


# --------------------------------------------------------------------------- positions


def test_before_anything_came_the_position_is_the_one_we_asked_from():
    position = Position(0, 0xDEAD, 4, 2, 5)
    assert asked(position).position(0) == position


def test_after_a_marker_without_changes_nothing_of_its_snapshot_is_claimed():
    drain = accepted()
    feed(drain, marker(1, 3), change(1), change(3), marker(4, 9))
    assert drain.position(0) == Position(0, UUID, 3, 3, 3)


def test_inside_a_snapshot_the_claim_begins_at_the_last_consistent_seqno():
    drain = accepted()
    # 4 to 6 are not sent: newer versions of their keys are. Whoever claims to be consistent at 7 could lose them.
    feed(drain, marker(1, 3), change(1), change(3), marker(7, 9), change(7))
    assert drain.position(0) == Position(0, UUID, 7, 3, 9)


def test_a_snapshot_that_is_replaced_before_its_end_widens_the_claim():
    drain = accepted()
    feed(drain, marker(1, 100), change(1), change(50), marker(51, 200, flags=2), change(120))
    assert drain.position(0) == Position(0, UUID, 120, 0, 200)
    feed(drain, change(200))
    assert drain.position(0) == Position(0, UUID, 200, 200, 200)


def test_a_resume_inside_a_snapshot_keeps_the_claim_of_the_position():
    drain = accepted(Position(0, UUID, 4, 2, 6))
    feed(drain, marker(4, 6), change(5))
    assert drain.position(0) == Position(0, UUID, 5, 2, 6)


def test_the_uuid_is_that_of_the_branch_the_seqno_lies_on():
    drain = asked(Position(0, 0xA, 5, 5, 5))
    feed(drain, dcp.StreamResponse(opaque=1, failover_log=[(0xB, 7), (0xA, 0)]).encode())
    feed(drain, marker(6, 8), change(6))
    assert drain.position(0).vb_uuid == 0xA
    feed(drain, change(8))
    assert drain.position(0).vb_uuid == 0xB


# --------------------------------------------------------------------------- flow control, no-ops, time


def test_bytes_are_acknowledged_when_processed_and_a_fifth_of_the_window_is_owed():
    drain = accepted(window_bytes=1000)
    feed(drain, marker(0, 9), change(1, value=b"v" * 200))
    assert drain.data_to_send() == b""  # received only
    drain.processed(101.0)
    assert dcp.BufferAck.decode(drain.data_to_send()).acked_bytes == 44 + 55 + 1 + 200


def test_what_is_owed_for_five_seconds_is_acknowledged_however_little():
    drain = accepted(window_bytes=1000)
    feed(drain, marker(0, 9))
    drain.processed(101.0)
    assert drain.data_to_send() == b"" and drain.deadline == 106.0
    drain.tick(105.9)
    assert drain.data_to_send() == b""
    drain.tick(106.0)
    assert dcp.BufferAck.decode(drain.data_to_send()).acked_bytes == 44


def test_answers_and_noops_take_nothing_of_the_window():
    drain = accepted(window_bytes=1000)
    feed(drain, dcp.Noop(opaque=1).encode())
    drain.processed(101.0)
    assert drain.window.received_bytes == 0 and drain.window.deadline is None


def test_two_quiet_intervals_mean_the_peer_is_gone():
    drain = accepted(silence_seconds=240.0)
    drain.tick(339.9)
    with pytest.raises(PeerSilent, match="node:11210"):
        drain.tick(340.0)


def test_without_noops_silence_means_nothing():
    drain = accepted(silence_seconds=None)
    drain.tick(1e9)
    assert drain.deadline is None


def test_a_stream_request_without_an_answer_is_not_waited_for_for_ever():
    drain = asked(answer_seconds=30.0)
    feed(drain, dcp.Noop(opaque=1).encode(), now=120.0)
    assert drain.deadline == 130.0
    with pytest.raises(PeerSilent, match="vbucket 0"):
        drain.tick(130.0)


def test_a_full_arena_stops_at_a_frame_and_goes_on_after_the_batch():
    drain = accepted()
    data = marker(0, 9) + b"".join(change(seqno, value=bytes(3000)) for seqno in (1, 2, 3))
    used = drain.receive(data, 100.0)
    assert drain.full and drain.arena.rows == 1
    rows = drain.arena.batch().num_rows
    while drain.full:
        used += drain.receive(data[used:], 100.0)
        rows += drain.arena.batch().num_rows
    assert used == len(data) and rows == 3


def test_a_value_larger_than_the_arena_makes_it_grow():
    drain = accepted()
    feed(drain, marker(0, 1), change(1, value=bytes(100_000)))
    assert drain.arena.batch()["value"][0].as_py() == bytes(100_000)


# --------------------------------------------------------------------------- lies


LIES = {
    "marker runs backwards": marker(5, 4),
    "change before any marker": change(1),
    "change with seqno 0": marker(0, 9) + change(0),
    "seqno repeated": marker(0, 9) + change(2) + change(2),
    "seqno falls": marker(0, 9) + change(2) + change(1),
    "change behind its snapshot": marker(0, 9) + change(10),
    "change before its snapshot": marker(5, 9) + change(4),
    "marker behind the last change": marker(0, 9) + change(9) + marker(3, 8),
    "another stream's opaque": marker(0, 9) + change(1, opaque=2),
    "a vbucket nobody asked for": marker(0, 9, vbucket=1),
    "extras too short": marker(0, 9) + Frame(0x80, 0x57, b"k", bytes(7) + b"\x01", b"", opaque=1).encode(),
    "metadata nobody negotiated": marker(0, 9)
    + dcp.Mutation(vbucket=0, opaque=1, by_seqno=1, rev_seqno=1, nmeta=1, key=b"k", value=b"v").encode(),
    "marker of version 1": Frame(0x80, 0x56, b"", b"\x01", bytes(36), opaque=1).encode(),
    "prepare without durability": dcp.OsoSnapshot(vbucket=0, opaque=1, flags=1).encode(),
    "flush": Frame(0x80, 0x5A, opaque=1).encode(),
    "a request of consumers": Frame(0x80, 0x53, opaque=1).encode(),
    "an answer to nothing": answer(0, bytes(16), opaque=99),
    "the same answer twice": ACCEPTED,
    "an error for a change": Frame(0x81, 0x57, vbucket=4).encode(),
    "a server request": Frame(0x82, 0x01).encode(),
    "no magic": b"\x55" * 24,
    "31 MiB": bytes.fromhex("805700000000000001f00000") + bytes(12),
    "lengths beyond the body": bytes.fromhex("80570010ff00000000000010") + bytes(12),
    "end without a reason": Frame(0x80, 0x55, opaque=1).encode(),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_an_error_that_names_the_opcode(lie: str):
    with pytest.raises(RemoteProtocolError, match=r"opcode 0x|magic|frame"):
        feed(accepted(), LIES[lie])


@pytest.mark.parametrize("lie", ["seqno falls", "change behind its snapshot", "another stream's opaque"])
def test_the_error_tells_the_numbers(lie: str):
    with pytest.raises(RemoteProtocolError, match=r"vbucket 0, opaque \d: .*; last \d+, snapshot 0 to 9"):
        feed(accepted(), LIES[lie])


ANSWER_LIES = {
    "an empty log": answer(0),
    "half an entry": answer(0, bytes(24)),
    "a log without end": answer(0, bytes(16 * 2000)),
    "a rollback without a seqno": answer(Status.ROLLBACK),
    "a rollback forward": answer(Status.ROLLBACK, (901).to_bytes(8)),
    "changes before the answer": marker(900, 905) + change(901),
    "changes before a refusal": marker(900, 905) + change(901) + answer(Status.ROLLBACK, bytes(8)),
}


@pytest.mark.parametrize("lie", ANSWER_LIES)
def test_a_broken_answer_to_a_request_is_an_error(lie: str):
    with pytest.raises(RemoteProtocolError):
        feed(asked(Position(0, UUID, 900, 900, 900)), ANSWER_LIES[lie])


@given(keep=st.integers(0, len(TALK)), junk=st.binary(max_size=60))
def test_whatever_arrives_is_understood_or_refused(keep: int, junk: bytes):
    drain = asked()
    with suppress(RemoteProtocolError):
        drain.receive(TALK[:keep] + junk, 100.0)
    assert [row["seqno"] for row in drain.arena.batch().to_pylist()] == [1, 2, 3][: drain.position(0).seqno]


@given(st.integers(0, len(TALK) - 1), st.integers(0, 7))
def test_one_wrong_bit_never_makes_a_seqno_come_twice_or_backwards(place: int, bit: int):
    data = bytearray(TALK)
    data[place] ^= 1 << bit
    drain = asked()
    with suppress(RemoteProtocolError):
        drain.receive(bytes(data), 100.0)
    seqnos = [row["seqno"] for row in drain.arena.batch().to_pylist()]
    assert seqnos == sorted(set(seqnos))


# --------------------------------------------------------------------------- a real server


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
    assert drain.events[-1] == (3, Ended(10, 0))


def test_the_recorded_refusals_of_a_real_server():
    missing = replay("03-dcp-stream-errors.jsonl", "a vbucket that does not exist")
    assert missing.events == [(0, Refused(1000, Status.NOT_MY_VBUCKET, b""))]
    unknown = replay("03-dcp-stream-errors.jsonl", "unknown vbucket uuid, start 3")
    assert unknown.events == [(0, Diverged(10, 3, 0, "the node does not know our history"))]
    ahead = replay("03-dcp-stream-errors.jsonl", "beyond the high seqno")
    assert ahead.events == [(0, Diverged(10, 100, 5, "another history begins after it"))]
    twice = replay("03-dcp-stream-errors.jsonl", "second stream on the same vbucket")
    assert twice.events[0][1] == Refused(10, Status.KEY_EEXISTS, b"Data exists for key")


def test_a_resume_inside_a_snapshot_of_a_real_server():
    drain = replay("03-dcp-stream-errors.jsonl", "resume inside a snapshot, right uuid")
    assert seqnos_of(drain) == [(0x58, 5)] and drain.position(10) == Position(10, 0x2E35EB0CCAD8, 5, 5, 5)


def test_live_snapshots_and_a_state_change_of_a_real_server():
    drain = replay("04-dcp-live-and-state-change.jsonl", "open-ended stream on an empty vbucket")
    assert seqnos_of(drain) == [(0x57, 1), (0x57, 2), (0x57, 3), (0x58, 4), (0x58, 5), (0x57, 6)]
    assert drain.events[-1] == (6, Ended(11, 2))


@pytest.mark.parametrize("note", ["datatype-aware", "value compression", "ext metadata", "no HELLO"])
def test_datatypes_and_compression_of_a_real_server(note: str):
    drain = replay("05-dcp-datatype-compression.jsonl", note)
    rows = drain.arena.batch().to_pylist()
    compressed = note in ("value compression", "ext metadata")
    assert [row["datatype"] for row in rows] == [1, 2 if compressed else 0, 0]
    assert drain.position(12).seqno == 3


def test_a_window_of_a_real_server_and_its_noop():
    drain = replay("06-dcp-flow-control-noop.jsonl", "40 x 1000-byte values")
    assert drain.data_to_send() == dcp.NoopResponse(opaque=0x81969800).encode()
    # The recording client let ten frames fill the window of 8192 bytes: marker and eight changes are 8524 bytes.
    assert drain.window.received_bytes >= 44 + 8 * 1060


def test_the_noop_of_an_idle_stream_of_a_real_server():
    drain = replay("07-dcp-noop-unanswered.jsonl", "an idle open-ended stream")
    assert drain.data_to_send() == dcp.NoopResponse(opaque=0x81969800).encode()


@pytest.mark.parametrize("note", ["flag 2", "flag 4", "flag 8", "flag 64"])
def test_streams_with_flags_of_a_real_server(note: str):
    drain = replay("18-dcp-stream-flags.jsonl", note)
    assert drain.position(41) == Position(41, 0xE52CBA88117, 5, 5, 5)
