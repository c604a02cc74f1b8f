import pickle
from pathlib import Path

import pytest

from headwater.errors import TableChanged
from headwater.pipelines.sink import TableSink
from headwater.pipelines.tasks import TASK_CHANGES, forget, tasks_of, view_of
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range
from headwater.spark.settings import parse

SETTINGS = parse({"url": "couchbase://127.0.0.1/b"}, streaming=True)
WHERE = ("/lake/t", "id")


def offset(*seqnos: int, rollbacks: frozenset[int] = frozenset()) -> Offset:
    places = {vb: Position(vb, 0xA, seqno, 0, seqno) for vb, seqno in enumerate(seqnos) if seqno}
    return Offset(places, rollbacks)


def test_a_small_batch_is_one_task_and_a_large_one_is_cut_between_neighbours() -> None:
    (one,) = tasks_of(Offset(), offset(*[10] * 64), SETTINGS, WHERE, 4)
    assert [part.vbucket for part in one.parts] == list(range(64))
    four = tasks_of(Offset(), offset(*[TASK_CHANGES] * 64), SETTINGS, WHERE, 4)
    assert [len(task.parts) for task in four] == [16] * 4
    assert [part.vbucket for task in four for part in task.parts] == list(range(64))
    assert tasks_of(offset(5), offset(5), SETTINGS, WHERE, 4) == []


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_no_more_tasks_than_wanted_however_uneven_the_vbuckets(count: int) -> None:
    uneven = offset(*[TASK_CHANGES * 10 if vb % 5 == 0 else 1 for vb in range(20)])
    tasks = tasks_of(Offset(), uneven, SETTINGS, WHERE, count)
    assert len(tasks) <= count
    assert sum(len(task.parts) for task in tasks) == 20


def test_what_begins_is_fresh_and_what_rolls_back_is_read_whole() -> None:
    places = [Position(0, 0xA, 9, 0, 9), Position(1, 0xB, 8, 4, 9), Position(2, 0xA, 7, 5, 7)]
    end = Offset(dict(enumerate(places)), frozenset({1}))
    (task,) = tasks_of(Offset({1: Position(1, 0xA, 9, 9, 9), 2: Position(2, 0xA, 5, 5, 5)}), end, SETTINGS, WHERE, 2)
    assert task.parts == (Range(0, 0xA, 0, 9, 9), Range(1, 0xB, 4, 8, 9, rollback=True), Range(2, 0xA, 5, 7, 7))
    portion = task.portion
    assert (portion.fresh, portion.replaced, portion.sought) == ({0}, {1}, {2})
    assert pickle.loads(pickle.dumps(task)) == task


def test_a_table_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    first = TableSink(tmp_path, "b")
    known = view_of(str(tmp_path), first.log.state.id)
    assert view_of(str(tmp_path), first.log.state.id) is known
    with pytest.raises(TableChanged, match="made anew"):
        view_of(str(tmp_path), "another")
    forget()
    assert view_of(str(tmp_path), first.log.state.id) is not known
    forget()
