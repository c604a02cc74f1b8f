"""The process that folds files and writes checkpoints dies, hangs or is refused memory, and others change the table
while it works: batches go on, progress says what happened, and the table is what the bucket is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from harness.lake_faults.world import VBUCKETS, World, nodes_of
from harness.nodes import until
from harness.processes import descendants, is_stopped
from headwater.lake import folds, upkeep
from headwater.lake.commit import record_of
from headwater.lake.facts import history
from headwater.lake.folds import FAN, FOLD, FoldTask, choose, commit
from headwater.lake.index import Indexes
from headwater.lake.log import TableLog
from headwater.lake.store import TableStore
from headwater.lake.verify import check_indexes
from headwater.pipelines.local import Folds
from headwater.pipelines.mirror import mirror
from headwater.pipelines.sink import changes_in
from headwater.pipelines.tasks import SEED as SEED_PROPERTY
from headwater.testing.node import Node, node
from tests.battery import few_of
from tests.lake.support import SEED
from tests.lake.support import Table as Rows
from tests.pipelines.support import Running, documents, seqnos, table

pytestmark = pytest.mark.slow  # it begins early: nothing may be left to one worker at the end
POINTS = "HEADWATER_FAILPOINTS"


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=VBUCKETS) as running:
        yield running


class Batches:
    """Writes to a bucket, a batch of the mirrors of one table after the other."""

    def __init__(self, bucket: Node, place: Path, *mirrors: Running) -> None:
        self.bucket, self.place, self.mirrors, self.count = bucket, place, mirrors, 0

    def one(self) -> None:
        """Store, overwrite and remove; return when it is in the table."""
        with self.bucket.client() as client:
            client.set_many((f"a{self.count + i}", os.urandom(40)) for i in range(20))
            client.delete_many([f"a{self.count + i}" for i in range(0, 20, 5)])
        self.count += 15
        goal = seqnos(self.bucket)
        for running in self.mirrors:
            running.wait_until(lambda: covered(self.place) >= goal)

    def until(self, true: Callable[[], object], most: int = 200) -> None:
        """Go on until something is so."""
        for _ in range(most):
            if true():
                return
            self.one()
        raise AssertionError([(mirror.told, mirror.problems) for mirror in self.mirrors])


def stopped() -> list[int]:
    """Processes of ours that stand still."""
    return [pid for pid in descendants(os.getpid()) if is_stopped(pid)]


def nobody_stands() -> None:
    """A process that is killed is gone a moment later."""
    until(lambda: not stopped(), "nobody stands any more")


def covered(place: Path) -> int:
    log = opened(place)
    return changes_in(record_of("", log.state).end) if log.exists else 0


def opened(place: Path) -> TableLog:
    log = TableLog(TableStore(place))
    log.refresh()
    return log


def committed_folds(place: Path) -> int:
    """How many folds of ours are versions of a table."""
    return sum(each["operation"] == "OPTIMIZE" for each in history(opened(place), 1000))


def check(bucket: Node, place: Path) -> None:
    """The table is what the bucket is, and nothing of a fold lies about that no version ever had."""
    mirror(None, bucket.url, place, once=True, workers=0, upkeep=False)
    assert table(place) == documents(bucket)
    log = opened(place)
    named = {path for version in range(log.state.version + 1) for path in _added(log, version)}
    assert {path.name for path in place.glob(f"{FOLD}-*")} <= named
    assert list(check_indexes(log.store, log.state, _indexes(log))) == []


def _indexes(log: TableLog) -> Indexes:
    return Indexes(log.store, log.state.id, bytes.fromhex(log.state.properties[SEED_PROPERTY]))


def _added(log: TableLog, version: int) -> Iterator[str]:
    for action in log._commit_of(version) or ():
        if "add" in action:
            yield action["add"]["path"]


@pytest.fixture
def running(bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batches]:
    """A mirror whose first process for folds stands still in the middle of the first."""
    monkeypatch.setenv(POINTS, "lake.folding=stop@4")
    following = Running(bucket.url, tmp_path / "t", workers=1)
    try:
        yield Batches(bucket, tmp_path / "t", following)
    finally:
        for pid in stopped():
            os.kill(pid, signal.SIGKILL)
        following.stop()


def stands(running: Batches, monkeypatch: pytest.MonkeyPatch) -> int:
    """Go on until the process stands; those that are begun later don't."""
    running.until(stopped)
    monkeypatch.setenv(POINTS, "")
    return stopped()[0]


