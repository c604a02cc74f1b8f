"""The times at which Python's collector of reference cycles runs in a node: often for young objects, for old ones only
while they are few.

A collection of all living objects takes a tenth of a microsecond for each, in one turn of the event loop: a third of a
second once clients have made some millions. So no object here may need one: objects of which a client can have many
(connections, sessions, streams) drop the references back to them when they close, and are freed with the last
reference. The remaining cycles come from an exception or a task now and then. They die young, or are found while there
are few objects to look through; if there are many, those are set aside (`gc.freeze`), so that later objects are few
again.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

LOOK_SECONDS: Final = 1.0
YOUNG_OBJECTS: Final = 7700
"""So many grow old with each collection of the young at most: Python begins one when it has made eleven times 700."""
FEW_OBJECTS: Final = 40_000
"""So many are looked through in some milliseconds."""
NEVER: Final = 1 << 30


class Collector:
    """The collector's schedule in a process that is a node.

    Attributes:
        collected, set_aside: the number of collections of old objects, and of times when they were too many for one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collected: int = 0
        self.set_aside: int = 0
        self._loop = loop
        self._survivors = 0  # objects that the last look through found alive
        self._timer: asyncio.TimerHandle | None = None
        self._before = gc.get_threshold()

    def start(self) -> None:
        """Take the collection of old objects over from Python; the present objects stay for good."""
        self._before = gc.get_threshold()
        gc.set_threshold(*self._before[:2], NEVER)
        gc.collect()
        gc.freeze()
        self._arm()

    def stop(self) -> None:
        """Give the collection of old objects back to Python."""
        if self._timer is not None:
            self._timer.cancel()
            gc.set_threshold(*self._before)

    def _arm(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if grown := gc.get_count()[2]:
            if self._survivors + grown * YOUNG_OBJECTS <= FEW_OBJECTS:
                gc.collect()
                self._survivors = len(gc.get_objects())
                self.collected += 1
            else:
                gc.collect(1)
                gc.freeze()
                self._survivors = 0
                self.set_aside += 1
        self._arm()
