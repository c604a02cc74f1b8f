"""Streams of a bucket with collections, at a real node: filters, events, stream ids, drops (dcp 2.4, 2.16, 5)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headwater import testing
from headwater.testing.node import Node
from headwater.wire import dcp, leb128
from headwater.wire.dcp import EndReason
from headwater.wire.framing import stream_id_of
from headwater.wire.header import Frame
from headwater.wire.manifest import EventKind, ManifestEvent
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.system_events import event_of
from tests.node.aware import JSON, XERROR, Aware, everything, manifest, told

A, B = 8, 9
EVENTS = [
    ("event", 1, 3, 8, 0, b"shop"),
    ("event", 2, 0, A, 0, b"a"),
    ("event", 3, 0, B, 1, b"b"),
]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """vbucket 0: three events, then a document of the default collection, one of a, one of b, and one of a again."""
    with testing.node(vbuckets=4) as node:
        with Aware(node.port) as client:
            assert client.becomes(manifest(1, a=A, b=B)) == 0
            for number, collection in enumerate((0, A, B, A)):
                assert client.put(b"k%d" % number, b"v", collection) == 0
        yield node


def test_events_come_in_order_with_the_data_and_keys_with_their_collection(node: Node) -> None:
    assert everything(node.port) == [
        ("marker", 0, 7),
        *EVENTS,
        ("set", 4, b"\x00k0"),
        ("set", 5, b"\x08k1"),
        ("set", 6, b"\x09k2"),
        ("set", 7, b"\x08k3"),
        ("end", EndReason.OK),
    ]


def test_the_first_event_in_bytes(node: Node) -> None:
    with Aware(node.port) as reader:
        reader.opens(b"bytes")
        reader.asks(flags=4)
        event = next(frame for frame in reader.messages() if frame.opcode == Opcode.DCP_SYSTEM_EVENT)
    assert event.encode().hex() == (
        "805f00040d00000000000" + "01d" + "00000007" + "00" * 8 + "0000000000000001" + "00000003" + "00"
        "73686f70" + "0000000000000000" + "00000008"
    )


def test_a_client_without_collections_sees_the_default_one_and_gaps_in_its_seqnos(node: Node) -> None:
    assert everything(node.port, None, XERROR) == [("marker", 0, 4), ("set", 4, b"k0"), ("end", EndReason.OK)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"collections": ["8"]}, [EVENTS[1], ("set", 5, b"\x08k1"), ("set", 7, b"\x08k3")]),
        ({"collections": ["9", "0"]}, [EVENTS[2], ("set", 4, b"\x00k0"), ("set", 6, b"\x09k2")]),
        ({"scope": "8"}, [*EVENTS, ("set", 5, b"\x08k1"), ("set", 6, b"\x09k2"), ("set", 7, b"\x08k3")]),
        ({"scope": "0"}, [("set", 4, b"\x00k0")]),
        ({"uid": "1", "collections": ["8"]}, [EVENTS[1], ("set", 5, b"\x08k1"), ("set", 7, b"\x08k3")]),
    ],
)
def test_a_filter_lets_its_collections_and_their_events_through(
    node: Node, value: object, expected: list[tuple[object, ...]]
) -> None:
    got = everything(node.port, value)
    assert got[1:-1] == expected and got[0] == ("marker", 0, expected[-1][1])


def test_a_filtered_stream_is_led_past_what_it_is_not_shown(node: Node) -> None:
    with Aware(node.port) as reader:
        reader.opens(b"led")
        assert reader.asks({"collections": ["9"]}).status == 0
        got = told(reader.until(Opcode.DCP_SEQNO_ADVANCED))
    assert got == [("marker", 0, 7), EVENTS[2], ("set", 6, b"\x09k2"), ("advanced", 7)]


def test_a_stream_that_is_shown_nothing_of_a_range_is_told_how_far_it_goes(node: Node) -> None:
    with Aware(node.port) as writer, Aware(node.port) as reader:
        reader.opens(b"nothing")
        assert writer.put(b"default", b"v", 0, vbucket=1) == 0
        assert reader.asks({"collections": ["8"]}, vbucket=1, flags=0).status == 0
        first = told(reader.until(Opcode.DCP_SEQNO_ADVANCED))
        assert first[-1] == ("advanced", 4) and first[0] == ("marker", 0, 4)
        writer.put(b"default", b"w", 0, vbucket=1)
        assert told(reader.until(Opcode.DCP_SEQNO_ADVANCED)) == [("marker", 4, 5), ("advanced", 5)]
        writer.put(b"mine", b"v", A, vbucket=1)
        assert told(reader.until(Opcode.DCP_MUTATION)) == [("marker", 5, 6), ("set", 6, b"\x08mine")]


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"{", Status.EINVAL),
        (b"[]", Status.EINVAL),
        (b"{}", Status.EINVAL),
        (b'{"other":1}', Status.EINVAL),
        (b'{"collections":["8"],"scope":"8"}', Status.EINVAL),
        (b'{"collections":[8]}', Status.EINVAL),
        (b'{"collections":["0x8"]}', Status.EINVAL),
        (b'{"collections":[]}', Status.EINVAL),
        (b'{"scope":8}', Status.EINVAL),
        (b'{"uid":5}', Status.EINVAL),
        (b'{"collections":["8","a"]}', Status.UNKNOWN_COLLECTION),
        (b'{"collections":["1ffffffff"]}', Status.UNKNOWN_COLLECTION),
        (b'{"scope":"9"}', Status.UNKNOWN_SCOPE),
        (b'{"sid":1}', Status.DCP_STREAMID_INVALID),
        (b'{"uid":"ffff"}', Status.SUCCESS),  # "informational, not checked"
    ],
)
def test_a_value_that_can_not_be_obeyed_has_its_status(node: Node, value: bytes, status: Status) -> None:
    with Aware(node.port) as reader:
        reader.opens(b"values")
        answer = reader.asks(value, flags=4)
        assert answer.status == status
        if status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
            assert json.loads(answer.value)["manifest_uid"] == "1"


@pytest.mark.parametrize(
    "value", [{"collections": ["8"]}, {"collections": ["8", "9"]}, {"scope": "8"}], ids=["one", "several", "scope"]
)
def test_who_reads_a_collection_hears_that_its_newest_change_was_a_deletion_that_is_purged(value: object) -> None:
    with testing.node(vbuckets=1) as node:
        with Aware(node.port) as client:
            assert client.becomes(manifest(1, a=A, b=B)) == 0
            for key in (b"early", b"c7"):
                assert client.put(key, b"v", A) == 0
            known, uuid = client.seqno(), client.vb_uuid()
            assert client.delete(b"early", A) == client.delete(b"c7", A) == client.put(b"other", b"v") == 0
            deleted = known + 2
            assert client.seqno(A) == deleted
            assert client.compacts() == 0
            assert client.seqno(A) == deleted, "a purge does not make a collection older"
        for again in (False, True):
            if again:
                node.restart()
            with Aware(node.port) as reader:
                reader.opens()
                answer = reader.asks(value, start=known, uuid=uuid)
                assert (answer.status, answer.value) == (Status.ROLLBACK, bytes(8))


def test_without_noops_there_are_no_streams_with_collections(node: Node) -> None:
    with Aware(node.port) as reader:
        assert reader.request(dcp.Open(key=b"silent", flags=1)).status == 0
        assert reader.asks().status == Status.NOT_SUPPORTED


def test_several_streams_of_a_vbucket_are_told_apart_by_their_ids(node: Node) -> None:
    with Aware(node.port) as reader:
        reader.opens(b"ids", enable_stream_id="true")
        assert reader.asks({"collections": ["8"]}, flags=4).status == Status.DCP_STREAMID_INVALID
        assert reader.asks({"collections": ["8"], "sid": 0}, flags=4).status == Status.DCP_STREAMID_INVALID
        first = dcp.StreamRequest(
            opaque=7, flags=4, start_seqno=0, snap_start_seqno=0, snap_end_seqno=0, value=b'{"scope":"8","sid":5}'
        )
        second = dcp.StreamRequest(
            opaque=8,
            flags=4,
            start_seqno=0,
            snap_start_seqno=0,
            snap_end_seqno=0,
            value=b'{"collections":["0"],"sid":6}',
        )
        reader.send(first.encode() + second.encode())
        seen: dict[int | None, list[tuple[object, ...]]] = {5: [], 6: []}
        ends = 0
        while ends < 2:
            frame = reader.read()
            assert frame is not None
            if frame.is_response:
                assert frame.status == 0
                continue
            seen[stream_id_of(frame.framing)] += told([frame])
            ends += frame.opcode == Opcode.DCP_STREAM_END
        close = dcp.CloseStream(framing=b"\x22\0\x05").frame()
        assert reader.ask(Opcode.DCP_CLOSE_STREAM).status == Status.DCP_STREAMID_INVALID
        reader.send(close.encode())
        answer = reader.read()
    assert answer is not None and answer.status == Status.KEY_ENOENT
    assert [each[0] for each in seen[5]] == ["marker", "event", "event", "event", "set", "set", "set", "end"]
    assert seen[6][1:-1] == [("set", 4, b"\x00k0")]


def flat(port: int) -> list[tuple[int, ManifestEvent]]:
    """The events of vbucket 0 as version 2 tells them, with their seqnos."""
    with Aware(port) as reader:
        reader.opens(b"flat", flatbuffers_system_events="true")
        assert reader.asks(flags=4).status == 0
        frames = [frame for frame in reader.messages() if frame.opcode == Opcode.DCP_SYSTEM_EVENT]
    events = [dcp.SystemEventV2.decode(frame) for frame in frames]
    return [(event.by_seqno, event_of(event)) for event in events]


def test_who_knows_version_2_hears_of_histories_and_others_of_all_else() -> None:
    kind = EventKind
    with testing.node(vbuckets=4) as node:
        with Aware(node.port) as client:
            assert client.becomes(manifest(1, a=A, b=B)) == client.put(b"k", b"v", A) == 0
            assert client.becomes(manifest(2, ["a"], a=A, b=B)) == 0
            assert client.put(b"k", b"w", A) == 0
            assert client.becomes(manifest(3, a=A, b=B)) == client.becomes(manifest(4, ["a"], a=A, b=B)) == 0
        expected = [
            (1, ManifestEvent(kind.CREATE_SCOPE, 0, 8, name="shop")),
            (2, ManifestEvent(kind.CREATE_COLLECTION, 0, 8, A, "a")),
            (3, ManifestEvent(kind.CREATE_COLLECTION, 1, 8, B, "b")),
            (5, ManifestEvent(kind.MODIFY_COLLECTION, 2, 8, A, "a", None, history=False)),
            (7, ManifestEvent(kind.MODIFY_COLLECTION, 3, 8, A, "a", None, history=True)),
            (8, ManifestEvent(kind.MODIFY_COLLECTION, 4, 8, A, "a", None, history=False)),
        ]
        for again in (False, True):
            if again:
                node.kill()
                node.restart()
            assert flat(node.port) == expected
            assert everything(node.port)[1:] == [
                *EVENTS, ("set", 6, b"\x08k"), ("advanced", 8), ("end", EndReason.OK)
            ]  # fmt: skip
            assert everything(node.port, {"collections": ["8"]})[-2:] == [("set", 6, b"\x08k"), ("end", EndReason.OK)]
        with Aware(node.port) as client:
            assert client.becomes(manifest(5, b=B)) == 0
        assert [seqno for seqno, _ in flat(node.port)] == [1, 3, 9], "modifications go with their collection"


def test_a_collection_that_is_made_without_a_history_is_told_by_each_version_as_far_as_it_goes() -> None:
    with testing.node(vbuckets=1) as node:
        with Aware(node.port) as client:
            assert client.becomes(manifest(1, ["a"], a=A)) == 0
        assert flat(node.port)[-1] == (2, ManifestEvent(EventKind.CREATE_COLLECTION, 1, 8, A, "a", None, history=False))
        assert everything(node.port)[2] == ("event", 2, 0, A, 1, b"a")


def test_a_marker_of_version_2_2_tells_what_was_purged() -> None:
    with testing.node(vbuckets=1) as node, Aware(node.port) as client:
        client.put(b"gone", b"v")
        client.ask(Opcode.DELETE, key=b"\0gone")
        client.put(b"k", b"v")
        assert client.ask(Opcode.COMPACT_DB, extras=bytes(16) + b"\1" + bytes(7)).status == 0
        with Aware(node.port) as reader:
            reader.opens(b"purged", max_marker_version="2.2")
            reader.asks(flags=4)
            marker = dcp.SnapshotMarkerV22.decode(next(iter(reader.messages())))
    assert (marker.end_seqno, marker.purge_seqno) == (3, 2)


# --------------------------------------------------------------------------- drops


@pytest.fixture
def fresh() -> Iterator[Node]:
    with testing.node(vbuckets=2) as node:
        with Aware(node.port) as client:
            assert client.becomes(manifest(1, a=A, b=B)) == 0
        yield node


def test_a_drop_under_a_live_stream_comes_in_order_and_hides_what_came_before(fresh: Node) -> None:
    with Aware(fresh.port) as writer, Aware(fresh.port) as reader:
        reader.opens(b"live")
        assert reader.asks().status == 0
        writer.put(b"k", b"v", A)
        assert told(reader.until(Opcode.DCP_MUTATION))[-1] == ("set", 4, b"\x08k")
        assert writer.becomes(manifest(2, b=B)) == 0
        assert told(reader.until(Opcode.DCP_SYSTEM_EVENT))[-1] == ("event", 5, 1, A, 2, b"")
        assert writer.put(b"k", b"v", A) == Status.UNKNOWN_COLLECTION
        writer.put(b"k", b"v", B)
        assert told(reader.until(Opcode.DCP_MUTATION))[-1] == ("set", 6, b"\x09k")
    assert [each[:3] for each in everything(fresh.port)] == [
        ("marker", 0, 6),
        ("event", 1, 3),
        ("event", 3, 0),
        ("event", 5, 1),
        ("set", 6, b"\x09k"),
        ("end", 0),
    ]


def test_a_stream_whose_last_collection_is_dropped_ends_with_that_reason(fresh: Node) -> None:
    with Aware(fresh.port) as writer, Aware(fresh.port) as reader:
        reader.opens(b"empty")
        assert reader.asks({"collections": ["8", "9"]}).status == 0
        assert writer.becomes(manifest(2, b=B)) == 0
        assert told(reader.until(Opcode.DCP_SYSTEM_EVENT))  # one is left
        writer.put(b"k", b"v", B)
        reader.until(Opcode.DCP_MUTATION)
        assert writer.becomes(manifest(3)) == 0
        got = told(reader.until(Opcode.DCP_STREAM_END))
        assert next(each[:3] for each in got if each[0] != "marker") == ("event", 6, 1)
        assert got[-1] == ("end", EndReason.FILTER_EMPTY)
        assert reader.asks({"collections": ["8"]}).status == Status.UNKNOWN_COLLECTION


def test_a_scope_brings_its_future_collections_and_ends_with_itself(fresh: Node) -> None:
    with Aware(fresh.port) as writer, Aware(fresh.port) as reader:
        reader.opens(b"scope")
        assert reader.asks({"scope": "8"}).status == 0
        assert writer.becomes(manifest(2, a=A, b=B, c=10)) == 0
        writer.put(b"k", b"v", 10)
        assert told(reader.until(Opcode.DCP_MUTATION))[-1] == ("set", 5, b"\x0ak")
        assert writer.becomes(manifest(3)) == 0
        assert told(reader.until(Opcode.DCP_STREAM_END))[-1] == ("end", EndReason.FILTER_EMPTY)
        assert reader.asks({"scope": "8"}).status == Status.UNKNOWN_SCOPE


def test_a_collection_made_again_under_its_name_has_nothing_of_the_one_before(fresh: Node) -> None:
    with Aware(fresh.port) as writer:
        writer.put(b"k", b"old", A)
        assert writer.becomes(manifest(2, b=B)) == writer.becomes(manifest(3, b=B, a=10)) == 0
        assert (writer.got(b"k", 10), writer.got(b"k", A)) == (Status.KEY_ENOENT, Status.UNKNOWN_COLLECTION)
        assert not [each for each in everything(fresh.port) if each[0] == "set"]
        assert everything(fresh.port, {"collections": ["a"]}, name=b"new")[1] == ("event", 6, 0, 10, 3, b"a")


WINDOW = 4096


def stalled(reader: Aware, writer: Aware, *choices: object) -> None:
    """A reader whose streams of vbucket 0 stand in the middle of their backfills, for their window is full."""
    for number in range(200):
        assert writer.put(b"a%03d" % number, bytes(100), A) == writer.put(b"b%03d" % number, bytes(100), B) == 0
    ids = {"enable_stream_id": "true"} if len(choices) > 1 else {}
    reader.opens(b"stalled", connection_buffer_size=str(WINDOW), **ids)
    for choice in choices:
        told = b"" if choice is None else json.dumps(choice).encode()
        start = {"start_seqno": 0, "snap_start_seqno": 0, "snap_end_seqno": 0}
        reader.send(dcp.StreamRequest(opaque=7, value=told, **start).encode())


def unstalled(reader: Aware, last: int, ends: int = 1) -> list[Frame]:
    """All that comes, each message acknowledged, until this opcode has come so often."""
    got: list[Frame] = []
    while sum(each.opcode == last for each in got) < ends:
        frame = reader.read()
        assert frame is not None, told(got[-3:])
        if frame.is_response:
            assert frame.status == 0
            continue
        reader.send(dcp.BufferAck(acked_bytes=len(frame.encode())).encode())
        got.append(frame)
    return got


def test_a_drop_in_the_middle_of_a_backfill_comes_in_its_place_and_ends_who_wanted_nothing_else(fresh: Node) -> None:
    with Aware(fresh.port) as writer, Aware(fresh.port) as reader:
        stalled(reader, writer, {"collections": ["8"]})
        assert writer.becomes(manifest(2, b=B)) == 0
        got = [each for each in told(unstalled(reader, Opcode.DCP_STREAM_END)) if each[0] not in ("marker", "advanced")]
    assert got[0] == EVENTS[1] and got[-1] == ("end", EndReason.FILTER_EMPTY)
    assert got[-2] == ("event", 404, 1, A, 2, b"")
    seqnos = [each[1] for each in got[:-1]]
    assert seqnos == sorted(set(seqnos)) and all(each[2].startswith(b"\x08a") for each in got if each[0] == "set")


def test_a_collection_that_comes_again_in_the_middle_of_a_backfill_is_another_one(fresh: Node) -> None:
    with Aware(fresh.port) as writer, Aware(fresh.port) as reader:
        stalled(reader, writer, None)
        assert writer.becomes(manifest(2, b=B)) == writer.becomes(manifest(3, b=B, a=10)) == 0
        assert writer.put(b"again", b"v", 10) == 0 and writer.put(b"a000", b"v", A) == Status.UNKNOWN_COLLECTION
        frames: list[Frame] = []
        while not frames or frames[-1].key != b"\x0aagain":
            frames += unstalled(reader, Opcode.DCP_MUTATION)
        got = [each for each in told(frames) if each[0] != "marker"]
    assert [each[:4] for each in got if each[0] == "event"] == [
        ("event", 1, 3, 8),
        ("event", 2, 0, A),
        ("event", 3, 0, B),
        ("event", 404, 1, A),
        ("event", 405, 0, 10),
    ]
    assert [each[2] for each in got if each[0] == "set" and each[2][:1] == b"\x09"] == [
        b"\x09b%03d" % n for n in range(200)
    ]


def test_of_two_streams_of_a_vbucket_the_one_ends_whose_collection_is_dropped(fresh: Node) -> None:
    with Aware(fresh.port) as writer, Aware(fresh.port) as reader:
        stalled(reader, writer, {"collections": ["8"], "sid": 1}, {"collections": ["9"], "sid": 2})
        assert writer.becomes(manifest(2, b=B)) == 0
        ended = unstalled(reader, Opcode.DCP_STREAM_END)[-1]
        assert (stream_id_of(ended.framing), dcp.StreamEnd.decode(ended).status) == (1, EndReason.FILTER_EMPTY)
        assert writer.put(b"after", b"v", B) == 0
        frames: list[Frame] = []
        while not frames or frames[-1].key != b"\x09after":
            frames += unstalled(reader, Opcode.DCP_MUTATION)
        assert {stream_id_of(frame.framing) for frame in frames} == {2}


def test_a_consumer_goes_on_over_a_drop_from_before_it(fresh: Node) -> None:
    with Aware(fresh.port) as writer:
        writer.put(b"k", b"v", A)
        assert writer.becomes(manifest(2, b=B)) == 0
        with Aware(fresh.port) as reader:
            reader.opens(b"on")
            uuid = int.from_bytes(reader.ask(Opcode.DCP_GET_FAILOVER_LOG).value[:8])
            assert reader.asks(start=4, uuid=uuid, flags=4).status == 0
            assert told(reader.messages()) == [("marker", 4, 5), ("event", 5, 1, A, 2, b""), ("end", 0)]


def test_a_client_without_collections_loses_its_stream_with_the_default_collection(fresh: Node) -> None:
    with Aware(fresh.port) as writer, Aware(fresh.port, XERROR, JSON) as reader:
        writer.put(b"k", b"v")
        assert reader.request(dcp.Open(key=b"plain", flags=1)).status == 0
        assert reader.asks().status == 0
        reader.until(Opcode.DCP_MUTATION)
        bare = {"uid": "2", "scopes": [{"uid": "0", "name": "_default", "collections": []}]}
        assert writer.becomes(json.dumps(bare).encode()) == 0
        assert told(reader.until(Opcode.DCP_STREAM_END))[-1] == ("end", EndReason.OK)
        assert reader.asks().status == Status.UNKNOWN_COLLECTION


def test_a_takeover_that_would_leave_collections_behind_is_refused(fresh: Node) -> None:
    with Aware(fresh.port, XERROR, JSON) as reader:
        assert reader.request(dcp.Open(key=b"plain", flags=1)).status == 0
        assert reader.asks(flags=1).status == Status.NOT_SUPPORTED


def test_deletions_and_expirations_have_their_collection(fresh: Node) -> None:
    with Aware(fresh.port) as writer, Aware(fresh.port) as reader:
        reader.opens(b"gone", enable_expiry_opcode="true")
        assert reader.asks().status == 0
        writer.put(b"k", b"v", A)
        assert writer.ask(Opcode.DELETE, key=leb128.join_key(A, b"k")).status == 0
        assert told(reader.until(Opcode.DCP_DELETION))[-1] == ("delete", 5, b"\x08k")
        writer.put(b"t", b"v", B, expiry=1_600_000_000)
        assert writer.got(b"t", B) == Status.KEY_ENOENT
        assert told(reader.until(Opcode.DCP_EXPIRATION))[-1] == ("expire", 7, b"\x09t")
