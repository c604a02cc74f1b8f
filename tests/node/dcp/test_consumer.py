"""A connection on which this node consumes: who may follow, when answers leave, what ends it, and its statistics."""

from __future__ import annotations

import random

import pytest

from headwater.errors import StorageError
from headwater.kernels import index
from headwater.node.committer import FULL_DISK_SECONDS
from headwater.node.dcp.consumer import RECORDS_BYTES, ConsumerSession
from headwater.node.storage.staging import ArenaFull
from headwater.node.vbucket.prepares import Key
from headwater.node.vbucket.vbucket import VBucket
from headwater.protocol.dcp.consumer import Consumer
from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.negotiation import ConsumerSettings
from headwater.wire import dcp, snappy
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.dcp.test_intake import Fed
from tests.node.replication.test_machine import LOG, VB, Passive
from tests.node.streams.support import StreamDesk

pytestmark = pytest.mark.usefixtures("replica")


def session_of(talk: Passive) -> ConsumerSession:
    session: object = talk.connection.session
    assert isinstance(session, ConsumerSession)
    return session


def gates(talk: Passive) -> list[int]:
    """Behind which batch each piece waits that was sent since it was looked at."""
    found = [gate for _, gate in talk.connection.sent]
    talk.connection.sent.clear()
    return found


# --------------------------------------------------------------------------- who may follow


def add(talk: Passive, vb: int) -> list[tuple[int, int]]:
    """Opcode and status of what ADD_STREAM brings, controls left out."""
    answers = talk.say(dcp.AddStream(vbucket=vb, opaque=9, flags=0).frame())
    return [(answer.opcode, answer.status) for answer in answers if answer.opcode != Opcode.DCP_CONTROL]


@pytest.mark.parametrize("vb", [0, 9], ids=["active here", "not here"])
def test_what_is_active_or_not_here_follows_nobody(desk: StreamDesk, vb: int) -> None:
    assert add(Passive(desk), vb) == [(Opcode.DCP_ADD_STREAM, Status.NOT_MY_VBUCKET)]


def test_a_vbucket_follows_one_producer_whosever_connection_that_is(desk: StreamDesk) -> None:
    first, second = Fed(desk), Passive(desk, b"another mover")
    for talk in (first, second):
        assert add(talk, VB) == [(Opcode.DCP_ADD_STREAM, Status.KEY_EEXISTS)]


def test_when_the_connection_is_gone_the_vbucket_is_free_and_keeps_what_it_has(desk: StreamDesk) -> None:
    fed = Fed(desk)
    fed.announce(3, 1)
    fed.give(fed.changes(3))
    vbucket = desk.bucket.vbuckets[VB]
    fed.connection.drop("cut")
    assert vbucket.inbound is None and vbucket.high_seqno == 3
    assert desk.dcp.sessions == {}


# --------------------------------------------------------------------------- answers


def test_the_answer_to_a_mover_leaves_when_the_history_is_on_disk(desk: StreamDesk) -> None:
    fed = Passive(desk)
    desk.commit()
    fed.give(dcp.AddStream(vbucket=VB, opaque=5, flags=0).encode())
    answers = FrameBuffer().receive_data(fed.bytes_sent())
    while answers[0].opcode == Opcode.DCP_CONTROL:
        fed.give(Frame(0x81, Opcode.DCP_CONTROL, opaque=answers[0].opaque).encode())
        answers = FrameBuffer().receive_data(fed.bytes_sent())
    log = bytes.fromhex("0000000000000abc0000000000000000")
    fed.give(Frame(0x81, Opcode.DCP_STREAM_REQ, value=log, opaque=answers[0].opaque).encode())
    assert gates(fed) == [desk.bucket.vbuckets[VB].gate] and desk.bucket.vbuckets[VB].gate > desk.committer.durable


