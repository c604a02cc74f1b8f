"""Time that passes only when nothing is left to do, and event loops that live in it.

    schedule = Schedule(seed)
    loop = SimLoop(schedule, network, "n0") an asyncio loop for one node: timers, futures, tasks, readers and writers
    schedule.run(0.05)                     everything that happens in the next 50 ms
    loop.kill()                            the process is gone: nothing of it runs any more

One queue of events for all loops, ordered by time and then by when they were asked for: a run is decided by its seed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")

NOON_SECONDS = 1_700_000_000
EVENTS_MAX = 50_000
"""More in one `run` means that something goes round in circles."""


class Runaway(AssertionError):  # noqa: N818 - what it is
    """Events cause more events without time passing."""


class Schedule:
    """The queue of all future events.

    Attributes:
        now: seconds since the beginning. random: the source of all random numbers of the run.
        failures: uncaught exceptions.
        watch: called after each event with the loop it ran in. loops: those of running processes.
        turn_seconds: the duration of an event; with 0 a wait for a moment that is a rounding error ahead would never
            end.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = Random(seed)  # noqa: S311 - must be repeatable
        self.failures: list[BaseException] = []
        self.events = 0
        self.turn_seconds = 0.0
        self.watch: Callable[[SimLoop], None] | None = None
        self.loops: set[SimLoop] = set()
        self._queue: list[tuple[float, int, SimLoop | None, asyncio.Handle | Callable[[], None]]] = []
        self._number = 0

    def close(self) -> None:
        """End all remaining processes."""
        for loop in tuple(self.loops):
            loop.kill()

    def at(self, when: float, loop: SimLoop | None, what: asyncio.Handle | Callable[[], None]) -> None:
        """Schedule a callback at a time, in a loop (None: in the world outside of the nodes)."""
        self._number += 1
        heappush(self._queue, (when if when > self.now else self.now, self._number, loop, what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Schedule a callback in the world outside of the nodes, after some seconds."""
        self.at(self.now + seconds, None, what)

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass, or until a condition holds; return True if it holds. Raises the first failure meanwhile."""
        end, left = self.now + seconds, EVENTS_MAX + int(seconds * 20_000)
        while self._queue and self._queue[0][0] <= end:
            if until is not None and until():
                return True
            self._step()
            left -= 1
            if not left:
                raise Runaway(f"{EVENTS_MAX} events, and it is still {self.now:.3f} s; next {self._queue[:3]}")
            if self.failures:
                raise self.failures[0]
        if until is not None and until():
            return True  # with the last event: what comes after `end` is not waited for
        self.now = end
        return until is not None and until()

    def _step(self) -> None:
        when, number, loop, what = heappop(self._queue)
        if loop is not None and loop.sleeps_until > when:
            heappush(self._queue, (loop.sleeps_until, number, loop, what))
            return
        self.now = (when if when > self.now else self.now) + self.turn_seconds
        self.events += 1
        if not isinstance(what, asyncio.Handle):
            what()
        elif loop is not None and not loop.is_dead and not what._cancelled:
            loop.run_handle(what)
            if self.watch is not None and not loop.is_dead:
                self.watch(loop)


class Watched(Protocol):
    """A socket that a loop can watch."""

    def watch_reading(self, loop: SimLoop, callback: Callable[..., object] | None) -> bool:
        """Call back as long as there is something to read; None ends that. Return True if there was a callback
        before.
        """

    def watch_writing(self, loop: SimLoop, callback: Callable[..., object] | None) -> bool:
        """Call back as long as there is room; None ends that. Return True if there was a callback before."""


class Descriptors(Protocol):
    """The network, as a loop sees it."""

    def file(self, number: int) -> Watched:
        """Return the socket with a number."""


class NumberedFuture(asyncio.Future[Any]):
    """A future whose place in a set does not depend on where in memory it lies."""

    number: int

    def __new__(cls, *, loop: Any) -> NumberedFuture:
        """Create the future with its number: asyncio puts tasks into a set while they are created."""
        made = super().__new__(cls)
        made.number = loop.next_number()
        return made

    def __hash__(self) -> int:
        return self.number


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where in memory it lies."""

    number: int

    def __new__(cls, coro: Any, *, loop: Any, name: str | None = None) -> NumberedTask:
        """Create the task with its number, as a future."""
        made = super().__new__(cls)
        made.number = loop.next_number()
        return made

    def __hash__(self) -> int:
        return self.number


class SimHandle(asyncio.Handle):
    """A callback without asyncio's check for the debug mode, which is off: there are hundreds of thousands in a run."""

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], loop: Any, context: Context | None):
        self._callback, self._args, self._loop = callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled, self._repr, self._source_traceback = False, None, None


