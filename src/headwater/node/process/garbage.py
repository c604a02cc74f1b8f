"""The schedule of Python's cycle collector in a node: often for young objects, for old ones only while they are few.

A collection scans all living objects in one turn of the event loop, and takes a tenth of a microsecond for each: a
third of a second once clients have created some millions. So objects must be freed without it: objects that clients
create in large numbers (connections, sessions, streams) drop their back references when they close, and are freed with
the last reference. The remaining cycles come from an occasional exception or task. They are collected young, or while
there are few objects. If there are many old objects, these are set aside (`gc.freeze`), so that few are left to scan.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

LOOK_SECONDS: Final = 1.0
YOUNG_OBJECTS: Final = 7700
"""The most objects that become old with each collection of the middle generation: Python begins one after eleven times
700 new objects."""
FEW_OBJECTS: Final = 40_000
"""The most old objects that are collected; scanning so many takes some milliseconds."""
NEVER: Final = 1 << 30


class Collector:
    """The collector's schedule in a node's process.

    Attributes:
        collected: the number of collections of old objects.
        set_aside: how many times old objects were too many, and were set aside.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collected: int = 0
        self.set_aside: int = 0
        self._loop = loop
        self._survivors = 0  # objects that survived the last collection of old objects
        self._timer: asyncio.TimerHandle | None = None
        self._before = gc.get_threshold()

    def start(self) -> None:
        """Take over the collection of old objects from Python; the present objects are never collected."""
        self._before = gc.get_threshold()
        gc.set_threshold(*self._before[:2], NEVER)
        gc.collect()
        gc.freeze()
        self._arm()

    def stop(self) -> None:
        """Return the collection of old objects to Python."""
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
