"""Bytes that were received and not yet understood: growth, room and the end of both."""

import itertools
import socket

import pytest

from headwater.errors import LocalProtocolError
from headwater.transport.channel import Channel
from headwater.transport.inbox import Inbox
from headwater.wire.header import FRAME_BYTES_MAX


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        channel = Channel("peer", (socket.AF_INET, listener.getsockname()))
        accepted, _ = listener.accept()
    with accepted:
        yield channel, accepted
    channel.close()


def test_a_frame_larger_than_the_inbox_makes_it_grow_as_bytes_arrive(pair):
    channel, accepted = pair
    inbox, data = Inbox(64), bytes(range(250)) * 4
    accepted.sendall(data)
    sizes = []
    while len(inbox.unread) < len(data):
        inbox.fill(channel, len(data))
        sizes.append(len(inbox._buffer))
    assert bytes(inbox.unread) == data
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(sizes))


def test_what_a_peer_announces_is_not_allocated(pair):
    channel, accepted = pair
    inbox = Inbox(64)
    accepted.sendall(b"x" * 10)
    inbox.fill(channel, FRAME_BYTES_MAX)
    assert len(inbox._buffer) == 64


def test_what_was_consumed_makes_room(pair):
    channel, accepted = pair
    inbox, got = Inbox(16), b""
    for part in (b"0123456789", b"abcdefghij", b"ABCDEFGHIJ"):
        accepted.sendall(part)
        inbox.fill(channel)
        got += bytes(inbox.unread[:-2])
        inbox.consume(len(inbox.unread) - 2)
    assert got + bytes(inbox.unread) == b"0123456789abcdefghijABCDEFGHIJ" and len(inbox._buffer) == 16


def test_more_than_was_received_can_not_be_consumed():
    with pytest.raises(LocalProtocolError):
        Inbox(16).consume(1)


def test_it_never_grows_beyond_the_largest_frame(pair):
    channel, _ = pair
    inbox = Inbox(FRAME_BYTES_MAX)
    assert inbox.fill(channel, FRAME_BYTES_MAX + 1) is None and inbox.room_bytes == FRAME_BYTES_MAX
