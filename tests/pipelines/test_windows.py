"""Windows of time, with changes made by hand."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import OptionError
from headwater.pipelines.windows import (
    AHEAD_NS,
    NANOSECONDS,
    OTHERS,
    HotKeys,
    PrefixCounts,
    WindowRules,
    Windows,
    instant,
    split,
)

T0 = 1_700_000_000 * NANOSECONDS
RULES = WindowRules(seconds=10, delay_seconds=5, hot=3)

TYPES: list[Any] = [pa.string(), pa.binary(), pa.int64(), pa.int64(), pa.binary()]
Row = tuple[str, str, float]


def batch(*rows: Row, value: bytes = b"12345", expiry: int = 0) -> Any:
    kinds: dict[str, list[Any]] = {"event": [], "key": [], "cas": [], "expiry": [], "value": []}
    for event, key, second in rows:
        kinds["event"].append(event)
        kinds["key"].append(key.encode())
        kinds["cas"].append(T0 + int(second * NANOSECONDS))
        kinds["expiry"].append(expiry)
        kinds["value"].append(value if event == "mutation" else None)
    schema = pa.schema(list(zip(kinds, TYPES, strict=True)))
    return pa.RecordBatch.from_pydict(kinds, schema)


def counted(*rows: Row, rules: WindowRules = RULES, **more: Any) -> Windows:
    found = Windows()
    found.count(rules, batch(*rows, **more), T0)
    return found


def test_changes_are_counted_by_the_window_of_their_cas_and_the_prefix_of_their_key() -> None:
    rows = [("mutation", "user:1", 1), ("deletion", "user:1", 2), ("expiration", "order:7", 9.9), ("mutation", "x", 10)]
    found = counted(*rows, expiry=5)
    first, second = (found.open[start] for start in (T0, T0 + 10 * NANOSECONDS))
    assert first.prefixes == {
        "user:": PrefixCounts(stored=1, deleted=1, expiring=1, bytes=17, largest=5),
        "order:": PrefixCounts(expired=1, bytes=7),
    }
    assert second.prefixes == {"": PrefixCounts(stored=1, expiring=1, bytes=6, largest=5)}
    assert instant(T0).isoformat() == "2023-11-14T22:13:20+00:00"


@pytest.mark.parametrize(
    ("separator", "depth", "prefix"),
    [(":", 1, "a:"), (":", 2, "a:b/c:"), ("/", 1, "a:b/"), ("::", 1, ""), (":", 9, "a:b/c:d:")],
)
def test_a_prefix_ends_with_the_separator(separator: str, depth: int, prefix: str) -> None:
    assert WindowRules(separator=separator, depth=depth).prefix("a:b/c:d:e") == prefix


def test_a_window_is_closed_by_the_watermark_and_what_comes_later_for_it_is_late() -> None:
    all_of_it = Windows()
    all_of_it.merge(RULES, [counted(("mutation", "a", 3), ("mutation", "a", 14.9))])
    assert all_of_it.close(RULES) == []
    all_of_it.merge(RULES, [counted(("mutation", "a", 15)), counted(("mutation", "b", 4))])
    ((start, window),) = all_of_it.close(RULES)
    assert (start, window.prefixes[""].stored, list(all_of_it.open)) == (T0, 2, [T0 + 10 * NANOSECONDS])
    all_of_it.merge(RULES, [counted(("mutation", "late", 9), ("deletion", "late", 9), ("mutation", "c", 16))])
    assert (all_of_it.late, all_of_it.close(RULES), all_of_it.open[T0 + 10 * NANOSECONDS].prefixes[""].stored) == (
        2,
        [],
        3,
    )
    assert [start for start, _ in all_of_it.close(RULES, all_of_them=True)] == [T0 + 10 * NANOSECONDS]


def test_a_cas_that_tells_no_time_moves_no_watermark() -> None:
    found = counted(("mutation", "a", 1), ("mutation", "a", AHEAD_NS / NANOSECONDS + 1), ("mutation", "a", -1.6e9))
    assert (found.unclocked, list(found.open), found.newest_ns) == (2, [T0], T0 + NANOSECONDS)
    negative = batch(("mutation", "a", 1)).to_pydict() | {"cas": [-5]}  # from 2^63 on, as Spark shows it
    found.count(RULES, pa.RecordBatch.from_pydict(negative), T0)
    assert found.unclocked == 3


def test_prefixes_that_are_too_many_are_counted_together() -> None:
    rules = WindowRules(prefixes_max=2, hot=0)
    found = counted(*(("mutation", f"p{n}:k", 1.0) for n in range(5)), rules=rules)
    assert {prefix: counts.stored for prefix, counts in found.open[T0].prefixes.items()} == {
        "p0:": 1,
        "p1:": 1,
        OTHERS: 3,
    }


def test_prefixes_that_are_too_many_are_counted_together_in_their_collection() -> None:
    rules = WindowRules(prefixes_max=2, hot=0, by_collection=True)
    names = {"scope": ["s"] * 3 + [None], "collection": ["a", "a", "b", None]}
    rows = batch(*(("mutation", f"{n}:k", 1) for n in range(4)))
    found = Windows()
    for name, column in names.items():
        rows = rows.append_column(name, pa.array(column, pa.string()))
    found.count(rules, rows, T0)
    both = Windows()
    both.merge(rules, [found, found])
    (window,) = both.open.values()
    assert {name: counts.changes for name, counts in window.prefixes.items()} == {
        "s.a/0:": 2,
        "s.a/1:": 2,
        "s.b/…": 2,
        "?.?/…": 2,
    }
    assert split("s.b/…", by_collection=True) == {"scope": "s", "collection": "b", "": "…"}


def test_hot_keys_are_found_within_the_bound_and_in_bounded_memory() -> None:
    names = [f"k{n}" for n in range(60_000)] + ["hot"] * 3_000 + ["warm"] * 1_000
    random.Random(7).shuffle(names)
    halves = HotKeys(), HotKeys()
    for place, name in enumerate(names):
        halves[place % 2].add(name)
    halves[0].merge(HotKeys(halves[1].to_text()))
    first, second, *_ = halves[0].top(5)
    bound = 3.5 / 1024 * len(names)
    for hot, truth in ((first, 3_000), (second, 1_000)):
        assert hot.changes <= truth <= hot.changes + hot.error and hot.error <= bound
    assert (first.key, second.key, len(halves[0].to_text()) < 100_000) == ("hot", "warm", True)


rows = st.lists(
    st.tuples(
        st.sampled_from(["mutation", "deletion", "expiration"]),
        st.sampled_from(["a:1", "b", "a:2"]),
        st.integers(0, 60),
    ),
    max_size=30,
)


@given(st.lists(rows, max_size=6), st.integers(0, 5))
def test_every_change_is_in_one_window_or_late_however_it_is_cut_and_kept(batches: list[list[Row]], cut: int) -> None:
    state, closed = Windows(), 0
    for number, changes in enumerate(batches):
        state.merge(RULES, [counted(*changes[: number + cut]), counted(*changes[number + cut :])])
        closed += sum(prefix.changes for _, window in state.close(RULES) for prefix in window.prefixes.values())
        state = Windows.from_json(json.loads(json.dumps(state.to_json())))
    kept = sum(prefix.changes for window in state.open.values() for prefix in window.prefixes.values())
    assert closed + kept + state.late == sum(map(len, batches))


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"delay_seconds": -1}, {"depth": 0}, {"separator": ""}, {"hot": -1}])
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        WindowRules(**wrong)
