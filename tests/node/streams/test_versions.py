"""Streams of every version that the log still has (control change_streams; dcp 2.7, 8.2; decision 0151)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _pytest.monkeypatch import MonkeyPatch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from headwater.kernels import index
from headwater.node.vbucket.prepares import key_of
from headwater.protocol.dcp.position import ENDLESS
from headwater.wire import dcp
from headwater.wire.dcp import SnapshotFlag, seqno_of
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State
from tests.node.storage.model import compact
from tests.node.streams.support import COLLECTIONS, Producer, StreamDesk, told
from tests.node.streams.test_machine import VBUCKETS, Held, Streaming
from tests.node.support import NOON

DISK, FIRST, MEMORY, VERSIONS = 0x06, 0x05, 0x01, 0x30


def asking(desk: StreamDesk, name: str = "c", features: tuple[int, ...] = (0x07, 0x08)) -> Producer:
    """A client that wants every version."""
    made = Producer(desk, name, flags=0x21, features=features)
    assert made.control("change_streams", "true") == 0
    return made


def overwrite(desk: StreamDesk, keys: str) -> None:
    """A change of each of these keys, committed together."""
    for key in keys:
        desk.set(0, key)
    desk.commit()


def uuid(desk: StreamDesk) -> int:
    return desk.bucket.vbuckets[0].failover.newest.vb_uuid


def test_each_version_in_the_log_is_sent_in_order(desk: StreamDesk) -> None:
    overwrite(desk, "abaa")
    reader = asking(desk)
    reader.stream()
    assert told(reader.read()) == [
        ("marker", 0, 4, DISK | VERSIONS),
        *(("mutation", seqno, key) for seqno, key in enumerate("abaa", 1)),
    ]
    other = Producer(desk, "other")
    other.stream()
    assert told(other.read()) == [("marker", 0, 4, DISK), ("mutation", 2, "b"), ("mutation", 4, "a")]


def test_what_is_written_while_a_slow_reader_is_away_comes_with_every_version(desk: StreamDesk) -> None:
    reader = asking(desk)
    reader.stream()
    assert told(reader.read()) == []
    overwrite(desk, "aa")
    desk.delete(0, "a")
    overwrite(desk, "a")
    assert told(reader.read()) == [
        ("marker", 0, 4, FIRST | VERSIONS),
        ("mutation", 1, "a"),
        ("mutation", 2, "a"),
        ("deletion", 3, "a"),
        ("mutation", 4, "a"),
    ]
    overwrite(desk, "bb")
    assert told(reader.read()) == [
        ("marker", 4, 6, MEMORY | VERSIONS),
        ("mutation", 5, "b"),
        ("mutation", 6, "b"),
    ]


def test_what_compaction_dropped_comes_first_as_a_snapshot_without_versions(desk: StreamDesk) -> None:
    overwrite(desk, "aabb")
    compact(desk.store)
    overwrite(desk, "aa")
    assert desk.bucket.vbuckets[0].versions_after == 4
    reader = asking(desk)
    reader.stream()
    assert told(reader.read()) == [
        ("marker", 0, 4, DISK),
        ("mutation", 2, "a"),
        ("mutation", 4, "b"),
        ("marker", 4, 6, DISK | VERSIONS),
        ("mutation", 5, "a"),
        ("mutation", 6, "a"),
    ]
    overwrite(desk, "b")
    assert told(reader.read()) == [("marker", 6, 7, FIRST | VERSIONS), ("mutation", 7, "b")]


def test_a_compaction_in_front_of_a_reader_is_told(desk: StreamDesk) -> None:
    overwrite(desk, "a")
    reader = asking(desk)
    reader.stream()
    reader.read()
    overwrite(desk, "bbb")
    compact(desk.store)
    overwrite(desk, "cc")
    assert told(reader.read()) == [
        ("marker", 1, 4, DISK),
        ("mutation", 4, "b"),
        ("marker", 4, 6, DISK | VERSIONS),
        ("mutation", 5, "c"),
        ("mutation", 6, "c"),
    ]


def test_versions_that_a_compaction_has_to_keep_are_sent(desk: StreamDesk) -> None:
    overwrite(desk, "aaaaaa")
    compact(desk.store, history_rows=3)
    reader = asking(desk)
    reader.stream()
    assert told(reader.read()) == [
        ("marker", 0, 3, DISK),
        ("mutation", 3, "a"),
        ("marker", 3, 6, DISK | VERSIONS),
        *(("mutation", seqno, "a") for seqno in (4, 5, 6)),
    ]


def test_who_goes_on_behind_what_was_dropped_gets_versions_at_once(desk: StreamDesk) -> None:
    overwrite(desk, "aaaaaa")
    compact(desk.store, history_rows=3)
    reader = asking(desk)
    reader.stream(start_seqno=4, vb_uuid=uuid(desk))
    assert told(reader.read()) == [("marker", 4, 6, DISK | VERSIONS), ("mutation", 5, "a"), ("mutation", 6, "a")]


def test_the_rest_of_a_snapshot_that_is_held_in_part_leads_to_its_end(desk: StreamDesk) -> None:
    """Of the snapshot up to 5 the reader has 1. At 3, where versions begin, it would lack `b`, which was merged away
    then: no state."""
    overwrite(desk, "acbxbyz")
    desk.store.table[0, index.FLOOR] = 3
    assert desk.bucket.vbuckets[0].versions_after == 3
    reader = asking(desk)
    reader.stream(start_seqno=1, vb_uuid=uuid(desk), snap_start_seqno=0, snap_end_seqno=5)
    assert told(reader.read()) == [
        ("marker", 0, 5, DISK),
        *(("mutation", seqno, key) for seqno, key in ((2, "c"), (4, "x"), (5, "b"))),
        ("marker", 5, 7, DISK | VERSIONS),
        *(("mutation", seqno, key) for seqno, key in ((6, "y"), (7, "z"))),
    ]


def test_a_vbucket_knows_of_no_versions_of_what_it_received(desk: StreamDesk) -> None:
    overwrite(desk, "aa")
    vbucket = desk.bucket.vbuckets[0]
    assert vbucket.versions_after == 0
    vbucket.set_state(State.REPLICA)
    assert vbucket.versions_after == ENDLESS
    vbucket.begin_snapshot(2, 4)
    desk.set(0, "a", seqno=4)
    desk.commit()
    vbucket.set_state(State.ACTIVE)
    desk.commit()
    assert vbucket.versions_after == 4
    overwrite(desk, "aa")
    reader = asking(desk)
    reader.stream()
    markers = [each for each in told(reader.read()) if each[0] == "marker"]
    assert markers == [("marker", 0, 4, DISK), ("marker", 4, 6, DISK | VERSIONS)]


def test_what_a_copy_received_with_history_it_shows_when_it_owns_the_vbucket(desk: StreamDesk) -> None:
    vbucket = desk.bucket.vbuckets[0]
    vbucket.set_state(State.REPLICA)
    vbucket.begin_snapshot(0, 2)
    desk.set(0, "a", seqno=2)
    vbucket.begin_snapshot(2, 5, has_versions=True)
    for seqno in (3, 4, 5):
        desk.set(0, "a", seqno=seqno)
    desk.commit()
    assert (vbucket.versions_after, vbucket.held_versions_after) == (ENDLESS, 2)
    vbucket.set_state(State.ACTIVE)
    desk.commit()
    reader = asking(desk)
    reader.stream()
    assert told(reader.read()) == [
        ("marker", 0, 2, DISK),
        ("mutation", 2, "a"),
        ("marker", 2, 5, DISK | VERSIONS),
        *(("mutation", seqno, "a") for seqno in (3, 4, 5)),
    ]


def test_versions_of_collections_come_between_their_events(desk: StreamDesk) -> None:
    desk.become(0, 1, orders=8)
    for _ in range(2):
        desk.set(0, "k", collection=8)
    desk.commit()
    reader = asking(desk, features=(0x07, 0x08, COLLECTIONS))
    reader.stream(value=b'{"uid":"0"}')
    found = told(reader.read())
    assert found[0][0] == "marker" and found[0][3] == DISK | VERSIONS
    assert [each[1] for each in found if each[0] == "mutation"] == [3, 4]


COLLECTION_STREAM = b'{"uid":"0"}'


def aware(desk: StreamDesk, name: str = "aware") -> Producer:
    """A client that knows collections and wants every version."""
    return asking(desk, name, features=(0x07, 0x08, COLLECTIONS))


def changes_of(reader: Producer) -> list[tuple[object, ...]]:
    """The markers, and behind them the seqnos of all that came."""
    frames = reader.read()
    return [
        *(each for each in told(frames) if each[0] == "marker"),
        *((seqno_of(frame.extras),) for frame in frames if frame.opcode != Opcode.DCP_SNAPSHOT_MARKER),
    ]


def test_of_collections_without_a_history_the_last_version_comes_between_all_those_of_others(desk: StreamDesk) -> None:
    desk.become(0, 1, ["carts"], orders=8, carts=9)
    for collection in (8, 9, 9, 8, 0, 9, 0):
        desk.set(0, "k", collection=collection)
    desk.commit()
    reader = aware(desk)
    reader.stream(value=COLLECTION_STREAM)
    assert changes_of(reader) == [("marker", 0, 10, DISK | VERSIONS), *((n,) for n in (1, 2, 3, 4, 7, 8, 9, 10))]
    for collection in (9, 8, 9, 8):
        desk.set(0, "k", collection=collection)
    desk.commit()
    assert changes_of(reader) == [("marker", 10, 14, FIRST | VERSIONS), (12,), (13,), (14,)]


def test_what_was_written_while_a_collection_had_a_history_comes_with_every_version(desk: StreamDesk) -> None:
    desk.become(0, 1, orders=8)  # events 1 and 2
    for uid, plain in ((2, ["orders"]), (3, []), (4, ["orders"])):
        for _ in range(3):
            desk.set(0, "k", collection=8)
        desk.become(0, uid, plain, orders=8)
    desk.set(0, "k", collection=8)
    desk.commit()
    reader = aware(desk)
    reader.stream(value=COLLECTION_STREAM)
    first, *rest = changes_of(reader)
    ends = [(6, 10, FIRST), (10, 14, MEMORY), (14, 15, MEMORY)]
    assert first == ("marker", 0, 6, DISK | VERSIONS), "up to where the history ends, which it is not shown"
    assert rest[:3] == [("marker", start, end, flags | VERSIONS) for start, end, flags in ends]
    assert rest[3:] == [(n,) for n in (1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15)], "three of them lead past an event"
    flat = aware(desk, "flat")
    assert flat.control("flatbuffers_system_events", "true") == 0
    flat.stream(value=COLLECTION_STREAM)
    expected = [1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15]
    assert changes_of(flat) == [("marker", 0, 15, DISK | VERSIONS), *((n,) for n in expected)]


def test_who_reads_only_what_has_no_history_is_told_so_by_each_snapshot_until_it_has_one(desk: StreamDesk) -> None:
    desk.become(0, 1, ["carts"], carts=9)
    desk.commit()
    reader = aware(desk)
    reader.stream(value=b'{"collections":["9"]}')
    reader.read()
    for _ in range(2):
        for _ in range(2):
            desk.set(0, "k", collection=9)
        desk.commit()
        assert [each[3] for each in told(reader.read()) if each[0] == "marker"] == [DISK], "live ones as well"
    desk.become(0, 2, carts=9)
    desk.set(0, "k", collection=9)
    desk.set(0, "k", collection=9)
    desk.commit()
    assert changes_of(reader) == [("marker", 6, 9, DISK | VERSIONS), (8,), (9,)]


def test_the_default_collection_may_have_no_history_and_old_clients_are_told_so_too(desk: StreamDesk) -> None:
    overwrite(desk, "aa")
    desk.become(0, 1, ["_default"])
    overwrite(desk, "aa")
    reader = asking(desk)
    reader.stream()
    assert changes_of(reader) == [("marker", 0, 2, DISK | VERSIONS), ("marker", 2, 5, DISK), (1,), (2,), (5,)]
    overwrite(desk, "bb")
    assert changes_of(reader) == [("marker", 5, 7, DISK), (7,)]


def test_who_is_not_shown_that_a_history_ended_gets_no_snapshot_with_history_across_its_end(desk: StreamDesk) -> None:
    """Such a reader can't tell which of its versions are missing; in the other direction history begins at a marker."""
    desk.become(0, 1, orders=8)  # events 1 and 2
    of_bucket = asking(desk, "of bucket")
    of_collection = aware(desk, "of collection")
    desk.commit()
    of_bucket.stream()
    of_collection.stream(value=b'{"collections":["8"]}')
    of_collection.read()
    for uid, plain in ((2, ["_default", "orders"]), (3, [])):
        for key in "kk":
            desk.set(0, key)
            desk.set(0, key, collection=8)
        desk.become(0, uid, plain, orders=8)
    desk.set(0, "k")
    desk.set(0, "k", collection=8)
    desk.commit()
    assert changes_of(of_bucket) == [
        ("marker", 0, 5, DISK | VERSIONS),
        ("marker", 5, 11, DISK),
        ("marker", 11, 15, DISK | VERSIONS),
        *((seqno,) for seqno in (3, 5, 11, 15)),
    ]
    flags = [each[3] for each in changes_of(of_collection) if each[0] == "marker"]
    assert flags == [FIRST | VERSIONS, DISK, DISK | VERSIONS]


