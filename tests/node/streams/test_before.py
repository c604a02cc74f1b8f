"""The version that each change replaced, sent in front of it (control headwater_before; decision 0158)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from headwater.node.vbucket.prepares import key_of
from headwater.wire import dcp, xattr
from headwater.wire.dcp import BeforeState, seqno_of
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.storage.model import compact
from tests.node.streams.support import COLLECTIONS, Producer, StreamDesk, spoil, told
from tests.node.streams.test_machine import Held
from tests.node.streams.test_versions import (
    DISK,
    FIRST,
    MEMORY,
    VERSIONS,
    StreamingVersions,
    ending,
    overwrite,
    prepare,
    uuid,
)
from tests.node.support import NOON


def asking(desk: StreamDesk, flags: int = 0x21, features: tuple[int, ...] = (0x07, 0x08)) -> Producer:
    """A client that wants what each change replaced."""
    reader = Producer(desk, flags=flags, features=features)
    assert reader.control("change_streams", "true") == 0
    assert reader.control("headwater_before", "true") == 0
    return reader


def befores(frames: list[Frame]) -> list[tuple[object, ...]]:
    """(seqno of the change, state, seqno of what it replaced, its value) of each change."""
    return [each[1:] for each in told(frames) if each[0] == "before"]


def test_a_change_comes_behind_what_it_replaced_byte_for_byte(desk: StreamDesk) -> None:
    desk.set(0, "k", b"old")
    desk.set(0, "k", b"new")
    desk.commit()
    first, second = (desk.store.view(0, 0, end) for end in (1, 2))
    cas = [int.from_bytes(view.next_frame()[16:24]) for view in (first, second)]
    first.close()
    second.close()
    reader = asking(desk)
    reader.stream()
    marker, none, create, version, update = (frame.encode().hex() for frame in reader.read())
    assert none == (
        "806f000021000000" "00000021" "00000007" "0000000000000000"
        "0000000000000001" "0000000000000000" "0000000000000000" "00000000" "00000000" "02"
    )  # fmt: skip
    assert version == (
        "806f000021000000" "00000024" "00000007" f"{cas[0]:016x}"
        "0000000000000002" "0000000000000001" "0000000000000001" "00000000" "00000000" "01" "6f6c64"
    )  # fmt: skip
    assert create[2:4] == update[2:4] == "57" and marker[2:4] == "56"


def test_a_create_an_update_a_deletion_and_an_expiration_say_what_was_there(desk: StreamDesk) -> None:
    desk.set(0, "k", b"1")
    desk.set(0, "k", b"2")
    desk.delete(0, "k")
    desk.set(0, "k", b"4")
    desk.delete(0, "k", expired=True)
    desk.delete(0, "k")
    desk.commit()
    reader = asking(desk)
    assert reader.control("enable_expiry_opcode", "true") == 0
    reader.stream()
    assert told(reader.read()) == [
        ("marker", 0, 6, DISK | VERSIONS),
        ("before", 1, "NONE", 0, b""),
        ("mutation", 1, "k"),
        ("before", 2, "VERSION", 1, b"1"),
        ("mutation", 2, "k"),
        ("before", 3, "VERSION", 2, b"2"),
        ("deletion", 3, "k"),
        ("before", 4, "NONE", 0, b""),
        ("mutation", 4, "k"),
        ("before", 5, "VERSION", 4, b"4"),
        ("expiration", 5, "k"),
        ("before", 6, "NONE", 0, b""),
        ("deletion", 6, "k"),
    ]


def test_live_changes_say_so_too(desk: StreamDesk) -> None:
    overwrite(desk, "ab")
    reader = asking(desk)
    reader.stream()
    reader.read()
    overwrite(desk, "ac")
    assert told(reader.read()) == [
        ("marker", 2, 4, FIRST | VERSIONS),
        ("before", 3, "VERSION", 1, b"value"),
        ("mutation", 3, "a"),
        ("before", 4, "NONE", 0, b""),
        ("mutation", 4, "c"),
    ]
    overwrite(desk, "c")
    found = told(reader.read())
    assert found[0] == ("marker", 4, 5, MEMORY | VERSIONS) and found[1][:4] == ("before", 5, "VERSION", 4)


def test_who_did_not_ask_sees_nothing_of_it(desk: StreamDesk) -> None:
    overwrite(desk, "aab")
    for asks_versions in (False, True):
        reader = Producer(desk, f"plain {asks_versions}")
        if asks_versions:
            assert reader.control("change_streams", "true") == 0
        reader.stream()
        assert not befores(reader.read())
        overwrite(desk, "ab")
        assert not befores(reader.read())


@pytest.mark.parametrize("value", ["false", "1"])
def test_the_control_takes_nothing_but_true_behind_change_streams(desk: StreamDesk, value: str) -> None:
    reader = Producer(desk)
    assert reader.control("headwater_before", "true") == Status.EINVAL
    assert reader.control("change_streams", "true") == 0
    assert reader.control("headwater_before", value) == Status.EINVAL
    assert reader.control("headwater_before", "true") == 0


def test_it_excludes_prepares_in_either_order(desk: StreamDesk) -> None:
    """The commit that a replica gets stands for a document it holds already."""
    assert asking(desk).control("enable_sync_writes", "true") == Status.NOT_SUPPORTED
    replica = Producer(desk, "replica")
    assert replica.control("enable_sync_writes", "true") == 0
    assert replica.control("change_streams", "true") == 0
    assert replica.control("headwater_before", "true") == Status.NOT_SUPPORTED


def test_what_compaction_took_is_not_kept_and_behind_it_all_is_known(desk: StreamDesk) -> None:
    """Of `a` the version in front of 3 is gone: that 1 is the newest that a row knows of must not be believed."""
    overwrite(desk, "aab")
    desk.delete(0, "b")
    desk.commit()
    compact(desk.store)
    overwrite(desk, "abc")
    reader = asking(desk)
    reader.stream()
    assert befores(reader.read()) == [
        (2, "NOT_KEPT", 0, b""),
        (4, "NOT_KEPT", 0, b""),
        (5, "VERSION", 2, b"value"),
        (6, "NONE", 0, b""),
        (7, "NONE", 0, b""),
    ]


def test_a_compaction_between_two_versions_leaves_no_older_one_in_their_place(desk: StreamDesk) -> None:
    overwrite(desk, "aaaaaa")
    compact(desk.store, history_rows=3)
    reader = asking(desk)
    reader.stream()
    assert befores(reader.read()) == [
        (3, "NOT_KEPT", 0, b""),
        *((seqno, "VERSION", seqno - 1, b"value") for seqno in (4, 5, 6)),
    ]


def test_a_slow_reader_gets_from_its_view_what_a_compaction_has_removed(desk: StreamDesk) -> None:
    for value in (b"1" * 3000, b"2" * 3000, b"3" * 3000):
        desk.set(0, "a", value)
    desk.commit()
    reader = asking(desk)
    assert reader.control("connection_buffer_size", "1000") == 0
    reader.stream()
    seen = befores(reader.read())
    compact(desk.store)
    for _ in range(8):
        reader.ack(4000)
        seen += befores(reader.read())
    assert [each[:3] for each in seen] == [(1, "NONE", 0), (2, "VERSION", 1), (3, "VERSION", 2)]
    assert [each[3] for each in seen] == [b"", b"1" * 3000, b"2" * 3000]


def test_flow_control_counts_the_bytes_of_both(desk: StreamDesk) -> None:
    overwrite(desk, "aaa")
    reader = asking(desk)
    assert reader.control("connection_buffer_size", "100000") == 0
    reader.stream()
    counted = sum(len(frame.encode()) for frame in reader.read())
    assert reader.session.producer.flow.outstanding_bytes == counted


def test_a_window_never_parts_a_change_from_what_it_replaced(desk: StreamDesk) -> None:
    overwrite(desk, "aab")
    reader = asking(desk)
    assert reader.control("connection_buffer_size", "1") == 0
    reader.stream()
    kinds = []
    while more := reader.read():
        kinds.append([each[0] for each in told(more)])
        reader.ack(sum(len(frame.encode()) for frame in more))
    assert kinds == [["marker"], *[["before", "mutation"]] * 3]


def test_values_that_do_not_fit_into_the_arena_come_whole(desk: StreamDesk) -> None:
    large = bytes(range(256)) * 4000
    desk.set(0, "k", large)
    desk.set(0, "k", b"small")
    desk.set(0, "k", large)
    desk.commit()
    reader = asking(desk)
    reader.stream()
    frames = reader.read()
    assert befores(frames) == [(1, "NONE", 0, b""), (2, "VERSION", 1, large), (3, "VERSION", 2, b"small")]
    assert [each[1] for each in told(frames) if each[0] == "mutation"] == [1, 2, 3]


def test_the_value_comes_in_the_form_of_the_connection(desk: StreamDesk) -> None:
    """Without values, without attributes, inflated: as the document itself would have come."""
    attributes = xattr.join({"_s": b'{"a":1}'})
    desk.set(0, "k", attributes + b'{"b":2}', datatype=5)
    desk.set(0, "k", b"x", datatype=0)
    desk.commit()
    for flags, value, datatype in ((0x21, b'{"b":2}', 1), (0x25, attributes + b'{"b":2}', 5), (0x29, b"", 0)):
        reader = asking(desk, flags, (0x06, 0x07, 0x08, 0x0B))
        assert reader.control("enable_noop", "true") == 0
        reader.stream()
        (frame,) = (frame for frame in reader.read() if frame.opcode == Opcode.DCP_BEFORE and frame.cas)
        assert (frame.value, frame.datatype) == (value, datatype)
        reader.close_stream()


def test_a_value_that_can_not_be_inflated_counts_as_not_kept(desk: StreamDesk) -> None:
    """The change that replaced it can be read, so the stream goes on."""
    desk.set(0, "k", b"\xff\xff\xff", datatype=2)
    desk.set(0, "k", b"x")
    desk.commit()
    reader = asking(desk)
    reader.stream(start_seqno=1, vb_uuid=uuid(desk))
    assert befores(reader.read()) == [(2, "NOT_KEPT", 0, b"")]


def test_messages_of_streams_with_ids_have_them(desk: StreamDesk) -> None:
    overwrite(desk, "aa")
    reader = asking(desk, features=(0x07, 0x08, COLLECTIONS))
    assert reader.control("enable_stream_id", "true") == 0
    reader.stream(value=b'{"sid":5}')
    frames = reader.read()
    assert {frame.framing.hex() for frame in frames} == {"220005"}
    assert [before[1] for before in befores(frames)] == ["NONE", "VERSION"]


def test_a_collection_that_was_dropped_and_made_again_begins_with_nothing(desk: StreamDesk) -> None:
    desk.become(0, 1, orders=8)
    desk.set(0, "k", collection=8)
    desk.commit()
    desk.become(0, 2)
    desk.become(0, 3, orders=9)
    desk.set(0, "k", collection=9)
    desk.set(0, "k")
    desk.commit()
    reader = asking(desk, features=(0x07, 0x08, COLLECTIONS))
    reader.stream(value=b'{"uid":"0"}')
    assert {before[1] for before in befores(reader.read())} == {"NONE"}


def test_of_a_collection_without_a_history_what_was_merged_is_not_kept_and_of_others_all_is(desk: StreamDesk) -> None:
    """Of `carts` (9) the reader was not shown 5 and 7, which 7 and 9 replaced; the state that it holds at 10 it was."""
    desk.become(0, 1, ["carts"], orders=8, carts=9)  # seqnos 1 to 3
    for _ in range(3):
        desk.set(0, "k", collection=8)
        desk.set(0, "k", collection=9)
    desk.delete(0, "k", collection=8)
    desk.commit()
    reader = asking(desk, features=(0x07, 0x08, COLLECTIONS))
    reader.stream(value=b'{"uid":"0"}')
    assert [before[:3] for before in befores(reader.read())] == [
        (4, "NONE", 0),
        (6, "VERSION", 4),
        (8, "VERSION", 6),
        (9, "NOT_KEPT", 0),
        (10, "VERSION", 8),
    ]
    desk.set(0, "k", collection=9)
    desk.set(0, "k", collection=8)
    desk.set(0, "new", collection=9)
    desk.commit()
    assert [before[:3] for before in befores(reader.read())] == [(11, "VERSION", 9), (12, "NONE", 0), (13, "NONE", 0)]


def test_inside_of_a_snapshot_what_was_left_out_in_front_of_the_reader_is_not_kept(desk: StreamDesk) -> None:
    """The reader holds everything up to 6 of a snapshot up to 8, so 5 of `carts`, which 8 replaced, was left out."""
    desk.become(0, 1, ["carts"], orders=8, carts=9)
    for collection in (9, 9, 8, 8, 9):
        desk.set(0, "k", collection=collection)
    desk.commit()
    for start, state in ((3, "NOT_KEPT"), (6, "VERSION")):
        reader = asking(desk, features=(0x07, 0x08, COLLECTIONS))
        position = {"start_seqno": 6, "snap_start_seqno": start, "snap_end_seqno": 8, "vb_uuid": uuid(desk)}
        reader.stream(value=b'{"uid":"0"}', **position)
        assert [before[:2] for before in befores(reader.read())] == [(7, "VERSION"), (8, state)]
        reader.close_stream()


def test_values_with_attributes_of_a_collection_without_a_history_say_the_same(desk: StreamDesk) -> None:
    """Python encodes these one by one, without the kernel that gathers the others."""
    desk.become(0, 1, ["carts"], orders=8, carts=9)
    value = xattr.join({"_s": b'{"a":1}'}) + b"x"
    for collection in (8, 9, 8, 9):
        desk.set(0, "k", value, datatype=4, collection=collection)
    desk.commit()
    reader = asking(desk, features=(0x07, 0x08, COLLECTIONS))
    reader.stream(value=b'{"uid":"0"}')
    assert [before[:3] for before in befores(reader.read())] == [(4, "NONE", 0), (6, "VERSION", 4), (7, "NOT_KEPT", 0)]


def test_a_durable_write_replaces_the_version_that_was_committed_before(desk: StreamDesk) -> None:
    prepares = desk.bucket.vbuckets[0].prepares
    desk.set(0, "a", b"0")
    for _ in range(2):
        prepare(desk, "a")
        prepares.commit(key_of(b"\0a"), NOON)
    prepare(desk, "a")
    prepares.abort(key_of(b"\0a"), NOON)
    desk.set(0, "a", b"last")
    desk.commit()
    reader = asking(desk)
    reader.stream()
    seen = befores(reader.read())
    assert [(state, before) for _, state, before, _ in seen] == [
        ("NONE", 0),
        ("VERSION", 1),
        ("VERSION", seen[1][0]),
        ("VERSION", seen[2][0]),
    ]
    assert [value for *_, value in seen] == [b"", b"0", b"p", b"p"]


def test_what_a_copy_did_not_get_is_not_kept_where_it_owns_the_vbucket(desk: StreamDesk) -> None:
    """Of the versions between 2 and 4 it has none: 2 is not what 4 replaced."""
    vbucket = desk.bucket.vbuckets[0]
    vbucket.set_state(State.REPLICA)
    vbucket.begin_snapshot(0, 2)
    desk.set(0, "a", seqno=2)
    vbucket.begin_snapshot(2, 4)
    desk.set(0, "a", seqno=4)
    vbucket.begin_snapshot(4, 6, has_versions=True)
    for seqno in (5, 6):
        desk.set(0, "a", seqno=seqno)
    vbucket.set_state(State.ACTIVE)
    desk.commit()
    overwrite(desk, "a")
    reader = asking(desk)
    reader.stream()
    assert [before[:3] for before in befores(reader.read())] == [
        (4, "NOT_KEPT", 0),
        (5, "VERSION", 4),
        (6, "VERSION", 5),
        (7, "VERSION", 6),
    ]


def test_what_was_rolled_back_was_never_replaced(desk: StreamDesk) -> None:
    overwrite(desk, "aa")
    desk.set(0, "a", b"gone")
    desk.commit()
    assert desk.bucket.vbuckets[0].roll_back(2) == 2
    desk.commit()
    overwrite(desk, "a")
    reader = asking(desk)
    reader.stream()
    assert befores(reader.read())[-1] == (3, "VERSION", 2, b"value")


def test_a_version_that_was_damaged_is_not_kept(desk: StreamDesk) -> None:
    """Its key is found no more, so a key that is not found may be a lost one."""
    overwrite(desk, "b")
    desk.set(0, "a", b"lost")
    desk.commit()
    spoil(desk)
    overwrite(desk, "bcc")
    reader = asking(desk)
    reader.stream(start_seqno=2, vb_uuid=uuid(desk))
    assert befores(reader.read()) == [
        (3, "VERSION", 1, b"value"),
        (4, "NOT_KEPT", 0, b""),
        (5, "VERSION", 4, b"value"),
    ]


def test_a_version_whose_damage_shows_when_it_was_replaced_already_is_not_kept(desk: StreamDesk) -> None:
    desk.set(0, "a", b"lost")
    desk.commit()
    lost = desk.store.log.segments[-1].end - 1
    overwrite(desk, "a")
    segment = desk.store.log.segments[-1]
    with segment.path.open("r+b") as file:
        file.seek(lost)
        file.write(b"\xff")
    for found in desk.store.scrub(1 << 20):
        if not isinstance(found, int):
            desk.bucket.take_out(found)
    reader = asking(desk)
    reader.stream(start_seqno=1, vb_uuid=uuid(desk))
    assert befores(reader.read()) == [(2, "NOT_KEPT", 0, b"")]


def test_a_first_backfill_without_deletions_can_not_tell(desk: StreamDesk) -> None:
    overwrite(desk, "aab")
    desk.delete(0, "b")
    desk.commit()
    reader = asking(desk, flags=0x221)
    reader.stream()
    assert told(reader.read()) == [
        ("marker", 0, 4, DISK),
        ("before", 2, "NOT_KEPT", 0, b""),
        ("mutation", 2, "a"),
        ("before", 4, "NOT_KEPT", 0, b""),
        ("deletion", 4, "b"),
    ]


def test_a_restart_keeps_what_was_replaced(tmp_path: Path) -> None:
    desk = StreamDesk(tmp_path / "store")
    overwrite(desk, "aaaaaa")
    compact(desk.store, history_rows=3)
    desk.close()
    again = StreamDesk(tmp_path / "store")
    with ending(again):
        overwrite(again, "a")
        reader = asking(again)
        reader.stream()
        assert [before[:3] for before in befores(reader.read())] == [
            (3, "NOT_KEPT", 0),
            *((seqno, "VERSION", seqno - 1) for seqno in (4, 5, 6, 7)),
        ]


class StreamingBefores(StreamingVersions):
    """The same as `StreamingVersions`, of a consumer that wants what each change replaced: the version of the same key
    with the highest seqno below, none, or that this is not kept, and that only where versions are missing."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dcp.Before | None = None

    @initialize(window=st.sampled_from([0, 1, 150, 4000]))
    def connect(self, window: int) -> None:
        super().connect(window)
        assert self.reader.control("headwater_before", "true") == 0

    def receive(self, frame: Frame) -> None:
        if frame.opcode == Opcode.DCP_BEFORE:
            assert self.before is None and frame.opaque == self.held[frame.vbucket].opaque
            self.unacked += len(frame) if self.window else 0
            self.before = dcp.Before.decode(frame)
            return
        super().receive(frame)
        assert self.before is None, "it stands alone"

    def receive_change(self, vb: int, held: Held, frame: Frame) -> None:
        before, self.before = self.before, None
        assert before is not None and (before.vbucket, before.by_seqno) == (vb, seqno_of(frame.extras))
        if not self.flags[vb] & VERSIONS:
            assert before.state == BeforeState.NOT_KEPT
        else:
            older = enumerate(self.truth[vb][: before.by_seqno - 1], start=1)
            own = [(seqno, value) for seqno, (key, value) in older if key == frame.key.decode()]
            seqno, value = own[-1] if own else (0, None)
            expected = (BeforeState.NONE, 0, b"") if value is None else (BeforeState.VERSION, seqno, value)
            assert (before.state, before.before_seqno, before.value) == expected
        super().receive_change(vb, held, frame)


TestStreamingBefores = StreamingBefores.TestCase
TestStreamingBefores.settings = settings(stateful_step_count=40, deadline=None)
