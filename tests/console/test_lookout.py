import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.client.routing import Address, parse
from headwater.console.lookout import Lookout, all_rights
from headwater.node.users.file import UsersFile
from headwater.wire.vbucket import State
from tests.cluster.nodes import at, empty_nodes, init


def with_lookout(url: str, work: Callable[[Lookout], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        lookout = Lookout(parse(url), timeout_seconds=30.0, **options)
        try:
            return await work(lookout)
        finally:
            await lookout.close()

    return asyncio.run(run())


def test_an_answer_is_kept_for_a_moment_and_shared(node: testing.Node) -> None:
    now = 100.0

    async def work(lookout: Lookout) -> None:
        nonlocal now
        first = await lookout.look()
        assert first.is_fresh
        assert (await lookout.look()) is first
        now += 60.0
        second, third = await asyncio.gather(lookout.look(), lookout.look())
        assert second is third is not first

    with_lookout(node.url, work, clock=lambda: now)


def test_a_node_that_stands_alone_is_shown_by_the_map_it_made(node: testing.Node) -> None:
    async def work(lookout: Lookout) -> None:
        look = (await lookout.look()).answer
        assert look is not None
        assert not look.in_cluster
        assert look.survey.map.servers == (Address(node.host, node.port),)
        assert look.survey.nodes[Address(node.host, node.port)].count(State.ACTIVE) == 16

    with_lookout(node.url, work)


def test_a_node_that_goes_away_leaves_its_last_answer_with_its_age_and_is_there_again_when_it_comes_back() -> None:
    with testing.node(vbuckets=4) as node:
        wall = 1000.0

        async def work(lookout: Lookout) -> None:
            nonlocal wall
            assert (await lookout.look(0)).is_fresh
            assert (await lookout.stats(Address(node.host, node.port), "", 0)).is_fresh
            node.kill()
            wall = 1060.0
            gone = await lookout.look(0)
            assert (gone.is_fresh, gone.at, gone.answer is not None) == (False, 1000.0, True)
            assert str(node.port) in gone.problem
            told = await lookout.stats(Address(node.host, node.port), "", 0)
            assert (told.is_fresh, told.at) == (False, 1000.0)
            await asyncio.to_thread(node.start)
            wall = 1090.0
            back = await lookout.look(0)
            assert (back.is_fresh, back.at, back.problem) == (True, 1090.0, "")

        with_lookout(node.url, work, wall=lambda: wall)


def test_of_a_cluster_the_others_are_shown_when_the_first_node_is_gone() -> None:
    with empty_nodes(2) as (one, two):
        init(one, two, replicas=1)
        first, second = at(one, two)

        async def work(lookout: Lookout) -> None:
            said = await lookout.look(0)
            assert said.answer is not None
            assert said.answer.in_cluster
            assert set(said.answer.survey.nodes) == {first, second}
            one.kill()
            said = await lookout.look(0)
            assert said.is_fresh
            assert said.answer is not None
            assert not said.answer.survey.nodes[first].answers
            last, at_seconds = said.answer.known[first]
            assert len(last.states) == 16
            assert at_seconds > 0
            assert second not in said.answer.known

        with_lookout(one.url, work)


def test_nobody_there_from_the_beginning_is_no_answer(free_port: int) -> None:
    async def work(lookout: Lookout) -> None:
        said = await lookout.look()
        assert said.answer is None
        assert f"127.0.0.1:{free_port}" in said.problem
        assert await lookout.rights() is None
        assert await lookout.nodes() == [Address("127.0.0.1", free_port)]

    with_lookout(f"couchbase://127.0.0.1:{free_port}/default", work)


def test_where_there_are_no_users_everybody_may_do_everything(node: testing.Node) -> None:
    async def work(lookout: Lookout) -> None:
        assert await lookout.rights() == all_rights()

    with_lookout(node.url, work)


def test_failover_logs_come_from_the_node_asked(node: testing.Node) -> None:
    async def work(lookout: Lookout) -> list[tuple[int, int]]:
        return await lookout.logs(Address(node.host, node.port), 3)

    with node.client() as client:
        assert with_lookout(node.url, work) == client.failover_log(3)


@pytest.fixture
def free_port() -> Iterator[int]:
    with socket.socket() as bound:  # it does not listen, and nobody else can
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def test_a_login_that_was_refused_is_tried_again_after_a_minute_and_not_before() -> None:
    with testing.node(vbuckets=4) as node:
        node.stop()
        UsersFile(node.data).save({"ann": Account.create("right", read_grants("administer"))})
        node.start()
        now = 1000.0

        async def work(lookout: Lookout) -> None:
            nonlocal now
            address = Address(node.host, node.port)
            first = await lookout.stats(address, "", 0)
            assert "AUTH_ERROR" in first.problem
            asked: list[Address] = []
            admin = lookout.members.admin
            lookout.members.admin = lambda each: (asked.append(each), admin(each))[1]  # type: ignore[method-assign,func-returns-value]
            for _ in range(25):
                now += 2.0
                assert "tried again once a minute" in (await lookout.stats(address, "dcp", 0)).problem
                assert "tried again once a minute" in (await lookout.look(0)).problem
            assert asked == []
            now += 60.0
            assert "AUTH_ERROR" in (await lookout.stats(address, "", 0)).problem
            assert asked == [address]

        with_lookout(node.url, work, user="ann", password="wrong", clock=lambda: now)
