"""Processes whose code blocks: backups and mirrors, which wait in the middle of a call and have no event loop.

    program = BlockingProgram(schedule, network, "backup-1", work)
    program.is_over, program.error, program.result
    program.kill()

Each of their threads is a real one, but it runs only while the schedule stands still, and the other way round: they
take turns, so a seed decides everything. A thread gives up its turn where it would wait: for a connection, for some
time, or for another thread's work (`waits` replaces the functions that wait).

In a killed process `Killed` is raised where a thread waits, and passes through its code. That code has no effects any
more: the process's connections are gone, and its store accepts nothing (objects.py).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from harness.world.programs import ProgramLoop
from headwater.lake import upkeep
from headwater.transport import blocking

if TYPE_CHECKING:
    from harness.simulation.scheduler import Schedule
    from harness.simulation.sockets import Network
    from headwater.transport.channel import SocketAddress
    from headwater.transport.waiting import Ready, Resolve

T = TypeVar("T")


class Killed(BaseException):
    """Raised in the threads of a killed process."""


class BlockingThread:
    """A thread of a process.

    Attributes:
        process: the process. is_over: True if its work has ended. error, result: the outcome of its work.
    """

    def __init__(self, process: BlockingProgram, work: Callable[[], object]) -> None:
        self.process = process
        self.is_over = False
        self.error: BaseException | None = None
        self.result: object = None
        self._work = work
        self._turn, self._back = threading.Lock(), threading.Lock()
        for lock in (self._turn, self._back):
            lock.acquire()  # a turn is given by a release: of bare locks, which a switch takes the least time with
        self._thread = threading.Thread(target=self._run, name=process.name, daemon=True)
        self._is_begun = False
        process.loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """Give the thread its turn, until it waits again or ends."""
        if self.is_over:
            return
        if not self._is_begun:
            self._is_begun = True
            self._thread.start()
        self._turn.release()
        self._back.acquire()

    def end(self) -> None:
        """End the thread, because the process is killed."""
        if self._is_begun:
            self.go_on()
        self.is_over = True

    def _run(self) -> None:
        self._turn.acquire()
        _here.thread = self
        loop: Any = self.process.loop
        asyncio._set_running_loop(loop)
        try:
            self.result = self._work()
        except BaseException as error:  # it is the process's
            self.error = error
        finally:
            asyncio._set_running_loop(None)
            self.is_over = True
            self._back.release()

    # --- within the thread ------------------------------------------------------------------------------------------

    def _give_away(self) -> None:
        self._check()
        self._back.release()
        self._turn.acquire()
        self._check()

    def _check(self) -> None:
        if self.process.is_killed:
            raise Killed(self.process.name)

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        self._check()
        self.process.loop.call_later(max(seconds, 0.0), self.go_on)
        self._give_away()

    def until(self, come: Callable[[Callable[[], None]], Callable[[], None]], seconds: float | None = None) -> None:
        """Wait until an event.

        Args:
            come: called with the function that wakes this thread; returns the function that cancels the wait.
            seconds: the longest wait; None for no limit.
        """
        self._check()
        is_woken = False

        def wake() -> None:
            nonlocal is_woken
            if not is_woken:
                is_woken = True
                self.go_on()

        take_back = come(wake)
        timer = None if seconds is None else self.process.loop.call_later(seconds, wake)
        try:
            self._give_away()
        finally:
            take_back()
            if timer is not None:
                timer.cancel()


class BlockingProgram:
    """A process of such threads.

    Args:
        work: the first thread's.

    Attributes:
        name: its place in the network. loop: that of its clock and its connections. is_killed: True once it was killed.
        kept: objects that others keep for it, which are released with it.
    """

    def __init__(self, schedule: Schedule, network: Network, name: str, work: Callable[[], object]) -> None:
        self.name, self.network = name, network
        self.is_killed = False
        self.kept: dict[str, Any] = {}
        self.loop = ProgramLoop(schedule, network, name)
        self._threads: list[BlockingThread] = []
        self._main = self.begin(work)

    def begin(self, work: Callable[[], object]) -> BlockingThread:
        """Begin another thread."""
        self._threads.append(made := BlockingThread(self, work))
        return made

    @property
    def is_over(self) -> bool:
        """True if it has ended, by itself or not."""
        return self.is_killed or self._main.is_over

    @property
    def error(self) -> BaseException | None:
        """The error with which it ended; None if it runs, was killed or succeeded."""
        return None if self.is_killed else self._main.error

    @property
    def result(self) -> object:
        """Its result, once it has ended."""
        return self._main.result

    def kill(self) -> None:
        """End the process now, with all its threads; its peers see their connections closed."""
        if self.is_over:
            return
        self.is_killed = True
        self.loop.kill()
        self.network.vanish(self.name, silent=False)
        for thread in self._threads:
            thread.end()


class _Here(threading.local):
    thread: BlockingThread | None = None


_here = _Here()
_real_sleep = time.sleep


def current() -> BlockingThread | None:
    """Return the present thread of a simulated process; None elsewhere."""
    return _here.thread


def _inside() -> BlockingThread:
    if _here.thread is None:
        raise AssertionError("only a process whose code blocks can wait in the simulation")
    return _here.thread


def sleep(seconds: float) -> None:
    """Replace `time.sleep`; a thread outside of the simulation, as a library may have, really sleeps."""
    if _here.thread is None and threading.current_thread() is not threading.main_thread():
        _real_sleep(seconds)
    else:
        _inside().sleep(seconds)


def _wait(asked: Ready, clock: Callable[[], float]) -> None:
    """Replace the wait of the blocking transport."""
    thread = _inside()
    if any(channel.fileno() < 0 for channel in asked.channels):
        thread.sleep(0.0)
        return
    loop, network = thread.process.loop, thread.process.network
    sockets = [(network.file(channel.fileno()), channel.wants_to_write) for channel in asked.channels]

    def watch(wake: Callable[[], None]) -> Callable[[], None]:
        for socket, for_room in sockets:
            socket.watch_reading(loop, wake)
            if for_room:
                socket.watch_writing(loop, wake)

        def take_back() -> None:
            for socket, _ in sockets:
                socket.watch_reading(loop, None)
                socket.watch_writing(loop, None)

        return take_back

    thread.until(watch, None if asked.deadline is None else max(0.0, asked.deadline - clock()))


def _resolve(asked: Resolve) -> list[SocketAddress]:
    """Replace the resolver: names are addresses here."""
    return [(0, (asked.host, asked.port))]


class SimulatedPool(Executor):
    """A pool of one thread of the process that creates it: pieces of work are done one after the other, beside its
    creator.
    """

    def __init__(self, *_: object) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._worker: BlockingThread | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Start a piece of work after all earlier ones; return its future."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except Killed:
                raise
            except BaseException as error:  # it is the future's
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting.append(work)
        if self._worker is None or self._worker.is_over:
            self._worker = _inside().process.begin(self._work)
        return future

    def _work(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait until all work is done."""
        while wait and self._worker is not None and not self._worker.is_over:
            sleep(POLL_SECONDS)


POLL_SECONDS = 0.01


def wait_for(futures: Collection[Future[Any]], seconds: float | None = None) -> None:
    """Replace `concurrent.futures.wait`."""
    until = None if seconds is None else time.monotonic() + seconds
    while not all(future.done() for future in futures) and (until is None or time.monotonic() < until):
        sleep(POLL_SECONDS)


@contextmanager
def waits() -> Iterator[None]:
    """Replace, for a block, the functions by which headwater's blocking code waits, so that it gives its turn away."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(blocking, "wait", _wait))
        stack.enter_context(mock.patch.object(blocking, "resolve", _resolve))
        stack.enter_context(mock.patch.object(upkeep, "ThreadPoolExecutor", SimulatedPool))
        stack.enter_context(mock.patch.object(upkeep, "wait", wait_for))
        yield
