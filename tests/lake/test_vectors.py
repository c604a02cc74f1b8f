import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from headwater.errors import CorruptStore
from headwater.lake import vectors
from headwater.lake.store import TableStore

BIG = BitMap(range(0, 100_000, 3))


@given(st.sets(st.integers(0, 2**32 - 1), max_size=200))
def test_a_body_reads_back(rows: set[int]) -> None:
    assert set(vectors.decode(vectors.encode(BitMap(rows)))) == rows


@given(st.binary(max_size=60))
def test_text_reads_back_filled_up_to_four_bytes(data: bytes) -> None:
    assert vectors.unz85(vectors.z85(data)) == data + bytes(-len(data) % 4)


def test_text_is_that_of_the_published_example() -> None:  # ZeroMQ RFC 32
    assert vectors.z85(bytes.fromhex("864FD26FB559F75B")) == "HelloWorld"


def test_the_protocols_own_example_of_an_inline_vector() -> None:  # PROTOCOL.md, "Deletion Vector Format"
    text = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    found = vectors.decode(vectors.unz85(text)[:44])
    assert sorted(found) == [3, 4, 7, 11, 18, 29]


def test_vectors_of_a_commit_share_a_file_and_small_ones_stand_in_the_log(tmp_path: Path) -> None:
    store, small = TableStore(tmp_path), vectors.rows_of(np.array([5, 1]))
    told = vectors.write(store, {"a": BIG, "b": small, "c": BIG | small})
    assert [each["storageType"] for each in told.values()] == ["u", "i", "u"]
    assert vectors.file_of(told["a"]) == vectors.file_of(told["c"]) != vectors.file_of(told["b"])
    assert [vectors.read(store, told[name]) for name in "abc"] == [BIG, small, BIG | small]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("at", [1, 6, 30, -1])
def test_a_changed_byte_is_noticed(tmp_path: Path, at: int) -> None:
    store = TableStore(tmp_path)
    told = vectors.write(store, {"a": BIG})["a"]
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[at] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(CorruptStore, match="size or checksum is not its own"):
        vectors.read(store, told)


def test_a_cut_file_and_a_wrong_count_are_noticed(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    told = vectors.write(store, {"a": BIG})["a"]
    with pytest.raises(CorruptStore, match=r"of 33334 rows, the log says 7"):
        vectors.read(store, told | {"cardinality": 7})
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CorruptStore, match="ends beyond its file"):
        vectors.read(store, told)


def test_rows_beyond_32_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="rows beyond"):
        vectors.decode(struct.pack("<iqi", vectors.MAGIC, 2, 0))
    with pytest.raises(ValueError, match="magic number is missing"):
        vectors.decode(bytes(20))
    assert vectors.decode(struct.pack("<iq", vectors.MAGIC, 0)) == BitMap()
    with pytest.raises(ValueError, match="not Z85"):
        vectors.unz85("abc")


def test_where_a_vector_lies() -> None:
    name = vectors.z85(bytes(16))
    zero = "deletion_vector_00000000-0000-0000-0000-000000000000.bin"
    assert vectors.file_of({"storageType": "u", "pathOrInlineDv": name}) == zero
    assert vectors.file_of({"storageType": "u", "pathOrInlineDv": f"ab{name}"}) == f"ab/{zero}"
    assert vectors.file_of({"storageType": "p", "pathOrInlineDv": "/x.bin"}) == "/x.bin"
