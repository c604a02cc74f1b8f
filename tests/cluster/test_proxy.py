"""Two ends and the mover between them: frames pass, ours are slipped in, and who lies, stalls or dies is found out."""

import asyncio
import socket
from contextlib import suppress

import pytest

from headwater.cluster.proxy import Liveness, Proxy, Side
from headwater.errors import BadFrame, ConnectionLost, InvalidArguments, PeerSilent
from headwater.testing.clock import FakeClock
from headwater.transport.channel import Channel
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

QUICK = Liveness(noop_seconds=0.02, silent_seconds=0.15)
UNHURRIED = Liveness()
SECONDS = 120


class End:
    """A node as the proxy sees it: the other end of one of the proxy's connections, in the test's hands."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.noops = 0

    def channel(self):
        return Channel("a peer", (socket.AF_INET, self._listener.getsockname()))

    async def accept(self):
        sock, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        self.reader, self.writer = await asyncio.open_connection(sock=sock)
        self._listener.close()

    def send(self, frame):
        self.writer.write(frame.encode())

    async def read(self):
        """The next frame that is no no-op of the mover; those are answered."""
        while True:
            header = await asyncio.wait_for(self.reader.readexactly(24), SECONDS)
            frame = Frame.decode(header + await self.reader.readexactly(int.from_bytes(header[8:12])))
            if frame.opcode != Opcode.NOOP:
                return frame
            self.noops += 1
            self.send(response(frame))

    async def stay_alive(self):
        """Answer no-ops until the connection ends."""
        try:
            while True:
                await self.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            return


def proxied(work, liveness=UNHURRIED, clock=None):
    """Run `work(proxy, producer, consumer, told)` with both ends connected."""

    async def run():
        now = clock or asyncio.get_running_loop().time
        ends = {side: End() for side in Side}
        channels = {side: end.channel() for side, end in ends.items()}
        for end in ends.values():
            await end.accept()
        for channel in channels.values():
            while not channel.connected():
                await asyncio.sleep(0)
        told = []
        proxy = Proxy(channels, lambda side, frame: told.append((side, frame)), now, liveness)
        proxy.start({})
        try:
            return await work(proxy, ends[Side.PRODUCER], ends[Side.CONSUMER], told)
        finally:
            proxy.close()
            for end in ends.values():
                end.writer.close()

    return asyncio.run(run())


def test_frames_pass_both_ways_unchanged():
    change = Frame(0x80, Opcode.DCP_MUTATION, b"k", bytes(31), b"v" * 100_000, vbucket=3, opaque=9)
    acknowledged = Frame(0x80, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT, extras=bytes(4))

    async def work(proxy, producer, consumer, told):
        producer.send(change)
        consumer.send(acknowledged)
        return await consumer.read(), await producer.read(), int(proxy.down.changes[3])

    assert proxied(work) == (change, acknowledged, 1)


def test_what_we_ask_goes_to_one_end_and_its_answer_to_nobody_else():
    mark = Frame(0x80, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT, extras=bytes(4))

    async def work(proxy, producer, consumer, told):
        asking = asyncio.create_task(proxy.ask(Side.CONSUMER, Frame(0x80, Opcode.DCP_ADD_STREAM, vbucket=5), SECONDS))
        asked = await consumer.read()
        consumer.send(response(asked, 7))
        consumer.send(mark)
        answer = await asking
        return asked.vbucket, answer.status, await producer.read()

    assert proxied(work) == (5, 7, mark)


def test_an_answer_that_comes_too_late_does_not_reach_the_other_end():
    mark = Frame(0x80, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT, extras=bytes(4))

    async def work(proxy, producer, consumer, told):
        with pytest.raises(PeerSilent):
            await proxy.ask(Side.CONSUMER, Frame(0x80, Opcode.DCP_ADD_STREAM), 0.01)
        consumer.send(response(await consumer.read()))
        consumer.send(mark)
        return await producer.read()

    assert proxied(work) == mark


def refusal_of(change, status):
    return response(Frame(0x80, change), status)


def test_a_consumer_that_refuses_a_change_ends_it_and_the_reason_names_both():
    async def work(proxy, producer, consumer, told):
        consumer.send(refusal_of(Opcode.DCP_DELETION, Status.EINVAL))
        return await asyncio.wait_for(asyncio.shield(proxy.lost), SECONDS), proxy.fallen, proxy.refused

    reason, fallen, refused = proxied(work)
    assert isinstance(reason, InvalidArguments) and "a peer: take a DCP_DELETION" in str(reason)
    assert (fallen, refused) == (Side.CONSUMER, Opcode.DCP_DELETION)


@pytest.mark.parametrize("status", [Status.SUCCESS, Status.KEY_ENOENT, Status.DCP_STREAM_NOT_FOUND])
def test_an_answer_to_a_change_that_only_says_that_the_stream_is_gone_is_passed_on(status):
    async def work(proxy, producer, consumer, told):
        consumer.send(refusal_of(Opcode.DCP_MUTATION, status))
        return await producer.read(), proxy.lost.done()

    assert proxied(work) == (refusal_of(Opcode.DCP_MUTATION, status), False)


def test_what_an_end_said_before_it_hung_up_is_heard_though_sending_to_it_fails_first():
    change = Frame(0x80, Opcode.DCP_MUTATION, b"k", bytes(31), b"v" * 1_000)

    async def work(proxy, producer, consumer, told):
        asyncio.get_running_loop().remove_reader(proxy._descriptors[Side.CONSUMER])  # as if that came a turn later
        consumer.send(refusal_of(Opcode.DCP_DELETION, Status.EINVAL))
        await consumer.writer.drain()
        consumer.writer.transport.abort()
        give_up = asyncio.get_running_loop().time() + SECONDS
        while not proxy.lost.done() and asyncio.get_running_loop().time() < give_up:
            producer.send(change)
            await asyncio.sleep(0.01)
        return proxy.lost.result()

    assert isinstance(proxied(work), InvalidArguments)


def test_states_and_ends_are_told_before_they_are_passed_on():
    state = Frame(0x80, Opcode.DCP_SET_VBUCKET_STATE, extras=b"\x03", vbucket=2, opaque=1)

    async def work(proxy, producer, consumer, told):
        producer.send(state)
        passed = await consumer.read()
        consumer.send(response(state))
        await producer.read()
        return passed, told

    assert proxied(work) == (state, [(Side.PRODUCER, state), (Side.CONSUMER, response(state))])


def test_who_hangs_up_ends_both_and_all_questions():
    async def work(proxy, producer, consumer, told):
        asking = asyncio.create_task(proxy.ask(Side.CONSUMER, Frame(0x80, Opcode.DCP_ADD_STREAM), SECONDS))
        await consumer.read()
        producer.writer.close()
        with pytest.raises(ConnectionLost):
            await asking
        assert await consumer.reader.read() == b""
        with pytest.raises(ConnectionLost):
            await proxy.ask(Side.CONSUMER, Frame(0x80, Opcode.DCP_ADD_STREAM), SECONDS)
        return proxy.fallen

    assert proxied(work) is Side.PRODUCER


async def answers(proxy, clock, *ends):
    """A while passes, in which each of these ends answers a no-op, unless the proxy gives up."""
    before = [end.noops for end in ends]
    clock.advance(QUICK.silent_seconds / 3)
    while any(end.noops == count for end, count in zip(ends, before, strict=True)) and not proxy.lost.done():
        await asyncio.sleep(QUICK.noop_seconds)


@pytest.mark.parametrize("silent", Side)
def test_a_half_open_end_is_given_up(silent):
    clock = FakeClock()

    async def work(proxy, producer, consumer, told):
        lively = consumer if silent is Side.PRODUCER else producer
        answering = asyncio.create_task(lively.stay_alive())
        while not proxy.lost.done():
            await answers(proxy, clock, lively)
        await answering
        return type(proxy.lost.result()), proxy.fallen

    assert proxied(work, QUICK, clock) == (PeerSilent, silent)
    assert clock() - FakeClock()() < 2 * QUICK.silent_seconds


def test_ends_that_answer_no_ops_are_kept():
    clock = FakeClock()

    async def work(proxy, producer, consumer, told):
        answering = [asyncio.create_task(end.stay_alive()) for end in (producer, consumer)]
        for _ in range(15):
            await answers(proxy, clock, producer, consumer)
        is_lost = proxy.lost.done()
        proxy.close()
        await asyncio.gather(*answering)
        return is_lost

    assert not proxied(work, QUICK, clock)


def test_bytes_that_are_no_frames_end_it():
    async def work(proxy, producer, consumer, told):
        producer.writer.write(b"\x42" + bytes(23))
        error = await asyncio.wait_for(asyncio.shield(proxy.lost), SECONDS)
        return type(error), proxy.fallen, await consumer.reader.read()

    assert proxied(work) == (BadFrame, Side.PRODUCER, b"")


def test_an_end_that_does_not_take_stops_the_other_and_is_given_up():
    piece = Frame(0x80, Opcode.DCP_MUTATION, b"k", bytes(31), bytes(1 << 20)).encode()
    clock, sent = FakeClock(), []

    async def push(proxy, producer):
        with suppress(ConnectionError):  # the proxy has hung up
            while not proxy.lost.done():
                producer.writer.write(piece)
                await producer.writer.drain()
                sent.append(len(piece))

    async def work(proxy, producer, consumer, told):
        consumer.writer.transport.pause_reading()
        pushing = asyncio.create_task(push(proxy, producer))
        while not proxy.lost.done():
            await asyncio.sleep(QUICK.noop_seconds)
            if Side.CONSUMER in proxy._blocked:
                clock.advance(QUICK.silent_seconds / 3)
        await pushing
        return type(proxy.lost.result()), proxy.fallen

    assert proxied(work, QUICK, clock) == (PeerSilent, Side.CONSUMER)
    assert sum(sent) < 64 << 20