def test_a_snapshot_is_acknowledged_when_all_of_it_is_on_disk(desk: StreamDesk) -> None:
    fed = Fed(desk)
    desk.commit()
    fed.bytes_sent()
    asks = dcp.SnapshotMarker(vbucket=VB, opaque=fed.opaque, start_seqno=1, end_seqno=2, flags=1 | 8)
    fed.give(asks.encode())
    fed.give(fed.changes(1))
    assert gates(fed) == []
    fed.give(fed.changes(1))
    ((data, gate),) = fed.connection.sent
    assert gate > desk.committer.durable
    opcodes = [frame.opcode for frame in FrameBuffer().receive_data(data)]
    assert opcodes == [Opcode.DCP_SNAPSHOT_MARKER]


def test_a_state_is_answered_when_it_is_on_disk(desk: StreamDesk) -> None:
    fed = Fed(desk)
    desk.commit()
    fed.bytes_sent()
    fed.give(dcp.SetVbucketState(vbucket=VB, opaque=fed.opaque, state=State.PENDING).encode())
    assert desk.bucket.state(VB) is State.PENDING
    ((data, gate),) = fed.connection.sent
    assert gate > desk.committer.durable
    assert data.hex() == "815c".replace("5c", "5b") + f"00000000000000000000{fed.opaque:08x}" + "00" * 8


# --------------------------------------------------------------------------- no room


