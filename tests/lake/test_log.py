import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pytest

from headwater.errors import CorruptStore, TableAway, TableChanged, UnsupportedTable
from headwater.lake.facts import history
from headwater.lake.folds import optimize
from headwater.lake.log import FOLDER, TableLog, creation, data_file, identity
from headwater.lake.shape import delta_field, fields
from headwater.lake.store import TableStore
from headwater.lake.upkeep import checkpoint
from headwater.lake.vacuum import DAY, vacuum
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
    assert [field.name for field in deltalake.DeltaTable(tmp_path).schema().fields][-len(names) :] == names


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
    change(tmp_path, protocol=with_features(table, "appendOnly", "clustering"))
    with pytest.raises(UnsupportedTable, match="the table feature clustering is not known to this writer"):
        table.log.refresh()


def test_what_binds_no_writer_is_taken_until_it_does(tmp_path: Path) -> None:
    table = Table(tmp_path)
    change(tmp_path, protocol=with_features(table, "appendOnly", "changeDataFeed", "checkpointProtection"))
    table.log.refresh()
    told = table.log.state.metadata
    bound = {"delta.enableChangeDataFeed": "True", "delta.constraints.c": "seqno > 0"}
    change(tmp_path, metaData=told | {"configuration": told["configuration"] | bound})
    with pytest.raises(UnsupportedTable, match=r"has delta\.enableChangeDataFeed, delta\.constraints\.c, which"):
        table.log.refresh()


ADDED: dict[str, tuple[dict[str, Any], str]] = {
    "a date": ({"type": "date"}, r"has the column note, of type date, which"),
    "a map": ({"type": {"type": "map", "keyType": "string", "valueType": "string"}}, "the column note, of type map"),
    "never null": ({"type": "string", "nullable": False}, r"the column note, which is never null, which"),
}


@pytest.mark.parametrize("what", ADDED)
def test_a_column_that_no_row_of_ours_can_have_refuses_the_table_by_its_name(what: str, tmp_path: Path) -> None:
    table = Table(tmp_path)
    described, told = ADDED[what]
    schema = {"type": "struct", "fields": [*table.log.state.fields, delta_field("note", "string") | described]}
    change(tmp_path, metaData=table.log.state.metadata | {"schemaString": json.dumps(schema)})
    with pytest.raises(UnsupportedTable, match=told):
        table.log.refresh()


def test_a_column_that_somebody_else_added_is_null_in_rows_of_ours(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), fresh=[0])
    more = [delta_field("note", "string"), delta_field("event", "timestamp"), delta_field("seen", "double")]
    schema = {"type": "struct", "fields": [*table.log.state.fields, *more]}
    change(tmp_path, metaData=table.log.state.metadata | {"schemaString": json.dumps(schema)})
    table.take(("a", 0, 2, "w"), ("b", 0, 3, "v"))
    optimize(table.log, table.indexes, everything=True)
    assert table.held() == {"a": "w", "b": "v"}
    read = pl.read_delta(str(tmp_path))
    assert [read[name].null_count() for name in ("note", "event", "seen")] == [2, 2, 2]


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


def moved_aside(place: Path) -> None:
    place.rename(place.with_name("aside"))


def made_anew(place: Path) -> None:
    """Another mirror moves the folder aside and makes a table in its place, which is further after a while."""
    moved_aside(place)
    table = Table(place)
    for n in range(4):
        table.take((f"new{n}", 0, n + 1, "v"))


def put_back_to_an_older_state(place: Path) -> None:
    newest = max((place / FOLDER).glob("*.json"))
    newest.unlink()


def gone_on_from_an_older_state(place: Path) -> None:
    put_back_to_an_older_state(place)
    Table(place).take(("other", 0, 9, "v"))


AWAY = {
    "its folder was moved aside": (moved_aside, "the table that was here is away: bring it back"),
    "its log was moved aside": (
        lambda place: (place / FOLDER).rename(place / "log"),
        "the table that was here is away: bring it back",
    ),
    "it was removed": (shutil.rmtree, "the table that was here is away: bring it back"),
    "another one was made": (made_anew, "another table lies here by now"),
    "it was put back": (put_back_to_an_older_state, "had version 2 and is at version 1: it was put back"),
    "it went on from there": (gone_on_from_an_older_state, "that version is another commit by now"),
}


@pytest.mark.parametrize("what", AWAY)
def test_nothing_is_committed_to_a_log_that_is_not_the_one_that_was_read(what: str, tmp_path: Path) -> None:
    place = tmp_path / "t"
    table = Table(place)
    for n in range(2):
        table.take((f"old{n}", 0, n + 1, "v"))
    harm, told = AWAY[what]
    harm(place)
    before = sorted(place.rglob("*")) if place.exists() else []
    with pytest.raises(TableAway, match=told):
        table.log.commit([], "ONE")
    with pytest.raises(TableAway, match=told):
        table.log.refresh(sure=True)
    assert (sorted(place.rglob("*")) if place.exists() else []) == before


def test_what_follows_in_another_tables_log_is_not_read(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    made_anew(tmp_path / "t")
    with pytest.raises(TableAway, match="another table lies here by now"):
        table.log.refresh()
    assert (table.log.state.version, list(table.log.state.files)) == (0, [])


def test_a_table_that_comes_back_is_gone_on_with(tmp_path: Path) -> None:
    """As a mount does."""
    table = Table(tmp_path / "t")
    table.take(("a", 0, 1, "v"))
    moved_aside(tmp_path / "t")
    with pytest.raises(TableAway):
        table.log.refresh(sure=True)
    (tmp_path / "aside").rename(tmp_path / "t")
    table.take(("b", 0, 2, "v"))
    assert table.held() == {"a": "v", "b": "v"}


def test_a_commit_lands_in_the_folder_that_was_looked_at_though_that_is_moved_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path / "t")
    table.take(("a", 0, 1, "v"))
    check = table.log._check_last

    def moved(content: bytes | None) -> None:
        check(content)
        made_anew(tmp_path / "t")

    monkeypatch.setattr(table.log, "_check_last", moved)
    assert table.log.commit([], "ONE")
    assert (tmp_path / "aside" / FOLDER / f"{2:020d}.json").exists()
    anew = TableLog(TableStore(tmp_path / "t"))
    assert anew.refresh().version == 4
    assert [each["operation"] for each in history(anew)] == ["MIRROR"] * 4 + ["CREATE TABLE"]


def test_a_file_that_was_written_while_the_lake_was_away_is_not_named(tmp_path: Path) -> None:
    """A vector, for one, which lies in the bare mount point."""
    table = Table(tmp_path / "t")
    table.take(("a", 0, 1, "v"))
    (file,) = table.log.state.files.values()
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1, "sizeInBytes": 4}
    add = file.add | {"deletionVector": vector | {"cardinality": 1}}
    with pytest.raises(TableChanged, match=r"deletion_vector_.*\.bin was removed before the batch was committed"):
        table.log.commit([{"add": add}], "MIRROR")


def test_a_commit_whose_answer_was_lost_is_known_as_ones_own(tmp_path: Path) -> None:
    table = Table(tmp_path)
    create = table.store.create
    answers: list[Callable[[bool], bool]] = [lambda made: False]
    table.store.create = lambda *given: answers.pop()(create(*given)) if answers else create(*given)  # type: ignore[method-assign]
    assert table.log.commit([], "ONE")
    assert table.log.state.version == 1
    assert table.log.commit([], "TWO")
