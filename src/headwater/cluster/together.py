"""Calls to nodes at the same time, none of which outlives its caller.

`asyncio.gather` lets the first error leave while the other calls go on: a change of a node could then be sent when the
lease under which it was decided belongs to another operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

__all__ = ["call_each"]

Argument = TypeVar("Argument")
Result = TypeVar("Result")


async def call_each(
    call: Callable[[Argument], Awaitable[Result]], arguments: Iterable[Argument], gate: asyncio.Semaphore | None = None
) -> list[Result]:
    """Call with each argument, at the same time as far as the gate allows; return the results in the same order.

    After a failure no further call begins; those that have begun are awaited, for a node may already be at them.

    Raises:
        the first failure, when all calls have ended.
    """
    gate = gate or asyncio.Semaphore(1 << 30)
    failures: list[BaseException] = []

    async def run(argument: Argument) -> Result | None:
        async with gate:
            if failures:
                return None
            try:
                return await call(argument)
            except BaseException as error:
                failures.append(error)
                raise

    # A cancelled caller is held here, too, until all calls are cancelled.
    results = await asyncio.gather(*map(run, arguments), return_exceptions=True)
    if failures:
        raise failures[0]
    return results  # type: ignore[return-value]
