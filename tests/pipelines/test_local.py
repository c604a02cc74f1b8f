"""The mirror without Spark against a real node: whatever happens to the bucket, the table is what the bucket is."""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from harness.nodes import cluster, diverge, keep, return_to
from headwater import failpoints
from headwater.client import connect
from headwater.errors import DataLoss, TableChanged, TableError, TransportError
from headwater.lake.facts import describe, history
from headwater.lake.freshness import complete_text
from headwater.lake.log import TableLog, removal
from headwater.lake.shape import PLAIN
from headwater.lake.store import TableStore
from headwater.lake.unfold import UNFOLDED
from headwater.lake.writer import TaskResult
from headwater.pipelines.jobs import OnEngines
from headwater.pipelines.local import LocalEngine, Workers
from headwater.pipelines.mirror import MirrorFailed, MirrorProgress
from headwater.pipelines.mirror import mirror as run_mirror
from headwater.pipelines.repair import repair
from headwater.pipelines.sink import TableSink, changes_in
from headwater.pipelines.tasks import MirrorTask, forget
from headwater.pipelines.tasks import run as run_task
from headwater.spark.planning import Planning
from headwater.spark.settings import parse
from headwater.testing.node import Node, node
from headwater.wire.vbucket import State
from tests.battery import few_of
from tests.client.test_made_anew import make, make_anew, url
from tests.node.replication.support import high_seqno, leave, put, replicate, set_state, until
from tests.pipelines.support import (
    KEEP_TOMBSTONES,
    PURGE,
    change,
    compact,
    documents,
    folded,
    missed,
    seqnos,
    table,
    vbucket_of,
)


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


class Told:
    """Notes the batches that an engine reports."""

    def __init__(self) -> None:
        self.written: list[TaskResult] = []
        self.end: Mapping[str, Any] = {}
        self.batches = 0

    def note(self, written: list[TaskResult], end: Mapping[str, Any]) -> None:
        self.written += written
        self.end = end
        self.batches += 1

    def count(self, name: str) -> int:
        return sum(each.counts.get(name, 0) for each in self.written)


def mirror(url: str, place: Path, workers: int = 0, json: str | None = None, **options: str) -> Told:
    """One run, to the end of what there is."""
    told = Told()
    sink = TableSink(place, OnEngines(url).bucket, form=UNFOLDED if json is not None else PLAIN)
    engine = LocalEngine(sink, parse({"url": url, **options}, streaming=True), workers)
    engine.follow(once=True, interval_seconds=0, on_batch=told.note, stop=lambda: False)
    return told


def test_the_table_follows_the_bucket(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"one") for i in range(50))
    told = mirror(bucket.url, tmp_path)
    assert (told.count("mutations"), told.count("deletions"), changes_in(told.end)) == (50, 0, seqnos(bucket))
    change(bucket, "two")
    told = mirror(bucket.url, tmp_path)
    assert (told.count("mutations"), told.count("deletions")) == (50, 20)
    assert table(tmp_path) == documents(bucket)
    assert mirror(bucket.url, tmp_path).written == []


def test_records_of_transactions_are_in_no_table_unless_wanted(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((key, b"one") for key in ("a", "_txn:client-record", "_txn:atr-1-#a"))
    mirror(bucket.url, tmp_path / "without")
    mirror(bucket.url, tmp_path / "with", transactionRecords="true")
    assert list(table(tmp_path / "without")) == [b"a"]
    assert table(tmp_path / "with") == documents(bucket)
    assert mirror(bucket.url, tmp_path / "without").written == []


def test_records_of_transactions_that_an_older_release_brought_in_go_when_the_bucket_is_read_anew(
    bucket: Node, tmp_path: Path
) -> None:
    with bucket.client() as client:
        client.set_many((key, b"one") for key in ("a", "_txn:client-record", "_txn:atr-1-#a"))
        mirror(bucket.url, tmp_path, transactionRecords="true")
        client.set("_txn:client-record", b"two")
    mirror(bucket.url, tmp_path)
    assert table(tmp_path)[b"_txn:client-record"] == b"one"
    repair(str(tmp_path), anew=True)
    mirror(bucket.url, tmp_path)
    assert table(tmp_path) == {b"a": b"one"}


def test_the_table_says_up_to_which_time_nothing_is_missing(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"one") for i in range(50))
    began = time.time()
    end = mirror(bucket.url, tmp_path).end
    until = end["completeUntil"] / 1e9
    assert began <= until <= time.time(), "the promise was asked for and kept within the run"
    log = TableLog(TableStore(tmp_path))
    assert describe(log)["complete_until"] == complete_text(end)
    assert history(log)[0]["operationMetrics"]["completeUntilMs"] == str(int(until * 1000))
    bucket.kill()
    bucket.restart()
    with bucket.client() as client:
        assert client.set("later", b"two") > end["completeUntil"]
    assert mirror(bucket.url, tmp_path).end["completeUntil"] > end["completeUntil"]


