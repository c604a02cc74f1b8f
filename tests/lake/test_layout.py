"""Where the files of a table lie in its folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headwater import folders
from headwater.errors import TableError
from headwater.lake import folds, index
from headwater.lake.folds import FoldTask
from headwater.lake.layout import DATA, OF_DELTA, OF_ICEBERG, VECTORS, TableLayout
from headwater.lake.places import check_apart, check_clear, store_of
from tests.lake.support import SEED, Table

BOTH = pytest.mark.parametrize("layout", [OF_DELTA, OF_ICEBERG])


def parquet(folder: Path) -> set[str]:
    return {each.name for each in folder.glob("*.parquet")}


@BOTH
def test_rows_files_and_vectors_of_a_table_lie_where_its_layout_says(layout: TableLayout, tmp_path: Path) -> None:
    table = Table(tmp_path, layout)
    table.take(*[(f"k{key}", key % 4, 1 + key, "one") for key in range(3000)])
    table.take(*[(f"k{key}", key % 4, 4000 + key, "two") for key in range(0, 3000, 2)])
    folds.optimize(table.log, table.indexes, everything=True)
    table.take(*[(f"k{key}", key % 4, 8000 + key, None) for key in range(0, 3000, 3)])
    assert len(table.held()) == 2000
    assert len(parquet(tmp_path / layout.data)) == 3
    assert list((tmp_path / layout.vectors).glob("deletion_vector_*.bin"))
    assert Table(tmp_path).log.state.layout is layout
    if layout is OF_ICEBERG:
        assert not [path for path in tmp_path.iterdir() if path.is_file()]


@BOTH
def test_the_files_of_a_fold_that_brings_nothing_are_removed(layout: TableLayout, tmp_path: Path) -> None:
    table = Table(tmp_path, layout)
    for number in range(2):
        table.take((f"k{number}", 0, number + 1, "v"))
    state = table.log.state
    before = parquet(tmp_path / layout.data)
    task = FoldTask(str(tmp_path), state.id, state.fields, SEED, [*state.files.values()], layout)
    task.run()
    assert len(parquet(tmp_path / layout.data)) == 3
    task.discard()
    assert parquet(tmp_path / layout.data) == before
    assert len(list((tmp_path / index.FOLDER).iterdir())) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file a descriptor is of")
def test_names_of_data_files_are_on_the_disk_before_the_log_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the folder `data`, and `data` in the folder above."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    table = Table(tmp_path, OF_ICEBERG)
    monkeypatch.setattr(folders.os, "fsync", noted)
    table.take(("a", 0, 1, "one"))
    log = next(at for at, path in enumerate(synced) if "_delta_log" in path)
    data = next(at for at, path in enumerate(synced) if path.endswith(".parquet"))
    assert data < synced.index(str(tmp_path / DATA)) < log
    assert synced.index(str(tmp_path)) < log


@pytest.mark.parametrize("left", [f"{DATA}/part-1.parquet", "metadata/v1.metadata.json", f"{VECTORS}/x.bin"])
def test_a_folder_with_files_of_another_table_is_no_place_for_a_new_one(left: str, tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store.write(left, b"x")
    with pytest.raises(TableError, match="there is no log of a table here"):
        check_clear(store, lambda: False)


def test_tables_of_a_scope_that_is_called_like_a_folder_of_a_table_are_tables(tmp_path: Path) -> None:
    for scope in (DATA, "metadata"):
        Table(tmp_path / scope / DATA, OF_ICEBERG).take(("a", 0, 1, "one"))
    check_clear(store_of(tmp_path), lambda: False)
    with pytest.raises(TableError, match="the folder holds 2 tables, data/data for one"):
        check_apart(str(tmp_path))
