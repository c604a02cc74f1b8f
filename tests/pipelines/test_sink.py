import threading
from pathlib import Path

import pytest

from headwater.errors import OptionError, TableChanged, TableError, UnsupportedTable
from headwater.pipelines.sink import TableSink, bucket_of, changes_in
from headwater.pipelines.table import BEGINNING
from headwater.pipelines.tasks import SEED


def test_a_new_table_stands_at_the_beginning_and_is_found_again(tmp_path: Path) -> None:
    first, again = TableSink(tmp_path / "t", "b"), TableSink(f"file://{tmp_path}/t", "b")
    assert first.record == again.record and first.record.end == BEGINNING and first.record.batch == 0
    assert first.log.state.id == again.log.state.id
    assert len(bytes.fromhex(first.log.state.properties[SEED])) == 16


def test_of_two_who_make_the_table_both_have_the_same(tmp_path: Path) -> None:
    made: list[TableSink] = []
    threads = [threading.Thread(target=lambda: made.append(TableSink(tmp_path, "b"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({sink.log.state.id for sink in made}) == 1
    assert len(made) == 4


def test_a_commit_moves_the_record_and_one_of_before_is_refused(tmp_path: Path) -> None:
    sink, other = TableSink(tmp_path, "b"), TableSink(tmp_path, "b")
    before = sink.record.digest
    end = {"v": 1, "vb": {"0": ["00000000000000aa", 7], "3": ["00000000000000aa", 5, 0, 9]}}
    assert sink.commit(before, end, []).batch == 1
    assert other.refresh().end == end
    assert changes_in(end) == 12
    with pytest.raises(TableChanged):
        other.commit(before, end, [])


def test_places_that_are_no_mirrors_table_are_refused(tmp_path: Path) -> None:
    TableSink(tmp_path / "t", "b")
    with pytest.raises(TableError, match='has the documents of the bucket "b", not the documents of "c"'):
        TableSink(tmp_path / "t", "c")
    with pytest.raises(OptionError):
        TableSink("hdfs://lake/t", "b")
    (tmp_path / "other" / "_delta_log").mkdir(parents=True)
    (tmp_path / "other" / "_delta_log" / f"{0:020d}.json").write_text(
        '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n'
        '{"metaData":{"id":"x","schemaString":"{\\"fields\\":[]}","configuration":{}}}'
    )
    with pytest.raises(UnsupportedTable):
        TableSink(tmp_path / "other", "b")


def test_a_url_names_its_bucket() -> None:
    assert bucket_of("couchbase://a:1,b:2/orders") == "orders"
