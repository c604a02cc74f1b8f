"""The store against a model: a list of changes for each vbucket, under everything that can happen to a store."""

from __future__ import annotations

import errno
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.errors import StorageError
from headwater.node.storage.compaction import Compaction
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.views import View
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import Change, History, check_documents, check_view, commit, frames, open_store

VBUCKETS = 2
buckets = st.integers(0, VBUCKETS - 1)
keys = st.sampled_from([b"a", b"b", b"c", b"d", b"a longer key", b"k" * 250])
values = st.one_of(st.binary(max_size=12), st.sampled_from([b"x" * 700, b"y" * 2500]))

State = dict[int, tuple[History, int]]  # vbucket -> (changes, state of its record)


class StoreMachine(RuleBasedStateMachine):
    """`now` is what was staged, `durable` what a crash must leave, `maybe` what it may leave instead."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.store = open_store(self.disk)
        self.now: State = {vb: (History(), 0) for vb in range(VBUCKETS)}
        self.durable = self.copy()
        self.job: Compaction | None = None
        self.steps = 0
        self.views: list[tuple[View, list[Change]]] = []

    def copy(self) -> State:
        return {vb: (history.copy(), state) for vb, (history, state) in self.now.items()}

    @property
    def all_durable(self) -> bool:
        return self.store.staging.room()[1] == 0

    def restore(self, state: State) -> None:
        self.now = {vb: (history.copy(), kind) for vb, (history, kind) in state.items()}
        self.durable = self.copy()

    # ------------------------------------------------------------------ changes

    @rule(vb=buckets, key=keys, value=values)
    def store_a_document(self, vb: int, key: bytes, value: bytes) -> None:
        self.make_room(len(value))
        seqno = self.store.staging.mutation(vb, key, value, cas=1, rev_seqno=1)
        self.now[vb][0].add(seqno, key, value)

    @rule(vb=buckets, key=keys, expired=st.booleans(), gap=st.integers(1, 3))
    def delete_a_document(self, vb: int, key: bytes, expired: bool, gap: int) -> None:
        self.make_room(0)
        seqno = self.store.staging.deletion(
            vb, key, seqno=self.now[vb][0].high + gap, cas=1, rev_seqno=1, delete_time=50, expired=expired
        )
        self.now[vb][0].add(seqno, key, None)

    @rule(vb=buckets, state=st.integers(1, 4))
    def record_a_state(self, vb: int, state: int) -> None:
        self.make_room(0)
        self.store.staging.record(vb, VBucketRecord(state, ((5, 0),)))
        self.now[vb] = (self.now[vb][0], state)

    @rule(vb=buckets, back=st.integers(0, 30))
    def roll_back(self, vb: int, back: int) -> None:
        self.make_room(0)
        history, high = self.now[vb][0], self.now[vb][0].high
        target = max(0, high - back)
        floor = self.store.index.rollback_floor(vb)
        reached = self.store.rollback(vb, target)
        assert reached == (target if target >= floor or target >= high else 0)
        history.keep(reached, high if reached >= high else self.store.index.high_seqno(vb))
        assert reached >= history.high >= (history.changes[-1].seqno if history.changes else 0)

    @rule(vb=buckets)
    def drop(self, vb: int) -> None:
        self.make_room(0)
        self.store.drop(vb)
        self.now[vb] = (History(), 0)

    def make_room(self, size: int) -> None:
        if self.store.staging.room()[1] + size + 700 > len(self.store.staging.room()[0]):
            self.commit()

    @rule()
    def commit(self) -> None:
        commit(self.store)
        self.durable = self.copy()

    # ------------------------------------------------------------------ failures

    @rule(nth=st.integers(1, 9), number=st.sampled_from([errno.EIO, errno.ENOSPC]), seed=st.integers(0, 1 << 32))
    def fail_a_commit(self, nth: int, number: int, seed: int) -> None:
        """Some call of the write fails; what comes after it works again."""
        batch = self.store.freeze()
        if batch is None:
            return
        if seed % 2:
            self.now_staged_behind(seed)
        self.disk.fail(nth, number)
        try:
            self.store.write(batch)
        except StorageError as error:
            self.store.abandon(batch, error)
            self.restore(self.durable)
        else:
            self.store.settle(batch)
            self.disk.heal()
            commit(self.store)
            self.durable = self.copy()
        self.disk.heal()

    def now_staged_behind(self, seed: int) -> None:
        """A change that gathers while the batch is in flight."""
        vb = seed // 2 % VBUCKETS
        if len(self.store.staging.room()[0]) > 700:
            seqno = self.store.staging.mutation(vb, b"behind", b"1", cas=1, rev_seqno=1)
            self.now[vb][0].add(seqno, b"behind", b"1")

    @rule(nth=st.integers(1, 12), seed=st.integers(0, 1 << 32), lose=st.sampled_from([0.0, 0.5, 1.0]))
    def crash(self, nth: int, seed: int, lose: float) -> None:
        """The power goes while a batch is written, or between two."""
        before, after = self.durable, self.copy()
        batch = self.store.freeze()
        if batch is not None:
            self.disk.fail(nth, forever=True)
            try:
                self.store.write(batch)
            except StorageError:
                pass
            else:
                before = after
        self.reopen_from(self.disk.crash(Random(seed), lose))
        made_it = self.matches(after)
        assert not (made_it and self.store.clean and self.durable != after)
        self.restore(after if made_it else before)

    def matches(self, state: State) -> bool:
        try:
            self.check(state)
        except AssertionError:
            return False
        return True

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        self.durable = self.copy()
        self.reopen_from(self.disk)
        assert self.store.clean

    def reopen_from(self, disk: FaultyDisk) -> None:
        self.job, self.views = None, []
        disk.locks.clear()
        disk.heal()
        self.disk, self.store = disk, open_store(disk)

    # ------------------------------------------------------------------ compaction

    @rule(purge=st.booleans(), first=st.integers(0, 3), segments=st.integers(1, 4), history=st.integers(0, 3))
    def begin_compaction(self, purge: bool, history: int, first: int, segments: int) -> None:
        if self.job is None:
            self.store.log.seal()
            self.job = self.store.compact(
                purge_before=100 if purge else 0, history_rows=lambda vb: history, part=slice(first, first + segments)
            )
            self.steps = 0

    @precondition(lambda self: self.job is not None)
    @rule()
    def go_on_compacting(self) -> None:
        assert self.job is not None
        self.steps += 1
        try:
            (self.survey, self.announce, self.copy_rows, self.swap)[self.steps - 1]()
        except StorageError:
            assert self.job.stale
            self.job.cancel()
            self.job = None

    def survey(self) -> None:
        assert self.job is not None
        self.job.survey()

    def announce(self) -> None:
        assert self.job is not None
        self.commit()
        self.job.announce()

    def copy_rows(self) -> None:
        assert self.job is not None
        self.commit()
        self.job.copy()

    def swap(self) -> None:
        assert self.job is not None
        for _ in self.job.swap():
            self.check(self.now)
        self.job.remove()
        self.job.forget()
        self.job = None

    # ------------------------------------------------------------------ views

    @precondition(lambda self: len(self.views) < 4)
    @rule(vb=buckets)
    def open_a_view(self, vb: int) -> None:
        history = self.durable[vb][0]
        purge = self.store.index.purge_seqno(vb)
        view = self.store.view(vb)
        with self.store.view(vb) as same:
            seen = [Change(one.seqno, one.key, None if one.deleted else one.value) for one in frames(same)]
        if self.all_durable:
            assert [one for one in history.newest().values() if one in seen or one.seqno > purge] == seen
        self.views.append((view, seen))

    @precondition(lambda self: self.views)
    @rule(pick=st.integers(0, 3))
    def read_a_view(self, pick: int) -> None:
        view, seen = self.views.pop(pick % len(self.views))
        got = [Change(one.seqno, one.key, None if one.deleted else one.value) for one in frames(view)]
        view.close()
        assert got == seen

    # ------------------------------------------------------------------ what always holds

    def check(self, state: State) -> None:
        for vb, (history, kind) in state.items():
            check_documents(self.store, vb, history)
            record = self.store.staging.records.get(vb)
            assert (record.state if record else 0) == kind

    @invariant()
    def everything_staged_is_there(self) -> None:
        self.check(self.now)

    @invariant()
    def views_show_what_is_durable(self) -> None:
        if self.all_durable:
            for vb, (history, _) in self.now.items():
                check_view(self.store, vb, history)
                for change in history.changes[-3:]:
                    if self.store.index.exact(vb, change.seqno):
                        check_view(self.store, vb, history, change.seqno)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
