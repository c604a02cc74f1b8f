"""Opening a store whose files were cut, flipped, swapped or lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.errors import CorruptStore, OptionError, StorageError, StoreLocked
from headwater.failpoints import InjectedFault, armed
from headwater.node.storage import batch as batches
from headwater.node.storage.manifest import Manifest
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.segment import HEADER_BYTES, name_of
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import FOLDER, commit, frames, open_store

MANIFEST = FOLDER / "MANIFEST"
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
            store.stage_mutation(vb, b"key %d" % number, b"value %d" % number, cas=1, rev_seqno=1)
            store.stage_mutation(vb, b"again", b"%d" % number, cas=1, rev_seqno=1)
        store.stage_record(0, VBucketRecord(1 + number, ((number + 1, 0),)))
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


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]


def test_a_write_cut_at_any_byte_is_as_if_it_never_happened() -> None:
    disk = FaultyDisk()
    store = three_batches(disk)
    before, start = content(store), store._log.current.end
    store.stage_mutation(0, b"last", b"x" * 40, cas=1, rev_seqno=1)
    store.rollback(1, 2)
    store.stage_mutation(1, b"again", b"y", cas=1, rev_seqno=1)
    commit(store)
    after, end = content(store), store._log.current.end
    files = killed(store, disk)
    for cut in range(start, end + 1):
        whole = files[FIRST]
        torn = image({**files, FIRST: whole[:cut] + bytes(len(whole) - cut)})
        opened = open_store(torn)
        assert content(opened) == (after if cut == end else before)
        opened.stage_mutation(0, b"next", b"z", cas=1, rev_seqno=1)
        commit(opened)
        now = content(opened)
        torn.locks.clear()
        assert content(open_store(torn)) == now


def test_a_file_cut_short_is_a_cut_write_as_well() -> None:
    disk = FaultyDisk()
    store = three_batches(disk)
    files = killed(store, disk)
    end = store._log.current.end
    opened = open_store(image({**files, FIRST: files[FIRST][: end - 1]}))
    assert len(content(opened)[0]) == 3
    assert opened.high_seqno(0) == 4


def sealed_store() -> tuple[dict[Path, bytes], dict[int, list[tuple[int, bytes, bytes]]]]:
    disk = FaultyDisk()
    store = three_batches(disk)
    store.seal()
    store.stage_mutation(0, b"after", b"1", cas=1, rev_seqno=1)
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
    for at in range(HEADER_BYTES, starts[-1]):
        with pytest.raises(CorruptStore) as caught:
            open_store(image({**files, FIRST: flipped(data, at)}))
        assert caught.value.offset in starts
        assert "no interrupted write" in str(caught.value)
        last = caught.value.offset
    assert last == starts[-2]


def test_a_flip_in_the_last_batch_loses_that_batch_or_is_found() -> None:
    disk = FaultyDisk()
    store = three_batches(disk)
    files, after = killed(store, disk), content(store)
    start = files[FIRST].rindex(batches.MAGIC)
    for at in range(start, store._log.current.end):
        opened = open_store(image({**files, FIRST: flipped(files[FIRST], at)}))
        assert content(opened) == {vb: [one for one in seen if one[0] <= 4] or seen for vb, seen in after.items()} or (
            opened.high_seqno(0) == 4
        )


def test_after_a_clean_stop_a_flip_or_a_missing_end_is_damage_wherever_it_is() -> None:
    disk = FaultyDisk()
    three_batches(disk).close()
    files = disk.files()
    end = json.loads(files[MANIFEST].split(b"\n")[1])["clean"]
    for at in range(end):
        with pytest.raises(CorruptStore):
            open_store(image({**files, FIRST: flipped(files[FIRST], at)}))
    for cut in range(HEADER_BYTES, len(files[FIRST][:end].rstrip(b"\0"))):  # zeros at the end come back by themselves
        with pytest.raises(CorruptStore):
            open_store(image({**files, FIRST: files[FIRST][:cut]}))


def test_a_value_that_holds_whole_batches_can_not_be_taken_for_damage() -> None:
    disk = FaultyDisk()
    store = three_batches(disk)
    stolen = killed(store, disk)[FIRST][HEADER_BYTES : store._log.current.end]
    start = store._log.current.end
    store.stage_mutation(0, b"thief", stolen * 3, cas=1, rev_seqno=1)
    commit(store)
    files = killed(store, disk)
    for cut in range(start + 1, store._log.current.end, 13):
        torn = files[FIRST][:cut] + bytes(len(files[FIRST]) - cut)
        assert open_store(image({**files, FIRST: torn})).high_seqno(0) == 6


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
    newer = files[MANIFEST].replace(b"headwater-store 1", b"headwater-store 2")
    with pytest.raises(StorageError, match="format 2; this headwater reads format 1"):
        open_store(image({**files, MANIFEST: newer}))


def test_another_number_of_vbuckets_is_refused_with_the_right_one() -> None:
    files, _ = sealed_store()
    with pytest.raises(OptionError, match="2, with which the store"):
        open_store(image(files), vbuckets=4)


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
    before = content(store)
    store.stage_mutation(0, b"last", b"x" * 40, cas=1, rev_seqno=1)
    commit(store)
    files = killed(store, disk)
    torn = image({**files, FIRST: flipped(files[FIRST], store._log.current.end - 1)})
    for _ in range(5):
        with armed(f"{point}=raise"), pytest.raises((InjectedFault, StorageError)):
            open_store(torn)
        if point == "recover.cut":
            break  # the cut is made
    assert content(open_store(torn)) == before


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
    store.stage_mutation(0, b"k", b"v", cas=1, rev_seqno=1)
    commit(store)
    disk.locks.clear()
    assert not open_store(disk).clean


def test_the_manifest_tells_what_is_there() -> None:
    files, _ = sealed_store()
    manifest = Manifest.decode(files[MANIFEST], MANIFEST)
    assert [entry.id for entry in manifest.segments] == [1, 2]
    assert manifest.segments[0].bytes == len(files[FIRST])
    assert manifest.segments[1].bytes is None