def test_who_comes_back_right_where_a_history_ended_gets_no_history_behind_it(desk: StreamDesk) -> None:
    """Such a reader has not passed the event, which it is not shown; no change lies in front of it."""
    overwrite(desk, "aa")
    desk.become(0, 1, ["_default"])  # seqno 3
    overwrite(desk, "aa")
    reader = asking(desk)
    reader.stream(start_seqno=2, vb_uuid=uuid(desk))
    assert changes_of(reader) == [("marker", 2, 5, DISK), (5,)]


def test_the_rest_of_a_snapshot_across_the_end_of_a_history_comes_with_every_version(desk: StreamDesk) -> None:
    """The rest leads to the end that was announced, where the reader has a state again (dcp 8.5)."""
    overwrite(desk, "aa")
    desk.become(0, 1, ["_default"])  # seqno 3
    overwrite(desk, "aabb")
    reader = asking(desk)
    reader.stream(start_seqno=1, vb_uuid=uuid(desk), snap_start_seqno=0, snap_end_seqno=5)
    assert changes_of(reader) == [("marker", 0, 5, DISK | VERSIONS), ("marker", 5, 7, DISK), (2,), (4,), (5,), (7,)]


def test_a_node_that_follows_gets_the_versions_of_collections_without_a_history_too(desk: StreamDesk) -> None:
    """A copy may own the vbucket one day: a state that it shows must have all documents."""
    desk.store.declarations.keep_history(60)
    desk.become(0, 1, ["carts"], carts=9)
    for _ in range(3):
        desk.set(0, "k", collection=9)
    desk.commit()
    for durable in (True, False):
        reader = aware(desk, f"copy{durable}")
        assert reader.control("headwater_deleted_rev", "true") == 0
        assert not durable or reader.control("enable_sync_writes", "true") == 0
        reader.stream(value=COLLECTION_STREAM)
        sent = [seqno_of(frame.extras) for frame in reader.read() if frame.opcode != Opcode.DCP_SNAPSHOT_MARKER]
        assert sent == [1, 2, 3, 4, 5]


