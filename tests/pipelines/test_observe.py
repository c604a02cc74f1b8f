"""Observing a real node: each change is counted once, whatever dies."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from re import fullmatch
from typing import Any

import polars as pl
import pytest

from harness.nodes import cluster, diverge, leave, put
from headwater.errors import DataLoss, LedgerError, OptionError
from headwater.failpoints import InjectedFault, armed
from headwater.pipelines.jobs import ObserveProgress, Observer
from headwater.pipelines.ledger_sink import LedgerAnswer, LedgerTask
from headwater.pipelines.observe import ObserveSink, WindowLook
from headwater.pipelines.windows import Window, WindowRules, Windows
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset
from headwater.testing.node import Node, node
from tests.pipelines.buckets import create
from tests.pipelines.support import KEEP_TOMBSTONES, compact, missed
from tests.spark.fakes import synced_files

ROOT = Path(__file__).parents[2]
END = Offset({0: Position(0, 1, 2, 2, 2)})
LONG: dict[str, Any] = {"window_seconds": 1_000_000_000, "delay_seconds": 0, "hot": 2}  # no test sees its end
SCRIPT = """
import sys
from headwater import failpoints
from headwater.pipelines.jobs import Observer
from tests.pipelines.test_observe import LONG
failpoints.arm(sys.argv[2])
Observer(sys.argv[1], engine="local", workers=0, once=True, checkpoint=sys.argv[3],
        reading={"maxChangesPerTrigger": "5"}, **LONG).run()
"""


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


def go(bucket: Node, **more: Any) -> ObserveProgress:
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "once": True, "retry_seconds": 0.0, **LONG}
    return Observer(bucket.url, **(asked | more)).run()


def write(bucket: Node) -> None:
    with bucket.client() as client:
        client.set_many((f"user:{n}", "12345") for n in range(20))
        client.set_many(((f"order:{n}", "1") for n in range(10)), expiry=4_102_444_800)
        client.delete_many(f"user:{n}" for n in range(5))


def sums(told: list[dict[str, Any]]) -> dict[str, tuple[int, int, int]]:
    """By prefix: stored, deleted, expiring. More than one window if the hour ends while the test runs."""
    found: dict[str, tuple[int, int, int]] = {}
    for window in told:
        for prefix, counts in window["prefixes"].items():
            before = found.get(prefix, (0, 0, 0))
            more = (counts["stored"], counts["deleted"], counts["expiring"])
            found[prefix] = tuple(map(sum, zip(before, more, strict=True)))  # type: ignore[assignment]
    return found


EXPECTED = {"user:": (15, 5, 0), "order:": (10, 0, 10)}


def test_a_look_back_counts_what_the_node_still_has_and_closes_its_windows(bucket: Node, tmp_path: Path) -> None:
    write(bucket)
    told: list[dict[str, Any]] = []
    done = go(bucket, to=str(tmp_path / "rates"), progress=lambda done: told.extend(done.closed))
    assert (done.changes, done.late, done.unclocked) == (30, 0, 0)
    assert sums(told) == EXPECTED
    rows = pl.read_parquet(tmp_path / "rates" / "rates" / "*.parquet")
    assert rows.group_by("prefix").agg(pl.col("stored").sum()).sort("prefix").rows() == [("order:", 10), ("user:", 15)]
    assert pl.read_parquet(tmp_path / "rates" / "hot" / "*.parquet").columns == [
        "window",
        "seconds",
        "key",
        "changes",
        "error",
    ]


@pytest.mark.parametrize("point", ["ledger.before_commit", "ledger.after_commit"])
def test_each_change_is_counted_once_though_the_observer_is_killed(point: str, bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:  # a node need not tell versions that were replaced: there are none
        client.set_many((f"user:{n}", "12345") for n in range(20))
        client.set_many((f"order:{n}", "1") for n in range(10))
    line = [sys.executable, "-c", SCRIPT, bucket.url, f"{point}=kill@3", str(tmp_path)]
    assert subprocess.run(line, cwd=ROOT, check=False, timeout=240).returncode == -9
    done = go(bucket, checkpoint=tmp_path)
    assert done.newest is not None and sums([done.newest]) == {"user:": (20, 0, 0), "order:": (10, 0, 0)}
    assert go(bucket, checkpoint=tmp_path).changes == 0
    with pytest.raises(LedgerError, match="it was made with seconds 1000000000"):
        go(bucket, checkpoint=tmp_path, window_seconds=10)


def test_each_change_is_counted_once_though_the_node_is_killed(bucket: Node, tmp_path: Path) -> None:
    """A restart gives the history a new branch, so the source replays from the last state that it surely had."""
    some = {"reading": {"maxChangesPerTrigger": "7"}, "checkpoint": tmp_path}
    with bucket.client() as client:
        client.set_many((f"user:{n}", "12345") for n in range(150))
    assert sums([go(bucket, **some).newest or {}]) == {"user:": (150, 0, 0)}
    for _ in range(2):
        bucket.kill()
        bucket.start()
        assert go(bucket, **some).changes == 0
    with bucket.client() as client:
        client.set_many((f"user:{n}", "1") for n in range(140, 160))
    assert sums([go(bucket, **some).newest or {}]) == {"user:": (170, 0, 0)}


def test_after_a_failover_that_lost_changes_only_what_is_new_is_counted(tmp_path: Path) -> None:
    """Changes that the new owner never had stay counted; what it has of before is not counted again."""
    some = {"reading": {"maxChangesPerTrigger": "7"}, "checkpoint": tmp_path}
    with cluster(2, 4) as two:
        first, second = two.nodes
        for number in range(40):
            put(first, 1, f"user:{number}", b"1")
        two.follow(1, 1)
        leave(second, first.address)
        for number in range(40, 50):
            put(first, 1, f"user:{number}", b"1")
        assert sums([go(first, **some).newest or {}]) == {"user:": (50, 0, 0)}
        two.fail_over(1, 1)
        two.publish()
        for number in range(3):
            put(second, 1, f"order:{number}", b"1")
        done = go(first, **some)
        assert (done.rollbacks, done.changes) == (1, 3)
        assert sums([done.newest or {}]) == {"user:": (50, 0, 0), "order:": (3, 0, 0)}


def test_a_document_whose_newer_version_a_failover_takes_back_was_counted(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that can't show the state of the plan any more sends a later one, and the batch goes that far: else it
    would have half of a state, whose other half counts as looked at when the vbucket is read again.
    """
    names, whole, told = [f"user:{n}" for n in range(40)], LedgerTask.answer, list[int]()
    with bucket.client() as client:
        client.set_many((name, "1") for name in names)

    def overtaken(task: LedgerTask) -> bytes:
        with bucket.client() as client:
            client.set_many((name, "2") for name in names[:20])
        compact(bucket, 4, KEEP_TOMBSTONES)
        return whole(task)

    def lost() -> None:
        with monkeypatch.context() as slow:
            slow.setattr(LedgerTask, "answer", overtaken)
            one_batch = {"stop": lambda: bool(told), "progress": lambda done: told.append(done.changes)}
            go(bucket, once=False, since="earliest", checkpoint=tmp_path, **one_batch)

    diverge(bucket, lost=lost)
    done = go(bucket, checkpoint=tmp_path)
    assert done.newest is not None and sums([done.newest]) == {"user:": (40, 0, 0)}
    assert (told[0], done.changes) == (40, 0)


