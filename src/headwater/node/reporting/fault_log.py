"""A limit for log lines with tracebacks: a request that causes an internal error may come a thousand times a second.

The first traceback from a place in the code is written. Further ones from the same place within a minute are only
counted; the next written one has their number.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable

AGAIN_SECONDS = 60.0
PLACES_MAX = 256


class RareTracebacks(logging.Filter):
    """Passes one record with a traceback for each place and minute, and all records without a traceback.

    Args:
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._times: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record should be written; its message then gets the number of records that were
        left out.
        """
        place = _place(record)
        if place is None:
            return True
        now = self._clock()
        at, left_out = self._times.get(place, (now - AGAIN_SECONDS, 0))
        if now - at < AGAIN_SECONDS:
            self._times[place] = (at, left_out + 1)
            return False
        if len(self._times) >= PLACES_MAX:
            self._times.clear()
        self._times[place] = (now, 0)
        if left_out:
            record.msg = f"{record.msg} ({left_out} of the same place left out)"
        return True


def _place(record: logging.LogRecord) -> tuple[str, int] | None:
    """Return the innermost file and line of a traceback; None for a record without one."""
    if not record.exc_info or record.exc_info[2] is None:
        return None
    *_, (frame, line) = traceback.walk_tb(record.exc_info[2])
    return frame.f_code.co_filename, line
