"""One vbucket of a session: what is sent of it, when, and how it changes hands."""

from headwater.protocol.tap.options import TapOptions
from headwater.wire import snappy, tap
from headwater.wire.dcp import SystemEvent
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State
from tests.node.tap.support import TapClient, TapDesk, is_data

FUTURE = 0xFFFF_FFFF_FFFF_FFFF


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
        tap.Mutation.decode(each) for each in TapClient(desk).connect(TapOptions(dump=True)).read() if is_data(each)
    ]
    assert [(each.key, each.value, each.datatype) for each in messages] == [
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
    carts = SystemEvent(by_seqno=2, event=0, version=0, manifest_uid=1, scope_id=0, key=b"carts", collection_id=8)
    desk.bucket.vbuckets[5].collections.add(carts)
    client.read()
    assert desk.bucket.state(5) is State.ACTIVE
    assert "would leave _default.carts behind" in client.connection.dropped
