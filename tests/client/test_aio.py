"""The asyncio client: the same surface as the blocking one, closed by `async with`, its tasks free of each other."""

import asyncio
import inspect

import pytest

from headwater.client import aio, blocking
from headwater.errors import ConnectionLost, LocalProtocolError
from headwater.testing.peers import Peer, history, serve


def surface(client: type) -> dict[str, list[str]]:
    """Public methods and the names of their arguments."""
    found = inspect.getmembers(client, inspect.isfunction)
    return {name: list(inspect.signature(each).parameters) for name, each in found if not name.startswith("_")}


def test_whatever_the_blocking_client_does_this_one_does_as_well() -> None:
    assert surface(aio.AsyncClient) == surface(blocking.Client)


def test_the_words_about_a_method_are_the_same_or_point_there() -> None:
    for name in surface(aio.AsyncClient):
        assert inspect.getdoc(getattr(aio.AsyncClient, name)), name


def test_leaving_the_block_closes_the_client() -> None:
    async def main(address: str) -> None:
        async with await aio.connect(address) as client:
            await client.noop()
        with pytest.raises(LocalProtocolError, match="closed"):
            await client.noop()

    with serve(Peer(vbuckets=2)) as address:
        asyncio.run(main(address))


def test_a_client_that_could_not_connect_leaves_nothing_open() -> None:
    with serve(Peer()) as address:
        pass

    async def main() -> None:
        with pytest.raises(ConnectionLost):
            await aio.connect(address)

    asyncio.run(main())  # an open socket would be a warning, and so an error


def test_two_drains_of_one_client_run_beside_each_other() -> None:
    peer = Peer(vbuckets=2, histories={vb: history(5) for vb in range(2)})

    async def drain(client: aio.AsyncClient, vbucket: int) -> set[int]:
        changes = await client.changes(vbuckets=[vbucket], until="now")
        return {change.vbucket async for change in changes}

    async def main(address: str) -> list[set[int]]:
        async with await aio.connect(address) as client:
            return await asyncio.gather(drain(client, 0), drain(client, 1))

    with serve(peer) as address:
        assert asyncio.run(main(address)) == [{0}, {1}]


@pytest.mark.parametrize("form", ["changes", "batches"])
def test_a_second_task_that_reads_from_a_drain_hears_that_it_is_one_too_many(form: str) -> None:
    async def main(address: str) -> None:
        async with await aio.connect(address) as client:
            feed = await getattr(client, form)(vbuckets=[0], until="now")
            first = asyncio.create_task(anext(feed))
            await asyncio.sleep(0)
            with pytest.raises(LocalProtocolError, match="another task is reading"):
                await anext(feed)
            assert await first is not None
            feed.close()

    with serve(Peer(vbuckets=1, histories={0: history(5)})) as address:
        asyncio.run(main(address))
