from pathlib import Path

import pytest

from headwater.errors import DiskFull, RemoteProtocolError
from headwater.node.tap import consumer as module
from headwater.wire import dcp, tap
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import spoil
from tests.node.tap.support import TapClient, TapDesk, asks, captured
from tests.wire.test_vectors import VECTORS

ACK = tap.MessageFlag.ACK | tap.MessageFlag.NETWORK_BYTE_ORDER


@pytest.fixture
def client(desk: TapDesk) -> TapClient:
    desk.bucket.vbuckets[32].set_state(State.REPLICA)
    desk.commit()
    return TapClient(desk)


def give(client: TapClient, message: tap.Mutation | tap.Delete | tap.Opaque | tap.VbucketSet | tap.Flush) -> list[int]:
    """The statuses of what is answered."""
    client.give(message.encode())
    return [frame.status for frame in client.buffer.receive_data(client.bytes_sent())]


def test_a_recorded_feed_is_answered_as_a_real_server_did(desk: TapDesk, client: TapClient) -> None:
    requests = captured("16", "C>S")[1:8]  # the first lacks a revision: the recorded server hung up, tap.md takes it
    answers = captured("16", "S>C")[:6]
    for request in requests:
        client.give(request)
    assert client.bytes_sent() == b"".join(answers)
    desk.commit()
    assert desk.bucket.state(32) is State.ACTIVE
    tc2, tc3, tc1 = (desk.store.document(32, key) for key in (b"tc2", b"tc3", b"tc1"))
    assert tc2 is not None and (tc2.value, tc2.flags) == (b"tapval2", 0xCDAB0000)
    assert tc3 is not None and (tc3.value, tc3.flags) == (b"tapval3", 0x0000ABCD)
    assert tc1 is not None and tc1.deleted


@pytest.mark.parametrize("state", [State.ACTIVE, State.PENDING])
def test_what_was_in_flight_at_a_former_owner_is_over_when_a_vbucket_is_taken_over(
    desk: TapDesk, client: TapClient, state: State
) -> None:
    prepare = dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", cas=1 << 16)
    desk.bucket.vbuckets[32].prepares.add(prepare)
    give(client, tap.VbucketSet(vbucket=32, flags=ACK, engine_specific=state.to_bytes(4)))
    assert bool(desk.bucket.vbuckets[32].prepares.pending) is (state is State.PENDING)
    assert desk.store.document(32, b"k") is None


def test_a_replica_that_lacks_changes_is_not_taken_over_as_it_is(desk: TapDesk, client: TapClient) -> None:
    give(client, tap.Mutation(vbucket=32, key=b"a", value=b"1", flags=ACK))
    desk.bucket.vbuckets[32].miss(0)
    active = tap.VbucketSet(vbucket=32, flags=ACK, engine_specific=State.ACTIVE.to_bytes(4))
    assert give(client, active) == [Status.KEY_EEXISTS]
    assert desk.bucket.state(32) is State.REPLICA
    scratch = tap.Opaque(vbucket=32, flags=ACK, engine_specific=tap.OpaqueCode.INITIAL_VBUCKET_STREAM.to_bytes(4))
    assert give(client, scratch) == give(client, active) == [0]
    assert desk.bucket.state(32) is State.ACTIVE


def test_a_replica_whose_disk_lost_changes_is_not_taken_over(desk: TapDesk, client: TapClient) -> None:
    """Its owner becomes dead behind this, and may be deleted, though it alone has them."""
    give(client, tap.Mutation(vbucket=32, key=b"a", value=b"1", flags=ACK))
    desk.commit()
    spoil(desk)
    active = tap.VbucketSet(vbucket=32, flags=ACK, engine_specific=State.ACTIVE.to_bytes(4))
    assert give(client, active) == [Status.KEY_EEXISTS]
    assert desk.bucket.state(32) is State.REPLICA


def test_the_member_learns_that_a_feed_has_set_a_state(desk: TapDesk, client: TapClient) -> None:
    learned: list[int] = []
    desk.membership.state_set = learned.append  # type: ignore[method-assign]
    for state in (State.PENDING, State.ACTIVE):
        assert give(client, tap.VbucketSet(vbucket=32, flags=ACK, engine_specific=state.to_bytes(4))) == [0]
    assert learned == [32, 32]
    assert desk.recorded[-2:] == ["set vbucket 32 pending", "set vbucket 32 active"]


def test_a_document_keeps_its_cas_revision_flags_and_expiry(desk: TapDesk, client: TapClient) -> None:
    message = tap.Mutation(
        vbucket=32,
        key=b"k",
        value=b"v",
        cas=77,
        flags=ACK,
        item_flags=5,
        item_expiration=2_000_000_000,
        engine_specific=tap.revision(9, 0),
    )
    assert give(client, message) == [Status.SUCCESS]
    found = desk.store.document(32, b"k")
    assert found is not None
    assert (found.cas, found.rev_seqno, found.flags, found.expiry) == (77, 9, 5, 2_000_000_000)


