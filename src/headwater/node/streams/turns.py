"""Who sends next on a connection: readers with something to say take turns, whatever dialect they write.

A turn is one arena's worth. A reader that has more to say goes to the back of the queue, so that a vbucket with a
million changes does not keep the others waiting for longer than it takes to send one arena.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from headwater.node.streams.outlet import ARENA_BYTES, Outlet


class Turn(Protocol):
    """A reader of one vbucket, on its way to one connection."""

    @property
    def has_work(self) -> bool:
        """Whether another turn would send something."""

    def take_turn(self, outlet: Outlet, quantum_bytes: int) -> None:
        """Send up to so many bytes; less if there is less room."""


Reader = TypeVar("Reader", bound=Turn)


class Turns(Generic[Reader]):
    """The readers of one connection that have something to send, in the order of their turns."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Reader, None] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def add(self, reader: Reader) -> None:
        """It has something to send: behind the others, or where it waits already."""
        self._waiting[reader] = None

    def discard(self, reader: Reader) -> None:
        """It has nothing to send any more."""
        self._waiting.pop(reader, None)

    def clear(self) -> None:
        """Nobody has anything to send any more."""
        self._waiting.clear()

    def fill(self, outlet: Outlet, is_stopped: Callable[[], bool] = bool) -> None:
        """Have turns until the outlet is full, nobody has more to say, or something else (a window) stops them."""
        while self._waiting and not outlet.is_full and not is_stopped():
            reader, _ = self._waiting.popitem(last=False)
            reader.take_turn(outlet, ARENA_BYTES)
            if reader.has_work:
                self._waiting[reader] = None
