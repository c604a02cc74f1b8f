"""Calls at the same time: what becomes of the others when one fails, or the caller is cancelled."""

import asyncio

import pytest

from headwater.cluster.together import call_each


async def call(number, ended, wait=None):
    """One call: it fails for 1, the others take until `wait` is set."""
    try:
        if number == 1:
            raise ValueError(number)
        if wait is not None:
            await wait.wait()
        return number
    finally:
        ended.append(number)


def test_results_come_in_the_order_of_the_arguments():
    assert asyncio.run(call_each(lambda number: call(number, []), [3, 0, 2])) == [3, 0, 2]


def test_an_error_leaves_when_the_calls_that_began_have_ended_and_none_begins_after_it():
    ended = []

    async def run():
        wait = asyncio.Event()
        calls = asyncio.create_task(
            call_each(lambda number: call(number, ended, wait), [0, 1, 2, 3], asyncio.Semaphore(2))
        )
        while not ended:
            await asyncio.sleep(0)
        assert not calls.done()
        wait.set()
        with pytest.raises(ValueError, match="1"):
            await calls

    asyncio.run(run())
    assert ended == [1, 0]


def test_a_cancelled_caller_leaves_no_call_behind():
    ended = []

    async def run():
        calls = asyncio.create_task(call_each(lambda number: call(number, ended, asyncio.Event()), [0, 2, 3]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert sorted(ended) == [0, 2, 3]