def test_data_for_an_active_vbucket_is_refused(client: TapClient) -> None:
    assert give(client, tap.Mutation(vbucket=1, key=b"k", flags=ACK)) == [Status.NOT_MY_VBUCKET]


def test_a_message_that_went_round_is_not_applied(desk: TapDesk, client: TapClient) -> None:
    assert give(client, tap.Mutation(vbucket=32, key=b"k", flags=ACK, ttl=0)) == [Status.EINVAL]
    assert desk.store.document(32, b"k") is None


def test_a_key_without_its_value_is_no_document(client: TapClient) -> None:
    flags = ACK | tap.MessageFlag.NO_VALUE
    assert give(client, tap.Mutation(vbucket=32, key=b"k", flags=flags)) == [Status.EINVAL]


def test_an_error_nobody_asked_for_is_told_only_after_opaque_0(client: TapClient) -> None:
    wrong = tap.Mutation(vbucket=1, key=b"k")
    with pytest.raises(RemoteProtocolError, match="asked for no answer"):
        give(client, wrong)
    assert give(client, tap.Opaque(engine_specific=bytes(4))) == []
    assert give(client, wrong) == [Status.NOT_MY_VBUCKET]


@pytest.mark.parametrize("answers_errors", [False, True])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_change_that_the_store_refuses_is_an_error_like_any_other(
    desk: TapDesk, client: TapClient, monkeypatch: pytest.MonkeyPatch, answers_errors: bool, is_full: bool
) -> None:
    """A producer that waits for no answers would go on, and the copy would lack the change without a word."""
    give(client, tap.Mutation(vbucket=32, key=b"k", value=b"v", flags=ACK))
    desk.commit()
    if is_full:

        def refuse(*_: object) -> None:
            raise DiskFull(desk.store.path, 1 << 20)

        monkeypatch.setattr(module, "stage", refuse)
    else:
        spoil(desk)
    change = tap.Delete(vbucket=32, key=b"k")
    if answers_errors:
        give(client, tap.Opaque(engine_specific=bytes(4)))
        assert give(client, change) == [Status.ETMPFAIL if is_full else Status.EINTERNAL]
    else:
        with pytest.raises(RemoteProtocolError, match="asked for no answer"):
            give(client, change)


def test_from_scratch_means_a_new_vbucket_with_a_history_of_its_own(desk: TapDesk, client: TapClient) -> None:
    give(client, tap.Mutation(vbucket=32, key=b"old", value=b"v"))
    desk.commit()
    before = desk.bucket.vbuckets[32].failover.newest.vb_uuid
    assert give(client, tap.Opaque(vbucket=32, flags=ACK, engine_specific=(1).to_bytes(4))) == [0]
    made = desk.bucket.vbuckets[32]
    assert (made.state, made.high_seqno) == (State.REPLICA, 0)
    assert made.failover.newest.vb_uuid != before
    assert desk.store.document(32, b"old") is None


def test_a_flush_drops_the_vbuckets_of_the_stream_and_no_others(desk: TapDesk, client: TapClient) -> None:
    desk.set(3, "mine")
    give(client, tap.Mutation(vbucket=32, key=b"k", value=b"v"))
    assert give(client, tap.Flush(flags=ACK)) == [0]
    assert desk.store.document(32, b"k") is None
    assert desk.store.document(3, b"mine") is not None


@pytest.mark.parametrize("from_scratch", [False, True])
def test_a_vbucket_without_room_to_be_made_anew_stays_until_there_is_room(
    desk: TapDesk, client: TapClient, from_scratch: bool
) -> None:
    """The message is repeated then, and a vbucket that was only dropped by the first try would be missing."""
    give(client, tap.Mutation(vbucket=32, key=b"k", value=b"v"))
    desk.commit()
    desk.set(3, "other")
    batch = desk.store.freeze()
    assert batch is not None
    desk.store.staging._room = 100  # enough for a drop, and not for the record behind it
    code = tap.code_or_state(tap.OpaqueCode.INITIAL_VBUCKET_STREAM)
    anew = tap.Opaque(vbucket=32, flags=ACK, engine_specific=code) if from_scratch else tap.Flush(flags=ACK)
    request = anew.encode()
    assert client.give(request) == 0 and desk.bucket.state(32) is State.REPLICA
    desk.store.write(batch)
    desk.store.settle(batch)
    desk.commit()
    assert client.give(request) == len(request)
    assert [frame.status for frame in client.buffer.receive_data(client.bytes_sent())] == [0]
    assert (desk.bucket.state(32), desk.bucket.vbuckets[32].high_seqno) == (State.REPLICA, 0)
    assert desk.store.document(32, b"k") is None


def test_a_flush_leaves_alone_what_was_taken_over_on_the_same_connection(desk: TapDesk, client: TapClient) -> None:
    """The feed goes on for other vbuckets; clients may have written to this one here since."""
    give(client, tap.Mutation(vbucket=32, key=b"k", value=b"v"))
    assert give(client, tap.VbucketSet(vbucket=32, flags=ACK, engine_specific=State.ACTIVE.to_bytes(4))) == [0]
    desk.set(32, "acknowledged")
    assert give(client, tap.Flush(flags=ACK)) == [0]
    assert desk.store.document(32, b"acknowledged") is not None and desk.store.document(32, b"k") is not None


