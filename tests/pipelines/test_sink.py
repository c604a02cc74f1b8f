import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headwater.errors import OptionError, TableChanged, TableError, UnsupportedTable
from headwater.lake import unfold
from headwater.lake.log import schema_string
from headwater.lake.variant import AS_VARIANT
from headwater.pipelines.jobs import Mirror
from headwater.pipelines.mirror import mirror, sink_of
from headwater.pipelines.sink import TableSink, changes_in
from headwater.pipelines.table import BEGINNING
from headwater.pipelines.tasks import SEED
from headwater.testing.node import Node, node
from tests.pipelines.support import documents, folded, table


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


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


@contextmanager
def names_of_before() -> Iterator[None]:
    """Columns as the first releases named and described them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(unfold, "_READERS_OWN", re.compile(r"(?!)"))
        patched.setattr(unfold, "_belongs_to", lambda name: {unfold.FIELD: name})
        yield


def follow(bucket: Node, place: Path, **shape: Any) -> int:
    return mirror(None, bucket.url, place, once=True, json=True, workers=0, **shape).batch


def test_a_table_whose_schema_is_no_unicode_is_read_again_from_the_next_start_on(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many({"half": r'{"\ud800": 1}', "a": '{"n": 1}'}.items())
        with names_of_before():
            begun = follow(bucket, tmp_path / "t", changelog=True)
        with pytest.raises(Exception, match="surrogate"):
            pl.read_delta(str(tmp_path / "t"))
        assert follow(bucket, tmp_path / "t", changelog=True) == begun  # nothing is read anew
        assert table(tmp_path / "t", "?", "n") == {"half": {"?": 1, "n": None}, "a": {"?": None, "n": 1}}
        client.set("half", r'{"\ud800": 2}')
        assert follow(bucket, tmp_path / "t", changelog=True) > begun
    assert table(tmp_path / "t", "?")["half"] == {"?": 2}
    assert folded(tmp_path / "t_changes") == documents(bucket)


@pytest.mark.parametrize("copy_on_write", [False, True])
def test_a_column_that_spark_can_not_bear_goes_and_its_field_has_another_in_all_rows(
    bucket: Node, tmp_path: Path, copy_on_write: bool
) -> None:
    place = tmp_path / "t"
    shape = {"changelog": True, "quarantine": True, "copy_on_write": copy_on_write}
    with bucket.client() as client:
        client.set_many({"a": '{"_metadata": 1}', "b": '{"_metadata": 2, "n": 3}', "c": "no JSON"}.items())
        with names_of_before():
            follow(bucket, place, **shape)
        assert table(place, "_metadata")["a"] == {"_metadata": 1}
        follow(bucket, place, **shape)
        assert "_metadata" not in pl.read_delta(str(place)).columns
        held = table(place, "doc__metadata", "n")
        assert (held["a"], held["b"]) == ({"doc__metadata": 1, "n": None}, {"doc__metadata": 2, "n": 3})
        assert table(Path(f"{place}_quarantine"), "reason").keys() == {b"c"}
        assert folded(Path(f"{place}_changes")) == documents(bucket)
        batch = follow(bucket, place, **shape)
        assert follow(bucket, place, **shape) == batch


def test_two_who_find_such_a_table_make_it_readable_once(tmp_path: Path) -> None:
    with names_of_before():
        sink = TableSink(tmp_path, "b", form=unfold.UNFOLDED)
        shape = unfold.JsonShape(sink.log.state.fields)
        added = shape.columns.add("_metadata", "long")
        sink.log.commit(
            [
                {
                    "metaData": sink.log.state.metadata
                    | {"schemaString": schema_string([*sink.log.state.fields, added or {}])}
                }
            ],
            "COLUMNS",
        )
    found: list[TableSink] = []
    threads = [threading.Thread(target=lambda: found.append(TableSink(tmp_path, "b"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all("_metadata" not in {column["name"] for column in each.log.refresh().fields} for each in found)


def test_a_mirror_asks_for_one_form_and_not_for_another_than_the_table_has(tmp_path: Path) -> None:
    source, place = "couchbase://127.0.0.1/b", tmp_path / "documents"
    with pytest.raises(OptionError, match="without variant: a table keeps documents in one form"):
        sink_of(Mirror(source, place, unfold=True, variant=True), str(place), "b", None)
    sink_of(Mirror(source, place, variant=True), str(place), "b", None)
    assert sink_of(Mirror(source, place), str(place), "b", None).form is AS_VARIANT
    with pytest.raises(TableError, match="its JSON documents are not unfolded: mirror without --unfold, or elsewhere"):
        sink_of(Mirror(source, place, unfold=True), str(place), "b", None)
    plain = tmp_path / "plain"
    sink_of(Mirror(source, plain), str(plain), "b", None)
    with pytest.raises(TableError, match="it has no column of VARIANT: mirror without --variant, or elsewhere"):
        sink_of(Mirror(source, plain, variant=True), str(plain), "b", None)
    with pytest.raises(TableError, match="mirror with --unfold or --variant, or without --quarantine"):
        sink_of(Mirror(source, plain, quarantine=True), str(plain), "b", None)