class SimLoop:
    """The part of an event loop (asyncio.AbstractEventLoop) that a node uses, in simulated time.

    Attributes:
        pools: the threads of the process, whose work may be unfinished when it dies.
        sleeps_until: when a stopped process continues; until then no event of it runs.
        tasks: those that had not ended when the process died; releasing them would run their `finally`.
    """

    def __init__(self, schedule: Schedule, network: Descriptors, name: str) -> None:
        self.schedule, self.network = schedule, network
        self.name = name
        self.is_dead = False
        schedule.loops.add(self)
        self.sleeps_until = 0.0
        self.tasks: list[asyncio.Task[Any]] = []
        self.pools: list[Threads] = []
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._default = self.pool()
        self._numbers = 0
        self._self: Any = self  # asyncio's own classes ask for an AbstractEventLoop, and use what is here

    def pool(self) -> Threads:
        """Return a new pool of threads of this process."""
        self.pools.append(made := Threads(self))
        return made

    def kill(self) -> None:
        """Stop the loop: no callback runs any more. Coroutines that never began are closed, since Python warns of
        them.
        """
        self.is_dead = True
        self.schedule.loops.discard(self)
        self.tasks = [task for task in self._tasks if not task.done()]
        for task in self.tasks:
            work = task.get_coro()
            if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    def run_handle(self, handle: asyncio.Handle) -> None:
        """Run one callback as the running loop."""
        asyncio._set_running_loop(self._self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def complete(self, work: Coroutine[Any, Any, T], seconds: float = 600.0) -> T:
        """Run a coroutine to its end, for `seconds` at most; return its result."""
        task = self.create_task(work)
        if not self.schedule.run(seconds, task.done):
            raise TimeoutError(f"{self.name}: not done within {seconds:g} s")
        return task.result()

    # --- what asyncio asks of a loop --------------------------------------------------------------------------------

    def time(self) -> float:
        """Return seconds since the beginning of the run."""
        return self.schedule.now

    def get_debug(self) -> bool:
        """Return False: asyncio's debug mode is off."""
        return False

    def is_running(self) -> bool:
        """Return True if the process is running."""
        return not self.is_dead

    def is_closed(self) -> bool:
        """Return True if the process is gone."""
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the run for an uncaught exception; ignore those of a dead process."""
        if not self.is_dead:
            self.schedule.failures.append(context.get("exception") or AssertionError(context["message"]))

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Schedule a callback behind all callbacks that are due now."""
        handle, schedule = SimHandle(callback, args, self._self, context), self.schedule
        schedule.at(schedule.now, self, handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback as `call_soon` does: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback after `delay` seconds."""
        return self.call_at(self.schedule.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a time of the simulated clock."""
        handle = asyncio.TimerHandle(when, callback, args, self._self, context)
        self.schedule.at(when, self, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled callback stays in the queue and is passed over."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return NumberedFuture(loop=self._self)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], *, name: str | None = None, **_: Any
    ) -> asyncio.Task[T]:
        """Return a task of this loop."""
        self._tasks.add(task := NumberedTask(coro, loop=self._self, name=name or "task"))
        return task

    def next_number(self) -> int:
        """Return a number for a future or a task."""
        self._numbers += 1
        return self._numbers

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run a function in a simulated thread: its effect comes all at once, after some time."""
        future = (executor or self._default).submit(func, *args)
        return asyncio.wrap_future(future, loop=self._self)

    # --- sockets ----------------------------------------------------------------------------------------------------

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        """Call back as long as there is something to read."""
        self.network.file(fd).watch_reading(self, partial(callback, *args) if args else callback)

    def remove_reader(self, fd: Any) -> bool:
        """Stop calling back for reads; return True if there was a callback."""
        return self.network.file(fd).watch_reading(self, None)

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        """Call back as long as there is room."""
        self.network.file(fd).watch_writing(self, partial(callback, *args) if args else callback)

    def remove_writer(self, fd: Any) -> bool:
        """Stop calling back for writes; return True if there was a callback."""
        return self.network.file(fd).watch_writing(self, None)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        """Resolve a host name, which is an address here."""
        return [(0, 0, 0, "", (host, port))]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connect a socket; ConnectionRefusedError if nobody listens."""
        await sock.network.connect(self, sock, address)

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        """Send all of the bytes, which are few."""
        if sock.send(data) != len(data):
            raise ConnectionError("the peer takes nothing")

    async def sock_recv(self, sock: Any, nbytes: int) -> bytes:
        """Return the received bytes, at least one; b"" at the end."""
        while True:
            try:
                return bytes(sock.recv(nbytes))
            except BlockingIOError:
                future = self.create_future()
                sock.watch_reading(self, lambda future=future: future.done() or future.set_result(None))
                try:
                    await future
                finally:
                    sock.watch_reading(self, None)


class Threads(Executor):
    """A pool whose work is done a little later, by the loop's own thread.

    Attributes:
        seconds: the longest duration of a piece of work. waiting: unfinished work.
    """

    def __init__(self, loop: SimLoop, seconds: float = 0.003) -> None:
        self.seconds = seconds
        self.waiting: list[Callable[[], None]] = []
        self._loop = loop

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Schedule a piece of work for a little later; return its future."""
        future: Future[T] = Future()

        def work() -> None:
            self.waiting.remove(work)
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # it is the future's
                future.set_exception(error)
            else:
                future.set_result(result)

        self.waiting.append(work)
        delay = self._loop.schedule.random.random() ** 2 * self.seconds
        self._loop.call_later(delay, lambda: work() if work in self.waiting else None)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do the remaining work in the caller's thread, if it waits for the end."""
        while wait and self.waiting:
            self.waiting[0]()
