"""Files into documents: what each format becomes, and what a broken file is told."""

import datetime
import gzip
import io
import json
import os
import tempfile
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from headwater.cli import readers
from headwater.cli.failures import InputError
from headwater.cli.readers import Reading, open_source


def read(path: Path, key: str = "id", file_format: str | None = None, **how: Any) -> list[tuple[bytes, bytes]]:
    return [
        (document.key, document.value)
        for document in open_source(path, key, Reading(file_format=file_format, **how)).documents
    ]


def objects(path: Path, key: str = "id", **how: Any) -> list[dict[str, Any]]:
    return [json.loads(value) for _, value in read(path, key, **how)]


LINE = b"a" * (1 << 20) + b"\n"


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


def test_csv_is_text_as_it_stands(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"zip,price,ok,none\n00501,1.10,true,NA\n12345678901234567890,1e5,,\n")
    assert read(path, "zip") == [
        (b"00501", b'{"zip":"00501","price":"1.10","ok":"true","none":"NA"}'),
        (b"12345678901234567890", b'{"zip":"12345678901234567890","price":"1e5","ok":"","none":""}'),
    ]


def test_numbers_late_in_a_csv_of_text_change_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"id\n" + b"".join(b"%d\n" % number for number in range(300_000)) + b"x1\n")
    assert read(path)[-1] == (b"x1", b'{"id":"x1"}')


def test_a_row_of_csv_is_as_long_as_a_document_may_be(tmp_path: Path) -> None:
    long = 'a "quoted",\n' * 300_000
    path = write(tmp_path / "a.csv", b'id,x\n1,"%s"\n2,y\n' % long.replace('"', '""').encode())
    assert objects(path) == [{"id": "1", "x": long}, {"id": "2", "x": "y"}]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl"])
def test_nobody_but_the_thread_that_asks_reads_a_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of Arrow's that is in Python when the command ends takes the process down with SIGABRT."""
    threads, readinto = set(), readers._Counted.readinto

    def noted(file: Any, buffer: Any) -> int:
        threads.add(threading.get_ident())
        return readinto(file, buffer)

    monkeypatch.setattr(readers._Counted, "readinto", noted)
    text = b"id\n1\n" * 1000 if ".csv" in name else b'{"id":1}\n' * 1000
    assert read(write(tmp_path / name, gzip.compress(text) if name.endswith("gz") else text))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int", {"7": 7, " -08 ": -8, "9" * 30: int("9" * 30)}, ["1.5", "1_0", "x", "9" * 5000, "²"]),
        ("float", {"1": 1.0, "-1.5e3": -1500.0}, ["1,5", "1_0", "x"]),
        ("bool", {"true": True, "1": True, "FALSE": False, "0": False}, ["yes", "2"]),
    ],
)
def test_a_field_of_a_type_is_a_value_of_it_or_told(
    tmp_path: Path, kind: str, good: dict[str, Any], bad: list[str]
) -> None:
    rows = "".join(f'k,"{field}"\n' for field in good)
    found = objects(write(tmp_path / "a.csv", f"id,x\n{rows}".encode()), types={"x": kind})
    assert [row["x"] for row in found] == list(good.values())
    for field in bad:
        with pytest.raises(InputError, match=rf"row 1: field 'x' holds '.*', which is no {kind}; --types x=text"):
            read(write(tmp_path / "a.csv", f'id,x\nk,"{field}"\n'.encode()), types={"x": kind})


def test_inferred_types_lose_no_digit_and_keys_stay_text(tmp_path: Path) -> None:
    text = b"id,zip,n,long,x,ok,day\n7,00501,7,12345678901234567890,1.5,true,2013-01-01\n8,10001,,1,,false,2013-01-02\n"
    assert objects(write(tmp_path / "a.csv", text), infer=True) == [
        {"id": "7", "zip": "00501", "n": 7, "long": "12345678901234567890", "x": 1.5, "ok": True, "day": "2013-01-01"},
        {"id": "8", "zip": "10001", "n": None, "long": "1", "x": None, "ok": False, "day": "2013-01-02"},
    ]


