"""How far a job is behind: in changes, in seconds, by vbucket."""

from __future__ import annotations

from typing import Any

from headwater.spark.behind import SEEN_MAX, Behind, Lag, LagMeter, lag_of, ownerless_entry

A = "000000000000000a"


def offset(**seqnos: int) -> dict[str, Any]:
    return {"v": 1, "vb": {name[1:]: [A, seqno] for name, seqno in seqnos.items()}}


def test_lag_is_what_the_nodes_have_more_and_how_long_the_first_of_it_has_been_known() -> None:
    now = [100.0]
    meter = LagMeter(lambda: now[0])
    assert meter.measure(offset(v0=10), offset(v0=10)) == []
    assert meter.measure(offset(v0=10), offset(v0=15, v7=40)) == [Behind(7, 40, 0.0), Behind(0, 5, 0.0)]
    now[0] = 103.0
    assert meter.measure(offset(v0=12, v7=40), offset(v0=30, v7=40)) == [Behind(0, 18, 3.0)]
    now[0] = 104.0  # what was known first is read; the rest was seen three seconds later
    assert meter.measure(offset(v0=15, v7=40), offset(v0=30, v7=40)) == [Behind(0, 15, 1.0)]
    assert meter.measure(offset(v0=30, v7=40), offset(v0=30, v7=40)) == []


def test_what_a_failover_took_back_is_not_waited_for() -> None:
    now = [0.0]
    meter = LagMeter(lambda: now[0])
    meter.measure(offset(v0=10), offset(v0=50))
    now[0] = 5.0
    assert meter.measure(offset(v0=10), offset(v0=20)) == [Behind(0, 10, 0.0)]


def test_memory_does_not_grow_with_the_wait() -> None:
    now = [0.0]
    meter = LagMeter(lambda: now[0])
    for seconds in range(10 * SEEN_MAX):
        now[0] = float(seconds)
        (behind,) = meter.measure(offset(v0=1), offset(v0=2 + seconds))
    assert behind == Behind(0, 10 * SEEN_MAX, 10.0 * SEEN_MAX - 1)
    assert [len(seen) for seen in meter._sightings.values()] == [SEEN_MAX]


def test_the_worst_are_named() -> None:
    lag = lag_of("orders", [Behind(vb, 1000 - vb, float(vb)) for vb in range(7)])
    assert (lag.changes, lag.seconds, lag.vbuckets, len(lag.worst)) == (6979, 6.0, 7, 5)
    assert str(lag).startswith("orders: 6,979 changes and 6.0 s behind in 7 vbuckets: vbucket 0 by 1,000, vbucket 1 by")
    assert str(Lag("orders")) == "orders: level"


def test_vbuckets_without_a_node_are_part_of_the_lag() -> None:
    told = lag_of("orders", [], offset(v0=3) | ownerless_entry(2, 61.0))
    assert (told.ownerless, told.ownerless_seconds) == (2, 61.0)
    assert str(told) == "orders: level; 2 vbuckets have no node, for 61 s"
    assert lag_of("orders", [], offset(v0=3) | ownerless_entry(0, 0.0)) == Lag("orders")
