"""Damaged data is not served: keys and ranges answer an error, everything else goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.errors import CorruptStore, StorageError
from headwater.node.storage.compaction import Compaction
from headwater.node.storage.quarantine import LOST
from headwater.node.storage.scrub import Damage
from headwater.node.storage.segment import SEGMENT_HEADER_BYTES
from headwater.node.storage.store import Store
from tests.node.storage.test_scrub import commit, damage, flip, starts


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """k0 in vbucket 0, k1 in vbucket 1, k2 in vbucket 0: a batch each, sealed; the middle one is damaged."""
    made = Store.open(tmp_path, vbuckets=2, segment_bytes=1 << 20, arena_bytes=1 << 16)
    for number in range(3):
        made.staging.mutation(number % 2, b"k%d" % number, b"v" * 3000, cas=1, rev_seqno=1)
        commit(made)
    made.log.seal()
    yield made
    made.close()


def spoil(store: Store, batch: int) -> Damage:
    flip(store, starts(store)[batch] + 100)
    (found,) = damage(store)
    return found


def test_a_key_that_was_lost_is_an_error_and_others_are_served(store: Store) -> None:
    assert store.take_out(spoil(store, 2)) == {0}
    with pytest.raises(CorruptStore, match="a part of vbucket 0 can't be read"):
        store.document(0, b"k2")
    assert store.document(0, b"k0") is not None
    assert store.document(0, b"never") is None
    assert store.document(1, b"k1") is not None


def test_a_range_with_lost_changes_is_an_error_and_what_lies_before_or_behind_is_shown(store: Store) -> None:
    store.take_out(spoil(store, 0))
    with pytest.raises(CorruptStore):
        store.view(0)
    with store.view(0, after_seqno=1) as view:
        assert view.count()[0] == 1
    assert [store.quarantine.after(0, seqno) for seqno in (0, 1)] == [True, False]
    assert not store.quarantine.after(1, 0)


def test_each_vbucket_names_the_damage_that_it_met(store: Store) -> None:
    places = starts(store)
    for batch in (0, 1):
        store.take_out(spoil(store, batch))
        flip(store, places[batch] + 100)  # the disk is mended, for the next look; what was taken out stays so
    for vb, key in ((0, b"k0"), (1, b"k1")):
        with pytest.raises(CorruptStore, match=f"byte {places[vb]}: "):
            store.document(vb, key)


def test_damage_that_is_known_is_nothing_new(store: Store) -> None:
    found = spoil(store, 1)
    assert store.take_out(found) == {1}
    assert store.take_out(found) is None
    assert list(store.quarantine.damage) == [(str(found.segment.path), found.offset)]


def test_a_key_that_is_written_anew_is_served_again(store: Store) -> None:
    store.take_out(spoil(store, 1))
    store.staging.mutation(1, b"k1", b"again", cas=2, rev_seqno=2)
    commit(store)
    found = store.document(1, b"k1")
    assert found is not None
    assert found.value == b"again"


def test_a_version_that_was_replaced_is_missed_by_nobody_who_asks_for_the_key(store: Store) -> None:
    store.staging.mutation(1, b"k1", b"newer", cas=2, rev_seqno=2)
    commit(store)
    store.take_out(spoil(store, 1))
    found = store.document(1, b"k1")
    assert found is not None
    assert found.value == b"newer"
    assert store.document(1, b"k") is None


def test_a_vbucket_with_damage_goes_back_to_nothing_and_begins_again(store: Store) -> None:
    store.take_out(spoil(store, 0))
    assert store.rollback(0, 1) == 0
    commit(store)
    assert (store.index.high_seqno(0), store.document(0, b"k0")) == (0, None)
    assert (list(store.quarantine.lost(0)), store.damaged_batches) == ([], 1)  # the next start meets it all the same
    store.staging.mutation(0, b"k0", b"v", cas=3, rev_seqno=1)
    commit(store)
    with store.view(0) as view:
        assert view.count()[0] == 1


def test_a_compaction_that_is_under_way_copies_none_of_it(store: Store) -> None:
    store.log.seal()
    job = store.compact()
    assert job is not None
    job.survey()
    store.take_out(spoil(store, 1))
    job.announce()
    settle_all(store)
    with pytest.raises(StorageError):
        job.copy()
    job.cancel()
    assert (store.index.columns[1].loc[:1] == LOST).all()


@pytest.mark.parametrize("steps", [0, 1])
def test_damage_in_a_new_file_of_a_compaction_is_not_forgotten_by_the_exchange_that_is_under_way(
    store: Store, steps: int
) -> None:
    """Of each vbucket the rows were to point into the damaged file later on: the damage was known, and served."""
    job = copied(store)
    exchange = job.swap()
    for _ in range(steps):
        next(exchange)
    flip(store, store.log.segments[0].end - 100)
    (found,) = damage(store)
    assert store.take_out(found) == {0, 1}
    list(exchange)
    for vb, keys in ((0, (b"k0", b"k2")), (1, (b"k1",))):
        for key in keys:
            with pytest.raises(CorruptStore):
                store.document(vb, key)
    assert (store.slots.readers, store.slots.oldest_retired) == (0, None)
    for vb in (0, 1):
        store.rollback(vb, 0)
    settle_all(store)
    assert store.compact() is not None, "none is under way any more"


def test_no_part_of_the_log_is_compacted_while_rows_are_lost_in_another(tmp_path: Path) -> None:
    """Which rows lie in a file is found by bisection: rows of the last one seemed to lie in none. They were not copied,
    and the file was removed."""
    store = Store.open(tmp_path, vbuckets=1, segment_bytes=1 << 20, arena_bytes=1 << 16)
    for segment in range(3):
        for number in range(4):
            store.staging.mutation(0, b"%d, %d" % (segment, number), b"v" * 3000, cas=1, rev_seqno=1)
        commit(store)
        store.log.seal()
    flip(store, SEGMENT_HEADER_BYTES + 100, segment=1)
    store.take_out(*damage(store))
    with pytest.raises(CorruptStore, match="a part of vbucket 0 can't be read"):
        store.compact(part=slice(2, 3), history_rows=lambda vb: 0)
    for number in range(4):
        found = store.document(0, b"2, %d" % number)
        assert found is not None and found.value == b"v" * 3000
    store.close()


def test_damage_that_is_copied_is_found_before_the_copy_takes_the_place_of_the_file(store: Store) -> None:
    """Its bytes would have a good checksum from then on."""
    job = store.compact()
    assert job is not None
    job.survey()
    job.announce()
    settle_all(store)
    place = starts(store)[1] + 100
    flip(store, place)
    with pytest.raises(CorruptStore, match="the checksum of batch"):
        job.copy()
    job.cancel()
    flip(store, place)
    assert store.document(1, b"k1") is not None


def copied(store: Store) -> Compaction:
    """A compaction whose new files are those of the store, with no row exchanged."""
    job = store.compact()
    assert job is not None
    job.survey()
    job.announce()
    settle_all(store)
    job.copy()
    return job


def settle_all(store: Store) -> None:
    if (batch := store.freeze()) is not None:
        store.write(batch)
        store.settle(batch)


def test_damage_in_a_file_that_the_log_has_left_behind_is_counted_no_more(store: Store) -> None:
    store.take_out(spoil(store, 1))
    assert store.damaged_batches == 1
    (file, *_) = store.log.segments
    store.quarantine.damage = {(f"{file.path}.old", at): each for (_, at), each in store.quarantine.damage.items()}
    assert store.damaged_batches == 0


def test_the_seqnos_of_what_was_lost_are_known(store: Store) -> None:
    assert list(store.quarantine.lost(0)) == []
    store.take_out(spoil(store, 2))
    assert list(store.quarantine.lost(0)) == [2] and list(store.quarantine.lost(1)) == []
