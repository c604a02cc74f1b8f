"""The changes that a replica refused: closed by newer versions of keys that are known, kept in a record."""

from __future__ import annotations

from headwater.node.storage.records import VBucketRecord
from headwater.node.vbucket.gap import KEYS_MAX, Gap
from headwater.node.vbucket.prepares import Key
from headwater.wire.header import KEY_BYTES_MAX


def is_closed(gap: Gap, seqnos: dict[Key, int], alive: tuple[int, ...] = (0, 9)) -> bool:
    return gap.is_closed(lambda key: seqnos.get(key, 0), alive)


def gap_of(*keys: Key | None) -> Gap:
    gap = Gap()
    for seqno, key in enumerate(keys, 5):
        gap.add(seqno - 1, key, seqno)
    return gap


def test_a_gap_is_closed_by_a_newer_version_of_each_key() -> None:
    one, two = Key(0, b"one"), Key(9, b"two")
    gap = gap_of(one, two)
    assert (gap.changes, gap.whole_seqno) == (2, 4)
    assert not is_closed(gap, {one: 4, two: 5}) and not is_closed(gap, {one: 9})
    assert is_closed(gap, {one: 9, two: 6})


def test_of_a_collection_that_was_dropped_nothing_is_missing() -> None:
    assert is_closed(gap_of(Key(9, b"k")), {}, alive=(0,))


def test_a_gap_with_a_change_without_a_key_or_with_too_many_keys_is_never_closed() -> None:
    keys = [Key(0, b"%d" % number) for number in range(KEYS_MAX + 1)]
    newest = dict.fromkeys(keys, 99)
    assert is_closed(gap_of(*keys[:-1]), newest)
    assert not is_closed(gap_of(*keys), newest) and not is_closed(gap_of(keys[0], None), newest)
    assert not is_closed(Gap(), newest), "there is none"


def test_a_record_keeps_the_keys() -> None:
    key = Key(0, bytes(range(250)))
    gap = gap_of(key, key)
    record = VBucketRecord(1, refused_changes=2, whole_seqno=4, refused=gap.refused)
    read = VBucketRecord.decode(record.encode())
    again = Gap(read.refused_changes, read.whole_seqno, read.refused)
    assert again.is_named and again.refused == gap.refused
    assert not is_closed(again, {key: 5}) and is_closed(again, {key: 6})


def test_the_record_of_a_full_gap_has_room() -> None:
    """Beside a full failover log and all states that are kept: what a batch sets aside for a record is 4 KiB."""
    big = (1 << 63) - 1
    gap = gap_of(*(Key(0xFFFF_FFFF, bytes([number]) * 250) for number in range(KEYS_MAX)))
    ranges = tuple((big - number, big - number) for number in range(16))
    numbers = dict.fromkeys(("purge_seqno", "snapshot_start", "snapshot_end", "max_cas", "high_seqno"), big)
    record = VBucketRecord(
        2, ((1 << 48, big),) * 25, consistent=ranges, refused_changes=4, whole_seqno=big, refused=gap.refused, **numbers
    )
    assert len(record.encode()) < 4 << 10


def test_a_key_that_is_too_long_for_any_document_is_none() -> None:
    """Such a key may be why a change was refused: four of 64 KiB would make each record of the vbucket 340 KiB long."""
    key = Key(0, bytes(KEY_BYTES_MAX + 1))
    gap = gap_of(key)
    assert (gap.changes, gap.refused) == (1, ()) and not is_closed(gap, {key: 9})