def test_the_time_stands_still_while_a_node_may_not_promise_it() -> None:
    """A copy may be promoted as long as the map has it."""
    with cluster(2) as made:
        nodes = made.nodes
        nodes[1].stop()
        planning = Planning(parse({"url": nodes[0].url, "retrySeconds": "1"}, streaming=True))
        planning.latest({"v": 1, "vb": {}}, None)
        assert planning.reported is not None
        assert planning.reported["complete"]["until"] == 0
        assert f"{nodes[1].address} holds no clock" in planning.reported["complete"]["standsFor"]
        planning.close()


def test_worker_processes_do_the_same(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"x" * 300) for i in range(50_000))
    told = mirror(bucket.url, tmp_path, workers=2)
    assert len([each for each in told.written if each.files]) == 2
    change(bucket, "two")
    mirror(bucket.url, tmp_path, workers=2)
    assert table(tmp_path) == documents(bucket)


def test_a_node_that_was_killed_and_lost_nothing_costs_no_replay(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"one") for i in range(50))
        mirror(bucket.url, tmp_path)
        client.set("a3", b"two")
        bucket.kill()
    bucket.restart()  # a new branch
    told = mirror(bucket.url, tmp_path)
    assert (told.count("mutations"), told.count("rollbacks")) == (1, 0)
    assert table(tmp_path) == documents(bucket)


def test_what_a_lost_branch_wrote_removed_and_overwrote_is_put_right_in_one_version(
    bucket: Node, tmp_path: Path
) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"kept") for i in range(60))
    mirror(bucket.url, tmp_path)

    def lost() -> None:
        change(bucket, "lost")
        mirror(bucket.url, tmp_path)
        assert table(tmp_path) == documents(bucket)

    diverge(bucket, lost=lost)
    change(bucket, "won")
    told = mirror(bucket.url, tmp_path)
    assert told.count("rollbacks") == 4
    assert table(tmp_path) == documents(bucket)
    log = TableLog(TableStore(tmp_path))
    states = []
    for version in range(log.refresh().version + 1):
        states.append({name.split(b"won")[0] == b"" for name in table_at(tmp_path, version)})
    assert all(len(kinds) <= 2 for kinds in states)
    for version in range(log.state.version + 1):
        names = table_at(tmp_path, version)
        assert not (any(b"lost" in name for name in names) and any(b"won" in name for name in names))


def table_at(place: Path, version: int) -> list[bytes]:
    found: list[bytes] = pl.read_delta(str(place), version=version, columns=["key"])["key"].to_list()
    return found


