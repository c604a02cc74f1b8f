"""A mirror without Spark that is killed at each of its steps: the next run makes the table what the bucket is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.nodes import diverge
from harness.processes import descendants, lives
from headwater.lake.folds import FAN
from headwater.lake.log import TableLog
from headwater.lake.store import TableStore
from headwater.lake.verify import of_table
from headwater.pipelines.mirror import mirror
from headwater.testing.node import Node, node
from tests.battery import few_of
from tests.pipelines.support import change, documents, folded, table

OF_WORKERS = ("lake.reading", "lake.files_written")
STEPS = ("planned", *(name.partition(".")[2] for name in OF_WORKERS), "log_committed", "before_commit", "after_commit")

CHECKPOINT = """
import sys
from headwater.lake import log, store, upkeep
upkeep.checkpoint(log.TableLog(store.TableStore(sys.argv[1])))
"""


def command(url: str, place: Path, *options: str) -> list[str]:
    asked = [sys.executable, "-m", "headwater", "mirror", url, "--to", str(place), "--engine", "local", "--changelog"]
    return [*asked, *options]


def run(url: str, place: Path, points: str = "", *options: str) -> int:
    environment = {**os.environ, "HEADWATER_FAILPOINTS": points}
    asked = command(url, place, "--once", *options)
    return subprocess.run(asked, env=environment, capture_output=True, timeout=540, check=False).returncode


def check(bucket: Node, place: Path) -> None:
    """The next run is well; then table and change log say what the bucket does."""
    mirror(None, bucket.url, place, once=True, changelog=True)
    assert table(place) == documents(bucket) == folded(Path(f"{place}_changes"))
    log = TableLog(TableStore(place))
    assert of_table(log.store, log.refresh())[1] == []


@pytest.mark.battery
@pytest.mark.parametrize("point", [f"lake.{step}" for step in (*STEPS, "before_fold", "after_fold")])
def test_a_mirror_that_was_killed_goes_on_where_its_table_stands(point: str, tmp_path: Path) -> None:
    place = tmp_path / "t"
    with node(vbuckets=4) as bucket, bucket.client() as client:
        for n in range(FAN):
            client.set_many((f"a{i}", f"{n}".encode() * 50) for i in range(10 * n, 10 * n + 60))
            mirror(None, bucket.url, place, once=True, changelog=True, upkeep=False)
        client.set_many((f"a{i}", b"before") for i in range(20))
        client.delete_many([f"a{i}" for i in range(20, 40)])
        # A worker that dies does not end a mirror at once: it goes on trying, for as long as it is told to.
        assert run(bucket.url, place, f"{point}=kill", "--retry", "0") == (1 if point in OF_WORKERS else -9)
        client.set_many((f"a{i}", b"after") for i in range(10, 30))
        check(bucket, place)


@pytest.mark.parametrize(
    "point", few_of([f"lake.{step}" for step in STEPS], "lake.files_written", "lake.before_commit")
)
def test_a_mirror_that_is_killed_while_it_undoes_a_lost_branch_undoes_it_the_next_time(
    point: str, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    with node(vbuckets=4) as bucket:
        with bucket.client() as client:
            client.set_many((f"a{i}", b"kept") for i in range(60))
        mirror(None, bucket.url, place, once=True, changelog=True)

        def lost() -> None:
            change(bucket, "lost")
            mirror(None, bucket.url, place, once=True, changelog=True)

        diverge(bucket, lost=lost)
        change(bucket, "won")
        assert run(bucket.url, place, f"{point}=kill", "--retry", "0") == (1 if point in OF_WORKERS else -9)
        check(bucket, place)


def test_a_driver_that_is_killed_takes_its_workers_with_it_and_the_next_goes_on(tmp_path: Path) -> None:
    """SIGKILL at whatever it is doing, again and again while a large first batch is read."""
    place = tmp_path / "t"
    with node(vbuckets=16) as bucket, bucket.client() as client:
        for seconds in (0.0, 0.2):
            client.set_many((f"a{i}", os.urandom(200)) for i in range(20_000))
            assert kill_while_it_writes(bucket.url, place, seconds) >= 2
        check(bucket, place)


def kill_while_it_writes(url: str, place: Path, seconds: float) -> int:
    """Run a mirror, kill it some time after its tasks begin to write; return how many workers ended with it."""
    before = set(place.glob("part-*"))
    with subprocess.Popen(command(url, place), stdout=subprocess.DEVNULL) as driver:
        wait_until(lambda: bool(set(place.glob("part-*")) - before))
        time.sleep(seconds)
        workers = descendants(driver.pid)
        driver.kill()
    wait_until(lambda: not any(map(lives, workers)))
    return len(workers)


def test_a_worker_that_is_killed_is_replaced_and_the_mirror_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "t"
    with node(vbuckets=16) as bucket, bucket.client() as client:
        client.set_many((f"a{i}", os.urandom(200)) for i in range(60_000))
        with subprocess.Popen(command(bucket.url, place, "--progress", "json"), stdout=subprocess.PIPE) as driver:
            wait_until(lambda: any(place.glob("part-*")))
            count = 60_000
            while not (found := writers(descendants(driver.pid), place)):  # it was quicker than we looked
                client.set_many((f"a{i}", os.urandom(200)) for i in range(count, count + 20_000))
                count += 20_000
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            assert driver.stdout is not None
            while b'"changes": %d' % count not in (line := driver.stdout.readline()):
                assert line
            driver.terminate()
            assert driver.wait(240) == 0
        assert b'"retries": 0' not in line
        check(bucket, place)


def test_a_checkpoint_of_the_log_that_was_cut_off_or_not_noted_is_no_matter(tmp_path: Path) -> None:
    place = tmp_path / "t"
    with node(vbuckets=4) as bucket, bucket.client() as client:
        for n in range(3):
            client.set_many((f"a{i}", f"{n}") for i in range(10 * n, 60))
            mirror(None, bucket.url, place, once=True, changelog=True)
            environment = {**os.environ, "HEADWATER_FAILPOINTS": "lake.checkpointed=kill"}
            asked = [sys.executable, "-c", CHECKPOINT, str(place)]
            assert subprocess.run(asked, env=environment, check=False).returncode == -9
        assert not (place / "_delta_log" / "_last_checkpoint").exists()
        client.set_many((f"a{i}", b"last") for i in range(20, 70))
        check(bucket, place)


def writers(pids: list[int], place: Path) -> list[int]:
    """Those that have a data file of the table open."""
    return [pid for pid in pids if any(_open_files(pid, place))]


def _open_files(pid: int, place: Path) -> list[Path]:
    try:
        opened = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []
    return [path for path in opened if path.parent == place]


def wait_until(true: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
