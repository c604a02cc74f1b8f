"""The Iceberg table is what the log says, whatever happened to either, and other readers than ours see the same."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from headwater.errors import CorruptStore, TableAway, UnsupportedTable
from headwater.failpoints import InjectedFault, armed
from headwater.lake import folds, freshness
from headwater.lake.iceberg import entry, manifests, metadata, publish
from headwater.lake.iceberg.manifests import Content, EntryStatus
from headwater.lake.iceberg.place import FOLDER, OWN, IcebergPlace, place_of
from headwater.lake.log import TableLog, schema_string
from headwater.lake.shape import delta_field
from headwater.lake.store import TableStore
from headwater.lake.vacuum import DAY, vacuum
from tests.lake.iceberg.support import by_duckdb, by_pyiceberg, for_linux, published, queried, set_published
from tests.lake.support import Table, restore

HINT, file_of = IcebergPlace(TableStore("/"), FOLDER).hint, IcebergPlace(TableStore("/"), FOLDER).file_of
POINTS = ("vectors_written", "manifests_written", "before_commit", "after_commit")


def check(table: Table) -> None:
    """The Iceberg table is whole, is the log's newest version, and pyiceberg reads what Polars reads of Delta."""
    table.log.refresh()
    assert entry.differences(table.log) == []
    assert {key.decode(): value.decode() for key, value in by_pyiceberg(table.place).items()} == table.held()


def head_of(table: Table) -> publish.MetadataHead:
    return publish.read_head(place_of(table.log))


def current(table: Table) -> tuple[dict[str, Any], dict[str, Any]]:
    """The newest metadata and its snapshot."""
    head = head_of(table)
    assert head.metadata is not None
    snapshot = metadata.current_snapshot(head.metadata)
    assert snapshot is not None
    return head.metadata, snapshot


def anew(table: Table) -> Table:
    """The same table as another process finds it."""
    return Table(table.place)


