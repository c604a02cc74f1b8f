"""Tables that were broken: their fault is found, and the mirror makes them what the bucket is again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headwater.errors import TableError
from headwater.lake.log import FOLDER, TableLog
from headwater.lake.store import DRAFT_PREFIX, TableStore
from headwater.pipelines.mirror import MirrorProgress, mirror
from headwater.pipelines.repair import repair
from headwater.testing.node import Node, node
from tests.lake.support import Table
from tests.pipelines.support import VBUCKETS, documents, folded, table


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Node]:
    """A bucket whose table has two files, as its log and its quarantine have."""
    with node(vbuckets=VBUCKETS) as running:
        for n in range(2):
            with running.client() as client:
                client.set_many({f"k{n}-{i}": "{}" if i % 2 else "no JSON" for i in range(10)}.items())
            follow(running, tmp_path / "t")
        yield running


def follow(bucket: Node, place: Path) -> MirrorProgress:
    asked: dict[str, Any] = {"changelog": True, "json": True, "quarantine": True, "upkeep": False, "workers": 0}
    return mirror(None, bucket.url, place, once=True, **asked)


def log_of(place: Path | str) -> TableLog:
    log = TableLog(TableStore(place))
    log.refresh()
    return log


def is_equal(bucket: Node, place: Path) -> bool:
    held = {key.encode(): value for key, value in table(place).items()}
    wanted = documents(bucket)
    misfits = {key for key, value in wanted.items() if value == b"no JSON"}
    return (held, folded(f"{place}_changes"), set(table(f"{place}_quarantine"))) == (wanted, wanted, misfits)


@pytest.mark.parametrize("end", ["", "_changes", "_quarantine"])
def test_a_file_that_is_missing_leaves_the_table_and_the_bucket_is_read_anew(
    end: str, bucket: Node, tmp_path: Path
) -> None:
    lost = next(Path(f"{tmp_path / 't'}{end}").glob("*.parquet"))
    lost.unlink()
    said = repair(f"{tmp_path / 't'}{end}")
    assert said[0] == f"{lost.name} is missing: the table names it" and len(said) == 2
    with bucket.client() as client:
        client.set("later", "{}")
    follow(bucket, tmp_path / "t")
    assert is_equal(bucket, tmp_path / "t")
    assert repair(f"{tmp_path / 't'}{end}") == []


def test_files_of_a_mount_that_was_away_for_a_moment_stay_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a change log they were lost for good: what they held is in no other table."""
    made = Table(tmp_path)
    made.take(("k", 0, 1, "v"), fresh=[0])
    there, away = TableStore.exists, set(made.log.state.files)

    def seen(store: TableStore, path: str) -> bool:
        if path in away:
            away.remove(path)  # back when it is looked for again
            return False
        return there(store, path)

    monkeypatch.setattr(TableStore, "exists", seen)
    assert repair(str(tmp_path)) == []
    assert log_of(tmp_path).state.files.keys() == made.log.state.files.keys()


def test_a_key_with_two_rows_has_one_when_the_bucket_was_read_anew(bucket: Node, tmp_path: Path) -> None:
    place, log = tmp_path / "t", log_of(tmp_path / "t")
    file = next(iter(log.state.files.values()))
    shutil.copy(place / file.path, place / "part-again.parquet")
    assert log.commit([{"add": file.add | {"path": "part-again.parquet"}}], "WRITE")
    assert all("has more than one row" in line for line in repair(str(place), dry=True))
    assert repair(str(place))[-1].startswith("the next batch of the mirror reads the whole bucket anew")
    assert follow(bucket, place).rollbacks == VBUCKETS
    assert is_equal(bucket, place)


def test_commits_behind_a_gap_are_moved_out_of_the_log(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    newest = log_of(place).state.version
    stray = f"{newest + 5:020}.json"
    shutil.copy(place / FOLDER / f"{newest:020}.json", place / FOLDER / stray)
    with pytest.raises(Exception, match="contiguous"):
        DeltaTable(str(place))
    assert [line.partition(":")[0] for line in repair(str(place))] == [f"{FOLDER}/{stray}"] * 2
    assert (place / FOLDER / f"{DRAFT_PREFIX}stray-{stray}").exists()
    assert DeltaTable(str(place)).version() == newest
    assert is_equal(bucket, place)


def test_what_nothing_seems_wrong_with_is_read_anew_where_that_is_wanted(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    assert repair(str(place)) == []
    assert len(repair(str(place), anew=True)) == 1
    assert follow(bucket, place).rollbacks == VBUCKETS
    assert is_equal(bucket, place)


def test_a_log_without_a_beginning_can_not_be_repaired_and_what_to_do_is_said(bucket: Node, tmp_path: Path) -> None:
    (tmp_path / "t" / FOLDER / f"{0:020}.json").unlink()
    with pytest.raises(TableError, match=r"its log can't be repaired: .*move the folder away and start the mirror"):
        repair(str(tmp_path / "t"))
