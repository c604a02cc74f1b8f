"""Rows keep their ids, as Delta's protocol and Iceberg's specification say what an id is, and as DuckDB reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from headwater.errors import TableChanged
from headwater.lake import folds, lineage, upkeep, writer
from headwater.lake.iceberg import entry
from headwater.lake.iceberg.place import PROPERTY
from headwater.lake.index import FOLDER as INDEXES
from headwater.lake.log import TableLog
from headwater.lake.places import store_of
from headwater.lake.row_ids import ENABLED, FEATURE, MARK, SUSPENDED
from headwater.lake.shape import TableShape
from headwater.lake.store import TableStore
from headwater.lake.writer import Portion
from tests.lake.iceberg.support import (
    alone,
    by_duckdb,
    by_pyiceberg,
    for_linux,
    iceberg_of,
    published,
    queried,
    set_published,
)
from tests.lake.support import Change, Table, held, restore, row_ids, rows

KEYS = [f"k{n}" for n in range(40)]
in_each_layout = pytest.mark.parametrize("maker", [Table, published, alone])


def stored(value: str, first: int, keys: Sequence[str] = KEYS) -> list[Change]:
    return [(key, 0, first + n, value) for n, key in enumerate(keys)]


def begun(table: Table) -> Table:
    lineage.begin(table.log)
    return table


def only_ids(place: Path) -> dict[str, int]:
    return {key: number for key, (number, _) in row_ids(place).items()}


def by_readers(place: Path) -> dict[str, tuple[int, int]]:
    """Each key's (row id, sequence number of its last change) as DuckDB reads Iceberg's table."""
    rows = queried(place, "key, _row_id, _last_updated_sequence_number")
    return {key.decode(): (number, sequence) for key, number, sequence in rows}


def fold(table: Table) -> None:
    assert folds.optimize(table.log, table.indexes, everything=True)


@in_each_layout
def test_after_ten_overwrites_of_every_key_all_have_their_first_ids(
    maker: Callable[[Path], Table], tmp_path: Path
) -> None:
    table = begun(maker(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    first = only_ids(tmp_path)
    assert first == {key: n for n, key in enumerate(KEYS)}
    for turn in range(10):
        table.take(*stored(f"v{turn}", 100 * (turn + 1)))
        if turn % 4 == 3:
            fold(table)
    assert only_ids(tmp_path) == first and table.held() == dict.fromkeys(KEYS, "v9")


@for_linux
@pytest.mark.parametrize("maker", [published, alone])
def test_duckdb_reads_the_same_ids_from_iceberg(maker: Callable[[Path], Table], tmp_path: Path) -> None:
    table = begun(maker(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    for turn in range(3):
        table.take(*stored(f"v{turn}", 100 * (turn + 1), KEYS[:: turn + 2]))
    for _ in range(2):
        expected = {key: (number, version + 1) for key, (number, version) in row_ids(tmp_path).items()}
        assert by_readers(tmp_path) == expected and len(expected) == len(KEYS)
        assert len({version for _, version in expected.values()}) == 4
        fold(table)
    assert entry.differences(table.log) == []


def test_a_key_that_was_deleted_and_is_stored_again_has_a_new_id(tmp_path: Path) -> None:
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    table.take(("k7", 0, 100, None))
    table.take(("k7", 0, 101, "again"))
    assert only_ids(tmp_path)["k7"] == len(KEYS)
    table.take(("k7", 0, 102, "again"))
    assert only_ids(tmp_path)["k7"] == len(KEYS)


def test_a_key_that_no_version_was_without_keeps_its_id(tmp_path: Path) -> None:
    """Deleted and stored again in one batch: readers of the table never saw it gone."""
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    table.take(("k7", 0, 100, None), ("k7", 0, 101, "again"))
    assert only_ids(tmp_path)["k7"] == 7


def test_a_new_key_that_came_several_times_in_a_batch_has_the_id_of_its_newest_row(tmp_path: Path) -> None:
    table = begun(Table(tmp_path))
    table.take(("a", 0, 1, "v"), ("a", 0, 2, "w"), fresh=[0])
    assert only_ids(tmp_path) == {"a": 1}
    for index in (tmp_path / INDEXES).iterdir():  # one that is built again knows the first row as well
        index.unlink()
    again = Table(tmp_path)
    again.take(("a", 0, 3, "x"))
    assert only_ids(tmp_path) == {"a": 1} and again.held() == {"a": "x"}


@pytest.mark.parametrize("together", [1, 1 << 20])
def test_ids_are_the_same_however_many_batches_are_looked_up_together(
    together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    table.take(("k7", 0, 100, None))
    monkeypatch.setattr(writer, "LOOKUP_BYTES", together)
    looked_up = []
    ids_of = lineage.Lookup.ids_of
    monkeypatch.setattr(lineage.Lookup, "ids_of", lambda *given: looked_up.append(1) or ids_of(*given))
    changes = [("k3", 0, 101, "a"), ("k7", 0, 102, "b"), ("k3", 0, 103, None), ("k5", 0, 104, "c"), ("k3", 0, 105, "d")]
    batches = [rows(), *(rows(change) for change in changes), rows()]
    shape = TableShape(table.log.state.fields)
    table.commit(writer.write(table.store, table.log.state, table.indexes, shape, Portion(frozenset({0})), batches))
    assert len(looked_up) == (len(changes) if together == 1 else 1)
    # The file's five rows have the ids behind the first forty; k7 was gone, and is the second of them.
    assert only_ids(tmp_path) == {key: n for n, key in enumerate(KEYS)} | {"k7": len(KEYS) + 1}


@pytest.mark.parametrize("share", [1, lineage.MASK_SHARE])
def test_a_dead_row_gives_its_id_to_nobody_however_many_are_found(
    share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "MASK_SHARE", share)
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    table.take(*((key, 0, 100 + n, None) for n, key in enumerate(KEYS[::3])))
    table.take(("k3", 0, 200, "again"), ("k4", 0, 201, "more"))
    assert (only_ids(tmp_path)["k3"], only_ids(tmp_path)["k4"]) == (len(KEYS), 4)
    table.take(*stored("all", 300))
    assert [key for key, number in only_ids(tmp_path).items() if number < len(KEYS)] == [
        key for n, key in enumerate(KEYS) if n % 3
    ]


def test_a_rollback_leaves_the_ids_of_keys_that_the_table_has_before_and_after_it(tmp_path: Path) -> None:
    """A key that was deleted on the lost branch was gone for readers: it comes back as a new row."""
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    table.take(*stored("lost", 100), ("new", 0, 200, "lost"), ("k3", 0, 201, None))
    table.take(*stored("won", 1), replaced=[0])
    now = only_ids(tmp_path)
    assert {key: now[key] for key in KEYS if key != "k3"} == {key: n for n, key in enumerate(KEYS) if key != "k3"}
    assert now["k3"] > 80 and "new" not in now


def test_a_table_that_was_put_back_keeps_the_ids_of_the_version_that_came_back(tmp_path: Path) -> None:
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    then = table.log.state.version
    table.take(("k1", 0, 100, None))
    table.take(*stored("w", 200))
    assert only_ids(tmp_path)["k1"] > 40
    restore(table.log, then)
    table.log.refresh()
    assert table.log.restored and only_ids(tmp_path) == {key: n for n, key in enumerate(KEYS)}
    assert table.log.commit([table.record.to_action()], "READ ANEW")
    table.take(*stored("w", 200), replaced=[0])
    assert only_ids(tmp_path) == {key: n for n, key in enumerate(KEYS)} and table.held() == dict.fromkeys(KEYS, "w")


@pytest.mark.parametrize("maker", [Table, published])
def test_a_table_with_rows_gives_each_an_id_when_it_begins(maker: Callable[[Path], Table], tmp_path: Path) -> None:
    table = maker(tmp_path)
    table.take(*stored("v", 1), fresh=[0])
    table.take(*stored("w", 100, KEYS[:10]))
    entry.publish(table.log)
    given = entry.next_row(table.log)
    begun(table)
    first = only_ids(tmp_path)
    assert sorted(first) == sorted(KEYS) and min(first.values()) >= given
    assert given == (50 if maker is published else 0)
    table.take(*stored("x", 200, KEYS[5:15]))
    fold(table)
    assert only_ids(tmp_path) == first and table.held().keys() == {*KEYS}


@for_linux
def test_readers_of_iceberg_see_all_rows_after_a_table_began_and_their_ids(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*stored("v", 1), fresh=[0])
    table.take(*stored("w", 100, KEYS[:10]))
    table.take(("k11", 0, 200, None))
    begun(table)
    expected = {key.encode(): value.encode() for key, value in table.held().items()}
    assert by_duckdb(tmp_path) == by_pyiceberg(tmp_path) == expected
    assert {key: number for key, (number, _) in by_readers(tmp_path).items()} == only_ids(tmp_path)
    assert entry.differences(table.log) == []


@for_linux
def test_a_table_that_keeps_ids_may_be_published_later(tmp_path: Path) -> None:
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    table.take(*stored("w", 100, KEYS[:10]))
    set_published(table.log)
    entry.publish(table.log)
    assert {key: number for key, (number, _) in by_readers(tmp_path).items()} == only_ids(tmp_path)
    table.take(*stored("x", 200))
    assert {key: number for key, (number, _) in by_readers(tmp_path).items()} == only_ids(tmp_path)


def test_a_fold_that_read_its_files_before_their_rows_had_ids_brings_nothing(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(*stored("v", 1), fresh=[0])
    folded = folds.fold(table.store, table.log.state.fields, table.indexes, list(table.log.state.files.values()))
    begun(table)
    first = only_ids(tmp_path)
    assert not folds.commit(table.log, folded)
    assert only_ids(tmp_path) == first


def test_a_batch_that_was_looked_up_before_rows_had_ids_is_written_anew(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(*stored("v", 1), fresh=[0])
    written = table.write(stored("w", 100))
    begun(Table(tmp_path))
    with pytest.raises(TableChanged, match="its schema was changed by somebody else"):
        table.commit(written)


def test_a_commit_that_lost_the_race_gives_out_other_ids(tmp_path: Path) -> None:
    table, other = begun(Table(tmp_path)), Table(tmp_path)
    ones, twos = table.write(stored("v", 1), fresh=[0]), other.write([("z", 1, 1, "v")], fresh=[1])
    assert table.log.commit([{"add": file} for file in ones.files], "MIRROR")
    assert not other.log.commit([{"add": file} for file in twos.files], "MIRROR")
    other.log.refresh()
    assert other.log.commit([{"add": file} for file in twos.files], "MIRROR")
    assert only_ids(tmp_path) == {key: n for n, key in enumerate(KEYS)} | {"z": len(KEYS)}


def test_a_commit_whose_answer_was_lost_gives_out_its_ids_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = begun(Table(tmp_path))

    def unheard(self: TableStore, *given: Any) -> bool:
        assert create(self, *given)
        return False

    create = TableStore.create
    with monkeypatch.context() as patch:
        patch.setattr(type(table.store), "create", unheard)
        table.take(*stored("v", 1), fresh=[0])
    table.take(*stored("v", 100, [*KEYS, "z"]))
    assert only_ids(tmp_path) == {key: n for n, key in enumerate(KEYS)} | {"z": 2 * len(KEYS)}


def test_a_process_that_has_an_index_without_ids_in_memory_reads_those_of_the_files(tmp_path: Path) -> None:
    """Files that another process folded, indexed by one that knew of no ids."""
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    table.take(*stored("w", 100))
    for index in (tmp_path / INDEXES).iterdir():
        index.unlink()
    other = Table(tmp_path)
    for file in other.log.state.files.values():
        assert other.indexes.of(file.path).ids is None  # written without
    other.take(*stored("x", 200))
    assert only_ids(tmp_path) == {key: n for n, key in enumerate(KEYS)}


def test_rows_of_a_table_that_need_not_keep_ids_any_more_get_new_ones_and_go_on_when_it_begins_again(
    tmp_path: Path,
) -> None:
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    ended = dict(table.log.state.properties) | {ENABLED: "false"}
    assert table.log.commit([{"metaData": table.log.state.metadata | {"configuration": ended}}], "SET TBLPROPERTIES")
    table.take(*stored("w", 100, KEYS[:10]))
    fold(table)
    begun(table)
    first = only_ids(tmp_path)
    assert min(first.values()) >= len(KEYS)
    table.take(*stored("x", 200))
    assert only_ids(tmp_path) == first


def test_ids_live_through_a_checkpoint(tmp_path: Path) -> None:
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    upkeep.checkpoint(table.log)
    for commit in (tmp_path / "_delta_log").glob("*.json"):
        commit.unlink()
    again = TableLog(store_of(tmp_path))
    assert again.refresh().next_row == len(KEYS)
    assert [file.first_row for file in again.state.files.values()] == [0]
    assert only_ids(tmp_path) == {key: n for n, key in enumerate(KEYS)}


def test_a_tables_commits_say_that_they_keep_ids(tmp_path: Path) -> None:
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    name = f"_delta_log/{table.log.state.version:020d}.json"
    (information,) = [
        json.loads(line)["commitInfo"] for line in (tmp_path / name).read_text().splitlines() if "commitInfo" in line
    ]
    assert information["tags"] == {"delta.rowTracking.preserved": "true"}
    assert held(tmp_path).keys() == {*KEYS}


def give(table: Table, **properties: str | None) -> None:
    """Set properties of a table as another writer does; None removes one."""
    state = table.log.refresh()
    names = {"enabled": ENABLED, "published": PROPERTY, "suspended": SUSPENDED}
    changed = dict(state.properties) | {names[each]: text for each, text in properties.items()}
    configuration = {each: text for each, text in changed.items() if text is not None}
    assert table.log.commit([{"metaData": state.metadata | {"configuration": configuration}}], "SET TBLPROPERTIES")


def drop_feature(table: Table) -> None:
    """Commit what `ALTER TABLE ... DROP FEATURE rowTracking` of Delta 4.4 leaves."""
    state = table.log.refresh()
    features = [each for each in state.protocol["writerFeatures"] if each != FEATURE]
    properties = {each: text for each, text in state.properties.items() if "owTracking" not in each}
    given = ("baseRowId", "defaultRowCommitVersion")
    files = [{name: value for name, value in file.add.items() if name not in given} for file in state.files.values()]
    actions: list[Any] = [
        {"protocol": state.protocol | {"writerFeatures": features}},
        {"metaData": state.metadata | {"configuration": properties}},
        {"domainMetadata": {"domain": MARK, "configuration": "{}", "removed": True}},
        *({"add": file | {"dataChange": False}} for file in files),
    ]
    assert table.log.commit(actions, "DROP FEATURE")


def test_ids_that_begin_anew_behind_a_dropped_feature_are_no_ids_of_before(tmp_path: Path) -> None:
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    table.take(*stored("w", 100, KEYS[::-1]))
    drop_feature(table)
    begun(table)
    first = only_ids(tmp_path)
    table = Table(tmp_path)  # its indexes have the ids of before
    table.take(("k2", 0, 500, "x"))
    assert only_ids(tmp_path) == first


@for_linux
@pytest.mark.parametrize("maker", [published, alone])
@pytest.mark.parametrize("lost", [False, True])
def test_readers_of_iceberg_read_the_files_of_before_after_the_feature_was_dropped(
    maker: Callable[[Path], Table], tmp_path: Path, *, lost: bool
) -> None:
    """Files keep their columns of ids, which are no columns of the table and have another name once ids begin again."""
    table = begun(maker(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    table.take(*stored("w", 100, KEYS[:4]))
    fold(table)
    table.take(*stored("x", 200, KEYS[:2]))
    drop_feature(table)
    if lost:  # the publication is made anew, from the log alone
        for file in Path(iceberg_of(tmp_path), "metadata").glob("*.metadata.json"):
            file.write_text("")
        table = Table(tmp_path)
    entry.publish(table.log)
    expected = {key.encode(): value.encode() for key, value in table.held().items()}
    assert by_pyiceberg(tmp_path) == by_duckdb(tmp_path) == expected
    begun(table)
    table.take(*stored("y", 300, KEYS[:1]))
    expected[b"k0"] = b"y"
    assert by_pyiceberg(tmp_path) == by_duckdb(tmp_path) == expected
    assert {key: number for key, (number, _) in by_readers(tmp_path).items()} == only_ids(tmp_path)


@for_linux
def test_a_row_is_as_old_as_its_version_after_the_folder_was_moved(tmp_path: Path) -> None:
    table = begun(published(tmp_path / "a"))
    table.take(*stored("v", 1), fresh=[0])
    for name in "bc":
        Path(table.place).rename(tmp_path / name)
        table = Table(tmp_path / name)
        entry.publish(table.log)
        table.take(*stored(name, 100, KEYS[:3]))
    expected = {key: (number, version + 1) for key, (number, version) in row_ids(tmp_path / "c").items()}
    assert by_readers(tmp_path / "c") == expected
    numbers = [
        snapshot.sequence_number for snapshot in StaticTable.from_metadata(iceberg_of(tmp_path / "c")).snapshots()
    ]
    assert numbers == sorted({*numbers}) and numbers[-1] == table.log.state.version + 1


def test_a_fold_that_began_while_ids_were_not_kept_does_not_come_in_when_they_are(tmp_path: Path) -> None:
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    table.take(*stored("w", 100, KEYS[:4]))
    give(table, enabled="false")
    state = table.log.refresh()
    folded = folds.fold(
        table.log.store, state.fields, table.indexes, list(state.files.values()), columns=state.id_columns
    )
    begun(table)
    first = only_ids(tmp_path)
    assert not folds.commit(table.log, folded)
    assert only_ids(tmp_path) == first


def test_no_file_gets_an_id_while_the_feature_is_being_dropped(tmp_path: Path) -> None:
    table = begun(Table(tmp_path))
    table.take(*stored("v", 1), fresh=[0])
    give(table, enabled="false", suspended="true")
    table.take(*stored("w", 100, KEYS[:4]))
    assert [file.first_row is None for file in table.log.state.files.values()].count(True) == 1
    begun(table)
    assert table.log.state.properties[SUSPENDED] == "false" and table.log.state.gives_row_ids


def test_ids_of_a_table_that_is_published_again_go_on_behind_those_that_iceberg_gave_out(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*stored("v", 1), fresh=[0])
    entry.publish(table.log)
    given = entry.next_row(table.log)
    give(table, published=None)
    begun(table)
    assert min(only_ids(tmp_path).values()) == given >= len(KEYS)
