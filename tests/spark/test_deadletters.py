from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headwater.errors import OptionError, TooBig
from headwater.spark.deadletters import DeadLetters, located, prepare_folder, task_name
from headwater.spark.rows import Row
from tests.spark.fakes import synced_files


def test_rows_are_kept_with_the_reason_and_the_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    letters = DeadLetters(str(tmp_path / "refused"), "task")
    letters.add([(Row("k", b"v", flags=3), TooBig("set"))])
    letters.add([(Row(None, None, event="deletion"), OptionError("key", None, "a key"))])
    assert not (tmp_path / "refused" / "task.parquet").exists()
    letters.close()
    told = pq.read_table(tmp_path / "refused" / "task.parquet").to_pylist()
    assert [(row["key"], row["value"], row["flags"], row["status"]) for row in told] == [
        (b"k", b"v", 3, 3),
        (None, None, None, None),
    ]
    assert told[0]["reason"].startswith("set: E2BIG") and told[1]["event"] == "deletion"
    assert [path.name for path in (tmp_path / "refused").iterdir()] == ["task.parquet"]


def test_a_repeated_task_replaces_its_file_and_removes_it_when_nothing_was_refused(tmp_path: Path) -> None:
    for count in (2, 1):
        letters = DeadLetters(str(tmp_path), "task")
        letters.add([(Row(b"k", b"v"), TooBig("set"))] * count)
        letters.close()
        assert pq.read_table(tmp_path / "task.parquet").num_rows == count
    DeadLetters(str(tmp_path), "task").close()
    assert list(tmp_path.iterdir()) == []


def test_an_attempt_that_was_taken_for_lost_spoils_nothing_of_its_repetition(tmp_path: Path) -> None:
    lost, repeated = (DeadLetters(str(tmp_path), "task") for _ in range(2))
    lost.add([(Row(b"k", b"v"), TooBig("set"))])
    repeated.add([(Row(b"k", b"v"), TooBig("set"))] * 2)
    lost.add([(Row(b"k", b"v"), TooBig("set"))])
    repeated.close()
    assert pq.read_table(tmp_path / "task.parquet").num_rows == 2
    lost.close()
    assert pq.read_table(tmp_path / "task.parquet").num_rows == 2
    assert [path.name for path in tmp_path.iterdir()] == ["task.parquet"]


class Task:
    """A Spark task, as its context tells of it."""

    def __init__(self, **properties: str) -> None:
        self.properties = properties

    def partitionId(self) -> int:
        return 3

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name.rpartition(".")[2])


def test_letters_are_named_by_their_query_so_that_no_other_job_replaces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for task in (Task(queryId="a"), Task(queryId="b"), Task(queryId="b", batchId="9"), Task(), None):
        monkeypatch.setattr("pyspark.TaskContext.get", lambda task=task: task)
        names.append((task_name("job", 7), task_name("job")))
    assert names == [
        ("refused-a-00000007-00003", "refused-job-00003"),
        ("refused-b-00000007-00003", "refused-job-00003"),
        ("refused-b-00000007-00003", "refused-b-00000009-00003"),
        ("refused-job-00003", "refused-job-00003"),
        ("refused-job", "refused-job"),
    ]


def test_a_power_cut_takes_no_letter_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A refused row is sent by nobody again: the task is done, and the batch noted."""
    synced = synced_files(monkeypatch, tmp_path / "refused" / "task.parquet")
    letters = DeadLetters(str(tmp_path / "refused"), "task")
    letters.add([(Row(b"k", b"v"), TooBig("set"))])
    letters.close()
    file, folder = ((tmp_path / "refused" / name).stat().st_ino for name in ("task.parquet", "."))
    assert synced[-2:] == [(file, False), (folder, True)]


def test_a_relative_path_means_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert located("refused") == str(tmp_path / "refused")
    assert located("s3://b/refused") == "s3://b/refused"


def test_a_folder_that_can_not_be_is_known_before_there_is_anything_to_keep(tmp_path: Path) -> None:
    assert prepare_folder(str(tmp_path / "a" / "refused")) == str(tmp_path / "a" / "refused")
    assert (tmp_path / "a" / "refused").is_dir()
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "refused"):
        with pytest.raises(OSError, match="ot a directory"):
            prepare_folder(str(place / "x"))


def test_a_url_is_a_place_as_well(tmp_path: Path) -> None:
    letters = DeadLetters(f"file://{tmp_path}/refused", "task")
    letters.add([(Row(b"k", b"v"), TooBig("set"))])
    letters.close()
    assert (tmp_path / "refused" / "task.parquet").exists()