def test_a_document_that_is_replaced_between_plan_and_read_is_in_the_table_of_the_same_run(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node can't show the state of then any more, as other servers never can, and sends what is newer."""
    with bucket.client() as client:
        client.set_many((f"a{i}", b"one") for i in range(40))

        def replace_half() -> None:
            client.set_many((f"a{i}", b"two") for i in range(20))
            compact(bucket, 4, KEEP_TOMBSTONES)

        steps = [replace_half]
        monkeypatch.setitem(failpoints.ACTIONS, "meet", lambda name: steps.pop()() if steps else None)
        with failpoints.armed("lake.planned=meet"):
            mirror(bucket.url, tmp_path)
    assert table(tmp_path) == documents(bucket)


def test_after_a_rollback_with_a_limit_no_version_lacks_a_document_that_was_there_all_the_time(
    bucket: Node, tmp_path: Path
) -> None:
    """A promoted replica, or a node that has compacted, can't show the state at a seqno in the middle; it sends on."""
    names = [f"a{i}" for i in range(60)]
    with bucket.client() as client:
        client.set_many((name, b"kept") for name in names)
    mirror(bucket.url, tmp_path)

    def lost() -> None:
        change(bucket, "lost")
        mirror(bucket.url, tmp_path)

    diverge(bucket, lost=lost)
    with bucket.client() as client:
        for value in (b"one", b"two", b"three"):
            client.set_many((name, value) for name in names)
    compact(bucket, 4, KEEP_TOMBSTONES)
    first = TableLog(TableStore(tmp_path)).refresh().version
    assert mirror(bucket.url, tmp_path, maxChangesPerTrigger="4").count("rollbacks") == 4
    assert table(tmp_path) == documents(bucket)
    for version in range(first, TableLog(TableStore(tmp_path)).refresh().version + 1):
        lacking = {name.encode() for name in names} - set(table_at(tmp_path, version))
        assert not lacking or version == first, f"version {version} lacks {len(lacking)}"


def test_a_new_table_with_a_limit_is_the_bucket_at_each_of_its_points(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        for value in (b"one", b"two"):
            client.set_many((f"a{i}", value) for i in range(40))
    compact(bucket, 4, KEEP_TOMBSTONES)
    mirror(bucket.url, tmp_path, maxChangesPerTrigger="8")
    names = {f"a{i}".encode(): vbucket_of(f"a{i}") for i in range(40)}
    log = TableLog(TableStore(tmp_path))
    for version in range(log.refresh().version + 1):
        held = set(table_at(tmp_path, version))
        begun = {names[name] for name in held}
        assert held == {name for name, vb in names.items() if vb in begun}, f"version {version}"


def test_it_is_told_when_there_was_nothing_to_do(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set("a", b"v")
    told, calm = Told(), list[int]()
    asked: dict[str, Any] = {"once": True, "interval_seconds": 0, "stop": lambda: False}
    engine_of(bucket, tmp_path).follow(**asked, on_batch=told.note, on_calm=lambda: calm.append(told.batches))
    assert calm == [told.batches] != [0]


def test_a_deletion_that_was_purged_between_plan_and_read_is_no_document_for_ever(bucket: Node, tmp_path: Path) -> None:
    """After a restart of the node the only point that is surely held may be the beginning, although nothing was lost;
    the replay from there tells of no deletion that is purged before it is read."""
    with bucket.client() as client:
        client.set_many((f"a{i}", b"v") for i in range(60))
    engine = engine_of(bucket, tmp_path)
    runs = iter([False, True])  # one batch, and no look at the node after it
    engine.follow(once=True, interval_seconds=0, on_batch=lambda *_: None, stop=lambda: next(runs))
    bucket.kill()
    bucket.restart()
    with bucket.client() as client:
        client.delete_many([f"a{i}" for i in range(30)])
        client.set_many((f"b{i}", b"v") for i in range(4))
    engine = engine_of(bucket, tmp_path)
    run = engine._workers.run

    def late(tasks: list[MirrorTask]) -> list[bytes]:
        compact(bucket, 4, PURGE)
        return run(tasks)

    engine._workers.run = late  # type: ignore[method-assign]
    engine.follow(once=True, interval_seconds=0, on_batch=lambda *_: None, stop=lambda: False)
    assert table(tmp_path) == documents(bucket)


class Running:
    """A mirror in a thread, which can be held up right before its tasks run and right after its commits."""

    def __init__(self, bucket: Node, place: Path) -> None:
        self.engine, self.told = engine_of(bucket, place), Told()
        self.before: list[Callable[[list[MirrorTask]], None]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self._moved, self._stop = threading.Condition(), False
        run = self.engine._workers.run

        def held_up(tasks: list[MirrorTask]) -> list[bytes]:
            for each in self.before:
                each(tasks)
            return run(tasks)

        self.engine._workers.run = held_up  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.engine.follow(once=False, interval_seconds=0.05, on_batch=self._done, stop=lambda: self._stop)

    def _done(self, written: list[TaskResult], end: Mapping[str, Any]) -> None:
        with self._moved:
            self.told.note(written, end)
            self._moved.notify_all()
        assert self.go_on.wait(240)

    def wait(self, until: Callable[[], bool]) -> None:
        with self._moved:
            assert self._moved.wait_for(until, 240)

    def wait_until_level(self, bucket: Node) -> None:
        wanted = seqnos(bucket)
        self.wait(lambda: bool(self.told.end) and changes_in(self.told.end) == wanted)

    def stop(self) -> None:
        self._stop = True
        self.go_on.set()
        self._thread.join(240)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("before", few_of(["busy", "calm"], "busy"))
def test_a_second_failover_that_takes_back_what_was_written_while_the_first_was_undone(
    before: str, bucket: Node, tmp_path: Path
) -> None:
    """The first rollback restored what it read when those writes had replaced some of it. The points that were held
    before say nothing about that."""
    with bucket.client() as client:
        client.set_many((f"a{i}", b"kept") for i in range(60))
    running, kept, diverged = Running(bucket, tmp_path), [], threading.Event()

    def overwrite(tasks: list[MirrorTask]) -> None:
        if any(part.rollback for task in tasks for part in task.parts):
            running.before.clear()
            running.go_on.clear()
            assert diverged.wait(240)  # a batch may begin with the first vbucket, while others are still made active
            kept.append(keep(bucket))
            with bucket.client() as client:
                client.set_many((f"a{i}", b"lost again") for i in range(30))
            compact(bucket, 4, KEEP_TOMBSTONES)  # or the node would still tell the versions of before

    def lost() -> None:
        change(bucket, "lost")
        running.wait_until_level(bucket)
        running.before.append(overwrite)

    try:
        running.wait_until_level(bucket)
        if before == "calm":  # then the planner has seen that nothing came after what it has
            running.wait(lambda: running.told.batches > 1)
        diverge(bucket, lost=lost)
        diverged.set()
        running.wait(lambda: running.told.count("rollbacks") > 0)  # the planner may not see all four at once
        return_to(bucket, kept[0])
        running.go_on.set()
        with bucket.client() as client:
            client.set_many((f"c{i}", b"c") for i in range(12))
        running.wait_until_level(bucket)
        assert table(tmp_path) == documents(bucket)
    finally:
        running.stop()


def engine_of(bucket: Node, place: Path) -> LocalEngine:
    return LocalEngine(TableSink(place, "default"), parse({"url": bucket.url}, streaming=True), 0)


def test_a_run_that_died_before_its_commit_is_done_again_and_leaves_files_that_nobody_sees(
    bucket: Node, tmp_path: Path
) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"one") for i in range(50))
    mirror(bucket.url, tmp_path)
    change(bucket, "two")
    engine = engine_of(bucket, tmp_path)
    sink = engine.sink
    sink.commit = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        engine.follow(once=True, interval_seconds=0, on_batch=lambda *_: None, stop=lambda: False)
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    mirror(bucket.url, tmp_path)
    assert table(tmp_path) == documents(bucket)


def test_an_optimize_by_somebody_else_during_a_batch_makes_it_look_up_anew(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"one") for i in range(50))
    mirror(bucket.url, tmp_path)
    change(bucket, "two")
    engine = engine_of(bucket, tmp_path)
    sink = engine.sink
    commit, times = sink.commit, []

    def late(*arguments: Any) -> Any:
        if not times:
            _rename_a_file(tmp_path)
        times.append(1)
        return commit(*arguments)

    sink.commit = late  # type: ignore[method-assign]
    engine.follow(once=True, interval_seconds=0, on_batch=lambda *_: None, stop=lambda: False)
    assert len(times) == 3  # refused, repeated, and the settled offset
    assert table(tmp_path) == documents(bucket)


def _rename_a_file(place: Path) -> None:
    other = TableLog(TableStore(place))
    (file,) = other.refresh().files.values()
    (place / "optimized.parquet").write_bytes((place / file.path).read_bytes())
    added = {"add": file.add | {"path": "optimized.parquet", "dataChange": False}}
    assert other.commit([removal(file, 1, data_change=False), added], "OPTIMIZE")


def test_two_mirrors_of_one_table_do_not_harm_it(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        for n in range(3):
            client.set_many((f"a{i}", f"{n}".encode()) for i in range(200))
            runs = [threading.Thread(target=mirror, args=(bucket.url, tmp_path)) for _ in range(2)]
            for run in runs:
                run.start()
            for run in runs:
                run.join()
            assert table(tmp_path) == documents(bucket)


def test_a_mirror_of_two_nodes_whose_url_names_the_dead_one_goes_on(tmp_path: Path) -> None:
    with cluster(2, 4) as two:
        first, second = two.nodes
        with first.client() as client:
            assert client.set_many((f"a{i}", b"old") for i in range(60)) == {}
        mirror(two.url, tmp_path)
        two.take_over(0, 1)
        two.follow(1, 1)
        two.publish()
        change(first, "second")
        mirror(two.url, tmp_path)
        assert table(tmp_path) == documents(first)
        leave(second, first.address)
        put(first, 1, "lost", b"v")
        assert mirror(two.url, tmp_path).count("rollbacks") == 0
        assert b"lost" in table(tmp_path)
        two.fail_over(1, 1)
        two.publish()
        put(second, 1, "new", b"v")
        assert mirror(two.url, tmp_path).count("rollbacks") == 1
        held = table(tmp_path)
        assert held == documents(first)
        assert b"new" in held and b"lost" not in held


def test_a_mirror_whose_url_names_only_the_node_that_dies_undoes_what_that_node_lost(tmp_path: Path) -> None:
    with cluster(2, 4) as two:
        first, second = two.nodes
        with first.client() as client:
            assert client.set_many((f"a{i}", b"old") for i in range(60)) == {}
        running = Running(first, tmp_path)
        try:
            running.wait_until_level(first)
            for vbucket in range(4):
                two.follow(vbucket, 1)
            leave(second, first.address)
            change(first, "lost")
            running.wait_until_level(first)
            assert b"lost1" in table(tmp_path)
            first.kill()
            running.before.append(lambda tasks: forget())  # tasks that have to connect anew
            for vbucket in range(4):
                two.fail_over(vbucket, 1)
            two.publish(1)
            put(second, 1, "new", b"v")
            running.wait_until_level(second)
            held = table(tmp_path)
            assert held == documents(second)
            assert b"new" in held and b"lost1" not in held and held[b"a0"] == b"old"
            assert running.told.count("rollbacks") >= 4
        finally:
            running.stop()


def test_what_an_owner_of_before_tells_is_not_taken_for_all_there_is(tmp_path: Path) -> None:
    """A node that was cut off may go on as if a vbucket were its own: a task may know only it, the planner the others.
    What the task did not find there must not count as read."""
    with node(vbuckets=4) as first, node(vbuckets=4, vbucket_state="none") as second:
        put(first, 1, "old", b"v")
        replicate(second, first.address, "0-3")
        until(lambda: high_seqno(second, 1) == 1, "the replica is level")
        leave(second, first.address)
        for vbucket in range(4):
            set_state(second, vbucket, State.ACTIVE)  # the first does not hear of it
        put(second, 1, "new", b"v")
        sink = TableSink(tmp_path, "default")
        planning = Planning(parse({"url": second.url}, streaming=True))
        end = planning.latest(dict(sink.record.end), None)
        planning.close()
        alone = parse({"url": first.url, "retrySeconds": "5"}, streaming=True)
        written = [run_task(task) for task in sink.tasks(end, alone, 1)]
        assert [each.unread for each in written] == [[1]]
        with pytest.raises(TableChanged, match="1 vbuckets, the first is 1, have another history than the batch"):
            sink.commit(sink.record.digest, end, written)
        mirror(second.url, tmp_path)
        assert table(tmp_path) == documents(second) == {b"old": b"v", b"new": b"v"}


def test_another_bucket_is_not_mirrored_into_a_table(bucket: Node, tmp_path: Path) -> None:
    mirror(bucket.url, tmp_path)
    with pytest.raises(TableError, match='has the documents of the bucket "default"'):
        TableSink(tmp_path, "other")


def test_small_batches_by_limit_end_at_the_same_table(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"v") for i in range(100))
        client.set_many((f"a{i}", b"w") for i in range(0, 100, 3))
    told = mirror(bucket.url, tmp_path, maxChangesPerTrigger="10")
    assert len(told.written) > 8
    assert table(tmp_path) == documents(bucket)


def test_a_worker_that_dies_is_an_error_that_passes(bucket: Node, tmp_path: Path) -> None:
    sink = TableSink(tmp_path, "default")
    with bucket.client() as client:
        client.set("a", b"v")
    settings = parse({"url": bucket.url}, streaming=True)
    planning, workers = Planning(settings), Workers(1)
    try:
        tasks = sink.tasks(planning.latest(dict(sink.record.end), None), settings, 1)
        assert len(workers.run(tasks)) == 1
        assert workers._pool is not None
        (process,) = workers._pool._processes.values()
        process.kill()
        with pytest.raises(TransportError, match="a worker process died"):
            workers.run(tasks)
        assert len(workers.run(tasks)) == 1
    finally:
        workers.close()
        planning.close()


def test_a_worker_does_its_task_without_pandas(bucket: Node, tmp_path: Path) -> None:
    sink = TableSink(tmp_path, "default")
    with bucket.client() as client:
        client.set("a", b"v")
    settings = parse({"url": bucket.url}, streaming=True)
    planning, workers = Planning(settings), Workers(1)
    try:
        (answer,) = workers.run(sink.tasks(planning.latest(dict(sink.record.end), None), settings, 1))
        assert workers._pool is not None
        assert sink.read(answer).counts["mutations"] == 1
        with pytest.raises(ModuleNotFoundError, match="pandas"):
            workers._pool.submit(importlib.import_module, "pandas").result()
    finally:
        workers.close()
        planning.close()


def test_every_change_is_in_the_log_once_and_a_rollback_says_what_it_takes_back(bucket: Node, tmp_path: Path) -> None:
    def once() -> MirrorProgress:
        return run_mirror(None, bucket.url, tmp_path / "t", once=True, changelog=True)

    with bucket.client() as client:
        client.set_many((f"a{i}", b"kept") for i in range(60))
    once()

    def lost() -> None:
        change(bucket, "lost")
        once()

    diverge(bucket, lost=lost)
    change(bucket, "won")
    assert once().rollbacks == 4
    assert table(tmp_path / "t") == documents(bucket) == folded(tmp_path / "t_changes")
    events = pl.read_delta(str(tmp_path / "t_changes"))["event"].to_list()
    # Runs that end remember no point but their last: the replay is from 0, and has the 70 newest mutations.
    assert (events.count("rollback"), events.count("mutation"), events.count("deletion")) == (4, 60 + 50 + 70, 2 * 20)


def test_a_crash_between_change_log_and_table_leaves_no_change_twice(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"v") for i in range(60))
        sink = TableSink(tmp_path / "t", "default", changelog=tmp_path / "t_changes")
        engine = LocalEngine(sink, parse({"url": bucket.url}, streaming=True), 0)
        sink.log.commit = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt):
            engine.follow(once=True, interval_seconds=0, on_batch=lambda *_: None, stop=lambda: False)
        assert pl.read_delta(str(tmp_path / "t_changes")).height == 60
        client.set_many((f"a{i}", b"w") for i in range(50, 70))
    run_mirror(None, bucket.url, tmp_path / "t", once=True, changelog=True)
    assert table(tmp_path / "t") == documents(bucket) == folded(tmp_path / "t_changes")
    assert pl.read_delta(str(tmp_path / "t_changes")).height == 80