def test_becoming_active_by_tap_begins_a_new_branch(desk: TapDesk, client: TapClient) -> None:
    entries = len(desk.bucket.vbuckets[32].failover.entries)
    give(client, tap.Mutation(vbucket=32, key=b"k", value=b"v"))
    assert give(client, tap.VbucketSet(vbucket=32, flags=ACK, engine_specific=(1).to_bytes(4))) == [0]
    assert len(desk.bucket.vbuckets[32].failover.entries) == entries + 1


def test_a_state_that_is_none_is_refused(client: TapClient) -> None:
    assert give(client, tap.VbucketSet(vbucket=32, flags=ACK, engine_specific=(9).to_bytes(4))) == [Status.EINVAL]


def test_deleting_what_is_not_there_is_no_error(desk: TapDesk, client: TapClient) -> None:
    assert give(client, tap.Delete(vbucket=32, key=b"k", flags=ACK)) == [0]
    assert desk.store.document(32, b"k") is None


def test_a_malformed_message_is_refused(client: TapClient) -> None:
    client.give(Frame(0x80, 0x42, b"k", bytes.fromhex("00ff0001ff000000"), vbucket=32).encode())
    (answer,) = client.buffer.receive_data(client.bytes_sent())
    assert answer.status == Status.EINVAL


@pytest.mark.parametrize(
    "vector",
    [
        vector
        for vector in VECTORS
        if vector["dialect"] == "tap" and vector["direction"] == "server->client" and "printed" not in vector["name"]
    ],
    ids=lambda vector: str(vector["name"]),
)
def test_every_published_message_is_taken_and_answered_if_it_asks(tmp_path: Path, vector: dict[str, str]) -> None:
    desk = TapDesk(tmp_path / "store", vbuckets=1024)
    try:
        frame = Frame.decode(bytes.fromhex(vector["hex"]))
        desk.bucket.vbuckets[frame.vbucket].set_state(State.REPLICA)
        client = TapClient(desk)
        client.give(frame.encode())
        answers = client.buffer.receive_data(client.bytes_sent())
    finally:
        desk.close()
    expected = [(0, frame.opaque)] if asks(frame) or frame.opcode == Opcode.NOOP else []
    assert [(answer.status, answer.opaque) for answer in answers] == expected


def checkpoint(client: TapClient, kind: type[tap.CheckpointStart], number: int) -> list[int]:
    return give(client, kind(vbucket=32, flags=ACK, item_flags=0, item_expiration=0, checkpoint_id=number))


def test_a_checkpoint_that_is_whole_is_kept_and_can_be_asked_for(desk: TapDesk, client: TapClient) -> None:
    assert checkpoint(client, tap.CheckpointStart, 7) == [0]
    assert desk.bucket.vbuckets[32].checkpoint == 0
    assert checkpoint(client, tap.CheckpointEnd, 7) == [0]
    desk.commit()
    record = desk.store.staging.records.get(32)
    assert record is not None and record.checkpoint == 7


def test_a_checkpoint_before_the_one_that_is_whole_is_refused(client: TapClient) -> None:
    checkpoint(client, tap.CheckpointEnd, 7)
    assert checkpoint(client, tap.CheckpointStart, 7) == [0]  # its answer was lost: it comes again
    assert checkpoint(client, tap.CheckpointStart, 6) == [Status.EINVAL]


def test_from_scratch_and_becoming_active_forget_the_checkpoint(desk: TapDesk, client: TapClient) -> None:
    checkpoint(client, tap.CheckpointEnd, 7)
    give(client, tap.Opaque(vbucket=32, flags=ACK, engine_specific=(1).to_bytes(4)))
    assert desk.bucket.vbuckets[32].checkpoint == 0
    checkpoint(client, tap.CheckpointEnd, 8)
    give(client, tap.VbucketSet(vbucket=32, flags=ACK, engine_specific=(1).to_bytes(4)))
    assert desk.bucket.vbuckets[32].checkpoint == 0


def test_the_highest_deleted_revision_of_the_producer_is_known_here_too(desk: TapDesk, client: TapClient) -> None:
    """New keys start above it once the vbucket is active here; it is on disk with the vbucket's record."""
    told = {"item_flags": 0, "item_expiration": 0, "checkpoint_id": 7}
    start = tap.CheckpointStart(vbucket=32, flags=ACK, engine_specific=tap.revision(9), **told)
    assert give(client, start) == [0]
    assert desk.bucket.vbuckets[32].deleted_rev == 9
    desk.commit()
    record = desk.store.staging.records.get(32)
    assert record is not None and record.deleted_rev == 9
    assert checkpoint(client, tap.CheckpointStart, 7) == [0]  # one that tells none
    assert desk.bucket.vbuckets[32].deleted_rev == 9
