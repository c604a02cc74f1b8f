"""The behaviour of a process while numba compiles kernels (jit.py): its log lines, and the limits of its threads.

A node that serves while its kernels are compiled (node/process/machine_code.py) needs two things: to load kernels
without compiling any (`looking`), and not to wait when a request needs a kernel (`serving`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

PROGRESS_SECONDS = 5.0


class NotCompiled(Exception):  # noqa: N818 - no error: an answer
    """A kernel has no machine code for these arguments yet, and this thread may not compile it."""


class _Thread(threading.local):
    looks = builds = False


_thread = _Thread()
serving = False
"""True if this process serves while kernels are compiled elsewhere, in another process or thread."""


@contextmanager
def looking() -> Iterator[None]:
    """Load kernels, but compile none, in this block and thread; a kernel without machine code raises NotCompiled."""
    before, _thread.looks = _thread.looks, True
    try:
        yield
    finally:
        _thread.looks = before


@contextmanager
def building() -> Iterator[None]:
    """Compile or load kernels in this block and thread, even while `serving`: no stand-in replaces a kernel."""
    before, _thread.builds = _thread.builds, True
    try:
        yield
    finally:
        _thread.builds = before


def looks() -> bool:
    """Return True if this thread is in a block of `looking`."""
    return _thread.looks


def does_without() -> bool:
    """Return True if this thread serves: kernels with a stand-in use it instead of waiting or compiling."""
    return serving and not (_thread.looks or _thread.builds)


class Compiling:
    """Prints progress lines while kernels are compiled.

    Args:
        line: called with each line.
        clock: returns seconds.
    """

    def __init__(self, line: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._line, self._clock = line, clock
        self._began_at = self._reported = 0.0
        self.count: int = 0
        self.remark = ""
        """The reason why the usual folder is not used, printed with the first line; empty if it is used."""

    def begin(self, folder: str) -> None:
        """Report that a kernel is about to be compiled."""
        now = self._clock()
        if not self.count:
            self._began_at = self._reported = now
            place = f"They are kept in {folder}" if folder else "They can't be kept, so each start takes as long"
            self._say(f"compiling kernels for this machine, once; it takes half a minute or so. {place}{self.remark}")
        elif now >= self._reported + PROGRESS_SECONDS:
            self._reported = now
            self._say(f"{self.count} kernels compiled in {now - self._began_at:.0f} s")
        self.count += 1

    def _say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # stderr may be closed
            self._line(text)

    def tell(self, line: Callable[[str], None]) -> None:
        """Print the progress lines by another function from now on; the first one prints to stderr."""
        self._line = line


def _to_stderr(line: str) -> None:
    print(f"headwater: {line}", file=sys.stderr, flush=True)


compiling: Final = Compiling(_to_stderr)
"""The progress lines of this process."""
