"""Round robin: readers with something to send take turns on a connection, in any dialect.

A turn is one arena's worth. A reader that has more to say goes to the back of the queue, so that a vbucket with a
million changes does not keep the others waiting for longer than it takes to send one arena.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from headwater.node.streams.outlet import OUTLET_BYTES, Outlet


class Turn(Protocol):
    """A reader of one vbucket, on its way to one connection."""

    @property
    def has_work(self) -> bool:
        """Return True if another turn would send something."""

    def take_turn(self, outlet: Outlet, quantum_bytes: int) -> None:
        """Send up to `quantum_bytes`; less if there is less room, or if the outlet is late."""


Reader = TypeVar("Reader", bound=Turn)


class RoundRobin(Generic[Reader]):
    """The readers of one connection that have something to send, served round robin."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Reader, None] = OrderedDict()

    def __bool__(self) -> bool:
        """Return True if a reader waits for its turn."""
        return bool(self._waiting)

    def add(self, reader: Reader) -> None:
        """Queue a reader that has something to send, behind the others; a queued reader keeps its turn."""
        self._waiting[reader] = None

    def discard(self, reader: Reader) -> None:
        """Remove a reader that has nothing more to send."""
        self._waiting.pop(reader, None)

    def clear(self) -> None:
        """Take all readers out."""
        self._waiting.clear()

    def fill(self, outlet: Outlet, is_stopped: Callable[[], bool] = bool) -> None:
        """Give turns until the outlet is full or late, no reader has more, or `is_stopped` returns True (at a full
        window).
        """
        while self._waiting and not outlet.is_full and not outlet.is_late() and not is_stopped():
            reader, _ = self._waiting.popitem(last=False)
            reader.take_turn(outlet, OUTLET_BYTES)
            # Asked behind the turn, which may have ended the reader.
            if reader.has_work:
                self._waiting[reader] = None
