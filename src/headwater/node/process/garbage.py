"""The schedule of Python's cycle collector in a node: often for young objects, for old ones only while they are few.

A collection of all living objects takes a tenth of a microsecond for each, in one turn of the event loop: a third of a
second once clients have created some millions. So no object may need one: objects that clients create in large numbers
(connections, sessions, streams) drop their back references when they close, and are freed with the last reference. The
remaining cycles come from an occasional exception or task. They die young, or are collected while there are few
objects; if there are many, these are set aside (`gc.freeze`), so that few are left to scan.
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
    """The collector's schedule in a node's process.

    Attributes:
        collected: number of collections of old objects.
        set_aside: number of times that old objects were too many to be collected.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collected: int = 0
        self.set_aside: int = 0
        self._loop = loop
        self._survivors = 0  # objects that the last look through found alive
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
