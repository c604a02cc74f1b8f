"""Each single call to the disk fails once, in a run that does everything a store does; then the power goes."""

from __future__ import annotations

import errno
from random import Random

import pytest

from headwater.errors import StorageError
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import History, check_documents, check_view, commit, open_store

State = dict[int, History]


class Run:
    """A fixed sequence of changes; `durable` is what was promised, `maybe` what may have happened as well."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk
        self.now: State = {0: History(), 1: History()}
        self.durable = self.maybe = self.copy()
        self.store: Store | None = None

    def copy(self) -> State:
        return {vb: history.copy() for vb, history in self.now.items()}

    def everything(self) -> None:
        store = self.store = open_store(self.disk)
        for number in range(4):
            self.changes(store, number)
            self.commit(store)
        self.now[0].keep(store.rollback(0, 12), 12)
        self.commit(store)
        self.compact(store)
        self.changes(store, 9)
        self.now[1] = History()
        store.drop(1)
        self.commit(store)
        self.changes(store, 10)
        self.maybe = self.copy()
        store.close()
        self.durable = self.copy()

    def changes(self, store: Store, number: int) -> None:
        for vb in (0, 1):
            for key in (b"a", b"b", b"%d" % number, b"big"):
                value = b"x" * 1200 if key == b"big" else b"%d" % number
                self.now[vb].add(store.staging.mutation(vb, key, value, cas=1, rev_seqno=1), key, value)
            self.now[vb].add(store.staging.deletion(vb, b"b", cas=1, rev_seqno=1, delete_time=5), b"b", None)
        store.staging.record(0, VBucketRecord(1, ((number + 1, 0),)))

    def commit(self, store: Store) -> None:
        self.maybe = self.copy()
        commit(store)
        self.durable = self.copy()

    def compact(self, store: Store) -> None:
        store.log.seal()
        job = store.compact(purge_before=10, history_rows=lambda vb: 2)
        assert job is not None
        job.survey()
        job.announce()
        self.changes(store, 5)
        self.commit(store)
        job.copy()
        for _ in job.swap():
            pass
        job.remove()
        job.forget()

    def check(self, store: Store) -> None:
        """The store holds one of the two states, wholly."""
        problems = []
        for state in (self.durable, self.maybe):
            try:
                for vb, history in state.items():
                    check_documents(store, vb, history)
                    check_view(store, vb, history)
            except AssertionError as problem:
                problems.append(problem)
            else:
                return
        raise ExceptionGroup("neither state is there", problems)


def calls_of_a_whole_run() -> int:
    disk = FaultyDisk()
    Run(disk).everything()
    return disk.calls


@pytest.mark.parametrize("lose", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_whichever_call_fails_nothing_promised_is_lost_and_nothing_invented(number: int, lose: float) -> None:
    total, failed = calls_of_a_whole_run(), 0
    for nth in range(1, total + 1):
        disk = FaultyDisk()
        disk.fail(nth, number)
        run = Run(disk)
        try:
            run.everything()
        except StorageError:
            failed += 1
        after = disk.crash(Random(nth), lose)
        run.check(open_store(after))
    # The others are calls the store can do without, or do again with room that it has in reserve.
    assert failed > total // (4 if number == errno.ENOSPC else 2)


def test_a_store_that_saw_an_error_goes_on_when_the_disk_is_well_again() -> None:
    for nth in range(8, calls_of_a_whole_run() + 1):
        disk = FaultyDisk()
        run = Run(disk)
        store = run.store = open_store(disk)
        disk.fail(nth - disk.calls if nth > disk.calls else 1)
        for number in range(6):
            run.changes(store, number)
            batch = store.freeze()
            assert batch is not None
            try:
                store.write(batch)
            except StorageError as error:
                store.abandon(batch, error)
                run.now = {vb: history.copy() for vb, history in run.durable.items()}
            else:
                store.settle(batch)
                run.durable = run.copy()
            run.maybe = run.durable
            run.check(store)
            assert not store.full
        disk.heal()
        store.close()
        run.check(open_store(disk))


def test_a_full_disk_refuses_changes_keeps_serving_and_goes_on_by_itself() -> None:
    disk = FaultyDisk(capacity=40_000)
    run = Run(disk)
    store = run.store = open_store(disk)
    number = 0
    while not store.full:
        run.changes(store, number)
        run.commit(store)
        number += 1
    assert number > 3
    run.check(store)
    disk.capacity = None
    assert not store.full
    run.changes(store, number)
    run.commit(store)
    store.close()
    run.check(open_store(disk))
