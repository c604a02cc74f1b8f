import resource
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import siphash
from headwater.lake import index
from headwater.lake.index import Hashes, Indexes, built, hashes_of, index_of, joined, lasts_of, order_of
from headwater.lake.store import TableStore
from tests.lake.support import SEED, rows

U = np.uint64


def words(*pairs: tuple[int, int]) -> Hashes:
    return Hashes(np.array([high for high, _ in pairs], U), np.array([low for _, low in pairs], U))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30), st.data())
def test_rows_are_found_by_all_128_bits(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    """Few different words, so that equal high words with other low words are the rule."""
    wanted = sorted(data.draw(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)))))
    found = index_of(words(*pairs), np.arange(len(pairs))).find(words(*wanted))
    assert sorted(found.tolist()) == [row for row, pair in enumerate(pairs) if pair in wanted]


def test_equal_hashes_stay_in_order_and_the_last_is_known() -> None:
    pairs = words((2, 1), (1, 9), (2, 0), (2, 1))
    order = order_of(pairs)
    assert order.tolist() == [1, 2, 0, 3]
    assert lasts_of(pairs.take(order)).tolist() == [True, True, False, True]
    assert lasts_of(joined([])).tolist() == []


def test_a_slice_of_keys_hashes_as_the_keys_do() -> None:
    keys, vbuckets = pa.array([b"a", b"bc", b"", b"d" * 40]), np.array([1, 2, 3, 4])
    whole = hashes_of(keys, vbuckets, SEED)
    part = hashes_of(keys.slice(1, 2), vbuckets[1:3], SEED)
    assert part.high.tolist() == whole.high[1:3].tolist() and part.low.tolist() == whole.low[1:3].tolist()
    text = hashes_of(pa.array(["a", "bc", "", "d" * 40]), vbuckets, SEED)
    assert text.low.tolist() == whole.low.tolist()
    assert len(hashes_of(keys.slice(0, 0), vbuckets[:0], SEED)) == 0


def test_the_kernel_that_was_warmed_hashes_whatever_memory_arrow_hands_over() -> None:
    siphash.warm_up()
    kernel: Any = siphash.hash_keys
    before = list(kernel.signatures)
    fixed, own = np.zeros(2, np.int32), np.zeros(2, np.int32)
    fixed.flags.writeable = False
    for memory in (b"abcd", bytearray(b"abcd")):
        buffers = [None, pa.py_buffer(np.array([0, 2, 4], np.int32)), pa.py_buffer(memory)]
        keys = pa.Array.from_buffers(pa.binary(), 2, buffers)
        for vbuckets in (fixed, own):
            assert len(hashes_of(keys, vbuckets, SEED).high) == 2
    assert len(before) == 1 and kernel.signatures == before and own.flags.writeable


def data_file(folder: Path) -> str:
    batch = rows(*[(f"k{number}", number % 4, number, "v") for number in range(500)])
    pq.write_table(pa.Table.from_batches([batch.select(["key", "vbucket"])]), folder / "part-1.parquet")
    return "part-1.parquet"


def found(indexes: Indexes, path: str) -> list[int]:
    wanted = hashes_of(pa.array([b"k7", b"k400", b"no"]), np.array([3, 0, 0]), SEED)
    return sorted(indexes.of(path).find(wanted.take(order_of(wanted))).tolist())


def test_an_index_is_mapped_again_by_the_next_process(tmp_path: Path) -> None:
    path = data_file(tmp_path)
    first, second = (Indexes(TableStore(tmp_path), "table", SEED) for _ in range(2))
    assert found(first, path) == found(second, path) == [7, 400]
    assert (first.rebuilt, second.rebuilt, second.is_good(path)) == (1, 0, True)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _other_rows(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"HWIDX1", b"HWIDX9"))


@pytest.mark.parametrize("harm", [Path.unlink, _cut, _flip, _empty, _other_rows])
def test_an_index_that_is_lost_cut_or_changed_is_built_again_from_the_keys(harm: object, tmp_path: Path) -> None:
    path = data_file(tmp_path)
    found(Indexes(TableStore(tmp_path), "table", SEED), path)
    harm(tmp_path / index.place_of(path))  # type: ignore[operator]
    indexes = Indexes(TableStore(tmp_path), "table", SEED)
    assert not indexes.is_good(path)
    assert (found(indexes, path), indexes.rebuilt, indexes.is_good(path)) == ([7, 400], 1, True)


def test_an_index_of_another_table_seed_or_file_is_not_taken(tmp_path: Path) -> None:
    path = data_file(tmp_path)
    found(Indexes(TableStore(tmp_path), "table", SEED), path)
    assert not Indexes(TableStore(tmp_path), "copy", SEED).is_good(path)
    assert not Indexes(TableStore(tmp_path), "table", bytes(16)).is_good(path)
    Path(tmp_path / index.place_of("part-2.parquet")).write_bytes((tmp_path / index.place_of(path)).read_bytes())
    assert not Indexes(TableStore(tmp_path), "table", SEED).is_good("part-2.parquet")


