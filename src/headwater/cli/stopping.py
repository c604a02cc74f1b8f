"""Ctrl-C, SIGTERM and a closed terminal as one exception, raised in the main thread, so that `with` blocks close
everything.

`Stopped` does not derive from Exception, so that code which goes on after errors does not go on after it.
"""

import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

Result = TypeVar("Result")
AGAIN_SECONDS = 0.001
"""The time after which a stop is raised again that came where Python lets no exception through."""


def signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a command: without SIGHUP if the parent process ignores it (nohup)."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else []))


class Stopped(BaseException):
    """The user or the system asked the command to end."""

    def __init__(self, number: int) -> None:
        self.signal = number
        super().__init__(f"stopped by {signal.Signals(number).name}")


_raised: list[Stopped] = []


def _raise(number: int, _frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    _raised[:] = [Stopped(number)]
    raise _raised[0]


def _raise_again(_number: int, _frame: FrameType | None) -> None:
    if _raised:
        raise _raised[0]


_hooks: list[Callable[["UnraisableHookArgs"], Any]] = []


def _unraisable(arguments: "UnraisableHookArgs") -> None:
    """Keep the exception that Python ignores in `__del__` and in calls from C: otherwise the command would
    never end.
    """
    if isinstance(arguments.exc_value, Stopped):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
    else:
        _hooks[0](arguments)


def raised() -> Stopped | None:
    """Return the Stopped that a signal raised, even if a C extension replaced it by an error of its own."""
    return _raised[0] if _raised else None


def listen() -> None:
    """Let `signals` raise Stopped in the main thread from now on."""
    _raised.clear()
    if sys.unraisablehook is not _unraisable:
        _hooks[:] = [sys.unraisablehook]
        sys.unraisablehook = _unraisable
    signal.signal(signal.SIGALRM, _raise_again)
    for number in signals():
        signal.signal(number, _raise)


@contextmanager
def until_stopped(*, has_end: bool = False) -> Iterator[None]:
    """Run until a signal asks for an end, which counts as success. Unfinished work that `has_end` fails instead: a
    scheduler that reads the status would take half the work for the whole.
    """
    try:
        yield
    except (Stopped, KeyboardInterrupt):
        if has_end:
            raise
        _raised.clear()


@contextmanager
def heeding_signals(*, has_end: bool = False) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after a signal, for work that must not be interrupted in a foreign call
    (Spark's).

    It sets our handlers again at each call: PySpark replaces the one for SIGINT by its own.

    Raises:
        Stopped: at the end, if work that `has_end` was interrupted.
    """
    received: list[int] = []
    ending = signals()

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    def stop() -> bool:
        for number in ending:
            if signal.getsignal(number) is not note:
                signal.signal(number, note)
        return bool(received)

    before = {number: signal.getsignal(number) for number in ending}
    stop()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if has_end and received:
        raise Stopped(received[0])


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine; a signal cancels it, so that its `async with` blocks close what they opened.

    Raises:
        Stopped: a signal came.
    """
    import asyncio

    async def main() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        received: list[int] = []

        def stop(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in signals():
            loop.add_signal_handler(number, stop, number)
        try:
            return await task
        # Only our own signal is a stop; any other cancellation is the work's own affair.
        except asyncio.CancelledError:
            if received:
                raise Stopped(received[0]) from None
            raise
        finally:
            for number in signals():
                loop.remove_signal_handler(number)

    try:
        return asyncio.run(main())
    finally:
        # Removing the loop's handlers has given the signals their default actions back: SIGTERM would end the process
        # at once.
        listen()