def test_types_are_given_by_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"id,n,x,ok\n7,007,1.10,false\n8,,,\n")
    assert objects(path, types={"n": "int", "x": "float", "ok": "bool"}) == [
        {"id": "7", "n": 7, "x": 1.1, "ok": False},
        {"id": "8", "n": None, "x": None, "ok": None},
    ]


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_another_encoding_is_named(tmp_path: Path, name: str, separator: str) -> None:
    path = write(tmp_path / name, f"id{separator}name\n1{separator}M\u00fcller\n".encode("latin-1"))
    assert objects(path, encoding="latin-1") == [{"id": "1", "name": "M\u00fcller"}]
    with pytest.raises(InputError, match="--encoding"):
        read(path)


def test_json_lines_may_be_in_another_encoding_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"id":1,"name":"M\u00fcller"}\n'.encode("latin-1"))
    assert read(path, encoding="latin-1") == [(b"1", '{"id":1,"name":"M\u00fcller"}'.encode())]
    with pytest.raises(InputError, match=r"line 1: is not JSON.*--encoding"):
        read(path)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"id":1}\n')) == [(b"1", b'{"id":1}')]
    assert read(write(tmp_path / "a.csv", b"\xef\xbb\xbfid\n1\n")) == [(b"1", b'{"id":"1"}')]


def test_parquet_nanoseconds_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    at = pa.array([1_000_000_001, 1_000_000_000, None], pa.timestamp("ns", "UTC"))
    parquet.write_table(pa.table({"id": ["a", "b", "c"], "at": at}), path)
    assert [row["at"] for row in objects(path)] == [
        "1970-01-01T00:00:01.000000001+00:00",
        "1970-01-01T00:00:01+00:00",
        None,
    ]


def test_times_of_day_keep_their_nanoseconds_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"id": ["a"], "at": pa.array([1_000_000_001], pa.time64("ns"))}), path)
    assert objects(path)[0]["at"] == "00:00:01.000000001"


def test_what_is_no_number_becomes_null_and_what_has_no_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"id": ["a"], "f": [float("nan")], "deep": [{"g": [float("nan"), 1.5]}]}), path)
    assert objects(path) == [{"id": "a", "f": None, "deep": {"g": [None, 1.5]}}]
    parquet.write_table(pa.table({"id": ["a"], "f": [float("inf")]}), path)
    with pytest.raises(InputError, match="row 1: field 'f' holds inf, which JSON has no number for"):
        read(path)


def test_keys_are_the_bytes_that_stand_there(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"id": [b"\x00\xff"]}), path)
    assert read(path)[0][0] == b"\x00\xff"


def test_another_compression_is_read_through(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.zst"
    with pa.output_stream(str(path), compression="zstd") as out:
        out.write(b"id\n1\n")
    assert read(path) == [(b"1", b'{"id":"1"}')]


def test_a_pipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"id\n00501\n",))
    writer.start()
    assert read(path) == [(b"00501", b'{"id":"00501"}')]
    writer.join()


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
        source = open_source(tmp_path / name, "id", Reading())
        assert [document.position for document in source.documents][-1] == source.total


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.jsonl", b'{"id":1}\nnonsense\n', "line 2: is not JSON"),
        (
            "a.json",
            b'[{"id":1}]\n',
            "holds a list, expected an object a line; jq -c '.[]' makes lines",
        ),
        ("a.jsonl", b'{"id":1,"v":NaN}\n', "line 1: is not JSON: NaN is no number there"),
        ("a.jsonl", b'{"id":1,"v":' + b"[" * 200_000 + b"\n", "line 1: is nested too deeply"),
        ("a.jsonl", b'{"id":true}\n', "field 'id' holds True, which cannot be a key"),
        ("a.jsonl", b'{"id":1e5}\n', "field 'id' holds 100000.0, which cannot be a key"),
        ("a.jsonl", b'{"id":1,"v":"' + b"x" * 20 * 1024 * 1024 + b'"}\n', "line 1: the document has 20971535 bytes"),
        ("a.csv", b"id,x,x\n1,2,3\n", "contents: names the columns 'x' more than once"),
        ("a.jsonl", b'{"x":1,"y":2}\n', "line 1: has no field 'id' to be the key; it has x, y"),
        ("a.jsonl", b'{"id":null}\n', "field 'id' holds None, which cannot be a key"),
        ("a.jsonl", b'{"id":"' + b"k" * 251 + b'"}\n', "the key has 251 bytes, at most 250 are allowed"),
        ("a.csv", b"id,x\n1,2\n3,4,5\n", "row 2: has 3 fields, the first line names 2"),
        ("a.csv", b"", "contents: is empty; its first line names the columns"),
        ("a.csv", b'id,x\n1,2\n2,"' + LINE * 30, "contents: is not CSV as expected: the file ends within"),
        (
            "a.csv",
            b'id,x\n1,"' + LINE * 64,
            "is not CSV as expected: a row is longer than 60 MiB",
        ),
        ("a.csv.gz", gzip.compress(b"id\n1\n" * 100_000)[:-200], "contents: is not CSV as expected"),
        ("a.jsonl.gz", gzip.compress(b'{"id":1}\n' * 200_000)[:-200], "can't be read"),
        ("a.jsonl", b"1" * 330 * 1024 * 1024, "line 1: can't be read: a line is longer than 320 MiB"),
        ("a.parquet", b"PAR0 no", "is not Parquet"),
        ("a.txt", b"", "say --format jsonl, csv, tsv or parquet"),
    ],
)
def test_a_file_that_cannot_be_taken_is_told_where_and_why(tmp_path: Path, name: str, text: bytes, told: str) -> None:
    with pytest.raises(InputError) as caught:
        read(write(tmp_path / name, text))
    assert str(caught.value).startswith(str(tmp_path / name)) and told in str(caught.value)


