"""Readings of folders, each in a thread of its own: a mount that hangs delays only the callers that wait for it.

The event loop's own threads are few, and host names are looked up in them. The threads here are daemons, so a mount
that hangs for good does not keep the console from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from headwater.errors import TableError

PATIENCE_SECONDS = 5.0

Result = TypeVar("Result")

_under_way: dict[str, asyncio.Future[Any]] = {}
"""The work on each folder that was begun last, done or not."""


def begin(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Begin work in a thread; return the future of its result. Cancelling the future does not end the work."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]  # without an error there is one

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # it is who awaits the outcome that meets it
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="folder", daemon=True).start()
    return outcome


async def bounded(place: str, work: Callable[[], Result], seconds: float = PATIENCE_SECONDS) -> Result:
    """Return the result of work on a folder; work that was begun on that folder before ends first.

    A folder that hangs has one thread, however often its page is loaded.

    Raises:
        TableError: the folder has not answered for `seconds`. Any error of the work.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (before := _under_way.get(place)) is not None and before.get_loop() is loop and not before.done():
        await _wait(place, before, until, seconds)
    _under_way[place] = outcome = begin(work)
    await _wait(place, outcome, until, seconds)
    return outcome.result()


async def _wait(place: str, outcome: asyncio.Future[Any], until: float, seconds: float) -> None:
    await asyncio.wait([outcome], timeout=max(0.0, until - asyncio.get_running_loop().time()))
    if not outcome.done():
        raise TableError(place, silence(seconds))


def silence(seconds: float) -> str:
    """Return the sentence about a folder that has not answered for so long."""
    return f"it has not answered for {seconds:.0f} s; its disk or mount may hang"