def test_a_restart_and_a_rollback_keep_what_had_a_history_when(tmp_path: Path) -> None:
    desk = StreamDesk(tmp_path / "store")
    desk.become(0, 1, ["carts"], carts=9)
    for uid, plain in ((2, []), (3, ["carts"]), (4, [])):
        desk.set(0, "k", collection=9)
        desk.set(0, "k", collection=9)
        desk.become(0, uid, plain, carts=9)
    desk.commit()
    desk.close()
    desk = StreamDesk(tmp_path / "store")
    with ending(desk):
        vbucket = desk.bucket.vbuckets[0]
        assert [span[:2] for span in vbucket.collections.plain_spans(0, 11)] == [(2, 5), (8, 11)]
        vbucket.set_state(State.REPLICA)
        vbucket.roll_back(7)
        assert [span[:2] for span in vbucket.collections.plain_spans(0, 11)] == [(2, 5)]
        assert vbucket.collections.manifest.by_id()[9][1].history


def test_who_wants_no_deletions_at_first_gets_every_version_of_what_is_written_later(desk: StreamDesk) -> None:
    """A snapshot from memory has no flag that says what was merged away in it: with the control, nothing is."""
    overwrite(desk, "aab")
    desk.delete(0, "b")
    compact(desk.store)
    overwrite(desk, "c")
    reader = Producer(desk, flags=0x221)
    assert reader.control("change_streams", "true") == 0
    reader.stream()
    assert told(reader.read()) == [("marker", 0, 5, DISK), ("mutation", 2, "a"), ("mutation", 5, "c")]
    overwrite(desk, "dd")
    desk.delete(0, "d")
    desk.commit()
    assert told(reader.read()) == [
        ("marker", 5, 8, DISK | VERSIONS),
        ("mutation", 6, "d"),
        ("mutation", 7, "d"),
        ("deletion", 8, "d"),
    ]


