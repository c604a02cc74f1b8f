"""The cases of asyncio alone: tasks that are cancelled, that wake each other, that close what others wait for."""

import asyncio
import time

from headwater.transport.aio import Waiters
from headwater.transport.waiting import Ready, Signal


async def turns() -> None:
    """Let the other tasks come to where they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


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
        await turns()
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
        await turns()
        channel.close()
        waiters.sweep()
        return await asyncio.wait_for(task, 120)

    assert asyncio.run(main()) == "woken"


def test_what_another_task_sends_leaves_while_one_waits_for_the_channel(pair):
    channel, peer = pair
    peer.setblocking(False)
    while not channel.connected():
        time.sleep(0)
    size = 8 << 20

    def reader():
        while True:
            yield Ready((channel,))
            channel.flush()

    def sender():
        channel.send(bytes(size))
        yield Ready((), time.monotonic() + 120)

    async def take() -> int:
        count = 0
        while count < size:
            count += len(await asyncio.get_running_loop().sock_recv(peer, 1 << 20))
        return count

    async def main():
        waiters = Waiters()
        reading = asyncio.create_task(waiters.run(reader()))
        await asyncio.sleep(0)
        sending = asyncio.create_task(waiters.run(sender()))
        count = await asyncio.wait_for(take(), 10)
        reading.cancel()
        sending.cancel()
        await asyncio.gather(reading, sending, return_exceptions=True)
        return count

    assert asyncio.run(main()) == size
