"""Processes beside the nodes: each has an event loop at a place of its own, and can be killed at any instant.

    program = Program(schedule, network, "client-1", work)
    program.is_over, program.error
    program.kill()

A program's work is a coroutine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from harness.simulation.scheduler import SimLoop

if TYPE_CHECKING:
    from harness.simulation.scheduler import Schedule
    from harness.simulation.sockets import Network
    from headwater.client.routing import Address


class ProgramsWorld(Protocol):
    """The parts of a world that are needed to start programs there."""

    schedule: Schedule
    counts: Counter[str]

    @property
    def addresses(self) -> list[Address]:
        """Return the addresses of all machines."""

    def run(self, name: str, work: Callable[[], object]) -> Program:
        """Start a program."""


class ProgramLoop(SimLoop):
    """The loop of a program: an error in a task that nobody awaits does not fail the run."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the run for an error in a callback, but not for a task's error that was never retrieved."""
        if "was never retrieved" not in context["message"]:
            super().call_exception_handler(context)


class Program:
    """A coroutine that runs as a process.

    Args:
        work: creates the coroutine, inside of the process.

    Attributes:
        name: its place in the network. is_killed: True once it was killed.
    """

    def __init__(
        self, schedule: Schedule, network: Network, name: str, work: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        self.name = name
        self.is_killed = False
        self.loop = ProgramLoop(schedule, network, name)
        self._network, self._work = network, work
        self._task: asyncio.Task[object] | None = None
        self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._task = self.loop.create_task(self._work())

    @property
    def is_over(self) -> bool:
        """True if it has ended, by itself or not."""
        return self.is_killed or (self._task is not None and self._task.done())

    @property
    def error(self) -> BaseException | None:
        """The error with which it ended; None if it runs, was killed or succeeded."""
        if self.is_killed or self._task is None or not self._task.done():
            return None
        return self._task.exception()

    @property
    def result(self) -> object:
        """Its result, once it has ended."""
        return None if self._task is None or not self._task.done() else self._task.result()

    def kill(self) -> None:
        """End the process now; its peers see their connections closed."""
        if not self.is_over:
            self.is_killed = True
            self.loop.kill()
            self._network.vanish(self.name, silent=False)
