"""The newest seqno of each collection, against a look at every row, under what can happen to a store."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from headwater.errors import StorageError
from headwater.kernels import choices, index
from headwater.kernels.choices import EVENTS_OF_COLLECTIONS
from headwater.node.storage import newest
from headwater.node.storage.records import event_parts
from headwater.node.storage.store import Store
from headwater.node.storage.views import Shown
from headwater.testing.faults import FaultyDisk
from headwater.wire.manifest import EventKind, ManifestEvent
from tests.battery import few_of
from tests.node.storage.model import commit, compact, finish, open_store

VB = 1
IDS = [0, 8, 9, 300]
CHOICES = [[0], [8], [9], [300], [0, 9], [8, 300], [EVENTS_OF_COLLECTIONS + 8], [7, 8, EVENTS_OF_COLLECTIONS + 9], []]
ids = st.sampled_from(IDS)


def shown(numbers: list[int]) -> Shown:
    return np.array(numbers, np.uint64)


def by_looking(store: Store, chosen: Shown) -> int:
    """The newest seqno of a choice, by a look at every row that is durable."""
    rows, columns = store.table.item(VB, index.DURABLE_ROWS), store.index.columns[VB]
    row = int(choices.last_shown(columns.loc, columns.next, 0, rows, store.segments, chosen))
    return columns.seq.item(row) if row >= 0 else 0


class NewestMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.store = open_store(self.disk, arena_bytes=1 << 16)
        self.behind = newest.BEHIND_MAX

    @initialize(behind=st.sampled_from([0, 2, 10_000]))
    def begin(self, behind: int) -> None:
        newest.BEHIND_MAX = behind  # type: ignore[misc]
        self.store.declarations.use_collections()

    def teardown(self) -> None:
        newest.BEHIND_MAX = self.behind  # type: ignore[misc]

    @rule(into=st.lists(ids, min_size=1, max_size=6), is_committed=st.booleans())
    def store_documents(self, into: list[int], is_committed: bool) -> None:
        for number, collection in enumerate(into):
            self.store.staging.mutation(VB, b"%d" % (number % 2), b"v", cas=1, rev_seqno=1, collection=collection)
        if is_committed:
            commit(self.store)

    @rule(key=st.sampled_from([b"a", b"b"]), collection=ids)
    def delete_a_document(self, key: bytes, collection: int) -> None:
        self.store.staging.deletion(VB, key, cas=1, rev_seqno=1, delete_time=50, collection=collection)

    @rule(kind=st.sampled_from([0, 1]), collection=st.sampled_from([8, 9]))
    def create_or_drop(self, kind: int, collection: int) -> None:
        self.store.staging.event(VB, event_parts(ManifestEvent(EventKind(kind), 1, 0, collection)), cas=1)

    @rule()
    def commit(self) -> None:
        commit(self.store)

    @rule()
    def lose_a_batch(self) -> None:
        if (batch := self.store.freeze()) is None:
            return
        self.disk.fail(1, errno.EIO)
        try:
            self.store.write(batch)
        except StorageError as error:
            self.store.abandon(batch, error)
        else:
            self.store.settle(batch)
        self.disk.heal()

    @rule(back=st.integers(1, 4))
    def roll_back(self, back: int) -> None:
        self.store.rollback(VB, max(0, self.store.index.high_seqno(VB) - back))

    @rule(really=st.integers(0, 3))
    def drop(self, really: int) -> None:
        if really == 3:
            self.store.drop(VB)

    @rule(history=st.integers(0, 3))
    def purge(self, history: int) -> None:
        compact(self.store, history_rows=history, purge_before=100)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.disk.locks.clear()
        self.store = open_store(self.disk, arena_bytes=1 << 16)

    @rule(chosen=st.sampled_from(CHOICES), wanted=st.sampled_from([1, len(CHOICES)]))
    def ask(self, chosen: list[int], wanted: int) -> None:
        for each in [chosen, *CHOICES][:wanted]:
            numbers = shown(each)
            expected = (
                by_looking(self.store, numbers) if self.store.index.is_mixed(VB) else self.store.index.durable_seqno(VB)
            )
            assert self.store.newest_seqno(VB, numbers) == expected

    @rule()
    def open_a_view(self) -> None:
        numbers = shown([0, 9])
        if self.store.index.is_mixed(VB):
            with self.store.view(VB, choice=numbers) as view:
                assert (view.end_seqno, view.nothing) == (by_looking(self.store, numbers), view.end_seqno == 0)


TestNewest = NewestMachine.TestCase
TestNewest.settings = settings(
    max_examples=200, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("back_to", [0, 1, 3, "drop"])
def test_after_a_rollback_or_drop_seqnos_that_are_given_again_are_looked_at(back_to: int | str) -> None:
    store = open_store(FaultyDisk(), arena_bytes=1 << 16)
    store.declarations.use_collections()
    stage(store, 0, 8, 9, 8, 9)
    assert [store.newest_seqno(VB, shown([number])) for number in (0, 8, 9)] == [1, 4, 5]
    if isinstance(back_to, str):
        store.drop(VB)
        back_to = 0
    store.rollback(VB, back_to)
    stage(store, 8, 0, 300)
    newest_of_9 = 3 if back_to == 3 else 0
    expected = [back_to + 2, back_to + 1, newest_of_9, back_to + 3]
    assert [store.newest_seqno(VB, shown([number])) for number in (0, 8, 9, 300)] == expected
    store.close()


def stage(store: Store, *collections: int) -> None:
    """A document in each of these collections, durable."""
    for number, collection in enumerate(collections):
        store.staging.mutation(VB, b"%d" % number, b"v", cas=1, rev_seqno=1, collection=collection)
    commit(store)


def test_a_row_is_looked_at_once_however_often_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    kernel = choices.last_shown

    def counting(*arguments: Any) -> int:
        row = int(kernel(*arguments))
        looked.append(int(arguments[3]) - row)
        return row

    store = open_store(FaultyDisk(), arena_bytes=1 << 20, segment_bytes=1 << 22)
    store.declarations.use_collections()
    store.staging.mutation(VB, b"plain", b"v", cas=1, rev_seqno=1)
    for number in range(5000):
        store.staging.mutation(VB, b"%d" % number, b"v", cas=1, rev_seqno=1, collection=8)
    commit(store)
    monkeypatch.setattr(choices, "last_shown", counting)
    for _ in range(3):
        assert store.newest_seqno(VB, shown([0])) == 1
    assert looked == [1, 1, 1], "rows from where the look back began to the one that it found"
    with store.view(VB, choice=shown([0])) as view:
        assert view.end_seqno == 1
    assert looked == [1, 1, 1, 1]
    store.close()


class Purges:
    """A vbucket in small segments whose tombstones are purged, and the newest seqno of each collection by the changes
    themselves. It begins with the default collection alone."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = open_store(FaultyDisk(), arena_bytes=1 << 14)
        self.store.declarations.use_collections()
        self.ids = [0]
        self.changes: list[tuple[int, int]] = []  # (seqno, collection)

    def change(self) -> None:
        for _ in range(self.random.randint(1, 8)):
            collection, key = self.random.choice(self.ids), b"%d" % self.random.randrange(4)
            numbers = {"cas": 1, "rev_seqno": 1, "collection": collection}
            if self.random.random() < 0.6:
                seqno = self.store.staging.deletion(VB, key, delete_time=50, **numbers)
            else:
                seqno = self.store.staging.mutation(VB, key, b"v" * 50, **numbers)
            self.changes.append((seqno, collection))
        commit(self.store)
        self.store.log.seal()

    def purge(self) -> None:
        first, rows = self.random.randrange(len(self.store.log.segments)), self.random.randrange(12)
        part = slice(first, first + self.random.randint(1, 4)) if self.random.random() < 0.7 else slice(None)
        before = self.random.choice((0, 100, 100))
        job = self.store.compact(part=part, history_rows=lambda vb: rows, purge_before=before)
        if job is not None:
            finish(self.store, job)

    def take_back(self) -> None:
        wanted = max(0, self.store.index.high_seqno(VB) - self.random.randrange(16))
        reached = self.store.rollback(VB, wanted)
        self.changes = [(seqno, collection) for seqno, collection in self.changes if seqno <= reached]
        commit(self.store)

    def check(self) -> None:
        for number in self.ids if self.store.index.is_mixed(VB) else []:
            newest = max((seqno for seqno, collection in self.changes if collection == number), default=0)
            assert self.store.newest_seqno(VB, shown([number])) == newest, (number, self.store.index.purge_seqno(VB))


