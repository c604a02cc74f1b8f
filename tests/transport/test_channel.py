"""One connection that never blocks: what is kept, what is dropped, and the errors of the system in our words."""

import socket
import struct

import pytest

from headwater.errors import ConnectionLost
from headwater.transport import blocking
from headwater.transport import channel as channel_module
from headwater.transport.channel import Channel
from headwater.transport.waiting import Ready


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        channel = Channel("peer:1", (socket.AF_INET, listener.getsockname()))
        accepted, _ = listener.accept()
    blocking.run(connecting(channel))
    with accepted:
        yield channel, accepted
    channel.close()


def connecting(channel: Channel):
    while not channel.connected():
        yield Ready((channel,))


def reset(accepted: socket.socket) -> None:
    """Close with a reset instead of an end."""
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    accepted.close()


def test_what_does_not_fit_is_kept_in_order_until_there_is_room(pair):
    channel, accepted = pair
    parts = [bytes([number]) * 3_000_000 for number in range(4)]
    for part in parts:
        channel.send(part)
    assert channel.wants_to_write
    received = bytearray()
    while len(received) < 12_000_000:
        received += accepted.recv(1 << 20)
        channel.flush()
    assert bytes(received) == b"".join(parts) and not channel.wants_to_write


def test_nothing_is_no_reason_to_write(pair):
    channel, _ = pair
    channel.send(b"")
    assert not channel.wants_to_write


def test_nothing_there_now_is_not_the_end(pair):
    channel, accepted = pair
    room = memoryview(bytearray(8))
    assert channel.receive_into(room) is None
    accepted.sendall(b"abc")
    blocking.wait(Ready((channel,)), lambda: 0.0)
    assert channel.receive_into(room) == 3 and bytes(room[:3]) == b"abc"
    accepted.close()
    blocking.wait(Ready((channel,)), lambda: 0.0)
    assert channel.receive_into(room) == 0


def test_a_reset_is_a_lost_connection_with_the_peers_name_and_closes_the_channel(pair):
    channel, accepted = pair
    reset(accepted)
    blocking.wait(Ready((channel,)), lambda: 0.0)
    with pytest.raises(ConnectionLost, match="peer:1: connection reset by peer"):
        channel.receive_into(memoryview(bytearray(8)))
    assert channel.fileno() == -1


def test_sending_into_a_reset_connection_is_a_lost_connection(pair):
    channel, accepted = pair
    reset(accepted)
    blocking.wait(Ready((channel,)), lambda: 0.0)
    with pytest.raises(ConnectionLost, match="peer:1"):
        channel.send(b"abc")
    assert channel.fileno() == -1 and not channel.wants_to_write


def test_a_closed_channel_keeps_nothing_and_may_be_closed_again(pair):
    channel, _ = pair
    channel.send(bytes(12_000_000))
    channel.close()
    channel.close()
    assert (channel.fileno(), channel.wants_to_write) == (-1, False)


def test_an_address_that_can_not_be_is_a_lost_connection_at_once():
    with pytest.raises(ConnectionLost, match="peer:1"):
        Channel("peer:1", (socket.AF_INET, ("255.255.255.255", 1)))


def test_a_call_that_the_system_connects_to_itself_finds_nobody(monkeypatch):
    """Where nobody listens, the port that is called may be the caller's own; here it is made so."""
    made = channel_module._socket(socket.AF_INET)
    made.bind(("127.0.0.1", 0))
    monkeypatch.setattr(channel_module, "_socket", lambda family: made)
    channel = Channel("peer:1", (socket.AF_INET, made.getsockname()))
    with pytest.raises(ConnectionLost, match="connection refused"):
        blocking.run(connecting(channel))
    assert channel.fileno() == -1
