"""Expired documents that nobody asks for."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from struct import pack
from unittest.mock import Mock

import pytest

from headwater.errors import CorruptStore
from headwater.node import pager as pager_module
from headwater.node.pager import SLICE, Pager
from headwater.node.storage.staging import ArenaFull
from headwater.node.storage.views import Shown
from headwater.testing.node import node
from headwater.wire.manifest import CollectionsManifest
from headwater.wire.numbers import GIVEN_MAX
from headwater.wire.opcodes import Opcode
from tests.node.aware import manifest
from tests.node.membership.support import stats
from tests.node.replication.support import call, until
from tests.node.support import Desk, Talk


class Loop:
    """An event loop's timers, which run when told to."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Timer]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        self.due.append((delay, timer))
        return timer

    def pass_time(self) -> float:
        """Run the one timer; returns after how many seconds it would have run."""
        ((delay, timer),) = self.due
        self.due.clear()
        timer.callback()
        return delay


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback, self.cancelled = callback, False

    def cancel(self) -> None:
        self.cancelled = True


def pager(counter: Desk, loop: Loop | None = None, interval_seconds: int = 0) -> Pager:
    return Pager(counter.bucket, loop, interval_seconds=interval_seconds)  # type: ignore[arg-type]


def store(talk: Talk, count: int, expiry: int) -> None:
    for number in range(count):
        assert talk.one(1, key=b"k%d" % number, extras=pack(">II", 0, expiry)).status == 0


def test_what_has_expired_becomes_an_expiration_and_nothing_else(talk: Talk, counter: Desk) -> None:
    for number in range(30):
        talk.one(1, key=b"k%d" % number, extras=pack(">II", 0, 10 + number % 3 * 100), vbucket=number % 2)
    made = pager(counter)
    assert made.page() == 0
    counter.clock.seconds += 50
    assert made.page() == 10 and made.page() == 0
    assert counter.store.index.items(0) + counter.store.index.items(1) == 20
    counter.clock.seconds += 100
    assert made.page(limit=4) == 4 and made.page() == 6


def test_an_expiration_keeps_the_time_at_which_the_document_ran_out(talk: Talk, counter: Desk) -> None:
    store(talk, 1, 10)
    ran_out = counter.clock.seconds + 10
    counter.clock.seconds += 50
    assert pager(counter).page() == 1
    found = counter.store.document(0, b"k0")
    assert found is not None
    assert (found.deleted, found.delete_time, found.seqno, found.rev_seqno) == (True, ran_out, 2, 2)
    assert counter.bucket.counters["expired"] == 1 and counter.committer.dirty


@pytest.mark.parametrize(("moment", "expired"), [(9, 0), (10, 1)])
def test_a_document_expires_in_the_second_it_names(talk: Talk, counter: Desk, moment: int, expired: int) -> None:
    store(talk, 1, 10)
    counter.clock.seconds += moment
    assert pager(counter).page() == expired


def test_documents_of_a_dropped_collection_are_left_to_compaction(counter: Desk) -> None:
    """Such rows are shown to nobody: a tombstone for each would be a write of no use, here and at each replica."""
    vbucket, store = counter.bucket.vbuckets[0], counter.store
    vbucket.become(CollectionsManifest.decode(manifest(1, a=8, b=9)), lambda: counter.bucket.next_cas(0))
    past = counter.clock.seconds - 5
    for collection in (8, 8, 9, 0):
        key = b"%d" % store.index.high_seqno(0)
        store.staging.mutation(
            0, key, b"v", cas=counter.bucket.next_cas(0), rev_seqno=1, expiry=past, collection=collection
        )
    vbucket.become(CollectionsManifest.decode(manifest(2, b=9)), lambda: counter.bucket.next_cas(0))
    counter.committer.commit()
    high = store.index.high_seqno(0)
    made = pager(counter)
    assert (made.page(limit=1), made.page(), made.page()) == (1, 1, 0)
    assert store.index.high_seqno(0) == high + 2
    vbucket.roll_back(high - 1)
    assert made.page() == 4, "the drop was taken back"


def test_large_documents_expire_in_several_turns(counter: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager_module, "SLICE_BYTES", 3000)
    past = counter.clock.seconds - 5
    for number in range(5):
        counter.store.staging.mutation(0, b"%d" % number, bytes(1000), cas=1, rev_seqno=1, expiry=past)
    made = pager(counter)
    assert (made.page(), made.page(), made.page()) == (3, 2, 0)


