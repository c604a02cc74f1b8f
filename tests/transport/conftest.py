import socket

import pytest

from headwater.transport.channel import Channel


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def pair(listener):
    channel = Channel("peer", (socket.AF_INET, listener.getsockname()))
    accepted, _ = listener.accept()
    with accepted:
        yield channel, accepted
    channel.close()