@pytest.mark.parametrize("key", ["id", ""])
@given(place=st.floats(0, 1), bit=st.integers(0, 7))
def test_a_parquet_file_with_a_byte_of_another_value_is_read_or_refused(place: float, bit: int, key: str) -> None:
    rows = [{"id": f"k{n}", "key": b"k", "value": b"v" * n, "n": n, "t": datetime.date(2026, 1, 1)} for n in range(40)]
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), out)
    damaged = bytearray(out.getvalue())
    damaged[int(place * (len(damaged) - 1))] ^= 1 << bit
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file, suppress(InputError):
        Path(file.name).write_bytes(damaged)
        read(Path(file.name), key)


def test_values_that_stand_in_a_file_once_and_are_those_of_many_rows_become_python_s_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 40, pa.int32()), pa.array(["x" * (18 << 20)]))
    parquet.write_table(pa.table({"id": [f"k{n}" for n in range(40)], "x": column}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    tracemalloc.start()
    try:
        documents = open_source(path, "id", Reading()).documents
        assert sum(len(document.value or b"") > 18 << 20 for document in documents) == 40
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_a_line_with_numbers_of_any_size_is_stored_as_it_stands(tmp_path: Path) -> None:
    line = b'{"id":"k","n":[1e400,' + b"9" * 5000 + b"]}"
    assert read(write(tmp_path / "a.jsonl", line)) == [(b"k", line)]


def test_lines_about_no_document_are_no_end_of_changes(tmp_path: Path) -> None:
    events = ["collection_created", "collection_modified", "scope_dropped", "unknown_system_event", "deletions_purged"]
    events.append("snapshot_deduplicated")
    lines = [*({"event": event, "vbucket": 1, "seqno": 2} for event in events), {"event": "mutation", "key": "k"}]
    text = "\n".join(map(json.dumps, lines)).encode()
    assert read(write(tmp_path / "a.jsonl", text), file_format="changes") == [(b"k", b"")]


@pytest.mark.parametrize(
    "members",
    [
        '"value": {"a": 1e400}',
        '"value": ' + "9" * 5000,
        '"value": ' + "[" * 100_000,
        '"text": null',
        '"text": 5',
        '"base64": "?"',
        '"flags": 1e400',
        '"key_base64": "?"',
    ],
)
def test_a_change_that_is_none_is_told_where(tmp_path: Path, members: str) -> None:
    path = write(tmp_path / "a.jsonl", b'{"event": "mutation", "key": "k", %s}' % members.encode())
    with pytest.raises(InputError, match=r"line 1: is (no change as|nested)"):
        read(path, file_format="changes")


def test_a_format_can_be_named(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.txt", b'{"id":1}'), file_format="jsonl") == [(b"1", b'{"id":1}')]
