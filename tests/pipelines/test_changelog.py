"""The change log when it and its table have parted: what counts in it is the living history, and each change once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from harness.lake_faults import judge
from harness.nodes import cluster, diverge, keep, leave, put, return_to
from headwater.failpoints import armed
from headwater.pipelines.local import LocalEngine
from headwater.pipelines.mirror import mirror
from headwater.pipelines.sink import TableSink
from headwater.spark.settings import parse
from headwater.testing.node import Node, node
from tests.pipelines.support import change


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


def follow(bucket: Node, place: Path, *, changelog: bool = True, url: str | None = None, **options: str) -> None:
    mirror(None, url or bucket.url, place / "t", once=True, changelog=changelog, workers=0, reading=options)


def follow_and_die_between_the_commits(bucket: Node, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch gets into the change log, and not into the table."""
    made = TableSink.__init__

    def dying(sink: TableSink, *arguments: object, **options: object) -> None:
        made(sink, *arguments, **options)  # type: ignore[arg-type]
        sink.log.commit = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign, assignment]

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(TableSink, "__init__", dying)
        follow(bucket, place)


def check(bucket: Node, place: Path) -> None:
    with bucket.client() as client:
        there = judge.of_nodes(client)
    judge.compare(judge.of_table(place / "t"), there)
    judge.check_changes(place / "t_changes", there)


def write(bucket: Node, name: str, count: int = 60) -> None:
    with bucket.client() as client:
        assert client.set_many((f"{name}{i}", name.encode()) for i in range(count)) == {}


def test_a_log_that_is_ahead_after_a_crash_gets_no_change_twice_in_batches_of_a_few(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bucket, "a")
    follow(bucket, tmp_path)
    write(bucket, "b")
    follow_and_die_between_the_commits(bucket, tmp_path, monkeypatch)
    follow(bucket, tmp_path, maxChangesPerTrigger="7")
    check(bucket, tmp_path)


def test_what_only_the_log_has_of_a_lost_branch_is_taken_back(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the table there is no rollback: it is where both histories are the same."""
    write(bucket, "a")
    follow(bucket, tmp_path)

    def lost() -> None:
        change(bucket, "lost")
        follow_and_die_between_the_commits(bucket, tmp_path, monkeypatch)

    diverge(bucket, lost=lost)
    change(bucket, "won")
    follow(bucket, tmp_path)
    check(bucket, tmp_path)


def test_a_rollback_that_only_the_log_has_seen_is_taken_back_when_the_branch_comes_back(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bucket, "a")
    behind = keep(bucket)
    write(bucket, "b")
    follow(bucket, tmp_path)
    level = keep(bucket)
    return_to(bucket, behind)
    write(bucket, "c")
    follow_and_die_between_the_commits(bucket, tmp_path, monkeypatch)
    return_to(bucket, level)
    write(bucket, "d")
    follow(bucket, tmp_path)
    check(bucket, tmp_path)


def test_a_log_that_is_switched_on_for_a_table_begins_with_what_the_table_has(bucket: Node, tmp_path: Path) -> None:
    write(bucket, "a")
    change(bucket, "b")
    follow(bucket, tmp_path, changelog=False)
    follow(bucket, tmp_path)  # with nothing to do
    check(bucket, tmp_path)
    write(bucket, "c")
    follow(bucket, tmp_path)
    check(bucket, tmp_path)


def test_a_base_whose_commit_was_made_and_then_failed_is_there(bucket: Node, tmp_path: Path) -> None:
    """As when the folder can't be synced once the commit has its name."""
    write(bucket, "a")
    follow(bucket, tmp_path, changelog=False)
    with armed("lake.after_commit=eio"):
        follow(bucket, tmp_path)
    check(bucket, tmp_path)


@pytest.mark.parametrize("meanwhile", ["changes", "a failover"])
def test_a_log_that_was_off_for_a_while_is_brought_level(meanwhile: str, bucket: Node, tmp_path: Path) -> None:
    write(bucket, "a")
    follow(bucket, tmp_path)

    def off() -> None:
        change(bucket, "b")
        follow(bucket, tmp_path, changelog=False)

    off() if meanwhile == "changes" else diverge(bucket, lost=off)
    follow(bucket, tmp_path, changelog=False)
    write(bucket, "c")
    follow(bucket, tmp_path)
    check(bucket, tmp_path)


def test_a_log_that_began_anew_behind_the_place_of_a_rollback_has_what_holds_there(
    bucket: Node, tmp_path: Path
) -> None:
    """Another mirror, without the log, brought a batch in, so the log begins anew with what the table has. The mirror
    that runs remembers a place before that, and the table at that place is in no row of the log."""
    write(bucket, "a")
    sink = TableSink(tmp_path / "t", "default", changelog=tmp_path / "t_changes")
    calm: list[None] = []

    def meanwhile() -> None:
        if not calm:
            diverge(bucket, lost=off)
        calm.append(None)

    def off() -> None:
        change(bucket, "lost")
        follow(bucket, tmp_path, changelog=False)

    LocalEngine(sink, parse({"url": bucket.url}, streaming=True), 0).follow(
        once=False,
        interval_seconds=0.0,
        on_batch=lambda answers, end: None,
        stop=lambda: len(calm) > 1,
        on_calm=meanwhile,
    )
    check(bucket, tmp_path)


def test_a_node_that_forgot_the_names_of_old_branches_makes_no_change_come_twice(bucket: Node, tmp_path: Path) -> None:
    """A failover log has 25 branches; after that the oldest names go, and with them what a change was known by once."""
    for number in range(28):
        write(bucket, f"n{number}-", 3)
        if number % 9 == 0:
            follow(bucket, tmp_path)
        bucket.kill()
        bucket.restart()
    follow(bucket, tmp_path)
    rows = pl.read_delta(str(tmp_path / "t_changes")).to_dicts()
    assert len(rows) == len({(row["vbucket"], row["seqno"]) for row in rows}) == 84
    with bucket.client() as client:
        assert max(map(len, client.failover_logs().values())) == 25
        judge.compare(judge.of_table(tmp_path / "t"), judge.of_nodes(client))


def test_a_log_ahead_of_its_table_at_a_failover_between_two_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(2, 4) as two:
        first, second = two.nodes
        write(first, "a")
        two.follow(1, 1)
        follow(first, tmp_path)
        leave(second, first.address)
        put(first, 1, "lost", b"v")
        follow_and_die_between_the_commits(first, tmp_path, monkeypatch)
        two.fail_over(1, 1)
        two.publish()
        put(second, 1, "new", b"v")
        follow(first, tmp_path)
        check(first, tmp_path)
