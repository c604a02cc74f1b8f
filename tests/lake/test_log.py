import json
import time
from pathlib import Path
from typing import Any

import deltalake
import pytest

from headwater.errors import CorruptStore, TableChanged, UnsupportedTable
from headwater.lake.log import FOLDER, TableLog, creation, data_file, identity
from headwater.lake.shape import delta_field, fields
from headwater.lake.store import TableStore
from headwater.lake.upkeep import DAY, checkpoint, vacuum
from tests.lake.support import Table


def change(place: Path, **action: dict[str, Any]) -> None:
    """Somebody else's commit."""
    versions = sorted((place / FOLDER).glob("*.json"))
    name = f"{int(versions[-1].stem) + 1:020d}.json"
    (place / FOLDER / name).write_text("\n".join(json.dumps({kind: told}) for kind, told in action.items()))


def with_features(table: Table, *features: str) -> dict[str, Any]:
    protocol = table.log.state.protocol
    return protocol | {"writerFeatures": [*protocol["writerFeatures"], *features]}


def test_one_who_follows_and_one_who_begins_see_the_same(tmp_path: Path) -> None:
    table, follower = Table(tmp_path), TableLog(TableStore(tmp_path))
    follower.refresh()
    for n in range(5):
        table.take((f"k{n}", 0, n + 1, "v"), (f"k{n + 1}", 0, n + 100, "w"))
    fresh = TableLog(TableStore(tmp_path))
    assert follower.refresh() == fresh.refresh() == table.log.state
    assert TableLog(TableStore(tmp_path / "none")).exists is False


def test_a_column_with_any_character_is_called_the_same_by_readers(tmp_path: Path) -> None:
    names = ["\U00020bb7", "\U0001f600", "\U0010ffff", "é", "日", "\ufffe"]
    described = [*fields(), *(delta_field(name, "long") for name in names)]
    assert TableLog(TableStore(tmp_path)).commit(creation(described, {}, "b"), "CREATE TABLE")
    assert [each.name for each in deltalake.DeltaTable(tmp_path).schema().fields][-len(names) :] == names


def test_who_slept_until_the_commits_after_his_were_removed_makes_none_of_their_numbers(tmp_path: Path) -> None:
    """A vacuum, under a clock that is a year off or after a month of sleep, removes what a checkpoint has: the next
    number is free, and a commit under it would be in no version of the table."""
    table, sleeper = Table(tmp_path), Table(tmp_path)
    for n in range(4):
        table.take((f"k{n}", 0, n + 1, "v"))
    checkpoint(table.log)
    vacuum(table.log, now=time.time() + 400 * DAY)
    assert not (tmp_path / FOLDER / f"{1:020}.json").exists()
    assert sleeper.log.commit([], "ONE") is False
    assert sleeper.log.refresh().files.keys() == table.log.state.files.keys()
    assert sleeper.log.commit([], "TWO") and sleeper.log.state.version == 5
    sleeper.take(("k0", 0, 9, "w"))
    assert table.held() == sleeper.held() == {"k0": "w", "k1": "v", "k2": "v", "k3": "v"}


def test_a_task_that_slept_so_looks_through_the_newest_version(tmp_path: Path) -> None:
    table, sleeper = Table(tmp_path), TableLog(TableStore(tmp_path))
    sleeper.refresh()
    for n in range(4):
        table.take((f"k{n}", 0, n + 1, "v"))
    checkpoint(table.log)
    vacuum(table.log, now=time.time() + 400 * DAY)
    assert sleeper.refresh(sure=True).version == table.log.state.version


def test_the_second_who_commits_a_version_has_done_nothing(tmp_path: Path) -> None:
    first, second = Table(tmp_path), Table(tmp_path)
    before = second.log.state.version
    assert first.log.commit([], "ONE")
    assert second.log.commit([], "TWO") is False
    assert (second.log.state.version, second.log.refresh().version) == (before, before + 1)


def test_a_feature_that_is_not_known_refuses_the_table_by_its_name(tmp_path: Path) -> None:
    table = Table(tmp_path)
    change(tmp_path, protocol=with_features(table, "appendOnly", "rowTracking"))
    with pytest.raises(UnsupportedTable, match="the table feature rowTracking is not known to this writer"):
        table.log.refresh()


def test_what_binds_no_writer_is_taken_until_it_does(tmp_path: Path) -> None:
    table = Table(tmp_path)
    change(tmp_path, protocol=with_features(table, "appendOnly", "changeDataFeed", "invariants"))
    table.log.refresh()
    told = table.log.state.metadata
    bound = {"delta.enableChangeDataFeed": "true", "delta.constraints.c": "seqno > 0"}
    change(tmp_path, metaData=told | {"configuration": told["configuration"] | bound})
    with pytest.raises(UnsupportedTable, match=r"has delta\.enableChangeDataFeed, delta\.constraints\.c, which"):
        table.log.refresh()


def test_a_table_that_no_mirror_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    metadata = {"id": "x", "schemaString": '{"type":"struct","fields":[]}', "configuration": {}}
    (tmp_path / FOLDER / f"{0:020d}.json").write_text(json.dumps({"protocol": protocol}))
    change(tmp_path, metaData=metadata)
    with pytest.raises(UnsupportedTable, match=r"its protocol is reader 1, writer 2, features \[\]"):
        TableLog(TableStore(tmp_path)).refresh()


def test_a_commit_that_is_no_json_is_told_with_its_file(tmp_path: Path) -> None:
    table = Table(tmp_path)
    (tmp_path / FOLDER / f"{1:020d}.json").write_text('{"add": {')
    with pytest.raises(CorruptStore, match=r"00000000000000000001\.json: byte 0: not a commit"):
        table.log.refresh()


def test_what_came_since_a_version_is_read_again_or_missing(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"))
    table.take(("b", 0, 2, "v"))
    assert sum("add" in action for action in table.log.since(0)) == 2
    assert list(table.log.since(2)) == []
    (tmp_path / FOLDER / f"{1:020d}.json").unlink()
    with pytest.raises(TableChanged, match="version 1 of the log is gone"):
        list(table.log.since(0))


def test_a_file_says_what_it_may_hold() -> None:
    told = data_file(
        {"path": "a%20b", "size": 3, "stats": '{"numRecords":2,"minValues":{"vbucket":3},"maxValues":{"vbucket":7}}'}
    )
    assert (told.path, told.rows, told.vbuckets) == ("a b", 2, (3, 7))
    assert [told.may_hold(*span) for span in [(0, 2), (0, 3), (7, 9), (8, 9), (4, 5)]] == [
        False,
        True,
        True,
        False,
        True,
    ]
    assert data_file({"path": "x", "size": 1}).may_hold(9, 9)
    vector = {"storageType": "u", "pathOrInlineDv": "ab", "offset": 1}
    assert identity({"path": "x", "deletionVector": vector}) == ("x", "uab@1") != identity({"path": "x"})
