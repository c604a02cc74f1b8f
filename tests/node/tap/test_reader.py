"""One vbucket of a session: what is sent of it, when, and how it changes hands."""

import pytest

from headwater.node.vbucket.prepares import Key
from headwater.protocol.tap.options import TapOptions
from headwater.wire import snappy, tap
from headwater.wire.header import Frame, response
from headwater.wire.manifest import CollectionsManifest, EventKind, ManifestEvent, Scope
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.tap.support import TapClient, TapDesk, is_data

FUTURE = 0xFFFF_FFFF_FFFF_FFFF


def keys(frames: list[Frame]) -> list[bytes]:
    return [tap.Mutation.decode(frame).key for frame in frames if is_data(frame)]


def refuse_the_second_of_three(desk: TapDesk) -> None:
    """The replica 0 has change 1, refused change 2, of key b, and took change 3."""
    replica = desk.bucket.vbuckets[0]
    replica.begin_snapshot(2, 3)
    replica.miss(1, Key(0, b"b"), 2)
    desk.bucket.store.staging.mutation(0, b"c", b"v", seqno=3, cas=3, rev_seqno=1)
    desk.commit()


def follow_a_replica(desk: TapDesk) -> TapClient:
    """Return a client that has change 1 of vbucket 0, which is a replica."""
    desk.set(0, "a")
    desk.bucket.vbuckets[0].set_state(State.REPLICA)
    desk.commit()
    client = TapClient(desk).connect(TapOptions(vbuckets=(0,)))
    assert keys(client.read()) == [b"a"]
    return client


def test_what_is_not_durable_is_not_sent(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(since=FUTURE))
    client.read()
    desk.set(0, "k")
    assert client.read() == []
    desk.commit()
    assert [frame.opcode for frame in client.read()] == [Opcode.TAP_MUTATION]


def test_a_takeover_leaves_the_vbucket_dead_here_and_active_there(desk: TapDesk) -> None:
    desk.set(5, "k")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(vbuckets=(5,), takeover=True, acknowledge=True))
    frames = client.read()
    states = [tap.VbucketSet.decode(frame).state for frame in frames if frame.opcode == Opcode.TAP_VBUCKET_SET]
    assert states == [State.PENDING, State.ACTIVE]
    assert desk.bucket.state(5) is State.DEAD
    assert client.connection.finished


def test_compressed_values_are_inflated_and_large_ones_go_whole(desk: TapDesk) -> None:
    desk.set(0, "small", snappy.compress(b"a" * 100), datatype=2)
    desk.set(0, "large", b"x" * (1 << 20))
    desk.commit()
    messages = [
        tap.Mutation.decode(item) for item in TapClient(desk).connect(TapOptions(dump=True)).read() if is_data(item)
    ]
    assert [(message.key, message.value, message.datatype) for message in messages] == [
        (b"small", b"a" * 100, 0),
        (b"large", b"x" * (1 << 20), 0),
    ]


def test_what_was_rolled_back_is_sent_from_scratch(desk: TapDesk) -> None:
    for key in ("a", "b"):
        desk.set(0, key)
        desk.commit()
    client = TapClient(desk).connect(TapOptions(vbuckets=(0,)))
    client.read()
    desk.bucket.vbuckets[0].roll_back(1)
    desk.commit()
    frames = client.read()
    assert tap.Opaque.decode(frames[0]).code == tap.OpaqueCode.INITIAL_VBUCKET_STREAM
    assert [tap.Mutation.decode(frame).key for frame in frames if is_data(frame)] == [b"a"]


def test_tombstones_stay_until_they_have_arrived(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True, vbuckets=(0,)))
    client.read(acknowledge=False)
    reader = desk.tap.feeds[b"me"].readers[0]
    assert reader.position == 0
    client.cut()
    TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True, vbuckets=(0,))).read()
    assert desk.tap.feeds[b"me"].readers[0].position == 1


