"""Many tasks on one connection: each gets its own answer, whoever reads it."""

import asyncio

import pytest

from headwater.client import aio
from headwater.errors import ConnectionLost, HeadwaterError, LocalProtocolError
from headwater.testing.peers import Peer, serve
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode


class Echo(Peer):
    """Answers GET with the key, and holds back those that are asked to wait until somebody says go."""

    held: list[Frame]

    def answers(self, request: Frame):
        if request.opcode != Opcode.GET:
            yield from super().answers(request)
        elif request.key.startswith(b"wait"):
            self.held.append(request)
        else:
            if request.key == b"go":
                for waiting in reversed(self.held):
                    yield response(waiting, value=waiting.key, extras=bytes(4))
                self.held.clear()
            yield response(request, value=request.key, extras=bytes(4))


@pytest.fixture
def echo():
    peer = Echo()
    peer.held = []
    with serve(peer) as address:
        yield address, peer


def test_answers_out_of_order_find_their_tasks(echo):
    async def main():
        async with await aio.connect(echo[0]) as client:
            tasks = [asyncio.create_task(client.get(f"wait-{i}")) for i in range(50)]
            while len(echo[1].held) < 50:
                await client.get("other")
            await client.get("go")
            return [document.value for document in await asyncio.gather(*tasks)]

    assert asyncio.run(main()) == [b"wait-%d" % i for i in range(50)]
    assert echo[1].connections == 1


def test_a_cancelled_request_leaves_the_connection_to_the_others(echo):
    async def main():
        async with await aio.connect(echo[0]) as client:
            first, second = (asyncio.create_task(client.get(f"wait-{i}")) for i in range(2))
            while len(echo[1].held) < 2:
                await client.get("other")
            first.cancel()
            await client.get("go")
            return (await second).value

    assert asyncio.run(main()) == b"wait-1" and echo[1].connections == 1


def test_a_broken_connection_tells_everybody(echo):
    async def main():
        async with await aio.connect(echo[0], timeout_seconds=60.0) as client:
            tasks = [asyncio.create_task(client.set(f"wait-{i}", "v")) for i in range(5)]
            echo[1].mutate = lambda frame: b"\x55" * 24
            tasks.append(asyncio.create_task(client.get("go")))
            return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    assert all(isinstance(result, HeadwaterError) for result in results)


def test_closing_the_client_ends_what_is_under_way(echo):
    async def main():
        echo[1].silent = {Opcode.SET}
        client = await aio.connect(echo[0], timeout_seconds=60.0)
        tasks = [asyncio.create_task(work) for work in (client.set("k", "v"), client.get("wait"))]
        while not echo[1].held:
            await asyncio.sleep(0.001)
        await client.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    lost, closed = asyncio.run(main())
    assert isinstance(lost, ConnectionLost) and "not known" in lost.reason
    assert isinstance(closed, LocalProtocolError)


def test_a_cancelled_request_with_many_answers_leaves_the_connection_to_the_others(echo):
    class Slow(Echo):
        """Answers STAT one name at a time, each with the next GET."""

        def answers(self, request: Frame):
            if request.opcode == Opcode.STAT:
                self.held = [response(request, key=b"name-%d" % i, value=b"1") for i in range(3)] + [response(request)]
            elif request.opcode == Opcode.GET:
                yield from self.held[:1]
                del self.held[:1]
                yield response(request, value=request.key, extras=bytes(4))
            else:
                yield from super().answers(request)

    peer = Slow()
    peer.held = []

    async def main(address: str) -> list[bytes]:
        async with await aio.connect(address) as client:
            asked = asyncio.create_task(client.stats())
            while not peer.held:
                await client.noop()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            return [(await client.get(f"key-{number}")).value for number in range(6)]

    with serve(peer) as address:
        assert asyncio.run(main(address)) == [b"key-%d" % number for number in range(6)]
    assert peer.connections == 1


def test_a_large_value_leaves_while_another_task_waits_for_an_answer():
    """The node answers what was asked first only when it has all of the value."""

    class Late(Echo):
        def answers(self, request: Frame):
            if request.opcode != Opcode.SET:
                yield from super().answers(request)
                return
            yield from (response(waiting, value=b"late", extras=bytes(4)) for waiting in self.held)
            yield response(request, cas=1)

    peer = Late()
    peer.held = []

    async def main(address: str) -> tuple[bytes, int]:
        async with await aio.connect(address, timeout_seconds=10.0) as client:
            waiting = asyncio.create_task(client.get("wait"))
            while not peer.held:
                await asyncio.sleep(0)
            stored = await client.set("large", bytes(20 << 20))
            return (await waiting).value, stored

    with serve(peer) as address:
        assert asyncio.run(main(address)) == (b"late", 1)
