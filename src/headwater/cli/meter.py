"""How far a long command is: a bar where there is a terminal, a line every ten seconds where there is none."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headwater.cli.screen import count, err, progress, rate

LINE_SECONDS = 10.0


class Meter:
    """Shows how much of a total is done, how fast that is and how long the rest takes; a context.

    Args:
        name: what is being done, as a word or two.
        unit: of the numbers.
        quiet: show nothing.
        clock: seconds.
        line: where plain lines go.
    """

    def __init__(
        self,
        name: str,
        unit: str,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        line: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        self._name, self._unit, self._quiet, self._clock, self._line = name, unit, quiet, clock, line
        self._began = self._told = clock()
        console = err()
        self._terminal = console.is_terminal and not quiet
        self._bar = progress(console, "rate")
        self._task = self._bar.add_task(name, total=None, rate="") if self._terminal else None

    def __enter__(self) -> Self:
        if self._terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._terminal:
            self._bar.stop()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return self._clock() - self._began

    def show(self, done: int, total: int) -> None:
        """So much is done of so much."""
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total, rate=rate(done, self.seconds, self._unit))
        elif not self._quiet and self._clock() >= self._told + LINE_SECONDS:
            self._told = self._clock()
            self._line(self.text(done, total))

    def text(self, done: int, total: int) -> str:
        """The plain line: `backup: 1,200 of 4,800 changes, 400 changes/s, 9 s left`."""
        left = (total - done) * self.seconds / done if done else None
        rest = "" if left is None else f", {left:,.0f} s left"
        return (
            f"{self._name}: {count(done)} of {count(total)} {self._unit}, {rate(done, self.seconds, self._unit)}{rest}"
        )