def test_json_documents_become_columns_whatever_they_hold(bucket: Node, tmp_path: Path) -> None:
    kinds: list[Any] = [
        {"event": "click", "user": 1},
        {"event": 1, "_document": 5},
        {"headers": {"content-type": "x"}},
        {"prices": {"2024": 1.5}},
        {"Id": 1, "id": 2},
        {"": 1, "a.b": 2, "a b": 3},
        [1, 2],
    ]
    with bucket.client() as client:
        client.set_many((f"k{i}", json.dumps(each)) for i, each in enumerate(kinds))
        run_mirror(None, bucket.url, tmp_path, once=True, json=True)
        client.set("k9", json.dumps({"user": "nine", "new": [1]}))
        client.delete("k6")
        told = run_mirror(None, bucket.url, tmp_path, once=True, json=True)
    held = table(tmp_path, "event", "user", "Id", "id_2", "new", "_rest", "headers")
    assert sorted(held) == ["k0", "k1", "k2", "k3", "k4", "k5", "k9"]
    assert (held["k0"]["event"], held["k4"]["Id"], held["k4"]["id_2"]) == ("click", 1, 2)
    assert json.loads(held["k1"]["_rest"]) == {"event": 1}
    assert json.loads(held["k9"]["_rest"]) == {"user": "nine"} and held["k9"]["new"] == [1]
    assert "user: long in the table, string in documents" in told.conflicts


