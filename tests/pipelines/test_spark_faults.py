"""Faults at a mirror on Spark: afterwards the table is what the bucket is, and the change log tells the same.

`make spark-faults` runs them: some need a JVM of their own for each case.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.lake_faults.engines import ELSEWHERE, OnSpark, driver_that_dies
from harness.nodes import cluster, diverge, keep, leave, put, return_to
from headwater.lake.folds import FAN
from headwater.lake.log import TableLog
from headwater.lake.store import TableStore
from headwater.lake.verify import of_table
from headwater.lake.writer import TaskResult
from headwater.pipelines.jobs import BucketCopy
from headwater.pipelines.mirror import MirrorFailed, mirror
from headwater.pipelines.sink import TableSink
from headwater.testing.node import Node, node
from tests.pipelines.support import documents, folded, table

pytestmark = [pytest.mark.spark, pytest.mark.battery, pytest.mark.timeout(900)]

STEPS = ("planned", "reading", "files_written", "log_committed", "before_commit", "after_commit")
OF_FOLDS = ("before_fold", "after_fold")


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        fill(running)
        yield running


def fill(bucket: Node) -> None:
    with bucket.client() as client:
        assert client.set_many((f"a{i}", b"kept") for i in range(60)) == {}


@pytest.fixture
def engine(spark: Any) -> OnSpark:
    return OnSpark(spark)


def change(bucket: Node, name: str) -> None:
    """Overwrite some documents, remove some, and add some of one's own; as often as wanted."""
    with bucket.client() as client:
        assert client.set_many((f"a{i}", name.encode()) for i in range(40)) == {}
        assert client.delete_many([f"a{i}" for i in range(20, 40)]) == {}
        assert client.set_many((f"{name}{i}", b"new") for i in range(30)) == {}


def run(engine: OnSpark, url: str, place: Path, **asked: Any) -> Any:
    return engine.run(url, place, **{"once": True, "changelog": True, **asked})


def check(engine: OnSpark, bucket: Node, place: Path) -> None:
    """The next run is well; then table and change log say what the bucket does."""
    run(engine, bucket.url, place)
    is_equal(bucket, place)


def is_equal(bucket: Node, place: Path) -> None:
    assert table(place) == documents(bucket) == folded(Path(f"{place}_changes"))
    log = TableLog(TableStore(place))
    assert of_table(log.store, log.refresh())[1] == []


def dies_and_is_put_right(engine: OnSpark, bucket: Node, place: Path, point: str) -> None:
    """A driver is killed, with its JVM and all processes of both, while it has new changes or a lost branch to undo."""
    mirror(None, bucket.url, place, once=True, changelog=True, workers=0)

    def lost() -> None:
        change(bucket, "lost")
        mirror(None, bucket.url, place, once=True, changelog=True, workers=0)

    diverge(bucket, lost=lost)
    change(bucket, "won")
    assert driver_that_dies(bucket.url, place, f"lake.{point}=stop", surely=True)
    change(bucket, "later")
    check(engine, bucket, place)


def test_a_driver_that_is_killed_before_its_commit_is_as_if_it_had_not_been(
    engine: OnSpark, bucket: Node, tmp_path: Path
) -> None:
    dies_and_is_put_right(engine, bucket, tmp_path / "t", "before_commit")


@pytest.mark.parametrize("point", [step for step in STEPS if step != "before_commit"])
def test_a_driver_that_is_killed_at_any_step_goes_on_where_its_table_stands(
    point: str, engine: OnSpark, bucket: Node, tmp_path: Path
) -> None:
    dies_and_is_put_right(engine, bucket, tmp_path / "t", point)


