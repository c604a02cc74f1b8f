import pytest

from headwater.errors import CorruptStore, RemoteProtocolError
from headwater.protocol.tap_options import TapOptions
from headwater.wire import snappy, tap
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.test_session import spoil
from tests.node.tap.support import TapClient, TapDesk, captured, is_data

FUTURE = 0xFFFF_FFFF_FFFF_FFFF


def as_recorded(desk: TapDesk) -> None:
    """The documents that were on the server when the captures were made."""
    desk.set(30, "tap0", b"tv0", flags=0x01020304)
    desk.set(30, "tap1", b"tv1", flags=0x01020304)
    desk.set(30, "tap2", b"tv2")
    desk.delete(30, "tap2")
    desk.commit()


def without_numbers(data: bytes) -> bytes:
    """A message without opaque and CAS, which every server gives as it likes."""
    return data[:12] + data[24:]


def without_nru(data: bytes) -> bytes:
    return without_numbers(data[:48] + b"\0" + data[49:] if data[1] == Opcode.TAP_MUTATION else data)


def test_a_dump_is_what_a_real_server_sends(desk: TapDesk) -> None:
    as_recorded(desk)
    (connect,) = captured("12", "C>S")
    client = TapClient(desk).connect(connect)
    sent = [frame.encode() for frame in client.read()]
    assert list(map(without_nru, sent)) == list(map(without_nru, captured("12", "S>C")))
    assert client.connection.finished


def test_a_stream_with_acknowledgements_and_checkpoints_begins_as_a_real_one(desk: TapDesk) -> None:
    as_recorded(desk)
    recorded = captured("13", "S>C")
    client = TapClient(desk).connect(captured("13", "C>S")[0])
    sent = [frame.encode() for frame in client.read()]
    assert list(map(without_nru, sent[:7])) == list(map(without_nru, recorded[:7]))
    start = tap.CheckpointStart.decode(sent[7])
    assert (start.checkpoint_id, start.flags) == (1, tap.MessageFlag.ACK)
    desk.set(30, "tap3", b"live")
    desk.delete(30, "tap0")
    desk.commit()
    live = [(frame.opcode, frame.vbucket) for frame in client.read()]
    assert live == [(Opcode.TAP_MUTATION, 30), (Opcode.TAP_DELETE, 30)]


def test_keys_only_leaves_the_values_out_and_says_so(desk: TapDesk) -> None:
    as_recorded(desk)
    (connect,) = captured("14", "C>S")
    messages = [frame for frame in TapClient(desk).connect(connect).read() if is_data(frame)]
    first = tap.Mutation.decode(messages[0])
    assert (first.key, first.value, first.flags) == (b"tap0", b"", tap.MessageFlag.NO_VALUE)


def test_a_client_that_does_not_know_of_byte_orders_gets_its_flags_reversed(desk: TapDesk) -> None:
    desk.set(0, "k", flags=0x01020304)
    desk.commit()
    for network, expected in ((False, 0x04030201), (True, 0x01020304)):
        frames = TapClient(desk).connect(TapOptions(dump=True, network_byte_order=network)).read()
        message = tap.Mutation.decode(next(filter(is_data, frames)))
        assert message.item_flags == expected
        assert message.client_flags == 0x01020304


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


def test_a_dump_of_many_vbuckets_has_every_document_once(desk: TapDesk) -> None:
    for number in range(3000):
        desk.set(number % 64, f"k{number}", b"v" * 100)
    desk.commit()
    client = TapClient(desk).connect(TapOptions(dump=True, acknowledge=True, network_byte_order=True))
    frames = client.read()
    keys = [tap.Mutation.decode(frame).key for frame in frames if is_data(frame)]
    assert len(keys) == len(set(keys)) == 3000
    assert [frame.opaque for frame in frames] == list(range(1, len(frames) + 1))
    assert client.connection.finished


def test_a_dump_of_nothing_is_over_at_once(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(dump=True))
    assert client.read() == []
    assert client.connection.finished


def test_what_is_not_durable_is_not_sent(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(since=FUTURE))
    client.read()
    desk.set(0, "k")
    assert client.read() == []
    desk.commit()
    assert [frame.opcode for frame in client.read()] == [Opcode.TAP_MUTATION]


def test_a_request_on_a_tap_connection_ends_it(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions())
    with pytest.raises(RemoteProtocolError, match="only answers"):
        client.give(Frame(0x80, Opcode.GET, b"k").encode())


