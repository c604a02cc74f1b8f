import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headwater.lake.files import DataWriter, live_mask
from headwater.lake.store import TableStore
from headwater.lake.vectors import rows_of
from tests.lake.support import SCHEMA, rows


def test_rows_are_gathered_to_groups_and_files_roll_over(tmp_path: Path) -> None:
    out = DataWriter(TableStore(tmp_path), SCHEMA, file_bytes=3000, group_bytes=1000)
    places = [out.add(rows((f"k{n}", n, 10 * n, "v" * 400), (f"l{n}", n, 10 * n + 1, "w"))) for n in range(9)]
    files = out.close()
    assert len(files) > 1 and sum(file.rows for file in files) == 18
    for number, file in enumerate(files):
        opened = pq.ParquetFile(tmp_path / file.path)
        assert (opened.metadata.num_rows, (tmp_path / file.path).stat().st_size) == (file.rows, file.size)
        keys = opened.read(columns=["key"]).column("key").to_pylist()
        for n, (where, first) in enumerate(places):
            assert where != number or keys[first] == f"k{n}".encode()
    assert pq.ParquetFile(tmp_path / files[0].path).num_row_groups > 1


def test_the_log_is_told_count_and_bounds(tmp_path: Path) -> None:
    out = DataWriter(TableStore(tmp_path), SCHEMA)
    out.add(rows(("a", 7, 30, "v")))
    out.add(rows(("b", 3, 90, "v"), ("c", 5, 20, "v")))
    (file,) = out.close()
    stats = json.loads(file.to_add()["stats"])
    assert (stats["numRecords"], stats["tightBounds"]) == (3, True)
    assert (stats["minValues"], stats["maxValues"]) == ({"vbucket": 3, "seqno": 20}, {"vbucket": 7, "seqno": 90})
    assert json.loads(file.to_add(is_whole=False)["stats"])["tightBounds"] is False


def test_a_task_without_rows_writes_no_file_and_a_failed_one_leaves_none(tmp_path: Path) -> None:
    assert DataWriter(TableStore(tmp_path), SCHEMA).close() == []
    out = DataWriter(TableStore(tmp_path), SCHEMA, file_bytes=1, group_bytes=1)
    for n in range(3):
        out.add(rows((f"k{n}", 0, n, "v")))
    out.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("dead", "alive"), [(None, [0, 1, 2]), ([], [0, 1, 2]), ([1], [0, 2])])
def test_what_is_alive(dead: list[int] | None, alive: list[int]) -> None:
    mask = live_mask(3, None if dead is None else rows_of(np.array(dead, np.uint32)))
    assert np.flatnonzero(mask).tolist() == alive