def test_a_takeover_ends_when_a_collection_is_made_before_the_vbucket_is_handed_over(desk: TapDesk) -> None:
    desk.set(5, "k")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(vbuckets=(5,), takeover=True, acknowledge=True))
    carts = ManifestEvent(EventKind.CREATE_COLLECTION, 1, 0, 8, "carts")
    desk.bucket.vbuckets[5].collections.add(2, carts)
    client.read()
    assert desk.bucket.state(5) is State.ACTIVE
    assert "would leave _default.carts behind" in client.connection.dropped


def test_a_takeover_ends_when_another_node_may_own_the_vbucket_before_it_is_handed_over(desk: TapDesk) -> None:
    """The target would own it beside that one: a map gave it away, or this folder is a copy of a member's."""
    desk.set(5, "k")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(vbuckets=(5,), takeover=True, acknowledge=True))
    desk.bucket.fence([5])
    sent = client.read()
    assert State.ACTIVE not in [tap.VbucketSet.decode(each).state for each in sent if each.opcode == 0x45]
    assert desk.bucket.state(5) is State.ACTIVE
    assert "may belong to another node by now" in client.connection.dropped


@pytest.mark.parametrize("state", [State.REPLICA, State.DEAD])
def test_a_takeover_ends_when_the_vbucket_was_given_to_another_node_before_it_is_handed_over(
    desk: TapDesk, state: State
) -> None:
    """A map did so, and was obeyed: the target would own it beside that one."""
    desk.set(0, "k")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(vbuckets=(0,), takeover=True, acknowledge=True))
    desk.bucket.vbuckets[0].set_state(state)
    desk.commit()
    assert State.ACTIVE not in states_in(client.read())
    assert "another node may own it by now" in client.connection.dropped


@pytest.mark.parametrize("state", [State.REPLICA, State.ACTIVE])
def test_a_takeover_that_was_cut_ends_when_the_vbucket_is_not_as_it_left_it(desk: TapDesk, state: State) -> None:
    desk.set(0, "k")
    desk.commit()
    takeover = TapOptions(name=b"me", acknowledge=True, vbuckets=(0,), takeover=True)
    first = TapClient(desk).connect(takeover)
    while desk.bucket.state(0) is not State.DEAD:
        for frame in first.turn():
            first.give(response(frame).encode())
    first.cut()
    desk.bucket.vbuckets[0].set_state(state)
    desk.commit()
    again = TapClient(desk).connect(takeover)
    assert State.ACTIVE not in states_in(again.read())
    assert "another node may own it by now" in again.connection.dropped


def test_a_replica_is_taken_over_as_one(desk: TapDesk) -> None:
    follow_a_replica(desk)
    client = TapClient(desk).connect(TapOptions(vbuckets=(0,), takeover=True, acknowledge=True))
    assert states_in(client.read()) == [State.PENDING, State.ACTIVE]


def states_in(sent: list[Frame]) -> list[int]:
    return [tap.VbucketSet.decode(each).state for each in sent if each.opcode == Opcode.TAP_VBUCKET_SET]


def test_nothing_is_sent_behind_a_change_that_a_replica_refused_until_it_has_a_newer_version(desk: TapDesk) -> None:
    """The client would never hear of that change: TAP has no snapshots, and no position to go back to."""
    client, replica = follow_a_replica(desk), desk.bucket.vbuckets[0]
    refuse_the_second_of_three(desk)
    assert client.read() == []
    assert keys(TapClient(desk).connect(TapOptions(vbuckets=(0,))).read()) == [b"a"]
    replica.begin_snapshot(4, 4)
    desk.bucket.store.staging.mutation(0, b"b", b"newer", seqno=4, cas=4, rev_seqno=2)
    desk.commit()
    assert client.read() == [] and replica.close_gap()
    assert keys(client.read()) == [b"c", b"b"]


