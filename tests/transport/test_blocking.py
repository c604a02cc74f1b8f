"""The two ways to wait: one suite over both."""

import asyncio
import socket
import time

import pytest

from headwater.errors import ConnectionLost
from headwater.transport import blocking
from headwater.transport.aio import Waiters
from headwater.transport.channel import Channel
from headwater.transport.inbox import Inbox
from headwater.transport.waiting import Ready, Resolve


def run_blocking(steps):
    return blocking.run(steps)


def run_aio(steps):
    async def main():
        return await Waiters().run(steps)

    return asyncio.run(main())


@pytest.fixture(params=[run_blocking, run_aio], ids=["blocking", "aio"])
def run(request):
    return request.param


def until_connected(channel: Channel):
    while not channel.connected():
        yield Ready((channel,))


def test_a_result_passes_through_the_driver(run):
    def steps():
        yield Ready((), time.monotonic())
        return 7

    assert run(steps()) == 7


def test_an_error_passes_through_the_driver(run):
    def steps():
        yield Ready((), time.monotonic())
        raise ConnectionLost("peer", "gone")

    with pytest.raises(ConnectionLost, match="peer: gone"):
        run(steps())


def test_a_deadline_wakes(run):
    def steps():
        begin = time.monotonic()
        yield Ready((), begin + 0.02)
        return time.monotonic() - begin

    assert run(steps()) >= 0.019


def test_names_are_looked_up_and_failures_are_answers(run):
    def steps(host):
        return (yield Resolve(host, 80))

    assert (socket.AF_INET, ("127.0.0.1", 80)) in run(steps("127.0.0.1"))
    assert isinstance(run(steps("host.invalid")), OSError)
    for no_name in ("x" * 64, "a..b", "\udcff\udcfe"):
        assert isinstance(run(steps(no_name)), socket.gaierror)


def test_bytes_go_both_ways_in_whatever_pieces(run, pair):
    channel, accepted = pair
    inbox, sent = Inbox(1024), bytes(range(256)) * 20_000

    def steps():
        yield from until_connected(channel)
        channel.send(sent)
        while len(inbox.unread) < 5:
            if inbox.fill(channel) is None:
                channel.flush()
                if channel.wants_to_write:
                    taken.append(accepted.recv(1 << 20))
                yield Ready((channel,), time.monotonic() + 0.05)
        return bytes(inbox.unread)

    taken: list[bytes] = []
    accepted.sendall(b"hello")
    assert run(steps()) == b"hello"
    accepted.settimeout(120)
    while sum(map(len, taken)) < len(sent):
        taken.append(accepted.recv(1 << 20))
        channel.flush()
    assert b"".join(taken) == sent and not channel.wants_to_write


def test_a_peer_that_closes_is_a_zero(run, pair):
    channel, accepted = pair
    accepted.close()

    def steps():
        yield from until_connected(channel)
        while (count := channel.receive_into(memoryview(bytearray(8)))) is None:
            yield Ready((channel,))
        return count

    assert run(steps()) == 0


def test_nobody_listening_is_a_lost_connection(run, listener):
    address = listener.getsockname()
    listener.close()

    def steps():
        channel = Channel("127.0.0.1:1", (socket.AF_INET, address))
        yield from until_connected(channel)

    with pytest.raises(ConnectionLost, match="refused"):
        run(steps())


def test_a_closed_channel_is_not_waited_for(run, pair):
    channel, _ = pair
    channel.close()

    def steps():
        yield Ready((channel,))
        return channel.fileno()

    assert run(steps()) == -1
