import pytest

from headwater.accounts.roles import read_grants
from headwater.errors import RemoteProtocolError
from headwater.node.users.logins import Users
from headwater.protocol.tap.options import TapOptions
from headwater.protocol.tap.producer import CHECKPOINT_SEQNOS, checkpoint_id
from headwater.wire import tap
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State
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


def without_checkpoint(data: bytes) -> bytes:
    """A checkpoint message without its id, which counts other things in every server, and what every server gives."""
    return without_numbers(data[:-8])


def test_a_checkpoint_ends_as_a_real_one(desk: TapDesk) -> None:
    for number in range(CHECKPOINT_SEQNOS - 1):
        desk.set(30, f"k{number}")
    desk.commit()
    options = TapOptions(acknowledge=True, checkpoints={}, vbuckets=(30,), since=FUTURE)
    client = TapClient(desk).connect(options)
    client.read()
    desk.set(30, "next")
    desk.commit()
    ends = [frame.encode() for frame in client.read() if frame.opcode == Opcode.TAP_CHECKPOINT_END]
    recorded = [data for data in captured("13", "S>C") if data[1] == Opcode.TAP_CHECKPOINT_END]
    assert list(map(without_checkpoint, ends)) == list(map(without_checkpoint, recorded))


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
    assert without_checkpoint(sent[7]) == without_checkpoint(recorded[7])
    start = tap.CheckpointStart.decode(sent[7])
    first = checkpoint_id(1, desk.bucket.vbuckets[30].failover.newest.vb_uuid)
    assert (start.key, start.checkpoint_id, start.deleted_rev) == (b"checkpoint_start", first, 2)
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


def test_a_dump_of_nothing_is_over_at_once(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(dump=True))
    assert client.read() == []
    assert client.connection.finished


def test_a_request_on_a_tap_connection_ends_it(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions())
    with pytest.raises(RemoteProtocolError, match="only answers"):
        client.give(Frame(0x80, Opcode.GET, b"k").encode())


@pytest.mark.parametrize("takeover", [False, True])
def test_a_takeover_ends_with_the_right_to_it_and_a_plain_session_goes_on(desk: TapDesk, takeover: bool) -> None:
    desk.set(5, "k")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(vbuckets=(5,), takeover=takeover, acknowledge=True))
    client.kv.user = "ann"
    for roles in ("replicate", "stream"):
        desk.users = Users({"ann": "secret"}, {"ann": read_grants(roles)})
        client.connection.session.users_changed()
        assert client.connection.is_closed is (takeover and roles == "stream")
    assert (client.read() == []) is takeover and desk.bucket.state(5) is State.ACTIVE