def test_a_replica_that_refused_changes_is_not_taken_over(desk: TapDesk) -> None:
    follow_a_replica(desk)
    refuse_the_second_of_three(desk)
    client = TapClient(desk).connect(TapOptions(vbuckets=(0,), takeover=True, acknowledge=True))
    sent = client.read()
    assert State.ACTIVE not in [tap.VbucketSet.decode(each).state for each in sent if each.opcode == 0x45]
    assert "refused 1 changes" in client.connection.dropped


def test_documents_of_a_default_collection_that_was_dropped_are_not_sent(desk: TapDesk) -> None:
    """The log has them until it is compacted; a takeover would bring them back to life."""
    desk.set(0, "k")
    desk.commit()
    desk.bucket.vbuckets[0].become(CollectionsManifest(1, (Scope(0, "_default", ()),)), lambda: desk.bucket.next_cas(0))
    desk.commit()
    assert keys(TapClient(desk).connect(TapOptions(dump=True)).read()) == []
    taken = TapOptions(vbuckets=(0,), takeover=True, acknowledge=True)
    assert keys(TapClient(desk).connect(taken).read()) == []


def drop_the_default_collection(desk: TapDesk) -> None:
    without = CollectionsManifest(1, (Scope(0, "_default", ()),))
    desk.bucket.vbuckets[0].become(without, lambda: desk.bucket.next_cas(0))
    desk.commit()


def is_from_scratch(frame: Frame) -> bool:
    return frame.opcode == Opcode.TAP_OPAQUE and (
        tap.Opaque.decode(frame).code == tap.OpaqueCode.INITIAL_VBUCKET_STREAM
    )


@pytest.mark.parametrize("since", [None, FUTURE])
def test_a_client_hears_that_the_default_collection_was_dropped_and_once(desk: TapDesk, since: int | None) -> None:
    """TAP tells of no collections: the client kept the documents for good."""
    client = TapClient(desk).connect(TapOptions(vbuckets=(0,), since=since))
    client.read()
    desk.set(0, "k")
    desk.commit()
    assert keys(client.read()) == [b"k"]
    drop_the_default_collection(desk)
    frames = client.read()
    assert is_from_scratch(frames[0]) and keys(frames) == []
    desk.set(1, "of another vbucket")
    desk.commit()
    assert client.read() == []


def test_a_dump_in_whose_midst_the_default_collection_is_dropped_takes_back_what_it_sent(desk: TapDesk) -> None:
    for number in range(4):
        desk.set(0, f"k{number}", b"x" * (1 << 20))
    desk.commit()
    client = TapClient(desk).connect(TapOptions(vbuckets=(0,), dump=True))
    sent = client.turn()
    assert 0 < len(keys(sent)) < 4
    drop_the_default_collection(desk)
    frames = client.read()
    assert keys(frames[[is_from_scratch(frame) for frame in frames].index(True) :]) == []
    assert client.connection.finished


def test_a_client_that_was_away_hears_of_the_drop_when_it_is_back(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    options = TapOptions(name=b"me", acknowledge=True, vbuckets=(0,))
    client = TapClient(desk).connect(options)
    assert keys(client.read()) == [b"k"]
    client.cut()
    drop_the_default_collection(desk)
    frames = TapClient(desk).connect(options).read()
    assert any(map(is_from_scratch, frames)) and keys(frames) == []


def test_what_is_sent_again_after_a_refusal_begins_from_scratch_where_that_was_said_since(desk: TapDesk) -> None:
    """The client refuses for now what it was sent before the rollback: it went on from there, behind what is gone."""
    for key in ("a", "b"):
        desk.set(0, key)
        desk.commit()
    client = TapClient(desk).connect(TapOptions(acknowledge=True, vbuckets=(0,)))
    refused = next(each for each in reversed(client.until_data()) if is_data(each))
    desk.bucket.vbuckets[0].roll_back(1)
    desk.commit()
    client.turn()
    client.give(response(refused, Status.ETMPFAIL).encode())
    desk.advance(5.0)
    client.tick()
    frames = client.read()
    assert any(map(is_from_scratch, frames)) and keys(frames) == [b"a"]