def test_a_wait_for_copies_on_disk_is_refused_for_a_batch_may_end_within_a_snapshot(bucket: Node) -> None:
    with pytest.raises(OptionError, match='option "minPersisted": "majority" is not an option of an observation'):
        go(bucket, reading={"minPersisted": "majority"})


def test_a_batch_that_is_done_again_and_closes_nothing_leaves_no_window_of_its_first_try(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its commit, a batch has left its file; done again while a node is away it may close nothing."""
    rules = WindowRules(seconds=1, delay_seconds=0, hot=2)
    sink = ObserveSink(tmp_path / "state", "default", WindowLook(rules), to=str(tmp_path / "to"))
    found = Windows({1_000_000_000: Window(), 9_000_000_000: Window()}, newest_ns=10_000_000_000)
    with armed("ledger.before_commit=raise"), pytest.raises(InjectedFault):
        sink.commit(sink.refresh().digest, END.to_json(), [LedgerAnswer(found.to_json(), [], 2, 0)])
    left = [*(tmp_path / "to" / "rates").iterdir(), *(tmp_path / "to" / "hot").iterdir()]
    names = {path.name for path in left}
    assert len(left) == 2 and len(names) == 1
    assert fullmatch(r"windows-[0-9a-f]{16}-00000001\.parquet", names.pop())
    sink = ObserveSink(tmp_path / "state", "default", WindowLook(rules), to=str(tmp_path / "to"))
    sink.commit(sink.refresh().digest, END.to_json(), [LedgerAnswer(Windows().to_json(), [], 0, 0)])
    assert [*(tmp_path / "to" / "rates").iterdir(), *(tmp_path / "to" / "hot").iterdir()] == []


def test_closed_windows_are_on_the_disk_before_the_commit_behind_which_none_writes_them_again(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, place = WindowRules(seconds=1, delay_seconds=0, hot=0), tmp_path / "to" / "rates"
    sink = ObserveSink(tmp_path / "state", "default", WindowLook(rules), to=str(tmp_path / "to"))
    found = Windows({1_000_000_000: Window(), 9_000_000_000: Window()}, newest_ns=10_000_000_000)
    synced = synced_files(monkeypatch, place)
    with armed("ledger.before_commit=raise"), pytest.raises(InjectedFault):
        sink.commit(sink.refresh().digest, END.to_json(), [LedgerAnswer(found.to_json(), [], 2, 0)])
    [file] = place.iterdir()
    inodes = [inode for inode, _ in synced]
    assert inodes.index(file.stat().st_ino) < len(inodes) - 1 - inodes[::-1].index(place.stat().st_ino)


def rows_of(place: Path) -> list[tuple[Any, ...]]:
    rows = pl.read_parquet(place / "rates" / "*.parquet")
    return rows.group_by("prefix").agg(pl.col("stored").sum()).sort("prefix").rows()


def test_observers_that_keep_their_windows_in_one_place_leave_those_of_the_others(bucket: Node, tmp_path: Path) -> None:
    """By cron without a checkpoint each run begins anew, with its first batch."""
    write(bucket)
    go(bucket, to=str(tmp_path))
    assert rows_of(tmp_path) == [("order:", 10), ("user:", 15)]
    go(bucket, to=str(tmp_path), since="latest")  # nothing is written meanwhile, so it closes no window
    assert rows_of(tmp_path) == [("order:", 10), ("user:", 15)]
    with bucket.client() as client:
        client.set("new:1", "1")
    go(bucket, to=str(tmp_path))
    assert rows_of(tmp_path) == [("new:", 1), ("order:", 20), ("user:", 30)]


def test_an_observer_of_an_older_release_goes_on_with_the_names_of_its_files(tmp_path: Path) -> None:
    rules = WindowRules(seconds=1, delay_seconds=0, hot=0)
    ends = [Offset({0: Position(0, 1, seqno, seqno, seqno)}).to_json() for seqno in (2, 4)]

    def bring(end: dict[str, Any], newest_ns: int) -> None:
        sink = ObserveSink(tmp_path / "state", "default", WindowLook(rules), to=str(tmp_path / "to"))
        found = Windows({newest_ns - 2_000_000_000: Window()}, newest_ns=newest_ns)
        sink.commit(sink.refresh().digest, end, [LedgerAnswer(found.to_json(), [], 1, 0)])

    bring(ends[0], 10_000_000_000)
    with closing(sqlite3.connect(tmp_path / "state" / "windows.sqlite")) as base, base:
        base.execute("UPDATE ledger SET notes = json_remove(notes, '$.name')")
    bring(ends[1], 20_000_000_000)
    assert (tmp_path / "to" / "rates" / "windows-00000002.parquet").exists()


def test_deletions_that_were_purged_before_they_were_counted_are_told(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        assert client.set_many((f"a{i}", "v") for i in range(40)) == {}
    assert go(bucket, checkpoint=tmp_path).data_loss == []
    purged = missed(bucket)
    with pytest.raises(DataLoss) as caught:
        go(bucket, checkpoint=tmp_path, reading={"failOnDataLoss": "true"})
    assert caught.value.purged == purged
    assert go(bucket, checkpoint=tmp_path).data_loss == sorted(purged) != []


def test_without_values_the_sizes_are_those_of_keys(bucket: Node) -> None:
    with bucket.client() as client:
        client.set("user:1", "x" * 1000)
    told: list[dict[str, Any]] = []
    go(bucket, keys_only=True, progress=lambda done: told.extend(done.closed))
    assert (told[0]["total"]["bytes"], told[0]["total"]["largest"]) == (6, 0)


@pytest.mark.spark
def test_spark_counts_the_same(spark: Any, bucket: Node) -> None:
    write(bucket)
    told: list[dict[str, Any]] = []
    go(bucket, engine="spark", spark=spark, progress=lambda done: told.extend(done.closed))
    assert sums(told) == EXPECTED


def test_what_is_written_is_told_by_collection_and_prefix(bucket: Node, tmp_path: Path) -> None:
    create(bucket, "shop.orders")
    write(bucket)
    with bucket.client() as client:
        client.collection("shop.orders").set_many((f"user:{n}", "1") for n in range(4))
        client.collection("shop.orders").set("plain", "1")
    told: list[dict[str, Any]] = []
    chosen = {"reading": {"collections": "all"}, "checkpoint": tmp_path / "state"}
    done = go(bucket, to=str(tmp_path / "rates"), progress=lambda done: told.append(done.newest or {}), **chosen)
    assert done.changes == 35
    newest = told[-1]
    assert {path: counts["stored"] for path, counts in newest["collections"].items()} == {
        "_default._default": 25,
        "shop.orders": 5,
    }
    assert {prefix: counts["stored"] for prefix, counts in newest["prefixes"].items()} == {
        "_default._default/order:": 10,
        "_default._default/user:": 15,
        "shop.orders/": 1,
        "shop.orders/user:": 4,
    }
    with pytest.raises(OptionError, match="the whole bucket"):  # as the positions were saved with
        go(bucket, checkpoint=tmp_path / "state")


def test_files_have_columns_of_the_collection(bucket: Node, tmp_path: Path) -> None:
    create(bucket, "shop.orders")
    with bucket.client() as client:
        client.collection("shop.orders").set_many((f"user:{n}", "1") for n in range(4))
    go(bucket, to=str(tmp_path), reading={"scope": "shop"})
    rates = pl.read_parquet(tmp_path / "rates" / "*.parquet")
    assert rates.select("scope", "collection", "prefix", "stored").rows() == [("shop", "orders", "user:", 4)]
    hot = pl.read_parquet(tmp_path / "hot" / "*.parquet")
    assert hot.columns == ["window", "seconds", "scope", "collection", "key", "changes", "error"]
    assert set(hot["key"]) <= {f"user:{n}" for n in range(4)}
