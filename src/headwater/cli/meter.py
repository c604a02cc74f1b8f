"""The progress of a long command: a bar where there is a terminal, a line every ten seconds where there is none."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headwater.cli.forms import forms
from headwater.cli.screen import count, err, progress, rate

LINE_SECONDS = 10.0


class Meter:
    """Shows the progress of a total, its speed and the time left; a context.

    Args:
        name: the work, as a word or two.
        unit: the unit of the numbers.
        quiet: show nothing; None to use the command's form.
        clock: seconds.
        line: prints plain lines.
    """

    def __init__(
        self,
        name: str,
        unit: str,
        *,
        quiet: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        line: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        self._is_quiet = forms().quiet if quiet is None else quiet
        self.unit = unit
        self._name, self._clock, self._line = name, clock, line
        self._began_at = self._reported_at = clock()
        self._last: tuple[object, ...] = ()
        console = err()
        self._terminal = console.is_terminal and not self._is_quiet
        self._bar = progress(console, "rate", "note")
        self._task = self._bar.add_task(name, total=None, rate="", note="") if self._terminal else None

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
        """The seconds since the meter was made."""
        return self._clock() - self._began_at

    def show(
        self, done: int, total: int | None, *, this_run: int | None = None, name: str | None = None, note: str = ""
    ) -> None:
        """Show `done` of `total` (None: unknown).

        Args:
            this_run: the result in the unit, if `done` and `total` have another one: bytes of a file.
            name: the present step.
            note: a further remark.
        """
        if self._task is not None:
            speed = rate(done if this_run is None else this_run, self.seconds, self.unit)
            self._bar.update(
                self._task, completed=done, total=total or None, description=name or self._name, rate=speed, note=note
            )
        elif not self._is_quiet and self._clock() >= self._reported_at + LINE_SECONDS:
            self._reported_at = self._clock()
            if (now := (done, total, this_run, name, note)) != self._last:  # who only waits for more has said so
                self._line(self.text(done, total, this_run=this_run, name=name, note=note))
            self._last = now

    def text(
        self, done: int, total: int | None, *, this_run: int | None = None, name: str | None = None, note: str = ""
    ) -> str:
        """Return the plain line: `backup: 1,200 of 4,800 changes, 400 changes/s, 9 s left`."""
        counted = done if this_run is None else this_run
        parts = [f"{name or self._name}: {count(counted)}"]
        if total and this_run is None:
            parts[0] += f" of {count(total)}"
        parts[0] += f" {self.unit}"
        if total and this_run is not None:
            parts.append(f"{100 * done // total} %")
        parts.append(rate(counted, self.seconds, self.unit))
        if total and done:
            parts.append(f"{(total - done) * self.seconds / done:,.0f} s left")
        return ", ".join([*parts, *filter(None, [note])])
