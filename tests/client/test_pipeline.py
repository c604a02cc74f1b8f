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
