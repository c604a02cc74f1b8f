import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headwater import testing
from headwater.client.routing import parse
from headwater.console import rates
from headwater.console.lookout import Lookout
from headwater.console.rates import RateWatch


def watching(node: testing.Node, work: Callable[[RateWatch], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        lookout = Lookout(parse(node.url), timeout_seconds=30.0, **options)
        try:
            return await work(RateWatch(lookout, 0.01))
        finally:
            await lookout.close()

    return asyncio.run(run())


def test_a_rate_is_a_difference_by_time_and_a_counter_that_went_back_has_none() -> None:
    before = {"a": 10, "b": 10, "c": None, "d": 1}
    assert rates.rates(before, {"a": 30, "b": 9, "c": 5, "e": 1}, 4.0) == {"a": 5.0}


def test_percentiles_are_the_bounds_that_were_not_exceeded() -> None:
    stats = {"disk_commit_0,500": "10", "disk_commit_500,1000": "5", "disk_commit_1000,18446744073709551615": "0"}
    before = rates.histogram(stats | {"other": "1", "disk_commit_x": "2"})
    assert before == {500: 10, 1000: 5, (1 << 64) - 1: 0}
    assert rates.percentiles(before, before) == {}
    assert rates.percentiles({}, before) == {}
    now = {500: 30, 1000: 15, (1 << 64) - 1: 0}
    assert rates.percentiles(before, now) == {"commit_p50_ms": 0.5, "commit_p99_ms": 1.0}
    assert rates.percentiles(now, before) == {}
    slow = {500: 11, 1000: 5, (1 << 64) - 1: 99}
    assert rates.percentiles(before, slow) == {}, "beyond the last bound there is no bound to tell"


def test_the_figures_are_what_was_done(node: testing.Node) -> None:
    seconds = 0.0

    async def work(watch: RateWatch) -> None:
        nonlocal seconds
        first = (await watch.look()).nodes[node.address]
        assert "writes" not in first, "there is no rate before a second answer"
        await asyncio.to_thread(write)
        seconds += 10.0
        second = (await watch.look()).nodes[node.address]
        assert (second["writes"], second["reads"]) == (3.0, 1.0)
        assert second["commits"] >= 0.1
        assert 0 < second["commit_p50_ms"] <= second["commit_p99_ms"]
        assert second["connections"] >= 1

    def write() -> None:
        with node.client() as bucket:
            for number in range(30):
                bucket.set(f"k{number}", "v")
            for number in range(10):
                bucket.get(f"k{number}")

    watching(node, work, clock=lambda: seconds, wall=lambda: 1000.0 + seconds)


def test_a_node_that_is_away_leaves_a_gap_and_no_rate_across_it() -> None:
    with testing.node(vbuckets=4) as node:
        seconds = 0.0

        async def work(watch: RateWatch) -> None:
            nonlocal seconds
            await watch.look()
            seconds += 10.0
            assert "writes" in (await watch.look()).nodes[node.address]
            node.kill()
            seconds += 10.0
            assert (await watch.look()).nodes == {}
            await asyncio.to_thread(node.start)
            seconds += 10.0
            back = (await watch.look()).nodes[node.address]
            assert "writes" not in back
            assert "answer_ms" in back
            seconds += 10.0
            assert (await watch.look()).nodes[node.address]["writes"] == 0.0

        watching(node, work, clock=lambda: seconds, wall=lambda: 1000.0 + seconds)


def test_points_are_followed_as_they_come_until_the_watch_ends(node: testing.Node) -> None:
    async def work(watch: RateWatch) -> None:
        watch.start()
        seen = []
        async for point in watch.follow():
            seen.append(point)
            if len(seen) == 3:
                watch.stop()
        assert [point.at for point in seen] == sorted({point.at for point in seen})
        assert list(watch.points)[:3] == seen
        assert seen[0].to_json() == {"at": seen[0].at, "nodes": seen[0].nodes}

    watching(node, work)
