"""Opening a store whose files were cut, flipped, swapped or lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from headwater.errors import CorruptStore, OptionError, StorageError, StoreLocked
from headwater.failpoints import InjectedFault, armed
from headwater.node.storage import batch as batches
from headwater.node.storage.manifest import Manifest
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.segment import SEGMENT_HEADER_BYTES, name_of
from headwater.node.storage.store import Store
from headwater.node.storage.synced import Note
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import FOLDER, commit, frames, open_store

MANIFEST = FOLDER / "MANIFEST"
SYNCED = FOLDER / "SYNCED"
FIRST, SECOND = FOLDER / name_of(1), FOLDER / name_of(2)


def content(store: Store) -> dict[int, list[tuple[int, bytes, bytes]]]:
    seen = {}
    for vb in range(len(store.table)):
        with store.view(vb) as view:
            seen[vb] = [(one.seqno, one.key, one.value) for one in frames(view)]
    return seen


def three_batches(disk: FaultyDisk) -> Store:
    store = open_store(disk)
    for number in range(3):
        for vb in (0, 1):
            store.staging.mutation(vb, b"key %d" % number, b"value %d" % number, cas=1, rev_seqno=1)
            store.staging.mutation(vb, b"again", b"%d" % number, cas=1, rev_seqno=1)
        store.staging.record(0, VBucketRecord(1 + number, ((number + 1, 0),)))
        commit(store)
    return store


def image(files: dict[Path, bytes]) -> FaultyDisk:
    disk = FaultyDisk()
    for path, data in files.items():
        disk.put(path, data)
    return disk


def killed(store: Store, disk: FaultyDisk) -> dict[Path, bytes]:
    """The files as they are when the process dies now."""
    return disk.files()


def under_way(store: Store, disk: FaultyDisk, before: dict[Path, bytes]) -> dict[Path, bytes]:
    """The files as they are when the process dies before the last write returned, as far as that got: all of it."""
    return {**killed(store, disk), SYNCED: before[SYNCED]}


def killed_before_the_sync(disk: FaultyDisk, batches_before: int) -> None:
    """A process writes some batches, and dies when one more is written and not synced: the page cache has it all."""
    store = open_store(disk)
    for number in range(batches_before):
        store.staging.mutation(0, b"key %d" % number, b"x" * 900, cas=1, rev_seqno=1)
        commit(store)
    store.staging.mutation(0, b"last", b"x" * 900, cas=1, rev_seqno=1)
    with armed("log.before_sync=raise"), pytest.raises((InjectedFault, StorageError)):
        commit(store)
    disk.locks.clear()


def power_cut(disk: FaultyDisk) -> FaultyDisk:
    """The disk after a power cut that loses everything that was not synced."""
    return disk.crash(Random(1), lose=1.0)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]


def test_a_write_cut_at_any_byte_is_as_if_it_never_happened() -> None:
    disk = FaultyDisk()
    store = three_batches(disk)
    before, start, earlier = content(store), store.log.current.end, killed(store, disk)
    store.staging.mutation(0, b"last", b"x" * 40, cas=1, rev_seqno=1)
    store.rollback(1, 2)
    store.staging.mutation(1, b"again", b"y", cas=1, rev_seqno=1)
    commit(store)
    after, end = content(store), store.log.current.end
    files = under_way(store, disk, earlier)
    for cut in range(start, end + 1):
        whole = files[FIRST]
        torn = image({**files, FIRST: whole[:cut] + bytes(len(whole) - cut)})
        opened = open_store(torn)
        assert content(opened) == (after if cut == end else before)
        opened.staging.mutation(0, b"next", b"z", cas=1, rev_seqno=1)
        commit(opened)
        now = content(opened)
        torn.locks.clear()
        assert content(open_store(torn)) == now


def test_what_was_synced_and_is_not_there_is_damage_at_any_byte() -> None:
    """Cut or zeroed, flipped or in the last batch: whoever was told of it must not find out by himself."""
    disk = FaultyDisk()
    store = three_batches(disk)
    files, end = killed(store, disk), store.log.current.end
    for at in range(SEGMENT_HEADER_BYTES, len(files[FIRST][:end].rstrip(b"\0"))):
        for spoiled in (files[FIRST][:at].ljust(len(files[FIRST]), b"\0"), flipped(files[FIRST], at)):
            damaged = image({**files, FIRST: spoiled})
            before = damaged.files()
            with pytest.raises(CorruptStore) as caught:
                open_store(damaged)
            assert caught.value.path == FIRST and caught.value.offset <= at
            assert damaged.files() == before


def test_an_open_file_keeps_its_size_so_one_that_is_shorter_was_cut() -> None:
    disk = FaultyDisk()
    store = three_batches(disk)
    files, end, size = killed(store, disk), store.log.current.end, store.log.current.size
    for length in (end - 1, end, size - 1):
        with pytest.raises(CorruptStore, match=f"was made with {size} bytes"):
            open_store(image({**files, FIRST: files[FIRST][:length]}))


def test_a_file_of_before_sizes_and_notes_is_cut_as_ever() -> None:
    disk = FaultyDisk()
    store = three_batches(disk)
    files, end = killed(store, disk), store.log.current.end
    old = replace(store.log.current.header, size=0).encode() + files.pop(FIRST)[SEGMENT_HEADER_BYTES:]
    del files[SYNCED]
    image_of_before = image({**files, FIRST: old[: end - 1]})
    opened = open_store(image_of_before)
    assert len(content(opened)[0]) == 3
    assert opened.index.high_seqno(0) == 4
    commit(opened)
    opened.close()
    assert open_store(image_of_before).clean


def test_a_note_that_was_lost_by_a_power_cut_claims_too_little_and_nothing_is_refused() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    notes = [killed(store, disk)[SYNCED]]
    for number in range(3):
        store.staging.mutation(0, b"k", b"%d" % number, cas=1, rev_seqno=1)
        commit(store)
        notes.append(killed(store, disk)[SYNCED])
    seen = content(store)
    for note in notes:
        assert content(open_store(image({**killed(store, disk), SYNCED: note}))) == seen


def test_notes_that_are_damaged_or_of_another_store_are_named() -> None:
    files, _ = sealed_store()
    for data, why in (
        (bytes(len(files[SYNCED])), "neither of the two"),
        (files[SYNCED][:40], "neither of the two"),
        (Note(b"another store ..", 1, 64, 0, 9).encode(), "another one"),
    ):
        with pytest.raises(CorruptStore, match=why) as caught:
            open_store(image({**files, SYNCED: data}))
        assert caught.value.path == SYNCED


def sealed_store() -> tuple[dict[Path, bytes], dict[int, list[tuple[int, bytes, bytes]]]]:
    disk = FaultyDisk()
    store = three_batches(disk)
    store.log.seal()
    store.staging.mutation(0, b"after", b"1", cas=1, rev_seqno=1)
    commit(store)
    return killed(store, disk), content(store)


def test_every_flipped_bit_of_a_sealed_segment_is_found_and_its_file_named() -> None:
    files, _ = sealed_store()
    for at in range(len(files[FIRST])):
        damaged = image({**files, FIRST: flipped(files[FIRST], at)})
        before = damaged.files()
        with pytest.raises(CorruptStore) as caught:
            open_store(damaged)
        assert caught.value.path == FIRST
        assert caught.value.offset <= at
        assert str(FIRST) in str(caught.value)
        assert damaged.files() == before


def test_every_flipped_bit_of_the_manifest_is_found() -> None:
    files, _ = sealed_store()
    for at in range(len(files[MANIFEST]) - 1):
        with pytest.raises(StorageError):
            open_store(image({**files, MANIFEST: flipped(files[MANIFEST], at)}))


def test_a_damaged_batch_in_front_of_a_whole_one_is_no_cut_write() -> None:
    disk = FaultyDisk()
    files, last = killed(three_batches(disk), disk), 0
    data = files[FIRST]
    starts = [at for at in range(len(data)) if data.startswith(batches.MAGIC, at)]
    for at in range(SEGMENT_HEADER_BYTES, starts[-1]):
        with pytest.raises(CorruptStore) as caught:
            open_store(image({**files, FIRST: flipped(data, at)}))
        assert caught.value.offset in starts
        assert "no interrupted write" in str(caught.value)
        last = caught.value.offset
    assert last == starts[-2]


def test_a_whole_batch_whose_last_bytes_are_a_hole_proves_that_the_damaged_one_was_no_cut_write() -> None:
    """Some file systems keep zeros as a hole; a power cut takes the note away, so only the later batch tells."""
    disk = FaultyDisk()
    store = three_batches(disk)
    place = store.log.segments[-1].end
    store.staging.mutation(0, b"zeros", bytes(900), cas=1, rev_seqno=1)
    commit(store)
    files = killed(store, disk)
    data_ends_at = len(files[FIRST].rstrip(b"\0"))
    assert place < data_ends_at < store.log.segments[-1].end - 800
    files.pop(SYNCED)
    first_body = SEGMENT_HEADER_BYTES + batches.BATCH_HEADER_BYTES
    for at in (first_body + 8, place - 8):
        with pytest.raises(CorruptStore, match="is whole, so this was no interrupted write"):
            open_store(image(files | {FIRST: flipped(files[FIRST], at)}))


def test_a_flip_in_a_last_batch_that_nobody_was_told_of_loses_that_batch() -> None:
    disk = FaultyDisk()
    store = three_batches(disk)
    files, before = killed(store, disk), content(store)
    store.staging.mutation(0, b"last", b"", cas=1, rev_seqno=1)
    commit(store)
    files = under_way(store, disk, files)
    for at in range(files[FIRST].rindex(batches.MAGIC), store.log.current.end):
        assert content(open_store(image({**files, FIRST: flipped(files[FIRST], at)}))) == before


def test_after_a_clean_stop_a_flip_or_a_missing_end_is_damage_wherever_it_is() -> None:
    disk = FaultyDisk()
    three_batches(disk).close()
    files = disk.files()
    end = json.loads(files[MANIFEST].split(b"\n")[1])["clean"]
    for at in range(end):
        with pytest.raises(CorruptStore):
            open_store(image({**files, FIRST: flipped(files[FIRST], at)}))
    for cut in range(
        SEGMENT_HEADER_BYTES, len(files[FIRST][:end].rstrip(b"\0"))
    ):  # zeros at the end come back by themselves
        with pytest.raises(CorruptStore):
            open_store(image({**files, FIRST: files[FIRST][:cut]}))


def test_a_value_that_holds_whole_batches_can_not_be_taken_for_damage() -> None:
    disk = FaultyDisk()
    store = three_batches(disk)
    earlier, start = killed(store, disk), store.log.current.end
    stolen = earlier[FIRST][SEGMENT_HEADER_BYTES:start]
    store.staging.mutation(0, b"thief", stolen * 3, cas=1, rev_seqno=1)
    commit(store)
    files = under_way(store, disk, earlier)
    for cut in range(start + 1, store.log.current.end, 13):
        torn = files[FIRST][:cut] + bytes(len(files[FIRST]) - cut)
        assert open_store(image({**files, FIRST: torn})).index.high_seqno(0) == 6


def test_a_sealed_file_may_neither_be_shorter_nor_another_nor_missing() -> None:
    files, _ = sealed_store()
    other, _ = sealed_store()
    for wrong, why in (
        (files[FIRST][:-1], "sealed with"),
        (files[FIRST][:10], "sealed with"),
        (files[SECOND], "another one"),
        (other[FIRST].replace(b"value 1", b"value 2"), "checksum"),
    ):
        with pytest.raises(CorruptStore, match=why):
            open_store(image({**files, FIRST: wrong}))
    with pytest.raises(CorruptStore, match="is missing"):
        open_store(image({path: data for path, data in files.items() if path != FIRST}))


def test_segments_without_a_manifest_are_never_taken_for_an_empty_store() -> None:
    files, _ = sealed_store()
    with pytest.raises(CorruptStore, match="manifest is missing"):
        open_store(image({path: data for path, data in files.items() if path != MANIFEST}))


def test_a_newer_format_is_refused_in_one_line() -> None:
    files, _ = sealed_store()
    newer = files[MANIFEST].replace(b"headwater-store 2", b"headwater-store 6")
    with pytest.raises(StorageError, match="format 6; this headwater reads up to format 5"):
        open_store(image({**files, MANIFEST: newer}))


def test_another_number_of_vbuckets_is_refused_with_the_right_one() -> None:
    files, _ = sealed_store()
    with pytest.raises(OptionError, match="2, with which the store"):
        open_store(image(files), vbuckets=4)


def test_a_new_store_has_as_many_vbuckets_as_couchbase_has_and_another_keeps_its_own() -> None:
    files, _ = sealed_store()
    assert len(open_store(image(files), vbuckets=0).table) == 2
    assert len(open_store(FaultyDisk(), vbuckets=0).table) == 128


def test_a_store_is_opened_by_one_process_at_a_time() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    with pytest.raises(StoreLocked):
        open_store(disk)
    store.close()
    open_store(disk)


def test_files_that_no_manifest_names_are_removed() -> None:
    files, seen = sealed_store()
    disk = image({**files, FOLDER / name_of(77): b"left over", FOLDER / "MANIFEST.new": b"half"})
    assert content(open_store(disk)) == seen
    assert set(disk.files()) == set(files)


@pytest.mark.parametrize("point", ["recover.indexed", "recover.cut"])
def test_recovery_that_is_interrupted_can_be_run_again(point: str) -> None:
    disk = FaultyDisk()
    store = three_batches(disk)
    before, earlier = content(store), killed(store, disk)
    store.staging.mutation(0, b"last", b"x" * 40, cas=1, rev_seqno=1)
    commit(store)
    files = under_way(store, disk, earlier)
    torn = image({**files, FIRST: flipped(files[FIRST], store.log.current.end - 1)})
    for _ in range(5):
        with armed(f"{point}=raise"), pytest.raises((InjectedFault, StorageError)):
            open_store(torn)
        if point == "recover.cut":
            break  # the cut is made
    assert content(open_store(torn)) == before


@pytest.mark.parametrize("batches_before", range(12))
def test_a_batch_that_a_start_finds_whole_is_on_the_disk_before_it_counts(batches_before: int) -> None:
    """Also where the start goes on in a new segment at once, as the batch used the old one up."""
    disk = FaultyDisk()
    killed_before_the_sync(disk, batches_before)
    seen = content(open_store(disk))
    assert b"last" in [key for _, key, _ in seen[0]]
    assert content(open_store(power_cut(disk))) == seen


def test_a_batch_whose_sync_failed_is_written_again_by_the_start_that_finds_it_whole() -> None:
    """The kernel counts pages that it could not write as written: a sync alone would succeed and prove nothing."""
    disk = FaultyDisk()
    store = three_batches(disk)
    store.staging.mutation(0, b"last", b"x" * 900, cas=1, rev_seqno=1)
    disk.fail(2)  # the sync, behind the write
    with pytest.raises(StorageError):
        commit(store)
    disk.locks.clear()
    seen = content(open_store(disk))
    assert content(open_store(power_cut(disk))) == seen


def test_a_start_that_can_not_sync_the_last_batch_is_refused_and_the_next_start_has_it() -> None:
    disk = FaultyDisk()
    killed_before_the_sync(disk, 3)
    files = disk.files()
    for nth in (1, 2, 3):  # the sync of the folder, the write, its sync
        disk.fail(nth)
        with pytest.raises(StorageError, match=f"{FOLDER}: .* while opening the store"):
            open_store(disk)
        assert disk.files() == files
    seen = content(open_store(disk))
    assert b"last" in [key for _, key, _ in seen[0]]
    assert content(open_store(power_cut(disk))) == seen


def test_what_a_start_found_whole_and_made_durable_is_missed_when_it_is_gone() -> None:
    disk = FaultyDisk()
    killed_before_the_sync(disk, 1)
    end = open_store(disk).log.current.end
    files = disk.files()
    with pytest.raises(CorruptStore):
        open_store(image({**files, FIRST: flipped(files[FIRST], end - 1)}))


def test_a_manifest_that_a_start_finds_is_on_the_disk_before_a_batch_relies_on_it() -> None:
    """The process was killed between the rename of a manifest and the sync of the folder."""
    disk = FaultyDisk()
    store = three_batches(disk)
    with armed("segment.after_manifest=raise"), pytest.raises((InjectedFault, StorageError)):
        store.log.seal()
    disk.locks.clear()
    store = open_store(disk)
    assert len(store.log.segments) == 2
    store.staging.mutation(0, b"acknowledged", b"1", cas=1, rev_seqno=1)
    commit(store)
    assert content(open_store(power_cut(disk))) == content(store)


def test_records_come_back_the_newest_of_each_vbucket() -> None:
    disk = FaultyDisk()
    three_batches(disk)
    disk.locks.clear()
    store = open_store(disk)
    assert store.recovered == {0: VBucketRecord(3, ((3, 0),), high_seqno=6)}
    assert not store.clean


def test_a_new_store_is_clean_and_so_is_one_that_was_closed() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    assert store.clean
    store.close()
    store = open_store(disk)
    assert store.clean
    store.staging.mutation(0, b"k", b"v", cas=1, rev_seqno=1)
    commit(store)
    disk.locks.clear()
    assert not open_store(disk).clean


def test_the_manifest_tells_what_is_there() -> None:
    files, _ = sealed_store()
    manifest = Manifest.decode(files[MANIFEST], MANIFEST)
    assert [entry.id for entry in manifest.segments] == [1, 2]
    assert manifest.segments[0].bytes == len(files[FIRST])
    assert manifest.segments[1].bytes is None