def test_a_process_that_is_killed_in_a_fold_is_told_and_begun_again_and_batches_go_on(
    running: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t"
    (following,) = running.mirrors
    pid = stands(running, monkeypatch)
    running.one()  # batches do not wait for a fold
    assert committed_folds(place) == 0 and following.problems == []
    os.kill(pid, signal.SIGKILL)
    running.until(lambda: following.problems)
    assert following.problems == ["upkeep: the process that folds files and writes checkpoints died"]
    running.until(lambda: committed_folds(place))
    assert following.told.retries == 0 and following.told.problem == ""
    following.stop()
    check(running.bucket, place)


def test_a_fold_that_hangs_is_killed_told_and_done_again(
    running: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Event()

    def patience(work: list[Future[Any]], seconds: float) -> Any:
        """Is at its end for the first fold once that was seen standing, however slow the machine."""
        return wait(work, seconds) if seen.is_set() else wait(work, 0 if seen.wait(120) else seconds)

    monkeypatch.setattr("headwater.pipelines.local.wait", patience)
    place = tmp_path / "t"
    (following,) = running.mirrors
    stands(running, monkeypatch)
    seen.set()
    running.until(lambda: following.problems)
    assert following.problems == ["upkeep: a fold or checkpoint did not end in 600 s; its process was killed"]
    nobody_stands()
    running.until(lambda: committed_folds(place))
    following.stop()
    check(running.bucket, place)


def test_a_fold_that_gets_no_memory_fails_alone_and_the_next_is_of_fewer_files(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the process an allocation fails and raises. What the system kills for its memory is killed as above."""
    place = tmp_path / "t"
    asked: list[int] = []
    seconds = FoldTask.seconds.fget
    assert seconds is not None

    def noted(task: FoldTask) -> float:
        asked.append(len(task.files))
        return float(seconds(task))

    monkeypatch.setattr(FoldTask, "seconds", property(noted))
    monkeypatch.setenv(POINTS, "lake.folding=raise@4")
    following = Running(bucket.url, place, workers=1)
    batches = Batches(bucket, place, following)
    try:
        batches.until(lambda: following.problems)
        monkeypatch.setenv(POINTS, "")
        assert following.problems == ["upkeep: lake.folding"]
        batches.until(lambda: committed_folds(place))
    finally:
        following.stop()
    assert following.told.retries == 0
    assert asked[0] == FAN and asked[1] == FAN // 2
    check(bucket, place)


def test_a_run_that_ends_while_its_fold_hangs_ends_and_says_so(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t"
    batches = Batches(bucket, place)
    for _ in range(FAN - 1):
        batches.one()
        mirror(None, bucket.url, place, once=True, workers=0, upkeep=False)
    batches.one()
    monkeypatch.setenv(POINTS, "lake.folding=stop")
    monkeypatch.setattr(folds, "HANG_SECONDS", 3.0)
    told = mirror(None, bucket.url, place, once=True, workers=1)
    assert told.problem == "upkeep: a fold or checkpoint did not end in 3 s; its process was killed"
    nobody_stands()
    check(bucket, place)


def test_a_mirror_that_is_told_to_stop_does_not_wait_for_a_fold_that_hangs(
    running: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.pipelines.mirror.STOP_SECONDS", 0.1)
    stands(running, monkeypatch)
    running.mirrors[0].stop()
    nobody_stands()
    mirror(None, running.bucket.url, tmp_path / "t", once=True, workers=0)
    assert table(tmp_path / "t") == documents(running.bucket)


def test_a_process_that_is_killed_in_a_checkpoint_writes_it_the_next_time(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t"
    noted = place / "_delta_log" / "_last_checkpoint"
    monkeypatch.setattr(upkeep, "CHECKPOINT_EVERY", 3)
    monkeypatch.setenv(POINTS, "lake.checkpointed=kill")
    following = Running(bucket.url, place, workers=1)
    batches = Batches(bucket, place, following)
    try:
        batches.until(lambda: following.problems)
        assert following.problems == ["upkeep: the process that folds files and writes checkpoints died"]
        assert not noted.exists()
        monkeypatch.setenv(POINTS, "")
        batches.until(noted.exists)
    finally:
        following.stop()
    assert following.told.retries == 0
    check(bucket, place)


@pytest.mark.parametrize("what", few_of(["rewrite_as_a_stranger", "delete_as_a_stranger"], "rewrite_as_a_stranger"))
def test_what_somebody_else_does_to_the_table_while_a_fold_is_at_work_stands(
    what: str, running: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "table"
    told: list[str] = []
    stranger = World(Random(3), nodes_of(running.bucket), tmp_path, unfold=False, told=told.append)
    stranger.place = place = tmp_path / "t"
    (following,) = running.mirrors
    pid = stands(running, monkeypatch)
    while not (told and "too late" not in told[-1]):  # a batch may come between
        getattr(stranger, what)()
    running.one()
    before = committed_folds(place)
    os.kill(pid, signal.SIGCONT)
    running.until(lambda: committed_folds(place) > before)
    following.stop()
    assert following.problems == []
    check(running.bucket, place)


def test_two_mirrors_of_one_table_whose_folds_are_of_the_same_files_bring_one_in(
    running: Batches, bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t"
    (first,) = running.mirrors
    second = Running(bucket.url, place, workers=1)
    both = Batches(bucket, place, first, second)
    try:
        both.until(lambda: len(stopped()) == 2)
        monkeypatch.setenv(POINTS, "")
        assert committed_folds(place) == 0
        for pid in stopped():
            os.kill(pid, signal.SIGCONT)
        both.until(lambda: committed_folds(place))
        for _ in range(FAN):
            both.one()
    finally:
        second.stop()
    first.stop()
    assert first.problems == second.problems == []
    check(bucket, place)


def test_work_is_done_in_one_process_which_is_begun_again_when_it_died_or_hung(tmp_path: Path) -> None:
    held = Rows(tmp_path)
    for number in range(FAN):
        held.take((f"k{number}", 0, number + 1, "v"))
    state = held.log.state
    task = FoldTask(str(tmp_path), state.id, state.fields, SEED, choose(state))
    with closing(Folds()) as folds:
        first = folds.submit(os.getpid, 60).result()
        assert first != os.getpid() and folds.submit(os.getpid, 60).result() == first
        with pytest.raises(ChildProcessError):
            folds.submit(partial(os._exit, 1), 60).result()
        with pytest.raises(TimeoutError, match=r"did not end in 0 s"):
            folds.submit(partial(time.sleep, 600), 0.01).result()
        assert folds.submit(os.getpid, 60).result() not in (first, os.getpid())
        assert commit(held.log, folds.submit(task.run, 60).result())
        waiting = folds.submit(partial(time.sleep, 600), 600)
    assert waiting.done()
    assert len(held.log.state.files) == 1 and set(held.held()) == {f"k{number}" for number in range(FAN)}