def test_a_malformed_connect_is_answered_and_the_connection_closed(desk: TapDesk) -> None:
    client = TapClient(desk)
    client.give(Frame(0x80, 0x40, b"n", b"\0\0").encode())
    (answer,) = client.turn()
    assert (answer.status, client.connection.finished) == (Status.EINVAL, True)


def test_a_named_session_goes_on_after_a_cut_with_what_was_not_acknowledged(desk: TapDesk) -> None:
    for number in range(10):
        desk.set(0, f"k{number}")
    desk.commit()
    options = TapOptions(name=b"me", acknowledge=True, vbuckets=(0,))
    first = TapClient(desk).connect(options)
    first.read()
    desk.set(0, "later")
    desk.commit()
    assert [frame.key for frame in first.read(acknowledge=False)] == [b"\0" * 5]  # TAP's private bytes come first
    first.cut()
    desk.advance(59)
    again = TapClient(desk).connect(options).read()
    assert [tap.Mutation.decode(frame).key for frame in again if is_data(frame)] == [b"later"]


def test_a_session_that_waited_too_long_begins_anew(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    options = TapOptions(name=b"me", acknowledge=True)
    first = TapClient(desk).connect(options)
    first.read()
    first.cut()
    desk.advance(60)
    assert desk.tap.feeds == {}
    assert [frame for frame in TapClient(desk).connect(options).read() if is_data(frame)]


def test_a_second_connection_of_a_name_closes_the_first_and_takes_over(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    options = TapOptions(name=b"me", acknowledge=True)
    first = TapClient(desk).connect(options)
    first.read()
    second = TapClient(desk).connect(options)
    assert first.connection.is_closed
    assert [frame for frame in second.read() if is_data(frame)] == []


def test_a_fatal_refusal_ends_the_session_for_good(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True))
    client.turn()
    client.give(Frame(0x81, Opcode.TAP_OPAQUE, vbucket=Status.NOT_MY_VBUCKET, opaque=1).encode())
    assert client.connection.is_closed
    assert desk.tap.feeds == {}


def test_deregistering_drops_a_session(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(name=b"me"))
    assert TapClient(desk).one(Opcode.DEREGISTER_TAP_CLIENT, key=b"me").status == Status.SUCCESS
    assert client.connection.is_closed


def test_a_changed_filter_is_followed_and_told(desk: TapDesk) -> None:
    for vb in (1, 2):
        desk.set(vb, f"k{vb}")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(name=b"me", vbuckets=(1,)))
    client.read()
    value = tap.ChangeFilter(key=b"me", checkpoints=[(2, 0)])
    assert TapClient(desk).one(Opcode.CHANGE_VB_FILTER, key=b"me", value=Frame.decode(value.encode()).value).status == 0
    frames = client.read()
    assert tap.Opaque.decode(frames[0]).code == tap.OpaqueCode.COMPLETE_VB_FILTER_CHANGE
    assert [tap.Mutation.decode(frame).key for frame in frames if is_data(frame)] == [b"k2"]
    assert TapClient(desk).one(Opcode.CHANGE_VB_FILTER, key=b"you", value=b"\0\0").status == Status.EINVAL


def test_a_takeover_leaves_the_vbucket_dead_here_and_active_there(desk: TapDesk) -> None:
    desk.set(5, "k")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(vbuckets=(5,), takeover=True, acknowledge=True))
    frames = client.read()
    states = [tap.VbucketSet.decode(frame).state for frame in frames if frame.opcode == Opcode.TAP_VBUCKET_SET]
    assert states == [State.PENDING, State.ACTIVE]
    assert desk.bucket.state(5) is State.DEAD
    assert client.connection.finished


def test_a_vbucket_that_dies_is_followed_no_longer(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(since=FUTURE))
    client.read()
    desk.bucket.vbuckets[3].set_state(State.DEAD)
    assert 3 not in desk.tap.feeds[b"anon_1"].readers


def test_statistics_name_the_session(desk: TapDesk) -> None:
    TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True)).read()
    stats = dict(desk.tap.stats([]))
    assert stats["eq_tapq:me:flags"] == "support_ack"
    assert stats["eq_tapq:me:ack_log_size"] == "0"
    assert stats["ep_tap_count"] == "1"


def test_a_session_that_meets_damage_is_disconnected_and_not_resumed(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True))
    client.read()
    desk.set(0, "lost")
    desk.commit()
    spoil(desk)
    assert client.connection.is_closed
    assert desk.tap.feeds == {}
    again = TapClient(desk).connect(TapOptions(dump=True, vbuckets=(0,)))
    with pytest.raises(CorruptStore):
        again.read()
