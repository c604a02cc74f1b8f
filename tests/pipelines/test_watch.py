"""The lag of a loop of our own, for whoever watches."""

from __future__ import annotations

from headwater.pipelines.watch import NOBODY, LagWatch
from headwater.spark.behind import Lag
from tests.spark.test_behind import offset


class Watch:
    def __init__(self) -> None:
        self.lags: list[Lag] = []

    def batch(self, seconds: float) -> None:
        raise AssertionError("no batch was done")

    def lag(self, lag: Lag) -> None:
        self.lags.append(lag)


def test_what_the_nodes_have_more_is_told_once_they_were_asked() -> None:
    watch = Watch()
    lag = LagWatch(watch, "orders")
    lag.look(offset(), None)
    assert watch.lags == []
    lag.look(offset(v0=3), offset(v0=5, v2=1))
    lag.look(offset(v0=5, v2=1), offset(v0=5, v2=1))
    assert [(told.query, told.changes, told.vbuckets) for told in watch.lags] == [("orders", 3, 2), ("orders", 0, 0)]


def test_nobody_is_told_nothing_and_nothing_is_measured() -> None:
    lag = LagWatch(NOBODY, "orders")
    lag.look({"no": "offset"}, {"no": "offset"})
    NOBODY.batch(1.0)
    NOBODY.lag(Lag("orders"))
