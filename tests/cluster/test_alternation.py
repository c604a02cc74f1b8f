"""Copying and handing over take turns."""

import asyncio
import random

import pytest

from headwater.cluster.alternation import Alternation


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


class Work:
    """Notes what goes on at the same time; each piece goes on until it is let go."""

    def __init__(self):
        self.alternation, self.now = Alternation(), []

    def begin(self, kind):
        let_go = asyncio.Event()

        async def run():
            async with getattr(self.alternation, kind)():
                self.now.append(kind)
                assert set(self.now) == {"copying"} or self.now == ["handing_over"]
                try:
                    await let_go.wait()
                finally:
                    self.now.remove(kind)

        return asyncio.create_task(run()), let_go


def test_a_hand_over_waits_for_copies_and_keeps_new_ones_waiting():
    async def run():
        work = Work()
        first, first_over = work.begin("copying")
        await settle()
        handing, handed = work.begin("handing_over")
        second, second_over = work.begin("copying")
        await settle()
        assert work.now == ["copying"]
        first_over.set()
        await settle()
        assert work.now == ["handing_over"]
        handed.set()
        await settle()
        assert work.now == ["copying"]
        second_over.set()
        await asyncio.gather(first, handing, second)

    asyncio.run(run())


def test_who_stops_waiting_lets_the_others_go_on():
    async def run():
        work = Work()
        _, first_over = work.begin("copying")
        await settle()
        handing, _ = work.begin("handing_over")
        await settle()
        second, second_over = work.begin("copying")
        await settle()
        handing.cancel()
        await settle()
        assert work.now == ["copying", "copying"]
        first_over.set()
        second_over.set()
        await second

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_when_all_get_their_turn(seed):
    async def run():
        chance, work, tasks = random.Random(seed), Work(), []
        for _ in range(60):
            task, over = work.begin(chance.choice(["copying", "handing_over"]))
            tasks.append((task, over))
            await settle()
            for _, waiting in chance.sample(tasks, len(tasks) // 2):
                waiting.set()
            if chance.random() < 0.1:
                chance.choice(tasks)[0].cancel()
        for _, over in tasks:
            over.set()
        await asyncio.wait_for(asyncio.gather(*(task for task, _ in tasks), return_exceptions=True), 120)
        assert all(task.cancelled() or task.exception() is None for task, _ in tasks)

    asyncio.run(run())


def test_nothing_is_copied_for_a_while_after_the_last_hand_over_but_another_hand_over_may_begin():
    async def run():
        work = Work()
        work.alternation = Alternation(3600.0)
        handing, handed = work.begin("handing_over")
        handed.set()
        await handing
        copying, _ = work.begin("copying")
        again, done = work.begin("handing_over")
        await settle()
        assert work.now == ["handing_over"]
        done.set()
        await again
        work.alternation._end_quiet()
        await settle()
        assert work.now == ["copying"]
        copying.cancel()

    asyncio.run(run())
