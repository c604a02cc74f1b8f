"""Work on folders in threads of their own: its outcome, its errors, and what takes too long."""

import asyncio
import threading

import pytest

from headwater.console import readings
from headwater.errors import TableError


def test_the_result_and_the_error_of_the_work_are_those_of_the_reading() -> None:
    async def read() -> None:
        assert await readings.bounded("here", lambda: 7) == 7
        with pytest.raises(KeyError, match="gone"):
            await readings.bounded("here", lambda: {}["gone"])

    asyncio.run(read())


def test_a_folder_that_does_not_answer_is_told_with_its_place_and_the_seconds() -> None:
    back = threading.Event()

    async def read() -> None:
        with pytest.raises(TableError, match=r"^/mnt/lake: it has not answered for 1 s; its disk or mount may hang$"):
            await readings.bounded("/mnt/lake", lambda: back.wait(120), 0.6)

    asyncio.run(read())  # which ends though the thread has not
    assert not back.is_set()
    back.set()


def test_a_folder_that_hangs_has_one_thread_however_often_it_is_asked_for() -> None:
    back, threads = threading.Event(), list[threading.Thread]()

    def hang() -> None:
        threads.append(threading.current_thread())
        back.wait(120)

    async def read() -> None:
        for _ in range(5):
            with pytest.raises(TableError, match="has not answered"):
                await readings.bounded("/mnt/hangs", hang, 0.01)
        assert await readings.bounded("/mnt/lake", lambda: 7) == 7, "another one is held up by nothing"
        assert len(threads) == 1
        waiting = [asyncio.ensure_future(readings.bounded("/mnt/hangs", lambda: 8, 30)) for _ in range(3)]
        await asyncio.sleep(0)
        back.set()
        assert await asyncio.gather(*waiting) == [8] * 3

    asyncio.run(read())