def replica_of(desk: StreamDesk) -> Producer:
    """A replica's connection, which asks for every version."""
    reader = Producer(desk, "replica", flags=0x21)
    assert reader.control("enable_sync_writes", "true") == 0
    assert reader.control("change_streams", "true") == 0
    return reader


def prepare(desk: StreamDesk, key: str) -> None:
    prepares = desk.bucket.vbuckets[0].prepares
    written = dcp.Prepare(
        by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0" + key.encode(), value=b"p", cas=1 << 16
    )
    prepares.add(written)
    desk.committer.wrote()


def test_a_replica_gets_the_versions_of_a_bucket_that_keeps_a_history_and_of_no_other(desk: StreamDesk) -> None:
    overwrite(desk, "aa")
    reader = replica_of(desk)
    reader.stream()
    assert told(reader.read()) == [("marker", 0, 2, DISK), ("mutation", 2, "a")]
    desk.store.declarations.keep_history(60)
    overwrite(desk, "bb")
    assert told(reader.read()) == [
        ("marker", 2, 4, FIRST | VERSIONS),
        ("mutation", 3, "b"),
        ("mutation", 4, "b"),
    ], "from now on"
    again = replica_of(desk)
    again.stream()
    assert [each[1] for each in told(again.read()) if each[0] == "mutation"] == [1, 2, 3, 4]
    desk.store.declarations.keep_history(0)
    overwrite(desk, "cc")
    assert told(again.read())[0] == ("marker", 4, 6, FIRST)


