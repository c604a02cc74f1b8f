"""Round robin: readers with something to send take turns on a connection, in any dialect.

A turn is one arena's worth. A reader with more to send returns to the end of the queue, so that a vbucket with a
million changes does not delay the others for longer than it takes to send one arena.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from headwater.node.streams.outlet import OUTLET_BYTES, Outlet


class Turn(Protocol):
    """A reader that sends one vbucket on one connection."""

    @property
    def has_work(self) -> bool:
        """True if another turn would send something."""

    def take_turn(self, outlet: Outlet, quantum_bytes: int) -> None:
        """Send up to `quantum_bytes`; send less if the outlet has less room, or is late."""


Reader = TypeVar("Reader", bound=Turn)


class RoundRobin(Generic[Reader]):
    """The readers of one connection that have something to send, served round robin."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Reader, None] = OrderedDict()

    def __bool__(self) -> bool:
        """Return True if a reader waits for its turn."""
        return bool(self._waiting)

    def add(self, reader: Reader) -> None:
        """Queue a reader with something to send after the others; a reader already in the queue keeps its place."""
        self._waiting[reader] = None

    def discard(self, reader: Reader) -> None:
        """Remove a reader that has nothing more to send."""
        self._waiting.pop(reader, None)

    def clear(self) -> None:
        """Remove all readers."""
        self._waiting.clear()

    def fill(self, outlet: Outlet, is_stopped: Callable[[], bool] = bool) -> None:
        """Give turns until the outlet is full or late, no reader is left, or `is_stopped` returns True (the window is
        full).
        """
        while self._waiting and not outlet.is_full and not outlet.is_late() and not is_stopped():
            reader, _ = self._waiting.popitem(last=False)
            reader.take_turn(outlet, OUTLET_BYTES)
            # Asked behind the turn, which may have ended the reader.
            if reader.has_work:
                self._waiting[reader] = None