def test_rows_that_come_change_and_go_are_seen_by_other_readers(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", key % 4, 1 + key, "one") for key in range(2000)])
    check(table)
    table.take(*[(f"k{key}", key % 4, 3000 + key, "two") for key in range(0, 2000, 3)])
    check(table)
    table.take(*[(f"k{key}", key % 4, 6000 + key, None) for key in range(0, 2000, 5)])
    check(table)
    folds.optimize(table.log, table.indexes, everything=True)
    check(table)
    assert len(table.held()) == 1600


@for_linux
def test_duckdb_reads_rows_and_their_ids(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", key % 4, 1 + key, "one") for key in range(100)])
    table.take(*[(f"k{key}", key % 4, 300 + key, "two") for key in range(0, 100, 3)])
    assert {key.decode(): value.decode() for key, value in by_duckdb(tmp_path).items()} == table.held()
    rows = queried(tmp_path, "_row_id, seqno, vbucket")
    assert sorted(row[0] for row in rows) == [*(n for n in range(100) if n % 3), *range(100, 134)]
    assert all((seqno - 1 if seqno < 300 else seqno - 300) % 4 == vbucket for _, seqno, vbucket in rows)


def test_an_empty_table_is_a_table(tmp_path: Path) -> None:
    table = published(tmp_path)
    entry.publish(table.log)
    check(table)
    assert [field.name for field in StaticTable.from_metadata(f"{tmp_path}/_iceberg").schema().fields][:2] == [
        "key",
        "value",
    ]
    table.take(("a", 0, 1, "one"))
    table.take(("a", 0, 2, None))
    check(table)
    assert table.held() == {}


def test_a_table_without_the_property_has_nothing_of_iceberg(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "one"))
    entry.publish(table.log)
    assert not (tmp_path / "_iceberg").exists()
    assert entry.differences(table.log) == []
    assert entry.unneeded(table.log, time.time()) == []


def test_a_table_that_is_full_when_it_is_first_published_is_all_there(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(*[(f"k{key}", key % 4, 1 + key, "one") for key in range(50)])
    table.take(*[(f"k{key}", key % 4, 100 + key, "two") for key in range(0, 50, 2)])
    set_published(table.log)
    entry.publish(table.log)
    check(table)
    assert head_of(table).number == 1


def test_a_publication_that_is_repeated_writes_nothing(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    before = sorted((tmp_path / OWN).iterdir())
    entry.publish(table.log)
    entry.publish(anew(table).log)
    assert sorted((tmp_path / OWN).iterdir()) == before


def test_several_versions_at_once_are_one_snapshot(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"), ("b", 1, 2, "one"), ("c", 2, 3, "one"))
    number = head_of(table).number
    with unpublished():
        table.take(("a", 0, 4, "two"))
        table.take(("b", 1, 5, None))
        table.take(("d", 3, 6, "one"))
    entry.publish(table.log)
    check(table)
    assert head_of(table).number == number + 1


@contextmanager
def unpublished() -> Iterator[None]:
    """Commits of a process that dies each time before it publishes."""
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(publish, "publish", lambda log: None)
        yield


def test_a_restore_is_published_though_a_vector_shrinks_or_a_file_comes_back(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", 0, 1 + key, "one") for key in range(20)])
    version = table.log.state.version
    table.take(*[(f"k{key}", 0, 100 + key, "two") for key in range(10)])
    table.take(*[(f"k{key}", 0, 200 + key, None) for key in range(20)])
    check(table)
    for back in (version, version + 1):
        restore(table.log, back)
        entry.publish(table.log)
        check(table)
        assert len(table.held()) == 20


def test_vectors_of_as_many_rows_that_are_others_are_told_apart(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", 0, 1 + key, "one") for key in range(20)])
    version = table.log.state.version
    table.take(("k3", 0, 100, None))
    with unpublished():
        restore(table.log, version)
        table.log.refresh()
        table.log.commit([table.record.to_action()], "READ ANEW")
        table.take(("k4", 0, 101, None))
    entry.publish(table.log)
    check(table)
    assert "k3" in table.held() and "k4" not in table.held()


def test_versions_that_change_no_row_push_out_no_snapshot(tmp_path: Path) -> None:
    """A quiet mirror moves its time once a minute; a state that a reader holds stays readable."""
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"), ("b", 0, 2, "one"))
    table.take(("a", 0, 3, None))
    before = current(table)[0]["snapshots"]
    pinned = before[-2]["snapshot-id"]
    for minute in range(metadata.SNAPSHOTS_MAX + 1):
        ended = replace(table.record, end={"completeUntil": (1_700_000_000 + 60 * minute) * 10**9})
        assert table.log.commit([ended.to_action()], "MIRROR")
        entry.publish(table.log)
    after = current(table)[0]
    assert after["properties"][freshness.PROPERTY] == "2023-11-14T22:33:20.000Z" and after["snapshots"] == before
    check(table)
    table.take(("b", 0, 4, "two"))
    check(table)
    assert [each["snapshot-id"] for each in current(table)[0]["snapshots"][:-1]] == [
        each["snapshot-id"] for each in before
    ]
    rows = StaticTable.from_metadata(f"{tmp_path}/{FOLDER}").scan(selected_fields=("key", "value"), snapshot_id=pinned)
    assert sorted(rows.to_arrow()["value"].to_pylist()) == [b"one", b"one"]


def test_a_snapshot_that_another_writer_makes_current_is_replaced_though_no_row_changed_since(tmp_path: Path) -> None:
    """The version that the metadata notes is of our snapshot."""
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    table.take(("a", 0, 2, "two"))
    assert table.log.commit([table.record.to_action()], "MIRROR")
    entry.publish(table.log)
    head = head_of(table)
    first = (head.metadata or {})["snapshots"][-2]["snapshot-id"]
    refs = {"main": {"snapshot-id": first, "type": "branch"}}
    back = (head.metadata or {}) | {"current-snapshot-id": first, "refs": refs}
    (tmp_path / file_of(head.number + 1)).write_bytes(metadata.encode(back))
    (tmp_path / HINT).write_text(str(head.number + 1))
    assert by_pyiceberg(table.place) == {b"a": b"one"}
    entry.publish(anew(table).log)
    check(table)


def test_columns_that_are_added_have_numbers_and_old_files_have_nulls(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    wider = [*table.log.state.fields, delta_field("more", {"type": "struct", "fields": [delta_field("n", "long")]})]
    table.log.commit([{"metaData": table.log.state.metadata | {"schemaString": schema_string(wider)}}], "ADD COLUMNS")
    table.take(("b", 0, 2, "two"))
    check(table)
    read = StaticTable.from_metadata(f"{tmp_path}/_iceberg").scan().to_arrow()
    assert read.column("more").to_pylist() == [None, None]
    table_now, snapshot = current(table)
    assert snapshot["schema-id"] == table_now["current-schema-id"] == 1


def test_each_row_gets_one_id_and_keeps_it_until_it_is_written_anew(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", 0, 1 + key, "one") for key in range(30)])
    table.take(*[(f"n{key}", 1, 1 + key, "one") for key in range(5)])
    table.take(("k0", 0, 100, "two"))
    first = {data.path: data.first_row for data in entries(table, Content.DATA)}
    assert sorted(filter(lambda row: row is not None, first.values())) == [0, 30, 35]
    table_now, snapshot = current(table)
    assert (table_now["next-row-id"], snapshot["first-row-id"], snapshot["added-rows"]) == (36, 35, 1)
    again = anew(table)
    again.take(("k1", 0, 101, "two"))
    assert {data.path: data.first_row for data in entries(again, Content.DATA)}.items() >= first.items()


def entries(table: Table, content: Content) -> list[manifests.ManifestEntry]:
    _, snapshot = current(table)
    loaded = publish.loaded_manifests(table.store, snapshot)
    return [entry for manifest in loaded if manifest.manifest.content is content for entry in manifest.entries]


def test_a_snapshot_tells_what_it_did(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"), ("b", 1, 2, "one"))
    assert current(table)[1]["summary"]["operation"] == "append"
    table.take(("a", 0, 3, "two"))
    summary = current(table)[1]["summary"]
    assert summary["operation"] == "overwrite"
    wanted = {
        "added-data-files": "1",
        "total-data-files": "2",
        "total-records": "3",
        "total-delete-files": "1",
        "total-position-deletes": "1",
        metadata.VERSION: str(table.log.state.version),
        metadata.TABLE: table.log.state.id,
    }
    assert summary.items() >= wanted.items()


def test_files_of_a_snapshot_are_marked_where_they_come_and_go(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    table.take(("b", 1, 2, "one"))
    table.take(("a", 0, 3, "two"))
    _, snapshot = current(table)
    (data,) = (
        manifest for manifest in publish.listed_manifests(table.store, snapshot) if manifest.content is Content.DATA
    )
    listed = publish.listed_in(table.store, data)
    assert sorted(status for status, _ in listed) == [EntryStatus.EXISTING, EntryStatus.ADDED, EntryStatus.DELETED]
    gone = next(each for status, each in listed if status is EntryStatus.DELETED)
    assert gone.snapshot == snapshot["snapshot-id"] and gone.sequence is not None and gone.first_row is not None


def test_manifests_are_few_and_of_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "ENTRIES_MAX", 3)
    table = published(tmp_path)
    for number in range(10):
        table.take((f"k{number}", 0, 1 + number, "one"), ("often", 0, 100 + number, "x"))
    check(table)
    loaded = publish.loaded_manifests(table.store, current(table)[1])
    assert max(sum(manifest.manifest.files) for manifest in loaded) <= 3
    assert len([manifest for manifest in loaded if manifest.manifest.content is Content.DATA]) <= 6


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("warm", [True, False])
def test_a_publication_that_breaks_off_at_any_file_is_done_by_the_next(point: str, warm: bool, tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", 0, 1 + key, "one") for key in range(2000)])
    before, version = by_pyiceberg(tmp_path), table.log.state.version
    with armed(f"iceberg.{point}=raise"), pytest.raises(InjectedFault):
        table.take(*[(f"k{key}", 0, 5000 + key, "two") for key in range(0, 2000, 3)])
    assert table.log.state.version == version + 1
    assert by_pyiceberg(tmp_path) == before, "readers see the version before, whole"
    again = table if warm else anew(table)
    entry.publish(again.log)
    check(again)


def test_a_disk_that_is_full_at_the_hint_leaves_it_behind_and_the_next_puts_it_right(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    with armed("iceberg.after_commit=enospc"), pytest.raises(OSError, match="injected"):
        table.take(("a", 0, 2, "two"))
    assert (tmp_path / HINT).read_text() == "1"
    entry.publish(anew(table).log)
    assert (tmp_path / HINT).read_text() == "2"
    check(table)


@pytest.mark.parametrize("hint", ["", "nonsense", "99", None, "1"])
def test_a_hint_that_is_wrong_or_gone_is_no_matter(hint: str | None, tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    table.take(("a", 0, 2, "two"))
    (tmp_path / HINT).unlink()
    if hint is not None:
        (tmp_path / HINT).write_text(hint)
    again = anew(table)
    entry.publish(again.log)
    check(again)


def test_of_two_processes_both_publish_and_none_an_older_state(tmp_path: Path) -> None:
    one = published(tmp_path)
    one.take(("a", 0, 1, "one"))
    two = anew(one)
    for number in range(3):
        two.take(("a", 0, 10 + number, f"two {number}"))
        one.log.refresh()
        one.take(("b", 1, 20 + number, f"one {number}"))
        check(one)


def test_a_process_that_stood_still_while_another_published_puts_nothing_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow one has all its files for an older version, and comes to its metadata when another is there already."""
    slow = published(tmp_path)
    slow.take(("a", 0, 1, "one"))
    fast = anew(slow)
    put = publish.put

    def stalled(*given: Any) -> None:
        monkeypatch.setattr(publish, "put", put)
        fast.take(("a", 0, 3, "three"))
        put(*given)

    monkeypatch.setattr(publish, "put", stalled)
    slow.take(("a", 0, 2, "two"))
    check(slow)
    assert slow.held() == {"a": "three"}
    versions = [each["summary"][metadata.VERSION] for each in current(slow)[0]["snapshots"]]
    assert versions == sorted(versions, key=int)


def test_a_process_that_stood_still_until_its_base_was_removed_commits_nothing_behind_it(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    stale = head_of(table)
    table.take(("a", 0, 2, "two"))
    for number in (1, 2):
        (tmp_path / file_of(number)).unlink()
    then = publish.MetadataHead(2, stale.content, stale.metadata)
    with pytest.raises(publish._PartedError):
        publish.put(place_of(table.log), stale, then)


class Forgetful(TableStore):
    """A store whose answer to a creation is lost: its library tries again, and finds what it made."""

    def create(self, path: str, content: bytes, before: Any = None) -> bool:
        super().create(path, content, before)
        return super().create(path, content, before)


def test_a_commit_whose_answer_was_lost_is_found(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    head = head_of(table)
    table.log.store = Forgetful(tmp_path)
    table.take(("a", 0, 2, "two"))
    check(table)
    assert head_of(table).number == head.number + 1


@pytest.mark.parametrize("damage", ["metadata", "manifest", "list", "puffin"])
@pytest.mark.parametrize("cut", [True, False])
def test_what_is_damaged_or_gone_is_published_anew(damage: str, cut: bool, tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", 0, 1 + key, "one") for key in range(20)])
    table.take(("k3", 0, 100, None))
    _, snapshot = current(table)
    patterns = {"manifest": "*-m?.avro", "list": "snap-*.avro", "puffin": "*.puffin", "metadata": "v?.metadata.json"}
    for path in (tmp_path / OWN).glob(patterns[damage]):
        if cut or damage == "metadata":
            path.write_bytes(path.read_bytes()[:-9])
        else:
            path.unlink()
    assert entry.differences(table.log) != []
    again = anew(table)
    again.take(("k4", 0, 101, None))
    check(again)
    if damage != "metadata":
        assert current(again)[1]["sequence-number"] > snapshot["sequence-number"]


def test_a_folder_that_was_moved_is_published_where_it_lies(tmp_path: Path) -> None:
    table = published(tmp_path / "a")
    table.take(("a", 0, 1, "one"))
    (tmp_path / "a").rename(tmp_path / "b")
    moved = Table(tmp_path / "b")
    entry.publish(moved.log)
    check(moved)


@pytest.mark.parametrize("call", [entry.publish, vacuum])
def test_nothing_is_published_into_the_folder_of_a_table_that_is_away(
    call: Callable[[TableLog], object], tmp_path: Path
) -> None:
    table = published(tmp_path / "t")
    table.take(("a", 0, 1, "one"))
    (tmp_path / "t").rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(TableAway):
            call(table.log)
        assert not (tmp_path / "t" / "_iceberg").exists()
        Table(tmp_path / "t")  # another one, made there meanwhile


def test_another_table_in_the_same_folder_has_nothing_of_the_first(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    shutil.rmtree(tmp_path / "_delta_log")
    other = published(tmp_path)
    other.take(("b", 0, 1, "one"))
    check(other)
    assert by_pyiceberg(tmp_path) == {b"b": b"one"}
    assert current(other)[0]["table-uuid"] == other.log.state.id != table.log.state.id


def test_what_another_writer_did_to_the_iceberg_table_is_undone_by_the_next_batch(tmp_path: Path) -> None:
    """Its snapshot lacks a file, and has one of its own: the log alone says what the table is."""
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    table.take(("b", 1, 2, "one"))
    head = head_of(table)
    assert head.metadata is not None
    foreign, snapshot = dict(head.metadata), current(table)[1]
    loaded = publish.loaded_manifests(table.store, snapshot)
    kept = [(EntryStatus.EXISTING, loaded[0].entries[0])]
    stranger = manifests.ManifestEntry(f"file://{tmp_path}/stranger.parquet", 1, 1, snapshot=5)
    listed = [*kept, (EntryStatus.ADDED, stranger)]
    schema = metadata.current_schema(foreign)
    assert schema is not None
    packed = manifests.encode(listed, Content.DATA, schema, bytes(16))
    table.store.write(f"{OWN}/foreign.avro", packed)
    place = f"file://{tmp_path}/{OWN}"
    manifest = manifests.described(f"{place}/foreign.avro", packed, Content.DATA, listed, 9, 5, 70)
    table.store.write(f"{OWN}/foreign-list.avro", manifests.encode_list([manifest], 5, None, 9, 70, bytes(16)))
    theirs = {
        "snapshot-id": 5,
        "sequence-number": 9,
        "manifest-list": f"{place}/foreign-list.avro",
        "summary": {"operation": "overwrite"},
        "first-row-id": 70,
        "added-rows": 1,
    }
    made = metadata.with_snapshot(foreign, theirs, 10**13, None)
    table.store.write(file_of(head.number + 1), metadata.encode(made))
    again = anew(table)
    assert any("is not published" in line for line in entry.differences(again.log))
    again.take(("c", 2, 3, "one"))
    check(again)
    assert current(again)[0]["next-row-id"] > 71


def test_a_column_that_iceberg_does_not_get_is_refused_by_name(tmp_path: Path) -> None:
    table = published(tmp_path)
    wider = [*table.log.state.fields, delta_field("document", "variant")]
    table.log.commit([{"metaData": table.log.state.metadata | {"schemaString": schema_string(wider)}}], "ADD COLUMNS")
    with pytest.raises(UnsupportedTable, match=r"document: variant.*UNSET TBLPROPERTIES"):
        entry.publish(table.log)
    with pytest.raises(UnsupportedTable, match=r"document: variant.*--format delta"):
        entry.check_columns("t", wider)


def test_a_damaged_vector_of_the_log_is_not_copied(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", 0, 1 + key, "one") for key in range(2000)])
    number = head_of(table).number
    with unpublished():
        table.take(*[(f"k{key}", 0, 5000 + key, None) for key in range(0, 2000, 3)])
    (vector,) = tmp_path.glob("deletion_vector_*.bin")
    content = bytearray(vector.read_bytes())
    content[40] ^= 1
    vector.write_bytes(content)
    with pytest.raises(CorruptStore, match="size or checksum"):
        entry.publish(table.log)
    assert head_of(table).number == number
    assert list((tmp_path / OWN).glob("*.puffin")) == []


def aged(place: Path, seconds: float) -> None:
    """Let all files be older."""
    for path in place.rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))


def test_a_vacuum_takes_away_what_no_snapshot_needs_and_no_more(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", 0, 1 + key, "one") for key in range(20)])
    for number in range(metadata.SNAPSHOTS_MAX + 5):
        table.take((f"k{number % 20}", 0, 100 + number, "two"))
    (tmp_path / OWN / "left-by-a-kill.puffin").write_bytes(b"x")
    assert entry.unneeded(table.log, time.time()) == []
    aged(tmp_path, 2 * publish.KEPT_SECONDS)
    table.take(("last", 0, 999, "x"))
    gone = vacuum(table.log)
    assert f"{OWN}/left-by-a-kill.puffin" in gone
    assert file_of(1) in gone
    check(table)
    for snapshot in current(table)[0]["snapshots"]:
        loaded = publish.loaded_manifests(table.store, snapshot)
        places = {entry.path for manifest in loaded for entry in manifest.entries}
        assert all(Path(place.removeprefix("file://")).exists() for place in places)


def test_snapshots_whose_data_files_a_vacuum_removes_are_gone_before_them(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", 0, 1 + key, "one") for key in range(20)])
    table.take(*[(f"k{key}", 0, 100 + key, "two") for key in range(20)])
    folds.optimize(table.log, table.indexes, everything=True)
    assert len(current(table)[0]["snapshots"]) > 1
    later = time.time() + 8 * DAY
    aged(tmp_path, 8 * DAY)
    gone = vacuum(table.log, 7 * DAY, later)
    assert any(path.endswith(".parquet") for path in gone)
    assert len(current(table)[0]["snapshots"]) == 1
    check(table)


def test_a_dry_vacuum_changes_nothing(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    with unpublished():
        table.take(("a", 0, 2, "two"))
    before = sorted(path.name for path in (tmp_path / OWN).iterdir())
    vacuum(table.log, 0.0, time.time() + 9 * DAY, dry=True)
    assert sorted(path.name for path in (tmp_path / OWN).iterdir()) == before


def test_a_vacuum_removes_no_data_while_the_iceberg_table_can_not_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = published(tmp_path)
    table.take(*[(f"k{key}", 0, 1 + key, "one") for key in range(20)])
    with unpublished():
        folds.optimize(table.log, table.indexes, everything=True)
    aged(tmp_path, 8 * DAY)
    with armed("iceberg.before_commit=eio"), pytest.raises(OSError, match="injected"):
        vacuum(table.log, 7 * DAY, time.time() + 8 * DAY)
    assert by_pyiceberg(tmp_path) == {f"k{key}".encode(): b"one" for key in range(20)}


def test_a_manifest_that_can_not_be_read_lets_nothing_be_removed(tmp_path: Path) -> None:
    table = published(tmp_path)
    table.take(("a", 0, 1, "one"))
    for path in (tmp_path / OWN).glob("snap-*.avro"):
        path.write_bytes(b"damaged")
    aged(tmp_path, 2 * publish.KEPT_SECONDS)
    assert entry.unneeded(table.log, time.time()) == []


def test_a_fold_whose_publication_fails_is_published_by_the_next_batch(tmp_path: Path) -> None:
    table = published(tmp_path)
    for number in range(3):
        table.take((f"k{number}", 0, 1 + number, "one"))
    files = list(table.log.state.files.values())
    folded = folds.fold(table.store, table.log.state.fields, table.indexes, files)
    with armed("iceberg.before_commit=eio"), pytest.raises(OSError, match="injected"):
        folds.commit(table.log, folded)
    assert by_pyiceberg(tmp_path) == {f"k{number}".encode(): b"one" for number in range(3)}
    table.take(("k9", 0, 9, "one"))
    check(table)


def test_a_table_in_a_folder_of_any_name_is_read(tmp_path: Path) -> None:
    table = published(tmp_path / "a b ü")
    table.take(("a", 0, 1, "one"), ("b", 0, 2, "one"))
    table.take(("a", 0, 3, "two"))
    assert entry.differences(table.log) == []
    assert by_pyiceberg(table.place) == {b"a": b"two", b"b": b"one"}
    if sys.platform == "linux":
        assert by_duckdb(table.place) == {b"a": b"two", b"b": b"one"}


def lines_of(table: Table, wrong: Callable[[dict[str, Any]], None]) -> list[str]:
    """Lines about a table after its newest metadata was changed."""
    path = Path(table.place) / file_of(head_of(table).number)
    read = json.loads(path.read_text())
    wrong(read)
    path.write_text(json.dumps(read))
    return entry.differences(table.log)


def test_an_older_log_that_came_back_is_published_over_a_newer_snapshot(tmp_path: Path) -> None:
    table = published(tmp_path / "t")
    table.take(("a", 0, 1, "one"))
    shutil.copytree(tmp_path / "t" / "_delta_log", tmp_path / "kept")
    table.take(("a", 0, 2, "two"))
    shutil.rmtree(tmp_path / "t" / "_delta_log")
    (tmp_path / "kept").rename(tmp_path / "t" / "_delta_log")
    again = Table(tmp_path / "t")
    entry.publish(again.log)
    check(again)
    assert again.held() == {"a": "one"}


def test_logs_are_followed_by_themselves(tmp_path: Path) -> None:
    one, two = published(tmp_path / "1"), published(tmp_path / "2")
    one.take(("a", 0, 1, "one"))
    two.take(("b", 0, 1, "two"))
    check(one)
    check(two)
    fresh = TableLog(one.store)
    fresh.refresh()
    assert entry.differences(fresh) == []
    assert lines_of(one, lambda read: read.update({"next-row-id": 0})) == [
        f"Iceberg: {entries(one, Content.DATA)[0].path} has rows from id 0, the last before it is 0, the next 0"
    ]
