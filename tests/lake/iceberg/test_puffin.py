"""Files of deletion vectors: literal bytes both ways, and what is damaged is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap

from headwater.lake import vectors
from headwater.lake.iceberg.puffin import Blob, blobs_of, body_of, encode


def file_of(rows: list[int], place: str = "file:///t/a.parquet") -> tuple[bytes, list[Blob]]:
    body = vectors.encode(BitMap(rows))
    return encode([(place, len(rows), "i0@", body)])


def test_a_file_is_what_the_specification_says() -> None:
    body = vectors.encode(BitMap([1, 2, 3]))
    content, (blob,) = encode([("file:///t/a.parquet", 3, "ux@1", body)])
    assert content[:4] == b"PFA1"
    assert content[4:8] == len(body).to_bytes(4, "big")
    assert content[8:12] == bytes.fromhex("d1d33964")
    assert blob == Blob("file:///t/a.parquet", 3, "ux@1", 4, len(body) + 8)
    end = 4 + blob.length
    assert content[end : end + 4] == b"PFA1"
    assert content[-12:-8] == (len(content) - end - 16).to_bytes(4, "little")
    assert content[-8:] == bytes(4) + b"PFA1"
    assert json.loads(content[end + 4 : -12]) == {
        "blobs": [
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": 4,
                "length": blob.length,
                "properties": {
                    "referenced-data-file": "file:///t/a.parquet",
                    "cardinality": "3",
                    "delta-vector": "ux@1",
                },
            }
        ]
    }


@given(st.lists(st.sets(st.integers(0, 2**32 - 1), min_size=1), min_size=1, max_size=4))
def test_vectors_come_back_by_us_and_by_pyiceberg(sets: list[set[int]]) -> None:
    packed = [(f"file:///t/{at}", len(rows), f"u{at}@1", vectors.encode(BitMap(rows))) for at, rows in enumerate(sets)]
    content, blobs = encode(packed)
    assert blobs_of(content) == blobs
    assert [body_of(content, blob.offset, blob.length) for blob in blobs] == [body for *_, body in packed]
    read = deletion_vectors_from_puffin_file(PuffinFile(content))
    assert {item.referenced_data_file: set(item.to_vector().to_pylist()) for item in read} == {
        f"file:///t/{at}": rows for at, rows in enumerate(sets)
    }


def test_every_bit_of_a_vector_is_checked() -> None:
    content, (blob,) = file_of([5, 7])
    for at in range(blob.offset, blob.offset + blob.length):
        damaged = bytearray(content)
        damaged[at] ^= 1
        with pytest.raises(ValueError, match="size or checksum"):
            body_of(bytes(damaged), blob.offset, blob.length)


def test_a_vector_beyond_its_file_is_refused() -> None:
    content, (blob,) = file_of([5, 7])
    with pytest.raises(ValueError, match="ends beyond its file"):
        body_of(content[: blob.offset + 3], blob.offset, blob.length)
    with pytest.raises(ValueError, match="ends beyond its file"):
        body_of(content, blob.offset, 3)


@given(st.integers(0, 400), st.binary(max_size=40))
def test_what_was_cut_or_overwritten_is_read_or_refused(at: int, junk: bytes) -> None:
    content, _ = file_of([5, 7])
    at %= len(content)
    for garbled in (content[:at], content[:at] + junk + content[at + len(junk) :], content[:at] + junk):
        try:
            blobs = blobs_of(garbled)
        except ValueError:
            continue
        assert all(blob.offset + blob.length <= len(garbled) for blob in blobs)


def footed(payload: bytes, flags: bytes = bytes(4), length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return b"PFA1PFA1" + payload + size.to_bytes(4, "little", signed=True) + flags + b"PFA1"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "magic number"),
        (b"PAR1" + footed(b"{}")[4:], "magic number"),
        (footed(b"{}", length=3), "a footer of 3 bytes"),
        (footed(b"{}", length=-1), "a footer of -1 bytes"),
        (footed(b"{}", length=2**31 - 1), "does not begin"),
        (footed(b"{}", b"\1\0\0\0"), "compressed"),
        (footed(b"{}"), "lacks 'blobs'"),
        (footed(b"[]"), "lacks"),
        (footed(b"\xff"), "codec|utf-8"),
        (footed(b'{"blobs": [{"type": "deletion-vector-v1"}]}'), "lacks 'offset'"),
        (footed(b'{"blobs": [{"type": "deletion-vector-v1", "offset": 4, "length": 1}]}'), "not before the footer"),
        (footed(b'{"blobs": [{"type": "deletion-vector-v1", "offset": 0, "length": 0}]}'), "not before the footer"),
    ],
)
def test_a_file_that_is_none_says_why(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        blobs_of(content)


def test_blobs_of_other_kinds_are_left_out() -> None:
    described: dict[str, Any] = {"blobs": [{"type": "apache-datasketches-theta-v1"}]}
    assert blobs_of(footed(json.dumps(described).encode())) == []
