"""A lake that goes away under a live mirror, for a moment or for good: nothing is made anew, and nothing is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.client import connect
from headwater.errors import TableAway, TableError
from headwater.lake.log import FOLDER, TableLog
from headwater.lake.store import TableStore
from headwater.pipelines.collections import Tables
from headwater.pipelines.mirror import MirrorProgress, mirror
from headwater.pipelines.sink import TableSink
from headwater.pipelines.table import Table
from headwater.testing.node import Node, node
from tests.client.test_made_anew import make, make_anew, url
from tests.lake.support import restore
from tests.pipelines.support import VBUCKETS, becomes, documents, folded, put_into, seqnos, table

PARTS = {"the table": "", "its log": FOLDER}


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=VBUCKETS) as running:
        write(running, "first")
        yield running


def write(bucket: Node, name: str) -> None:
    with bucket.client() as client:
        assert client.set_many((f"{name}{i}", b"v") for i in range(10)) == {}


def follow(bucket: Node, place: Path, heard: Callable[[MirrorProgress], bool | None], **options: Any) -> MirrorProgress:
    """A live mirror, until `heard` is given a progress and returns True."""
    ends: list[bool] = []

    def note(told: MirrorProgress) -> None:
        if heard(told):
            ends.append(True)

    asked = {"workers": 0, "interval_seconds": 0.0, "upkeep": False} | options
    return mirror(None, bucket.url, place, progress=note, stop=lambda: bool(ends), **asked)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("changelog", [False, True])
def test_a_table_that_comes_back_is_gone_on_with(part: str, changelog: bool, bucket: Node, tmp_path: Path) -> None:
    """A mount that flaps: the bare mount point is there meanwhile."""
    place, away = tmp_path / "t", tmp_path / "away"
    made = TableLog(TableStore(place))

    def heard(told: MirrorProgress) -> bool:
        if told.retries == 0 and not away.exists():
            made.refresh()
            (place / PARTS[part]).rename(away)
            (place / PARTS[part]).mkdir()
            write(bucket, "second")
        elif told.retries == 1 and away.exists():
            assert "the table that was here is away" in told.problem
            assert not list((place / FOLDER).glob("*")) if part == "its log" else not list(place.glob("*"))
            (place / PARTS[part]).rmdir()
            away.rename(place / PARTS[part])
        return told.changes == seqnos(bucket) and told.retries > 0 and not told.problem

    follow(bucket, place, heard, changelog=changelog)
    assert table(place) == documents(bucket)
    log = TableLog(TableStore(place))
    assert log.refresh().id == made.state.id


def test_a_table_that_stays_away_ends_the_mirror_which_says_how_to_begin_anew(bucket: Node, tmp_path: Path) -> None:
    def heard(told: MirrorProgress) -> None:
        if told.retries == 0:
            (tmp_path / "t").rename(tmp_path / "away")
            write(bucket, "second")

    with pytest.raises(TableAway, match=r"bring it back.*; a mirror that is started again makes it anew"):
        follow(bucket, tmp_path / "t", heard, retry_seconds=0.0)
    assert not (tmp_path / "t").exists()
    mirror(None, bucket.url, tmp_path / "t", once=True, workers=0, upkeep=False)
    assert table(tmp_path / "t") == documents(bucket)


@pytest.mark.parametrize("collections", [False, True])
def test_a_table_whose_first_attempt_failed_behind_making_it_is_not_made_again_where_it_is_away(
    collections: bool, bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table beside it could not be made, a catalog did not answer; then the mount goes."""
    place, away = tmp_path / "t", tmp_path / "away"
    shown = place / "_default" / "_default" if collections else place

    def fails(self: TableSink) -> None:
        monkeypatch.undo()
        assert (shown / FOLDER).is_dir()
        place.rename(away)
        place.mkdir()
        raise OSError("the mount is away")

    def heard(told: MirrorProgress) -> bool:
        if told.retries > 1 and away.exists():
            assert "the table that was here is away" in told.problem
            assert not list(place.glob("*"))
            place.rmdir()
            away.rename(place)
        return told.changes == seqnos(bucket) and not told.problem

    monkeypatch.setattr(TableSink, "_make_readable", fails)
    follow(bucket, place, heard, **({"collections": "all"} if collections else {}))
    assert table(shown) == documents(bucket) and not away.exists()


def test_one_that_was_made_anew_meanwhile_is_gone_on_with(bucket: Node, tmp_path: Path) -> None:
    """By a second mirror; the first goes on from where that one is, not from what it remembers."""
    place = tmp_path / "t"

    def heard(told: MirrorProgress) -> bool:
        if told.retries == 0:
            place.rename(tmp_path / "away")
            write(bucket, "second")
            mirror(None, bucket.url, place, once=True, workers=0, upkeep=False)
            write(bucket, "third")
        return told.changes == seqnos(bucket) and told.retries > 0 and not told.problem

    follow(bucket, place, heard)
    assert table(place) == documents(bucket)