def test_a_table_stays_unfolded_when_the_next_run_does_not_say_so(tmp_path: Path) -> None:
    """As when a line of cron was written anew."""
    with node(vbuckets=4) as bucket, bucket.client() as client:
        client.set("k1", json.dumps({"n": 1}))
        run_mirror(None, bucket.url, tmp_path, once=True, json=True, quarantine=True)
        client.set("k2", json.dumps({"n": 2}))
        client.set("k3", b"no JSON")
        run_mirror(None, bucket.url, tmp_path, once=True)
        assert {key: row["n"] for key, row in table(tmp_path, "n").items()} == {"k1": 1, "k2": 2, "k3": None}
        with pytest.raises(TableError, match="mirror without --variant"):
            run_mirror(None, bucket.url, tmp_path, once=True, variant=True)


def test_a_table_of_variants_stays_one_when_the_next_run_does_not_say_so(tmp_path: Path) -> None:
    with node(vbuckets=4) as bucket, bucket.client() as client:
        client.set("k1", json.dumps({"n": 1}))
        run_mirror(None, bucket.url, tmp_path, once=True, variant=True)
        client.set("k2", json.dumps({"n": 2}))
        run_mirror(None, bucket.url, tmp_path, once=True)
        assert sorted(table(tmp_path, "document")) == ["k1", "k2"]
        with pytest.raises(TableError, match="mirror without --unfold"):
            run_mirror(None, bucket.url, tmp_path, once=True, json=True)


