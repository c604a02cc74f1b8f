"""The cases of asyncio alone: tasks that are cancelled, that wake each other, that close what others wait for."""

import asyncio
import time

from headwater.transport.aio import Waiters
from headwater.transport.waiting import Ready, Signal


def test_cancelling_closes_the_steps(pair):
    channel, _ = pair
    ended = []

    def steps():
        try:
            yield Ready((channel,))
        finally:
            ended.append(True)

    async def main():
        task = asyncio.create_task(Waiters().run(steps()))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert ended == [True]


def test_a_task_that_is_cancelled_in_the_turn_in_which_it_is_woken_does_not_go_on():
    signal, told = Signal(), []

    def waiter():
        told.append("waits")
        yield Ready((), time.monotonic() + 120, signal)
        told.append("goes on")

    async def main():
        task = asyncio.create_task(Waiters().run(waiter()))
        while signal.wake is None:
            await asyncio.sleep(0)
        signal.fire()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(main())
    assert told == ["waits"]


def test_a_signal_wakes_another_task():
    signal, order = Signal(), []

    def waiter():
        yield Ready((), None, signal)
        order.append("woken")

    def waker():
        yield Ready((), time.monotonic())
        order.append("firing")
        signal.fire()

    async def main():
        waiters = Waiters()
        await asyncio.wait_for(asyncio.gather(waiters.run(waiter()), waiters.run(waker())), 120)

    asyncio.run(main())
    assert order == ["firing", "woken"]


def test_closing_a_channel_wakes_the_task_that_waits_for_it(pair):
    channel, _ = pair

    def waiter():
        yield Ready((channel,))
        return "woken"

    async def main():
        waiters = Waiters()
        task = asyncio.create_task(waiters.run(waiter()))
        await asyncio.sleep(0.01)
        channel.close()
        waiters.sweep()
        return await asyncio.wait_for(task, 120)

    assert asyncio.run(main()) == "woken"
