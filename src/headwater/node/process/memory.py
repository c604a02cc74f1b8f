"""Return memory to the system when it is no longer needed: large buffers at once, memory kept by the C library a little
later.

The C library's allocator keeps freed memory; by itself it does not return pages that lie between blocks in use. So
buffers that may be large and live long (half a request, an unread answer) are mapped, and unmapped with their last
reference; after much other memory was freed, `malloc_trim` returns whole pages. Both the check and the trim run in a
thread: the event loop waits for them only if it allocates large memory meanwhile.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import socket
import sys
import time
from array import array
from collections.abc import Callable
from functools import cache
from typing import Final

__all__ = ["MAPPED_BYTES_MIN", "Trimmer", "libc", "mapped", "mapped_copy", "socket_bytes"]

MAPPED_BYTES_MIN: Final = 1 << 20
"""Smaller buffers come from the allocator, because mapping takes some microseconds, and wastes a part of a page."""
LOOK_SECONDS: Final = 0.25
LOOK_PARTS: Final = 500
"""A check takes at most one of so many parts of the time. It scans all free blocks, which takes 3 ms in a heap of many
pieces."""
TRIM_BYTES_MIN: Final = 16 << 20
"""A trim, which takes milliseconds, happens once the free bytes exceed the least since the last trim by so many."""
_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
KEPT_BYTES: Final = 24 << 20
"""The bytes that a trim leaves at the end of the heap, for the next document of 20 MiB: getting these pages again would
take 8 ms."""


def mapped(size_bytes: int) -> mmap.mmap:
    """Return a buffer of zeros in mapped pages, which return to the system with its last reference.

    The pages are not huge pages. These are usually faster, but ten times slower if the system must make room for them,
    or a virtual machine has never used them (50 ms for 20 MiB, measured).

    Raises:
        OSError: the system has no more memory.
    """
    return mmap.mmap(-1, size_bytes, flags=_PRIVATE)


def mapped_copy(data: bytes | bytearray | memoryview) -> memoryview:
    """Return a copy of the data in mapped pages. Raises OSError if the system has no more memory."""
    copy = mapped(len(data))
    copy[:] = data
    return memoryview(copy)


@cache
def libc() -> ctypes.CDLL:
    """Return the C library of this process."""
    return ctypes.CDLL(None)


class _Figures(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks"),
            "keepcost",
        )
    )


def free_bytes_of_libc() -> Callable[[], int] | None:
    """Return a function that returns the allocator's free bytes; None if the allocator does not report them."""
    try:
        figures = libc().mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    figures.restype = _Figures
    return lambda: int(figures().fordblks)


def trim_libc() -> None:
    """Return as many of the allocator's pages to the system as possible, except some at the end of the heap."""
    libc().malloc_trim(ctypes.c_size_t(KEPT_BYTES))


class Trimmer:
    """Returns the allocator's memory to the system soon after much of it was freed.

    Args:
        loop: the event loop, whose executor runs the checks and trims.
        free_bytes: returns the allocator's free bytes, including those whose pages are returned to the system; None if
            these are unknown: then the trimmer does nothing.
        trim: returns memory to the system.
        clock: returns seconds, precise enough to time a check.

    Attributes:
        trims: the number of trims.
        pause_seconds: the time until the next check.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        free_bytes: Callable[[], int] | None = None,
        trim: Callable[[], None] = trim_libc,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.trims: int = 0
        self.pause_seconds: float = LOOK_SECONDS
        self._loop, self._free_bytes, self._trim, self._clock = loop, free_bytes, trim, clock
        self._least_bytes = 0
        self._is_on = False
        self._timer: asyncio.TimerHandle | None = None
        self._working: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start the checks."""
        if self._free_bytes is not None:
            self._is_on = True
            self._arm()

    def stop(self) -> None:
        """Stop the checks."""
        self._is_on = False
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._is_on:
            self._timer = self._loop.call_later(self.pause_seconds, self._begin)

    def _begin(self) -> None:
        self._working = self._loop.run_in_executor(None, self._look)
        # The next check is scheduled when this one has ended, so two never run at the same time.
        self._working.add_done_callback(lambda _: self._arm())

    def _look(self) -> None:
        """Check the free bytes, and trim if it is worth it; runs in a thread."""
        begun = self._clock()
        free = self._free_bytes() if self._free_bytes is not None else 0
        self.pause_seconds = max(LOOK_SECONDS, LOOK_PARTS * (self._clock() - begun))
        # Returned pages still count as free until they are used again, so only the increase matters.
        self._least_bytes = min(self._least_bytes, free)
        if free - self._least_bytes >= TRIM_BYTES_MIN:
            self._least_bytes = free
            self.trims += 1
            self._trim()


_MEMINFO: Final = 55 if sys.platform == "linux" else None
"""SO_MEMINFO, for which Python has no name: an option of Linux sockets that returns the memory of a socket."""
_MEMINFO_FIELDS: Final = 9  # of an unsigned int each
_RECEIVED, _FORWARD, _QUEUED = 0, 4, 5


def socket_bytes(sock: socket.socket) -> int:
    """Return the bytes of memory that the system holds for a socket: unread input, unsent output, and reserves for
    both; 0 if the system does not report these.
    """
    if _MEMINFO is None:
        return 0
    fields = array("I", sock.getsockopt(socket.SOL_SOCKET, _MEMINFO, 4 * _MEMINFO_FIELDS))
    return fields[_RECEIVED] + fields[_FORWARD] + fields[_QUEUED] if len(fields) == _MEMINFO_FIELDS else 0