def test_without_room_in_the_batch_reading_stops_until_the_commit(
    desk: StreamDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(desk)
    monkeypatch.setattr(type(desk.store.staging), "_limit", desk.store.staging.room()[1] + RECORDS_BYTES)
    frame = dcp.SnapshotMarker(vbucket=VB, opaque=fed.opaque, start_seqno=1, end_seqno=2, flags=1).encode()
    assert fed.give(frame) == 0 and fed.connection.is_paused
    monkeypatch.undo()
    desk.commit()
    assert not fed.connection.is_paused and fed.give(frame) == len(frame)


@pytest.mark.parametrize("datatype", [0, 2], ids=["by the kernel", "one by one"])
@pytest.mark.parametrize("left", [0, 1 << 30], ids=["without room", "with room"])
def test_a_change_too_large_for_the_next_batch_is_made_room_for_or_the_disk_is_said_to_lack_it(
    desk: StreamDesk, monkeypatch: pytest.MonkeyPatch, datatype: int, left: int
) -> None:
    """Compaction is urgent then, although smaller changes are taken: else the replica would stand still for ever."""
    fed, disk = Fed(desk), desk.store.log._disk
    monkeypatch.setattr(disk, "free", lambda folder: left)
    fed.announce(1, 1)
    desk.commit()
    value = snappy.compress(random.Random(0).randbytes(16 << 20)) if datatype else bytes(16 << 20)
    change = dcp.Mutation(
        vbucket=VB, opaque=fed.opaque, cas=9, key=b"k", by_seqno=1, rev_seqno=1, value=value, datatype=datatype
    ).encode()
    assert len(change) > desk.store.staging.room()[0].nbytes
    assert fed.give(change) == (len(change) if left else 0)
    assert (desk.bucket.vbuckets[VB].high_seqno == 1) == (not desk.store.staging.lacks_room) == (left > 0)
    assert not desk.store.full


def test_a_full_disk_is_looked_at_again_and_again(desk: StreamDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, later = Fed(desk), []
    monkeypatch.setattr(type(desk.store), "full", True)
    monkeypatch.setattr(desk.time, "call_later", lambda *call: later.append(call), raising=False)
    session_of(fed)._wait_for_room()
    assert fed.connection.paused == {"full disk"}
    ((seconds, callback),) = later
    callback()
    assert seconds == FULL_DISK_SECONDS and not fed.connection.is_paused


# --------------------------------------------------------------------------- what ends it


def test_a_producer_that_is_silent_for_too_long_is_dropped(desk: StreamDesk) -> None:
    fed = Fed(desk)
    session = session_of(fed)
    assert session.deadline is not None
    while not fed.connection.is_closed:
        assert session.deadline < desk.time.now + 10_000
        desk.time.now = session.deadline
        session.tick(desk.time.now)
    assert "the producer has been silent for" in fed.connection.dropped
    assert desk.bucket.vbuckets[VB].inbound is None


def test_what_still_comes_for_a_vbucket_that_became_active_is_dropped(desk: StreamDesk) -> None:
    fed = Fed(desk)
    fed.announce(9, 1)
    fed.give(fed.changes(2))
    desk.bucket.vbuckets[VB].set_state(State.ACTIVE)
    assert session_of(fed).streams == {}
    fed.give(fed.changes(2))
    assert desk.store.index.high_seqno(VB) == 2 and not fed.connection.is_closed


def test_what_was_staged_and_lost_cuts_the_connection(desk: StreamDesk) -> None:
    fed = Fed(desk)
    session_of(fed).batch_lost(OSError("the disk is gone"))
    assert (
        fed.connection.dropped == "a batch could not be written: the disk is gone"
        and desk.bucket.vbuckets[VB].inbound is None
    )


class Listener:
    """Notes what a dialer would hear."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def stream_opened(self, vb: int) -> None:
        self.heard.append(("opened", vb))

    def stream_over(self, vb: int, event: object) -> None:
        self.heard.append(("over", vb, type(event).__name__))

    def connection_lost(self) -> None:
        self.heard.append("lost")


def called(desk: StreamDesk) -> tuple[Passive, ConsumerSession, Listener]:
    """A connection that this node opened itself."""
    talk, listener = Passive(desk), Listener()
    negotiated = Negotiated(connection_name="replication:a->b")
    consumer = Consumer(negotiated, ConsumerSettings(takes_movers=False), desk.time.now)
    session = ConsumerSession(talk.kv, desk.dcp, consumer, listener=listener)  # type: ignore[arg-type]
    talk.connection.session = session  # type: ignore[assignment]
    return talk, session, listener


def test_a_producer_that_this_node_called_may_not_ask_it_anything(desk: StreamDesk) -> None:
    talk, _, listener = called(desk)
    talk.give(Frame(0x80, Opcode.GET, b"key").encode())
    assert talk.connection.dropped == "opcode 0x00 came from a producer that this node called"
    assert listener.heard == ["lost"]


# --------------------------------------------------------------------------- statistics


def test_the_statistics_of_a_stream_are_its_numbers(desk: StreamDesk) -> None:
    fed = Fed(desk)
    fed.announce(9, 1)
    fed.give(fed.changes(4))
    found = dict(session_of(fed).stats())
    assert (found["type"], found["num_streams"], found["peer"]) == ("consumer", "1", "127.0.0.1:5")
    mine = {name.removeprefix(f"stream_{VB}_"): value for name, value in found.items() if name.startswith("stream_")}
    assert mine == {
        "state": "reading",
        "opaque": str(fed.opaque),
        "flags": "0x0",
        "last_received_seqno": "4",
        "cur_snapshot_start": "1",
        "cur_snapshot_end": "9",
        "rollbacks": "0",
    }


# --------------------------------------------------------------------------- durable writes


def prepared(fed: Fed, seqno: int, value: bytes = b"v") -> bytes:
    return dcp.Prepare(
        vbucket=VB,
        opaque=fed.opaque,
        cas=9,
        key=b"k",
        by_seqno=seqno,
        rev_seqno=1,
        durability_level=1,
        value=value,
    ).encode()


def committed(fed: Fed, prepared_seqno: int, seqno: int) -> bytes:
    return dcp.Commit(
        vbucket=VB, opaque=fed.opaque, key=b"k", prepared_seqno=prepared_seqno, commit_seqno=seqno
    ).encode()


def takes_durable_writes(fed: Fed) -> None:
    fed.session.consumer._live.takes_durable_writes = True


def test_a_prepare_that_can_not_be_stored_ends_the_connection_and_is_not_here(
    desk: StreamDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise StorageError("the manifest could not be written")

    fed = Fed(desk)
    takes_durable_writes(fed)
    fed.announce(1, 1)
    monkeypatch.setattr(desk.store.prepares, "announce", fails)
    fed.give(prepared(fed, 1))
    assert "the manifest could not be written" in fed.connection.dropped
    assert desk.bucket.vbuckets[VB].high_seqno == 0


def test_a_commit_waits_until_the_document_of_its_prepare_has_room(desk: StreamDesk) -> None:
    fed = Fed(desk)
    takes_durable_writes(fed)
    fed.announce(3, 1)
    fed.give(prepared(fed, 1, bytes(1 << 20)))
    arena, _ = desk.store.staging.room()
    while len(arena) - desk.store.staging.room()[1] > 1 << 20:
        desk.store.staging.mutation(0, b"other", bytes(900_000), cas=9, rev_seqno=1)
    frame = committed(fed, 1, 3)
    assert fed.give(frame) == 0 and fed.connection.is_paused
    desk.commit()
    assert fed.give(frame) == len(frame) and desk.bucket.vbuckets[VB].high_seqno == 3


def test_a_gap_that_had_no_room_to_be_closed_is_closed_when_the_next_stream_begins(
    desk: StreamDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other change may follow, and whoever takes the vbucket over would be refused for ever."""

    def full(_: VBucket) -> bool:
        raise ArenaFull(1)

    fed, vbucket = Fed(desk), desk.bucket.vbuckets[VB]
    fed.announce(9, 1)
    vbucket.miss(0, Key(0, b"k1"), 1)
    with monkeypatch.context() as patched:
        patched.setattr(VBucket, "close_gap", full)
        fed.give(fed.changes(1))
    assert vbucket.refused_changes == 1
    fed.connection.drop("cut")
    Fed(desk)
    assert vbucket.refused_changes == 0


def test_the_commit_of_a_prepare_that_never_came_is_refused_and_what_follows_the_prepare_fetched_again(
    desk: StreamDesk,
) -> None:
    fed = Fed(desk)
    takes_durable_writes(fed)
    fed.announce(2, 1)
    (answer,) = FrameBuffer().receive_data((fed.give(committed(fed, 1, 2)), fed.bytes_sent())[1])
    assert (answer.opcode, answer.status) == (Opcode.DCP_COMMIT, Status.KEY_ENOENT)
    assert desk.bucket.vbuckets[VB].refused_changes == 1  # a mover's stream does not begin again by itself


def asked_again(desk: StreamDesk, start_seqno: int = 2) -> tuple[Passive, dcp.StreamRequest]:
    """A mover's stream of a replica with four changes, one of which it refused: of what key, nobody knows."""
    fed, vbucket = Fed(desk), desk.bucket.vbuckets[VB]
    fed.announce(2, 1)
    fed.give(fed.changes(2))
    fed.announce(4, 1)
    fed.give(fed.changes(2))
    desk.commit()
    vbucket.miss(2)
    fed.connection.drop("cut")
    talk = Passive(desk)
    asked = talk.add_stream()
    begins = asked.start_seqno, asked.snap_start_seqno, asked.snap_end_seqno
    assert (*begins, asked.vb_uuid) == (start_seqno, start_seqno, start_seqno, LOG[0][0])
    return talk, asked


def test_what_lies_behind_a_gap_is_kept_when_the_producer_refuses_to_send_it_anew(desk: StreamDesk) -> None:
    talk, asked = asked_again(desk)
    status = Status.NOT_MY_VBUCKET
    talk.say(Frame(Magic.CLIENT_RESPONSE, Opcode.DCP_STREAM_REQ, vbucket=status, opaque=asked.opaque))
    found = desk.bucket.vbuckets[VB]
    assert (found.high_seqno, found.refused_changes, found.inbound) == (4, 1, None)


def test_what_lies_behind_a_gap_is_given_up_once_the_producer_sends_it_anew(desk: StreamDesk) -> None:
    talk, asked = asked_again(desk)
    talk.accept(asked)
    found = desk.bucket.vbuckets[VB]
    assert (found.high_seqno, found.refused_changes, talk.connection.dropped) == (2, 0, "")
    assert found.inbound is not None


def test_a_stream_that_begins_elsewhere_than_what_is_left_is_not_followed(desk: StreamDesk) -> None:
    """A compaction took the state before the gap away while the producer was asked."""
    talk, asked = asked_again(desk)
    desk.store.table[VB, index.FLOOR] = 3
    talk.accept(asked)
    assert "is not in the store any more" in str(talk.connection.dropped)
    assert (desk.bucket.vbuckets[VB].high_seqno, desk.bucket.vbuckets[VB].refused_changes) == (4, 1)
    assert Passive(desk).add_stream().start_seqno == 0  # the next stream begins where the store can go back to


def test_a_damaged_replica_gives_nothing_up_to_close_a_gap(desk: StreamDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback in part is impossible, and nobody takes over by it anyhow: all that it can still show would go."""
    monkeypatch.setattr(VBucket, "damaged_changes", 1)
    talk, asked = asked_again(desk, start_seqno=4)
    talk.accept(asked)
    assert (desk.bucket.vbuckets[VB].high_seqno, desk.bucket.vbuckets[VB].refused_changes) == (4, 1)


def test_a_producer_that_sends_a_replica_back_further_than_its_gap_is_obeyed(desk: StreamDesk) -> None:
    talk, asked = asked_again(desk)
    back = Frame(
        Magic.CLIENT_RESPONSE,
        Opcode.DCP_STREAM_REQ,
        vbucket=Status.ROLLBACK,
        opaque=asked.opaque,
        value=bytes(7) + b"\1",
    )
    (again,) = (dcp.StreamRequest.decode(frame) for frame in talk.say(back))
    found = desk.bucket.vbuckets[VB]
    assert (again.start_seqno, found.high_seqno, found.refused_changes) == (0, 0, 0)
    talk.accept(again)
    assert (found.high_seqno, talk.connection.dropped) == (0, "")


def takes_over(fed: Fed) -> int:
    fed.give(dcp.SetVbucketState(vbucket=VB, opaque=fed.opaque, state=State.ACTIVE).encode())
    assert fed.session.streams[VB].vbucket.state is State.ACTIVE
    return fed.session.streams[VB].vbucket.high_seqno


def test_nothing_that_a_former_owner_still_sends_changes_what_was_taken_over(desk: StreamDesk) -> None:
    """A marker opened the way for changes again, and a state made the vbucket a replica that nobody owned."""
    fed, vbucket = Fed(desk), desk.bucket.vbuckets[VB]
    fed.announce(1, 1)
    fed.give(fed.changes(1))
    takes_over(fed)
    fed.announce(2, 1)
    fed.give(fed.changes(1))
    assert (vbucket.high_seqno, vbucket.snapshot_end) == (1, 1)
    fed.give(dcp.SetVbucketState(vbucket=VB, opaque=fed.opaque, state=State.PENDING).encode())
    assert vbucket.state is State.ACTIVE
    takes_over(fed)  # said again, it is answered as before


def test_who_takes_over_by_a_stream_without_prepares_aborts_those_it_had_before(desk: StreamDesk) -> None:
    fed = Fed(desk)
    takes_durable_writes(fed)
    fed.announce(1, 1)
    fed.give(prepared(fed, 1))
    fed.session.consumer._live.takes_durable_writes = False  # as on the connection of a mover that does not know them
    assert takes_over(fed) == 2
    desk.commit()
    assert desk.store.prepares.waiting(VB) == [] and desk.store.document(VB, b"k") is None


def test_who_takes_over_by_a_stream_with_prepares_keeps_what_the_former_owner_did_not_end(desk: StreamDesk) -> None:
    fed = Fed(desk)
    takes_durable_writes(fed)
    fed.announce(1, 1)
    fed.give(prepared(fed, 1))
    assert takes_over(fed) == 1
    assert [each.by_seqno for each in desk.store.prepares.waiting(VB)] == [1]


def test_prepares_that_find_no_room_for_their_abort_are_aborted_with_the_next_batch(
    desk: StreamDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise ArenaFull(1)

    fed = Fed(desk)
    takes_durable_writes(fed)
    fed.announce(1, 1)
    fed.give(prepared(fed, 1))
    fed.session.consumer._live.takes_durable_writes = False
    monkeypatch.setattr(desk.store.prepares, "stage_abort", full)
    assert takes_over(fed) == 1
    monkeypatch.undo()
    desk.commit()
    assert desk.store.prepares.waiting(VB) == [] and desk.store.document(VB, b"k") is None