def test_only_so_many_stay_mapped(tmp_path: Path) -> None:
    path = data_file(tmp_path)
    indexes = Indexes(TableStore(tmp_path), "table", SEED, keep=1)
    indexes.write("other.parquet", index_of(words((1, 1)), np.array([0])), 1)
    assert found(indexes, path) == [7, 400]
    assert indexes.of("other.parquet").rows.tolist() == [0]
    assert found(indexes, path) == [7, 400]
    assert indexes.rebuilt == 1  # mapped again, not built again


def test_a_batch_over_many_files_maps_none_of_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 stayed mapped: with 513 files each batch mapped, and read, every index again."""
    paths = [f"part-{number}.parquet" for number in range(600)]
    first, second = (Indexes(TableStore(tmp_path), "table", SEED) for _ in range(2))
    for number, path in enumerate(paths):
        first.write(path, index_of(words((1, number)), np.array([0])), 1)
    mapped: list[str] = []
    of_store = TableStore.mapped
    monkeypatch.setattr(TableStore, "mapped", lambda store, path: mapped.append(path) or of_store(store, path))
    for _ in range(3):
        assert all(second.of(path).rows.tolist() == [0] for path in paths)
    assert len(mapped) == len(paths)


def test_more_indexes_are_kept_mapped_than_a_process_may_have_files_open(tmp_path: Path) -> None:
    """Python's own mmap keeps a descriptor for each: a batch over as many files ended, and so did each after it."""
    paths = [f"part-{number}.parquet" for number in range(300)]
    first, second = (Indexes(TableStore(tmp_path), "table", SEED) for _ in range(2))
    for number, path in enumerate(paths):
        first.write(path, index_of(words((1, number)), np.array([0])), 1)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, before[0]), before[1]))
    try:
        kept = [second.of(path) for path in paths]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert all(second.of(path) is index for path, index in zip(paths, kept, strict=True))
    assert {index.rows.tolist()[0] for index in kept} == {0}


def test_an_index_that_this_process_has_written_is_mapped_too(tmp_path: Path) -> None:
    indexes = Indexes(TableStore(tmp_path), "table", SEED)
    written = index_of(words((1, 7), (2, 9)), np.array([3, 5]))
    indexes.write("part-1.parquet", written, 6)
    kept = indexes.of("part-1.parquet")
    assert kept is not written and not kept.rows.flags.owndata and kept.rows.tolist() == [3, 5]


def test_indexes_of_files_that_left_the_table_are_let_go(tmp_path: Path) -> None:
    indexes = Indexes(TableStore(tmp_path), "table", SEED)
    for number, path in enumerate(("kept.parquet", "gone.parquet")):
        indexes.write(path, index_of(words((1, number)), np.array([0])), 1)
    kept, left = indexes.of("kept.parquet"), weakref.ref(indexes.of("gone.parquet").rows)
    indexes.forget_others({"kept.parquet", "not-there.parquet"})
    assert left() is None and indexes.of("kept.parquet") is kept


def test_keys_that_somebody_left_null_are_rows_all_the_same(tmp_path: Path) -> None:
    table = pa.table({"key": pa.array([b"a", None], pa.binary()), "vbucket": pa.array([1, None], pa.int32())})
    pq.write_table(table, tmp_path / "x.parquet")
    made_of, count = built(TableStore(tmp_path), "x.parquet", SEED)
    assert (sorted(made_of.rows.tolist()), count) == ([0, 1], 2)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.binary()),
        pa.binary(3),
    ],
    ids=str,
)
def test_keys_are_found_in_whatever_form_somebody_wrote_them(kind: Any, tmp_path: Path) -> None:
    """Parquet keeps Arrow's type beside its own: Polars and Rust write large ones, and text as views."""
    keys, vbuckets = pa.array([b"abc", b"xyz", b"abc"]), np.array([1, 2, 3], np.int32)
    pq.write_table(pa.table({"key": in_the_form_of(kind, keys), "vbucket": vbuckets}), tmp_path / "x.parquet")
    assert pq.read_schema(tmp_path / "x.parquet").field("key").type == kind
    made_of, _ = built(TableStore(tmp_path), "x.parquet", SEED)
    assert made_of.find(hashes_of(keys, vbuckets, SEED).take(np.array([1]))).tolist() == [1]
    assert (
        hashes_of(in_the_form_of(kind, keys), vbuckets, SEED).low.tolist()
        == hashes_of(keys, vbuckets, SEED).low.tolist()
    )


def in_the_form_of(kind: Any, keys: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return keys.dictionary_encode()
    return pa.array([key.as_py() if "binary" in str(kind) else key.as_py().decode() for key in keys], kind)
