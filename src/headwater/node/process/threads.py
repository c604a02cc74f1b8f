"""Pools whose threads start before they are needed.

A system may refuse a new thread at any moment: a limit of processes, of address space, no memory. A pool that starts
its threads as work arrives would then keep the work and raise an error, and it is unknown whether the work will ever be
done. So the node's pools start all their threads at once; if that fails, the node does not start.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Barrier
from typing import Any

from headwater.errors import StorageError

__all__ = ["Inline", "pool", "pool_or_inline"]


def pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads are all running.

    Raises:
        StorageError: the system refuses more threads.
    """
    executor, running = ThreadPoolExecutor(threads, name), Barrier(threads + 1)
    try:
        for _ in range(threads):  # each waits for all others, so each task needs a thread of its own
            executor.submit(running.wait)
        running.wait()
    except (RuntimeError, MemoryError) as error:
        running.abort()
        executor.shutdown(wait=True, cancel_futures=True)
        raise StorageError(
            f"no thread to be had for {name} ({error}); raise the limit of processes or memory (ulimit -u, -v)"
        ) from None
    return executor


def pool_or_inline(threads: int, name: str) -> Executor:
    """Return a pool of threads; if its threads can't be started, an executor that does the work in the caller's
    thread.
    """
    try:
        return pool(threads, name)
    except StorageError:
        return Inline()


class Inline(Executor):
    """An executor that does the work at once, in the caller's thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do the work; return a future with its result."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