def test_replicas_expire_nothing_by_themselves(talk: Talk, counter: Desk) -> None:
    talk.one(1, key=b"k", extras=pack(">II", 0, 10))
    talk.one(0x3D, extras=b"\2")
    counter.clock.seconds += 50
    assert pager(counter).page() == 0


def test_it_looks_once_in_every_interval(talk: Talk, counter: Desk) -> None:
    loop = Loop()
    store(talk, 2, 10)
    pager(counter, loop, 60).start()
    counter.clock.seconds += 60
    assert loop.pass_time() == 60 and counter.store.index.items(0) == 0
    assert loop.pass_time() == 60


def test_more_than_a_slice_is_gone_on_with_at_once_but_after_the_others(talk: Talk, counter: Desk) -> None:
    loop = Loop()
    store(talk, SLICE + 1, 10)
    pager(counter, loop, 60).start()
    counter.clock.seconds += 60
    assert loop.pass_time() == 60 and counter.store.index.items(0) == 1
    assert loop.pass_time() == 0 and counter.store.index.items(0) == 0
    assert loop.pass_time() == 60


def test_an_interval_of_nothing_means_never(counter: Desk) -> None:
    loop = Loop()
    made = pager(counter, loop)
    made.start()
    made.stop()
    assert loop.due == []


def test_who_was_stopped_looks_no_more(counter: Desk) -> None:
    loop = Loop()
    made = pager(counter, loop, 60)
    made.start()
    made.stop()
    made.stop()
    assert [timer.cancelled for _, timer in loop.due] == [True]


# --------------------------------------------------------------------------- what can not be expired as it should be


@pytest.mark.parametrize(
    ("cas", "rev"), [(GIVEN_MAX, 1), (1, GIVEN_MAX), (GIVEN_MAX, GIVEN_MAX)], ids=["cas", "revision", "both"]
)
def test_the_highest_numbers_that_a_client_may_give_stop_no_expiry_on_the_node(cas: int, rev: int) -> None:
    with node(vbuckets=4, expiry_pager_seconds=1) as running:
        soon = int(time.time()) + 2
        meta = pack(">IIQQ", 0, soon, rev, cas)
        assert call(running, Opcode.SET_WITH_META, b"poison", b"v", meta, 0).status == 0
        for vb in range(4):
            assert call(running, Opcode.SET, b"mortal", b"v", pack(">II", 0, 2), vb).status == 0
        until(lambda: stats(running, "")["curr_items"] == "0", "all have expired")
        assert call(running, Opcode.SET, b"poison", b"again", bytes(8), 0).status == 0
        assert call(running, Opcode.APPEND, b"poison", b" and again", b"", 0).status == 0


def test_a_vbucket_that_fails_is_told_once_and_the_others_expire(
    talk: Talk, counter: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for vb in range(4):
        assert talk.one(1, key=b"k", extras=pack(">II", 0, 10), vbucket=vb).status == 0
    counter.clock.seconds += 50
    whole = counter.store.expired

    def expired(vb: int, now: int, limit: int, alive: Shown) -> list[tuple[bytes, int]]:
        if vb == 1:
            raise CorruptStore(Path("1.log"), 7, "a byte turned over")
        if vb == 2:
            raise struct.error("int too large to convert")
        return whole(vb, now, limit, alive)

    monkeypatch.setattr(counter.store, "expired", expired)
    loop = Loop()
    pager(counter, loop, 60).start()
    assert loop.pass_time() == 60 and loop.pass_time() == 60 and loop.due
    assert [counter.store.index.items(vb) for vb in range(4)] == [0, 1, 1, 0]
    assert [record.getMessage() for record in caplog.records] == [
        "vbucket 1: what has expired can't be turned into tombstones: 1.log: byte 7: a byte turned over; restore the "
        "directory from a copy",
        "vbucket 2: what has expired can't be turned into tombstones: int too large to convert",
    ]


def test_a_full_arena_ends_the_look_and_the_rest_comes_with_the_next(
    talk: Talk, counter: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(talk, 2, 10)
    counter.clock.seconds += 50
    stage = counter.store.staging.deletion
    monkeypatch.setattr(counter.store.staging, "deletion", Mock(side_effect=[stage, ArenaFull(100)]))
    made = pager(counter)
    assert made.page() == 1
    monkeypatch.setattr(counter.store.staging, "deletion", stage)
    assert made.page() == 2