def test_tasks_that_see_a_field_differently_agree_on_the_second_try(tmp_path: Path) -> None:
    with node(vbuckets=64) as bucket, bucket.client() as client:
        client.set_many(
            (f"k{i}", b'{"n": 1}' if client.vbucket_of(f"k{i}") < 32 else b'{"n": 1.5}') for i in range(45_000)
        )
        told = mirror(bucket.url, tmp_path, workers=2, json="")
    assert told.written
    held = table(tmp_path, "n")
    assert {row["n"] for row in held.values()} == {1.0, 1.5}


def test_a_lake_that_is_read_only_for_a_while_is_waited_for(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket.client() as client:
        client.set("a", b"v")
    run_mirror(None, bucket.url, tmp_path, once=True)
    with bucket.client() as client:
        client.set("b", b"v")
    create, refusals, problems = TableStore.create, [30, 28], []

    def at_first_not(store: TableStore, path: str, *given: Any) -> bool:
        if refusals:
            raise OSError(refusals.pop(), "no", path)
        return create(store, path, *given)

    monkeypatch.setattr(TableStore, "create", at_first_not)
    told = run_mirror(None, bucket.url, tmp_path, once=True, progress=lambda told: problems.append(told.problem))
    assert (told.retries, table(tmp_path)) == (2, {b"a": b"v", b"b": b"v"})
    assert sum(problem.endswith(": no") for problem in problems) == 2 and problems[-1] == ""
    refusals.append(30)
    with bucket.client() as client:
        client.set("c", b"v")
    with pytest.raises(MirrorFailed, match=r": no$"):
        run_mirror(None, bucket.url, tmp_path, once=True, retry_seconds=0)


# --------------------------------------------------------------------------- deletions that nobody can tell any more


def test_deletions_that_were_purged_unread_are_told_and_the_table_is_read_whole(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"v") for i in range(60))
    assert run_mirror(None, bucket.url, tmp_path, once=True, workers=0).data_loss == []
    purged = missed(bucket)
    done = run_mirror(None, bucket.url, tmp_path, once=True, workers=0)
    assert done.data_loss == sorted(purged) and purged, "no vbucket had a deletion to purge"
    assert done.rollbacks == len(purged) and table(tmp_path) == documents(bucket)
    assert run_mirror(None, bucket.url, tmp_path, once=True, workers=0).data_loss == []


