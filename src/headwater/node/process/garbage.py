"""The times at which Python's collector of reference cycles runs in a node: the young often, the old only while they
are few.

A collection of all that lives takes a tenth of a microsecond for each object, in one turn of the event loop: a third of
a second once guests have made some millions. So nothing here may need one: whatever a guest can have many of
(connections, sessions, streams) lets go of what refers back to it when it closes, and is gone with the last reference.
What is left are the cycles of an exception or a task now and then. Those die young, or are found while there is little
to look through; where there is much, it is set aside (`gc.freeze`), so that what comes later is little again.
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
        collected, set_aside: how often the old ones were looked through, and how often they were too many for that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collected: int = 0
        self.set_aside: int = 0
        self._loop = loop
        self._survivors = 0  # objects that the last look through found alive
        self._timer: asyncio.TimerHandle | None = None
        self._before = gc.get_threshold()

    def start(self) -> None:
        """Take the old ones over from Python; what is there by now stays."""
        self._before = gc.get_threshold()
        gc.set_threshold(*self._before[:2], NEVER)
        gc.collect()
        gc.freeze()
        self._arm()

    def stop(self) -> None:
        """Give them back."""
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