@pytest.mark.parametrize("seed", few_of(range(60), *range(8)))
def test_whatever_is_purged_and_then_taken_back_no_collection_seems_not_to_have_changed(seed: int) -> None:
    """Else who reads that collection alone would go on below a deletion that was purged (failover 2, step 2)."""
    story = Purges(seed)
    for turn in range(14):
        if turn == 4:
            story.ids += [8, 9]
        story.change()
        story.random.choice((story.purge, story.purge, story.take_back))()
        story.check()
    story.store.close()


def test_what_one_vbucket_has_changes_of_the_others_need_not_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket in which many collections were made and dropped has events of all of them in each vbucket."""
    store = open_store(FaultyDisk(), vbuckets=8, arena_bytes=1 << 16)
    store.declarations.use_collections()
    for vb in range(8):
        for collection in range(8, 58):
            store.staging.mutation(vb, b"key", b"v", cas=1, rev_seqno=1, collection=collection)
        if vb == 7:
            store.staging.mutation(vb, b"key", b"v", cas=1, rev_seqno=1, collection=100)
    commit(store)
    looks, note = [0], choices.note_newest

    def counted(*arguments: Any) -> Any:
        looks[0] += 1
        return note(*arguments)

    monkeypatch.setattr(choices, "note_newest", counted)
    assert [store.newest_seqno(vb, shown([57])) for vb in range(8)] == [50] * 8
    assert [store.newest_seqno(vb, shown([100])) for vb in (0, 7)] == [0, 51]
    assert looks[0] <= 51 + 2 * 8
    assert [len(store._newest.numbers(vb)) for vb in (0, 7)] == [50, 51]  # of which there are rows, for a compaction
