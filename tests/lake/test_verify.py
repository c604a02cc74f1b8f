from pathlib import Path

import pytest

from headwater.lake.index import Indexes, index_of, place_of
from headwater.lake.log import FOLDER
from headwater.lake.store import Listed
from headwater.lake.verify import check_indexes, compare, of_table, stale_records, strays
from tests.lake.support import SEED, Table


def table_of(place: Path) -> Table:
    table = Table(place)
    table.take(*[(f"k{i}", i % 3, i + 1, "v") for i in range(30)], fresh=[0, 1, 2])
    table.take(("k0", 0, 100, None), ("k1", 1, 101, "w"))
    return table


def test_a_table_is_its_living_rows(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    held, twice = of_table(table.store, table.log.state)
    assert (len(held), twice, held[1, b"k1"][0], (0, b"k0") in held) == (29, [], 101, False)


def test_how_a_table_and_a_bucket_differ_is_told(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    held, _ = of_table(table.store, table.log.state)
    assert compare(held, dict(held)) == []
    other = dict(held)
    del other[1, b"k1"], other[2, b"k2"]
    other[0, b"new"] = (1, 1)
    other[0, b"k3"] = (4, 9)
    assert compare(held, other) == [
        "1 documents are only in the bucket: vbucket 0 b'new'",
        "2 documents are only in the table: vbucket 1 b'k1', vbucket 2 b'k2'",
        "1 documents are of another seqno or CAS: vbucket 0 b'k3'",
    ]


def test_records_of_transactions_are_missing_or_old_in_a_table_that_is_right() -> None:
    name, other = (0, b"_txn:atr-1"), (1, b"_txn:client-record")
    for held, bucket, stale in (
        ({}, {name: (1, 1)}, 0),
        ({name: (1, 1)}, {name: (2, 2)}, 1),
        ({name: (1, 1), other: (5, 5)}, {other: (5, 5)}, 1),
    ):
        assert compare(held, bucket) == []
        assert stale_records(held, bucket) == stale


def test_an_index_that_is_missing_or_does_not_lead_to_a_row_is_told(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    files = sorted(table.log.state.files.values(), key=lambda file: -file.size)
    paths = [file.path for file in files]
    indexes = Indexes(table.store, table.log.state.id, SEED)
    assert check_indexes(table.store, table.log.state, indexes) == []
    right = indexes.of(paths[0])
    indexes.write(paths[0], index_of(right.hashes.take(slice(0, 20)), right.rows[:20]), 30)  # type: ignore[arg-type]
    Path(tmp_path, place_of(paths[1])).unlink()
    wrong = check_indexes(table.store, table.log.state, Indexes(table.store, table.log.state.id, SEED))
    assert len(wrong) == 2
    assert any("does not lead to" in line and paths[0] in line for line in wrong)
    assert any("missing or damaged" in line and paths[1] in line for line in wrong)


def test_commits_that_are_made_while_the_folder_is_looked_through_are_not_behind_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that came meanwhile a look may show the second alone: it was moved out of the log of a mirror that ran."""
    log, other = table_of(tmp_path).log, Table(tmp_path).log
    behind = f"{FOLDER}/{log.state.version + 5:020d}.json"
    log.store.create(behind, b"{}\n")
    look = log.store.list

    def partly(folder: str = "") -> list[Listed]:
        for _ in range(2):
            assert other.commit([], "ONE")
        first = f"{log.state.version + 1:020d}.json"
        return [each for each in look(folder) if not each.path.endswith(first)]

    monkeypatch.setattr(log.store, "list", partly)
    assert strays(log) == [behind]


def test_a_key_with_two_rows_is_told(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.take(("k5", 2, 300, "v"), fresh=[2])  # as a writer would that looks nothing up
    assert of_table(table.store, table.log.state)[1] == ["vbucket 2, key b'k5' has more than one row"]