def test_of_durable_writes_that_are_over_a_replica_gets_the_documents(desk: StreamDesk) -> None:
    """A prepare is no version of its document: what it became is."""
    desk.store.declarations.keep_history(60)
    prepares = desk.bucket.vbuckets[0].prepares
    for _ in range(2):
        prepare(desk, "a")
        prepares.commit(key_of(b"\0a"), NOON)
    prepare(desk, "b")
    prepares.abort(key_of(b"\0b"), NOON)
    prepare(desk, "b")
    desk.commit()
    reader = replica_of(desk)
    reader.stream()
    sent = [(frame.opcode, seqno_of(frame.extras)) for frame in reader.read() if len(frame.extras) >= 8]
    assert sent == [(Opcode.DCP_MUTATION, 2), (Opcode.DCP_MUTATION, 4), (Opcode.DCP_PREPARE, 7)]
    prepares.commit(key_of(b"\0b"), NOON)
    desk.set(0, "b")
    desk.commit()
    opcodes = [frame.opcode for frame in reader.read() if frame.opcode != Opcode.DCP_SNAPSHOT_MARKER]
    assert opcodes == [Opcode.DCP_COMMIT, Opcode.DCP_MUTATION]


def test_live_versions_are_sent_without_a_view_for_each_commit(desk: StreamDesk, monkeypatch: MonkeyPatch) -> None:
    reader = asking(desk, features=(0x07, 0x08, 0x0B))
    reader.stream()
    overwrite(desk, "a")
    reader.read()
    monkeypatch.setattr(desk.store, "view", None)
    overwrite(desk, "bab")
    assert told(reader.read()) == [
        ("marker", 1, 4, MEMORY | VERSIONS),
        ("mutation", 2, "b"),
        ("mutation", 3, "a"),
        ("mutation", 4, "b"),
    ]


def test_a_restart_keeps_the_versions(tmp_path: Path) -> None:
    desk = StreamDesk(tmp_path / "store")
    overwrite(desk, "aaaaaa")
    compact(desk.store, history_rows=3)
    desk.close()
    again = StreamDesk(tmp_path / "store")
    with ending(again):
        reader = asking(again)
        reader.stream()
        found = told(reader.read())
        assert [each[3] for each in found if each[0] == "marker"] == [DISK, DISK | VERSIONS]
        assert [each[1] for each in found if each[0] == "mutation"] == [3, 4, 5, 6]


@contextmanager
def ending(desk: StreamDesk) -> Iterator[StreamDesk]:
    try:
        yield desk
    finally:
        desk.close()


class StreamingVersions(Streaming):
    """The same as `Streaming`, of a consumer that asks for every version, at a node that compacts.

    In a snapshot of every version no seqno is left out: each is a change here. In any other one a key comes once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flags = [0] * VBUCKETS

    @initialize(window=st.sampled_from([0, 1, 150, 4000]))
    def connect(self, window: int) -> None:
        super().connect(window)
        assert self.reader.control("change_streams", "true") == 0

    @rule(keep=st.integers(0, 4))
    def compact(self, keep: int) -> None:
        self.desk.commit()
        compact(self.desk.store, history_rows=keep)

    def receive_marker(self, held: Held, marker: dcp.SnapshotMarker) -> None:
        super().receive_marker(held, marker)
        self.flags[marker.vbucket] = marker.flags
        assert marker.flags & VERSIONS in (0, VERSIONS)
        assert marker.flags & SnapshotFlag.DISK or marker.flags & VERSIONS, (
            "a reader could not tell that some are missing"
        )

    def receive_change(self, vb: int, held: Held, frame: Frame) -> None:
        if self.flags[vb] & VERSIONS:
            assert int.from_bytes(frame.extras[:8]) == held.last + 1, "a version is missing"
            held.seen.clear()
        super().receive_change(vb, held, frame)


TestStreamingVersions = StreamingVersions.TestCase
TestStreamingVersions.settings = settings(stateful_step_count=40, deadline=None)