def test_a_vbucket_whose_newest_change_was_a_purged_deletion_is_read_again_once(bucket: Node, tmp_path: Path) -> None:
    """A later batch that read it again had no room for other changes, where batches are limited; the mirror stood."""
    with bucket.client() as client:
        client.set_many((f"a{i}", b"v") for i in range(60))
    run_mirror(None, bucket.url, tmp_path, once=True, workers=0)
    assert missed(bucket)
    run_mirror(None, bucket.url, tmp_path, once=True, workers=0)
    with bucket.client() as client:
        client.set_many((f"a{i}", b"w") for i in range(0, 60, 7))
    done = run_mirror(None, bucket.url, tmp_path, once=True, workers=0, reading={"maxChangesPerTrigger": "1"})
    assert (done.rollbacks, done.data_loss, table(tmp_path)) == (0, [], documents(bucket))


def test_who_wants_no_data_loss_is_told_the_vbuckets_and_the_table_stays(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"v") for i in range(60))
    run_mirror(None, bucket.url, tmp_path, once=True, workers=0)
    before, purged = table(tmp_path), missed(bucket)
    with pytest.raises(DataLoss) as caught:
        run_mirror(None, bucket.url, tmp_path, once=True, workers=0, reading={"failOnDataLoss": "true"})
    assert caught.value.purged == purged and f"{min(purged)} (to seqno {purged[min(purged)]})" in str(caught.value)
    assert table(tmp_path) == before


def test_a_mirror_that_runs_goes_on_in_a_bucket_that_was_made_anew_with_more_vbuckets(
    bucket: Node, tmp_path: Path
) -> None:
    """A task keeps its connection for the next one. That knew the old bucket's map alone, and the mirror ended."""
    make(bucket, 4)
    sink, batches, calm = TableSink(tmp_path / "t", "orders"), list[Any](), list[None]()

    def store(word: str, count: int) -> None:
        with connect(url(bucket)) as client:
            assert client.set_many((f"a{number}", word) for number in range(count)) == {}

    def meanwhile() -> None:
        if not calm:
            make_anew(bucket, 8)
            store("new", 30)
        calm.append(None)

    store("old", 40)
    LocalEngine(sink, parse({"url": url(bucket)}, streaming=True), 0).follow(
        once=False,
        interval_seconds=0.0,
        on_batch=lambda answers, end: batches.append(end),
        stop=lambda: len(batches) > 1,
        on_calm=meanwhile,
    )
    assert table(tmp_path / "t") == {f"a{number}".encode(): b"new" for number in range(30)}
