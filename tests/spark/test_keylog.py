"""The folder of keys that were delivered."""

import errno
import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import NotesError
from headwater.spark.keyfile import SCHEMA, Reach
from headwater.spark.keylog import Delivered, KeyLog

K, L, M = (None, None, b"k"), (None, None, b"l"), (None, None, b"m")
Row = tuple[int, int, int, bytes, bool]


def batch(*rows: Row) -> pa.RecordBatch:
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    vbuckets, generations, seqnos, keys, deleted = columns
    nothing = [None] * len(rows)
    arrays = [
        pa.array(values, field.type)
        for values, field in zip((vbuckets, generations, seqnos, nothing, nothing, keys, deleted), SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def note(log: KeyLog, *rows: Row, reach: Sequence[Reach] = ()) -> None:
    with log.writer(reach) as writer:
        writer.append(batch(*rows))


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


def test_a_row_is_certain_if_all_attempts_have_it_that_read_there(tmp_path: Path) -> None:
    log = KeyLog(str(tmp_path))
    note(log, (0, 0, 4, b"k", False), (0, 0, 5, b"l", False), reach=[Reach(0, 0, 0, 9)])
    note(log, (0, 0, 5, b"l", False), reach=[Reach(0, 0, 0, 9)])
    note(log, (0, 0, 12, b"m", False), reach=[Reach(0, 0, 9, 12), Reach(1, 0, 0, 9)])
    expected = {K: Delivered(0, 4, False, certain=False), L: Delivered(0, 5, False), M: Delivered(0, 12, False)}
    assert log.last({0: 1})[0] == expected
    log.fold(files_max=0)
    assert len(list(tmp_path.iterdir())) == 1
    assert KeyLog(str(tmp_path)).last({0: 1})[0] == expected
    note(log, (0, 0, 12, b"m", False), reach=[Reach(0, 0, 9, 12)])
    assert log.last({0: 1})[0] == expected
    note(log, (0, 1, 1, b"l", True), reach=[Reach(0, 0, 9, 12)])
    assert log.last({0: 1})[0] == expected | {M: Delivered(0, 12, False, certain=False)}


def test_an_attempt_that_did_not_end_makes_no_row_certain_and_none_uncertain(tmp_path: Path) -> None:
    """Spark takes no rows of it."""
    log = KeyLog(str(tmp_path))
    with suppress(KeyError), log.writer([Reach(0, 0, 0, 9)]) as writer:
        writer.append(batch((0, 0, 4, b"k", False)))
        raise KeyError
    note(log, (0, 0, 5, b"l", False), reach=[Reach(0, 0, 0, 9)])
    expected = {K: Delivered(0, 4, False, certain=False), L: Delivered(0, 5, False)}
    assert log.last({0: 1})[0] == expected
    KeyLog(str(tmp_path)).fold(files_max=0)
    assert log.last({0: 1})[0] == expected


def test_an_attempt_without_rows_makes_those_of_another_one_uncertain(tmp_path: Path) -> None:
    log = KeyLog(str(tmp_path))
    note(log, (0, 0, 4, b"k", False), reach=[Reach(0, 0, 3, 4)])
    with log.writer([Reach(0, 0, 3, 4)]):
        pass
    assert log.last({0: 1}) == {0: {K: Delivered(0, 4, False, certain=False)}}


def test_folding_leaves_a_file_that_a_task_still_writes(tmp_path: Path) -> None:
    """Rows that are appended to a file that was removed are nowhere."""
    log = KeyLog(str(tmp_path))
    note(log, (0, 0, 4, b"k", False))
    with log.writer([Reach(0, 0, 4, 9)]) as writer:
        writer.append(batch((0, 0, 5, b"l", False)))
        log.fold(files_max=0)
        writer.append(batch((0, 0, 6, b"m", False)))
    assert log.last({0: 1})[0].keys() == {K, L, M}
    log.fold(files_max=0)
    assert len(list(tmp_path.iterdir())) == 1
    assert log.last({0: 1})[0].keys() == {K, L, M}


def test_a_file_that_a_stopped_query_left_open_is_folded_by_the_next(tmp_path: Path) -> None:
    log = KeyLog(str(tmp_path))
    with suppress(KeyError), log.writer([Reach(0, 0, 0, 9)]) as writer:
        writer.append(batch((0, 0, 4, b"k", False)))
        raise KeyError
    note(log, (0, 0, 4, b"k", False))
    log.fold(files_max=0)
    assert len(list(tmp_path.iterdir())) == 2
    KeyLog(str(tmp_path)).fold(files_max=0)
    assert len(list(tmp_path.iterdir())) == 1
    assert log.last({0: 1})[0] == {K: Delivered(0, 4, False)}


def test_a_file_that_is_folded_while_another_task_reads_is_found_in_the_folded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KeyLog(str(tmp_path))
    note(log, (0, 0, 4, b"k", False))
    listed = log._paths()
    log.fold(files_max=0)
    listings = iter([listed])
    monkeypatch.setattr(log, "_paths", lambda: next(listings, sorted(tmp_path.glob("*.keys"))))
    assert log.last({0: 1})[0] == {K: Delivered(0, 4, False)}


def claimed(folder: Path, query: str) -> KeyLog:
    log = KeyLog(str(folder), query)
    log.claim(notes_expected=False)
    return log


def test_a_folder_belongs_to_the_query_that_came_first(tmp_path: Path) -> None:
    note(claimed(tmp_path / "undo", "a"), (0, 0, 4, b"k", False))
    claimed(tmp_path / "undo", "a")
    with pytest.raises(
        NotesError, match=r"undo: the notes here are those of another query, or of an earlier checkpoint"
    ):
        claimed(tmp_path / "undo", "b")
    with pytest.raises(NotesError, match="another query"):
        KeyLog(str(tmp_path / "undo"), "b").writer()


@pytest.mark.parametrize("content", ["a", ""])
def test_a_claim_behind_which_nothing_was_noted_binds_nobody(content: str, tmp_path: Path) -> None:
    """The process ended amid its claim, or a power cut took the checkpoint that has the id."""
    (tmp_path / "_query").write_text(content)
    stale = KeyLog(str(tmp_path), "a")
    claimed(tmp_path, "b").check()
    with pytest.raises(NotesError, match="another query"):
        stale.writer()


def test_a_machine_that_does_not_see_the_folder_makes_none_of_its_own(tmp_path: Path) -> None:
    """The mount is missing: what a task noted there, no other would find."""
    with pytest.raises(
        NotesError, match=r"does not see the notes of what this query has delivered.*bring the folder back"
    ):
        KeyLog(str(tmp_path / "undo"), "a").writer()
    with pytest.raises(NotesError, match="does not see the notes"):
        KeyLog(str(tmp_path / "undo"), "a").claim(notes_expected=True)
    assert not (tmp_path / "undo").exists()


def test_the_notes_of_an_older_release_are_taken_over(tmp_path: Path) -> None:
    note(KeyLog(str(tmp_path)), (0, 0, 4, b"k", False))
    KeyLog(str(tmp_path), "a").claim(notes_expected=True)
    assert KeyLog(str(tmp_path), "a").last({0: 1})[0].keys() == {K}
