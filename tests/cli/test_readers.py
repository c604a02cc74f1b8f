"""Files into documents: what each format becomes, and what a broken file is told."""

import datetime
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from headwater.cli import readers
from headwater.cli.failures import InputError
from headwater.cli.readers import open_source


def read(path: Path, key: str = "id", form: str | None = None) -> list[tuple[bytes, bytes]]:
    return [(document.key, document.value) for document in open_source(path, key, form).documents]


def write(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


def test_a_line_of_json_is_stored_as_it_stands(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"id": "k1",  "x": 1.50}\n\n{"id":2}')
    assert read(path) == [(b"k1", b'{"id": "k1",  "x": 1.50}'), (b"2", b'{"id":2}')]


def test_windows_line_ends_are_no_part_of_the_value(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.ndjson", b'{"id":1}\r\n{"id":2}\r\n')) == [(b"1", b'{"id":1}'), (b"2", b'{"id":2}')]


def test_a_compressed_file_is_read_through(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.jsonl.gz", gzip.compress(b'{"id":"k"}\n'))) == [(b"k", b'{"id":"k"}')]


@given(sizes=st.lists(st.integers(0, 40), max_size=30), chunk=st.integers(1, 64))
def test_how_the_file_is_cut_into_chunks_changes_nothing(sizes: list[int], chunk: int) -> None:
    lines = [json.dumps({"id": "x" * size}).encode() + b"\n" for size in sizes]
    reader = pa.BufferReader(b"".join(lines))

    class Cut:
        def read(self, _: int) -> bytes:
            return reader.read(chunk)

    assert list(readers._split(Cut())) == lines


def test_a_csv_row_becomes_an_object_with_typed_members(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"id,n,ok,day\nk1,7,true,2013-01-01\nk2,,false,2013-01-02\n")
    assert [(key, json.loads(value)) for key, value in read(path)] == [
        (b"k1", {"id": "k1", "n": 7, "ok": True, "day": "2013-01-01"}),
        (b"k2", {"id": "k2", "n": None, "ok": False, "day": "2013-01-02"}),
    ]


def test_parquet_times_become_iso_text_and_bytes_base64(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    at = datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC)
    parquet.write_table(pa.table({"id": [1], "at": [at], "raw": [b"\xff\x00"]}), path)
    [(key, value)] = read(path)
    assert key == b"1"
    assert json.loads(value) == {"id": 1, "at": "2013-01-01T05:15:00+00:00", "raw": "/wA="}


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(10))})
    parquet.write_table(table, tmp_path / "a.parquet")
    write(tmp_path / "a.jsonl", b'{"id":1}\n{"id":2}\n')
    for name in ("a.parquet", "a.jsonl"):
        source = open_source(tmp_path / name, "id")
        assert [document.position for document in source.documents][-1] == source.total


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.jsonl", b'{"id":1}\nnonsense\n', "line 2: is not JSON"),
        ("a.jsonl", b"[1]\n", "line 1: holds a list, expected an object"),
        ("a.jsonl", b'{"x":1,"y":2}\n', "line 1: has no field 'id' to be the key; it has x, y"),
        ("a.jsonl", b'{"id":null}\n', "field 'id' holds None, which cannot be a key"),
        ("a.jsonl", b'{"id":"' + b"k" * 251 + b'"}\n', "the key has 251 bytes, at most 250 are allowed"),
        ("a.csv", b"id,x\n1,2\n3,4,5\n", "is not CSV as expected"),
        ("a.parquet", b"PAR0 no", "is not Parquet"),
        ("a.txt", b"", "say --format jsonl, csv or parquet"),
    ],
)
def test_a_file_that_cannot_be_taken_is_told_where_and_why(tmp_path: Path, name: str, text: bytes, told: str) -> None:
    with pytest.raises(InputError) as caught:
        read(write(tmp_path / name, text))
    assert str(caught.value).startswith(str(tmp_path / name)) and told in str(caught.value)


def test_a_format_can_be_named(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.txt", b'{"id":1}'), form="jsonl") == [(b"1", b'{"id":1}')]
