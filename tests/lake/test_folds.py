"""Folding and rewriting: the table is the same before and after, for whoever reads or writes it."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.errors import TableChanged
from headwater.lake import folds
from headwater.lake.folds import FAN, choose, commit, fold, optimize, tier_of
from headwater.lake.log import data_file
from headwater.lake.upkeep import Maintenance
from tests.lake.support import SEED, Table, expected, restore, set_properties, small_files


def lose_an_answer(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """Let the name of one commit be given, and say that it was taken: a network file system that asks again when the
    answer was lost does so, and so do the libraries of object stores."""
    link, lost = os.link, []

    def linked(source: str, target: str, **folders: int) -> None:
        link(source, target, **folders)
        folder = Path(f"/proc/self/fd/{folders['src_dir_fd']}") if folders else Path()
        if not lost and f'"{operation}"' in (folder / source).read_text():
            lost.append(target)
            raise FileExistsError(17, "File exists", target)

    monkeypatch.setattr(os, "link", linked)


def test_a_full_tier_of_small_files_becomes_one(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    assert len(choose(table.log.state)) == FAN
    assert optimize(table.log, table.indexes) == FAN
    (file,) = table.log.state.files.values()
    assert (file.rows, file.vector, choose(table.log.state)) == (len(expected(FAN)), None, [])
    assert set(table.held()) == expected(FAN)
    table.take(("k3-1", 0, 1000, "new"), ("k4-1", 0, 1001, None))  # through the index that the fold wrote
    assert table.indexes.rebuilt == 0
    assert table.held()["k3-1"] == "new" and set(table.held()) == expected(FAN) - {"k4-1"}


def test_rows_that_die_while_their_files_are_folded_stay_dead(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    folded = fold(table.store, table.log.state.fields, table.indexes, choose(table.log.state))
    table.take(("k2-2", 0, 1000, None), ("k5-3", 0, 1001, "new"), ("k0-1", 0, 1002, None))
    assert commit(table.log, folded)
    assert set(table.held()) == expected(FAN) - {"k2-2", "k0-1"}
    assert table.held()["k5-3"] == "new"
    table.take(("k5-3", 0, 1003, None))
    assert "k5-3" not in table.held()


def test_a_fold_that_began_before_rows_came_back_to_life_is_not_committed(tmp_path: Path) -> None:
    table = small_files(tmp_path, 2)
    whole = table.log.state.version
    table.take(("k0-1", 0, 1000, None), ("k1-1", 0, 1001, None))
    folded = fold(table.store, table.log.state.fields, table.indexes, list(table.log.state.files.values()))
    restore(table.log, whole)
    assert not commit(table.log, folded)
    assert set(table.held()) == expected(2)


def test_a_fold_writes_no_vector_where_the_table_wants_none_any_more(tmp_path: Path) -> None:
    table = small_files(tmp_path, 2)
    folded = fold(table.store, table.log.state.fields, table.indexes, list(table.log.state.files.values()))
    table.take(("k0-1", 0, 1000, None))
    set_properties(table, enableDeletionVectors="false")
    assert not commit(table.log, folded)


def test_a_fold_whose_source_is_gone_leaves_out_its_rows(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    files = choose(table.log.state)
    folded = fold(table.store, table.log.state.fields, table.indexes, files)
    table.take(*[(f"k3-{i}", 0, 2000 + i, None) for i in range(5)])  # all rows of one of them die
    assert commit(table.log, folded)
    assert len(table.log.state.files) == 1
    assert set(table.held()) == expected(FAN) - {f"k3-{i}" for i in range(5)}


def test_a_fold_whose_source_another_fold_moved_leaves_its_rows_where_they_are(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    files = choose(table.log.state)
    folded = fold(table.store, table.log.state.fields, table.indexes, files)
    assert commit(table.log, fold(table.store, table.log.state.fields, table.indexes, files[:2]))
    assert commit(table.log, folded)
    assert len(table.log.state.files) == 2
    assert set(table.held()) == expected(FAN)


def test_a_fold_whose_sources_are_all_gone_is_not_committed(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    files = choose(table.log.state)
    folded = [fold(table.store, table.log.state.fields, table.indexes, files) for _ in range(2)]
    assert [commit(table.log, each) for each in folded] == [True, False]
    assert set(table.held()) == expected(FAN)


def test_a_key_that_each_batch_overwrites_keeps_no_fold_away(tmp_path: Path) -> None:
    """The newest file has its row, so it is a source of each fold, and dead when that is committed."""
    table = small_files(tmp_path, FAN)
    for seqno in range(1000, 1003):
        folded = fold(table.store, table.log.state.fields, table.indexes, list(table.log.state.files.values()))
        table.take(("hot", 0, seqno, f"{seqno}"))
        assert commit(table.log, folded)
    assert table.held()["hot"] == "1002"
    assert set(table.held()) == expected(FAN) | {"hot"}
    assert len(table.log.state.files) == 2


def test_a_fold_whose_answer_was_lost_keeps_the_files_that_the_table_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small_files(tmp_path, FAN)
    lose_an_answer(monkeypatch, "OPTIMIZE")
    maintenance = Maintenance(table.log, SEED)
    maintenance.step()
    maintenance.close(finish=True)
    assert maintenance.problem == ""
    assert len(table.log.state.files) == 1
    assert set(table.held()) == expected(FAN)


def test_a_lookup_that_was_made_before_a_fold_is_made_again(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    written = table.write([("k2-2", 0, 1000, None)])
    optimize(table.log, table.indexes)
    with pytest.raises(TableChanged):
        table.commit(written)
    table.take(("k2-2", 0, 1000, None))
    assert set(table.held()) == expected(FAN) - {"k2-2"}


def test_a_file_that_is_mostly_dead_is_rewritten(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(*[(f"k{i}", 0, i + 1, "v") for i in range(10)], fresh=[0])
    table.take(*[(f"k{i}", 0, 100 + i, None) for i in range(6)])
    assert optimize(table.log, table.indexes) == 1
    (file,) = table.log.state.files.values()
    assert (file.rows, file.vector, len(table.held())) == (4, None, 4)


def test_files_of_before_a_column_was_added_are_folded_with_nulls(tmp_path: Path) -> None:
    table = small_files(tmp_path, FAN)
    state = table.log.state
    more = [*state.fields, {"name": "new", "type": "string", "nullable": True, "metadata": {}}]
    folded = fold(table.store, more, table.indexes, choose(state))
    read = pq.read_table(tmp_path / folded.files[0].path)
    assert read.column("new").null_count == read.num_rows == len(expected(FAN))


def test_a_fold_reads_a_row_group_at_a_time(tmp_path: Path) -> None:
    """However large its rows are: Arrow would fill a batch of 65,536 rows from as many groups as it takes."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"value": [bytes(1000)] * 40}), path, row_group_size=10)
    with pq.ParquetFile(path) as opened:
        assert [batch.num_rows for batch in folds._batches(opened)] == [10, 10, 10, 10]


def test_large_files_have_no_tier_and_the_tiers_are_eight_apart() -> None:
    def sized(size: int, dead: int = 0) -> int | None:
        vector = {"deletionVector": {"cardinality": dead}} if dead else {}
        return tier_of(data_file({"path": "x", "size": size, "stats": '{"numRecords": 100}', **vector}))

    assert [sized(size) for size in (1, 128 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20)] == [0, 1, 2, 3, 4, None]
    assert sized(256 << 20, 90) == 3