@pytest.mark.parametrize("point", OF_FOLDS)
def test_a_driver_that_is_killed_in_a_fold_goes_on_where_its_table_stands(
    point: str, engine: OnSpark, bucket: Node, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    with bucket.client() as client:
        for n in range(FAN):
            client.set_many((f"a{i}", f"{n}".encode() * 50) for i in range(10 * n, 10 * n + 60))
            mirror(None, bucket.url, place, once=True, changelog=True, workers=0, upkeep=False)
        client.set("a1", b"new")
    assert driver_that_dies(bucket.url, place, f"lake.{point}=stop", surely=True)
    change(bucket, "later")
    check(engine, bucket, place)


def test_a_batch_that_was_left_out_because_of_a_failover_that_was_none_is_done_by_the_same_run(
    engine: OnSpark, bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task asked a former owner; then all is as it was, so that the next plan is the same."""
    read, left_out = TableSink.read, [True]

    def misled(self: TableSink, answer: bytes) -> TaskResult:
        return replace(read(self, answer), unread=[0] if left_out and left_out.pop() else [])

    monkeypatch.setattr(TableSink, "read", misled)
    assert run(engine, bucket.url, tmp_path / "t").retries == 0
    assert not left_out
    is_equal(bucket, tmp_path / "t")


def test_planners_and_workers_that_are_killed_end_the_query_and_the_next_attempt_does_its_batch(
    engine: OnSpark, bucket: Node, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    for point in ELSEWHERE:
        change(bucket, point)
        with engine.armed(f"{point}=kill"), pytest.raises(MirrorFailed):
            run(engine, bucket.url, place, retry_seconds=0)
        change(bucket, f"{point} again")
    check(engine, bucket, place)


def test_a_node_that_is_killed_in_the_middle_of_a_batch_is_waited_for(
    engine: OnSpark, bucket: Node, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    change(bucket, "first")

    def killed() -> None:
        bucket.kill()
        bucket.restart()
        change(bucket, "second")

    with engine.met("lake.planned", killed):
        run(engine, bucket.url, place)
    check(engine, bucket, place)


@pytest.mark.parametrize("point", ["planned", "files_written"])
def test_replicas_that_are_promoted_in_the_middle_of_a_batch_and_twice_in_a_row(
    point: str, engine: OnSpark, bucket: Node, tmp_path: Path
) -> None:
    """Shorter: the replica has less than the table. Diverged: and is written to. Then the same again."""
    place = tmp_path / "t"
    change(bucket, "first")
    run(engine, bucket.url, place)
    kept = [keep(bucket)]
    change(bucket, "second")
    kept.append(keep(bucket))
    change(bucket, "third")

    def promoted() -> None:
        return_to(bucket, kept.pop())

    with engine.met(f"lake.{point}", promoted):
        run(engine, bucket.url, place)
    is_equal(bucket, place)
    change(bucket, "diverged")
    run(engine, bucket.url, place)
    promoted()
    change(bucket, "diverged again")
    check(engine, bucket, place)


def test_a_vbucket_that_moves_and_one_that_fails_over_in_the_middle_of_a_batch(engine: OnSpark, tmp_path: Path) -> None:
    place = tmp_path / "t"
    with cluster(2, 4) as two:
        first, second = two.nodes
        fill(first)
        run(engine, two.url, place)
        two.follow(1, 1)
        leave(second, first.address)
        put(first, 1, "lost", b"v")
        change(first, "second")

        def moved() -> None:
            two.take_over(0, 1)
            two.fail_over(1, 1)
            two.publish()
            put(second, 1, "new", b"v")

        with engine.met("lake.planned", moved):
            run(engine, two.url, place)
        run(engine, two.url, place)
        held = table(place)
        assert held == documents(first) == folded(Path(f"{place}_changes"))
        assert b"new" in held and b"lost" not in held


def test_the_last_files_of_a_checkpoint_that_were_cut_cost_the_checkpoint_and_no_row(
    engine: OnSpark, bucket: Node, tmp_path: Path
) -> None:
    """A machine that lost its power leaves them empty or in part."""
    place = tmp_path / "t"
    for n in range(2):
        change(bucket, f"{n}")
        run(engine, bucket.url, place)
    for kind, keep_bytes in (("offsets", 0), ("commits", 3), ("offsets", 40)):
        cut_newest(place / "_checkpoint" / kind, keep_bytes)
        change(bucket, f"{kind} {keep_bytes}")
        check(engine, bucket, place)


def cut_newest(folder: Path, keep_bytes: int) -> None:
    newest = max(folder.glob("[0-9]*"), key=lambda path: int(path.name))
    newest.write_bytes(newest.read_bytes()[:keep_bytes])


def test_a_copy_whose_checkpoint_was_cut_does_its_last_batches_again(
    engine: OnSpark, bucket: Node, tmp_path: Path
) -> None:
    with node(vbuckets=4) as target:
        for kind in ("offsets", "commits", "offsets"):
            change(bucket, kind)
            BucketCopy(bucket.url, target.url, tmp_path, spark=engine.spark, once=True).run()
            assert documents(target) == documents(bucket)
            cut_newest(tmp_path / kind, 20)
        shutil.rmtree(tmp_path / "commits")
        for each in (tmp_path / "offsets").glob("[0-9]*"):
            each.write_bytes(b"")
        change(bucket, "last")
        latest = {"startingOffsets": "latest"}
        BucketCopy(bucket.url, target.url, tmp_path, spark=engine.spark, once=True, reading=latest).run()
        assert documents(target) == documents(bucket)
