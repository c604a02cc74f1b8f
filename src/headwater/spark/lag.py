"""The lag of a streaming query behind its bucket: in changes and in seconds, by vbucket, the worst first.

    spark.streams.addListener(LagListener(lambda lag: print(lag)))

Spark's progress reports have the end of a batch and the newest seqnos of the nodes at that time; both are offsets of
this source. Seqnos have no times, so seconds are measured: the time since the nodes were first seen to have a change
that is not read yet. They are only as exact as reports are frequent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from headwater.errors import OptionError
from headwater.spark.behind import WORST, Behind, Lag, LagMeter, lag_of
from headwater.spark.offsets import Offset

__all__ = ["WORST", "Behind", "Lag", "LagListener", "LagMeter", "QueryListener", "lag_of"]


class LagListener(StreamingQueryListener):
    """A listener that calls a function with the lag of each query that reads the `dcp` source, or the mirror's source.

    Spark reports progress after each batch, and every ten seconds while there is none.

    Args:
        report: is called with the lag, in a thread of Spark's.
        clock: returns seconds.
    """

    def __init__(self, report: Callable[[Lag], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self._meters: dict[tuple[str, int], LagMeter] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Report the lag, if the query has a source of this kind."""
        progress = event.progress
        lags: list[Behind] = []
        offset: Mapping[str, Any] | None = None
        for number, source in enumerate(progress.sources):
            meter = self._meters.setdefault((str(progress.id), number), LagMeter(self._clock))
            end, latest = _offset(source.endOffset), _offset(source.latestOffset)
            if end is not None and latest is not None:
                offset = latest if offset is None or "noNode" in latest else offset
                lags += meter.measure(end, latest)
        if offset is not None:
            self._report(lag_of(progress.name or str(progress.id), lags, offset))

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: the last report still holds for an idle query."""

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the query."""
        for meter in [meter for meter in self._meters if meter[0] == str(event.id)]:
            del self._meters[meter]


class QueryListener(LagListener):
    """A `LagListener` for one query alone, which also reports the duration of its batches.

    Args:
        report: is called with the lag. batch: is called with the seconds that a batch took.

    Attributes:
        query: a future of the query's id; reports wait for it.
    """

    def __init__(self, report: Callable[[Lag], None], batch: Callable[[float], None]) -> None:
        super().__init__(report)
        self._batch = batch
        self.query: Future[str] = Future()

    def onQueryProgress(self, event: Any) -> None:
        """Handle a report, if it is the query's."""
        if str(event.progress.id) != self.query.result():
            return
        if "addBatch" in event.progress.durationMs:
            self._batch(event.progress.batchDuration / 1000)
        super().onQueryProgress(event)


def _offset(text: Any) -> Mapping[str, Any] | None:
    """Return an offset of a progress report; None for that of another kind of source."""
    try:
        offset = json.loads(text) if isinstance(text, str) else text
        offset = json.loads(offset) if isinstance(offset, str) else offset  # a text in JSON, under Spark Connect
        Offset.from_json(offset)
    except (ValueError, TypeError, OptionError):
        return None
    return offset if isinstance(offset, Mapping) else None
