"""A file of delivered keys: what a torn end is, and what is damage."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import NotesError
from headwater.spark.keyfile import SCHEMA, KeyWriter, Reach, read

REACH = Reach(0, 0, 0, 9)


def batch(*keys: bytes) -> pa.RecordBatch:
    rows = [
        dict(zip(SCHEMA.names, (0, 0, number, None, None, key, False), strict=True)) for number, key in enumerate(keys)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def keys_of(path: Path) -> list[Any]:
    return [row["key"] for records, _ in read(path).rows for row in records.to_pylist()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.keys"


def write(path: Path, *batches: pa.RecordBatch, fails: bool = False) -> bytes:
    try:
        with KeyWriter(path, [REACH]) as writer:
            for records in batches:
                writer.append(records)
            if fails:
                raise KeyError
    except KeyError:
        pass
    return path.read_bytes()


def test_a_file_says_what_was_read_what_came_and_whether_that_was_all(path: Path) -> None:
    write(path, batch(b"k"), batch(b"l", b"m"))
    assert keys_of(path) == [b"k", b"l", b"m"]
    assert (read(path).reach, read(path).ended) == ((REACH,), True)


def test_an_attempt_that_read_nothing_leaves_word_of_it(path: Path) -> None:
    write(path)
    assert (read(path).reach, read(path).rows, read(path).ended) == ((REACH,), [], True)


def test_an_attempt_that_failed_has_no_end(path: Path) -> None:
    write(path, batch(b"k"), fails=True)
    assert (keys_of(path), read(path).ended) == ([b"k"], False)


def test_a_torn_end_is_left_out_wherever_it_was_torn(path: Path) -> None:
    whole = write(path, batch(b"k"), batch(b"l"), fails=True)
    lengths = {}
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        lengths[len(keys_of(path))] = length
        assert not read(path).ended
    assert set(lengths) == {0, 1}


def test_a_changed_byte_is_damage_unless_it_may_be_the_torn_end(path: Path) -> None:
    """Keys that are left out would be missing where a rollback is undone."""
    whole = write(path, batch(b"k"), batch(b"l"))
    end = len(whole) - 13  # the record of the end has no content
    for at in range(end):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        with pytest.raises(NotesError, match=r"a\.keys: byte \d+: this is not what was written; put the file back"):
            read(path)
    path.write_bytes(whole[:end] + b"\0" * 13)
    assert (keys_of(path), read(path).ended) == ([b"k", b"l"], False)


def test_bytes_behind_the_end_are_damage(path: Path) -> None:
    path.write_bytes(write(path, batch(b"k")) + b"\0")
    with pytest.raises(NotesError, match="byte"):
        read(path)


def test_a_key_with_the_bytes_of_a_record_is_none(path: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "b.keys", batch(b"x"))
    whole = write(path, batch(b"k"), batch(other[-13:]), fails=True)
    path.write_bytes(whole[:-8])
    assert keys_of(path) == [b"k"]


def test_a_file_of_before_is_read_and_its_torn_end_left_out(path: Path) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(batch(b"k"))
        stream.write_batch(batch(b"l", b"m"))
    whole = sink.getvalue().to_pybytes()
    path.write_bytes(whole)
    assert keys_of(path) == [b"k", b"l", b"m"]
    assert read(path).reach == (Reach(0, 0, -1, 1),)
    assert all(doubtful for _, doubtful in read(path).rows)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert keys_of(path) in ([], [b"k"], [b"k", b"l", b"m"])
