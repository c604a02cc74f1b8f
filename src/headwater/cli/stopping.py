"""Ctrl-C and SIGTERM as one exception, raised where the command is: what must be closed is closed by its `with` blocks.

`Stopped` does not derive from Exception, so that code which goes on after errors does not go on after it.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """The user or the system asked the command to end."""

    def __init__(self, number: int) -> None:
        self.signal = number
        super().__init__(f"stopped by {signal.Signals(number).name}")


def _raise(number: int, _frame: FrameType | None) -> None:
    raise Stopped(number)


def listen() -> None:
    """From now on SIGINT and SIGTERM raise Stopped in the main thread."""
    signal.signal(signal.SIGINT, _raise)
    signal.signal(signal.SIGTERM, _raise)


@contextmanager
def until_stopped() -> Iterator[None]:
    """For commands that run until they are told to end: being told to is how they succeed."""
    try:
        yield
    except (Stopped, KeyboardInterrupt):
        return