def test_a_batch_that_was_read_before_the_table_was_made_anew_is_not_committed_to_the_new_one(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a deletion nothing is written, so no file that is missing tells of it."""
    place, put, moved = tmp_path / "t", Table.put, []

    def late(self: Table, *given: Any, **more: Any) -> None:
        if not moved and self.record.batch:
            moved.append(place.rename(tmp_path / "away"))
            mirror(None, bucket.url, place, once=True, workers=0, upkeep=False)
            write(bucket, "third")
        put(self, *given, **more)

    def heard(told: MirrorProgress) -> bool:
        if not moved:
            with bucket.client() as client:
                client.delete_many(["first0"])
        return bool(moved) and told.changes == seqnos(bucket) and not told.problem

    monkeypatch.setattr(Table, "put", late)
    follow(bucket, place, heard)
    assert table(place) == documents(bucket)
    versions = sorted(int(path.stem) for path in (place / FOLDER).glob("*.json"))
    assert versions == list(range(len(versions)))


def test_a_new_start_where_the_log_alone_is_missing_makes_no_other(bucket: Node, tmp_path: Path) -> None:
    mirror(None, bucket.url, tmp_path / "t", once=True, workers=0, upkeep=False)
    (tmp_path / "t" / FOLDER).rename(tmp_path / "log")
    with pytest.raises(TableError, match=r"there is no log of a table here, but there are _index, part-.*bring"):
        mirror(None, bucket.url, tmp_path / "t", once=True, workers=0, upkeep=False)
    (tmp_path / "log").rename(tmp_path / "t" / FOLDER)
    mirror(None, bucket.url, tmp_path / "t", once=True, workers=0, upkeep=False)
    assert table(tmp_path / "t") == documents(bucket)


def test_a_table_that_another_mirror_put_away_and_made_anew_is_not_put_away_again(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked at the collection's old table; the second to move it would move the first one's new table."""

    def mirrored() -> None:
        mirror(None, bucket.url, tmp_path, collections="shop.a", once=True, workers=0, upkeep=False)

    becomes(bucket, 1, a=8, b=9)
    put_into(bucket, 8, "old")
    mirrored()
    becomes(bucket, 2, b=9)
    becomes(bucket, 3, a=10, b=9)
    put_into(bucket, 10, "new")
    put_away = Tables._put_away

    def late(self: Tables, place: str, number: int) -> list[str]:
        monkeypatch.undo()
        mirrored()
        return put_away(self, place, number)

    monkeypatch.setattr(Tables, "_put_away", late)
    mirrored()
    assert set(table(tmp_path / "shop" / "a")) == {b"new"}
    assert set(table(tmp_path / "shop" / "a.dropped-8")) == {b"old"}


def test_a_table_that_somebody_put_back_to_an_older_version_is_read_anew(bucket: Node, tmp_path: Path) -> None:
    """Its record stays where it was: without that the mirror would go on as if nothing were missing."""
    place = tmp_path / "t"

    def mirrored() -> MirrorProgress:
        asked = {"changelog": True, "json": True, "quarantine": True}
        return mirror(None, bucket.url, place, once=True, workers=0, upkeep=False, **asked)

    mirrored()
    log = TableLog(TableStore(place))
    older = log.refresh().version
    with bucket.client() as client:
        client.set("first0", b"newer")
    write(bucket, "second")
    mirrored()
    restore(log, older)
    assert table(place) != (held := {key.decode(): value for key, value in documents(bucket).items()})
    assert mirrored().rollbacks == VBUCKETS
    assert table(place) == held
    assert folded(f"{place}_changes") == documents(bucket)
    assert mirrored().rollbacks == 0


@pytest.mark.parametrize("which", ["t", "t_changes"])
def test_a_table_that_was_put_back_to_before_its_bucket_was_made_anew_has_nothing_of_the_old_one(
    which: str, bucket: Node, tmp_path: Path
) -> None:
    """The new bucket had no change in most vbuckets, so that the record had nothing of them to read anew."""
    make(bucket, VBUCKETS)

    def mirrored() -> None:
        mirror(None, url(bucket), tmp_path / "t", once=True, workers=0, upkeep=False, changelog=True)

    with connect(url(bucket)) as client:
        assert client.set_many((f"old{number}", b"old") for number in range(40)) == {}
    mirrored()
    log = TableLog(TableStore(tmp_path / which))
    older = log.refresh().version
    make_anew(bucket, VBUCKETS)
    for value in (b"new", b"newer"):
        with connect(url(bucket)) as client:
            client.set("new", value)
        mirrored()
    restore(log, older)
    mirrored()
    assert set(table(tmp_path / "t")) == {b"new"}
    assert folded(tmp_path / "t_changes") == {b"new": b"newer"}
