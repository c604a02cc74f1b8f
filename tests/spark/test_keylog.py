"""The folder of keys that were delivered."""

import errno
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.spark.keylog import SCHEMA, Delivered, KeyLog

K, L = (None, None, b"k"), (None, None, b"l")


def note(log: KeyLog, *rows: tuple[int, int, int, bytes, bool]) -> None:
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    vbuckets, generations, seqnos, keys, deleted = columns
    nothing = [None] * len(rows)
    arrays = [
        pa.array(values, field.type)
        for values, field in zip((vbuckets, generations, seqnos, nothing, nothing, keys, deleted), SCHEMA, strict=True)
    ]
    with log.writer() as writer:
        writer.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))


def test_the_last_row_before_a_generation_counts_whatever_file_has_it(tmp_path: Path) -> None:
    log = KeyLog(str(tmp_path / "keys"))
    note(log, (0, 0, 5, b"k", False), (0, 0, 9, b"l", False), (1, 0, 3, b"k", False))
    note(log, (0, 1, 2, b"k", True))
    assert log.last({0: 1}) == {0: {K: Delivered(0, 5, False), L: Delivered(0, 9, False)}}
    assert log.last({0: 2})[0][K] == Delivered(1, 2, True)
    assert log.last({7: 1}) == {7: {}}


def test_folded_files_tell_the_last_row_of_each_generation(tmp_path: Path) -> None:
    log = KeyLog(str(tmp_path))
    for seqno in (1, 4, 2):
        note(log, (0, 0, seqno, b"k", False))
    note(log, (0, 1, 0, b"k", True))
    before = {generation: log.last({0: generation}) for generation in (0, 1, 2)}
    log.fold(files_max=3)
    assert len(list(tmp_path.iterdir())) == 1
    assert {generation: log.last({0: generation}) for generation in (0, 1, 2)} == before
    assert before[1][0][K].seqno == 4


def test_a_file_that_ends_amid_a_row_tells_what_it_has_before_that(tmp_path: Path) -> None:
    log = KeyLog(str(tmp_path))
    note(log, (0, 0, 5, b"k", False))
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert log.last({0: 1})[0].get(K) in (None, Delivered(0, 5, False))


def test_a_writer_without_rows_leaves_no_file(tmp_path: Path) -> None:
    with KeyLog(str(tmp_path)).writer():
        pass
    assert list(tmp_path.iterdir()) == []


class FailingFile(io.BytesIO):
    """A file whose disk fails each read."""

    def read(self, size: int | None = -1) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


def test_a_file_that_the_disk_does_not_read_is_an_error_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys would be missing where a rollback is undone, and folding would remove them for good."""
    log = KeyLog(str(tmp_path))
    note(log, (0, 0, 5, b"k", False))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *_: FailingFile())
        with pytest.raises(OSError, match="Input/output error"):
            log.last({0: 1})
        with pytest.raises(OSError, match="Input/output error"):
            log.fold(files_max=0)
    assert log.last({0: 1})[0] == {K: Delivered(0, 5, False)}
