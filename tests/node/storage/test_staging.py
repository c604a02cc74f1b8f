"""Staging, committing and losing a batch."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.errors import DiskFull, StorageError
from headwater.kernels import history, index, ingest
from headwater.node.storage.records import VBucketRecord, deletion_frame, mutation_frame
from headwater.node.storage.staging import ArenaFull
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import commit, filled, open_store


def test_what_is_staged_is_there_at_once_and_durable_with_its_batch() -> None:
    store = open_store(FaultyDisk())
    assert store.stage_mutation(0, b"k", b"v", cas=5, rev_seqno=1, flags=2, expiry=3, datatype=1) == 1
    found = store.document(0, b"k")
    assert found is not None
    assert (found.value, found.flags, found.expiry, found.datatype, found.durable) == (b"v", 2, 3, 1, False)
    assert (store.high_seqno(0), store.durable_seqno(0), store.items(0)) == (1, 0, 1)
    with store.view(0) as view:
        assert view.nothing
    commit(store)
    found = store.document(0, b"k")
    assert found is not None
    assert found.durable
    assert store.durable_seqno(0) == 1


def test_a_full_arena_asks_for_a_commit() -> None:
    store = open_store(FaultyDisk())
    with pytest.raises(ArenaFull, match="try again after the next commit"):
        for _ in range(20):
            store.stage_mutation(0, b"k", b"x" * 900, cas=1, rev_seqno=1)
    commit(store)
    store.stage_mutation(0, b"k", b"x" * 900, cas=1, rev_seqno=1)


def test_a_full_disk_refuses_documents_but_still_takes_a_state() -> None:
    disk = FaultyDisk(capacity=20_000)
    store = open_store(disk)
    with pytest.raises(DiskFull, match="writing resumes by itself"):
        for _ in range(100):
            store.stage_mutation(0, b"k", b"x" * 2000, cas=1, rev_seqno=1)
            commit(store)
    assert store.full
    store.stage_record(0, VBucketRecord(4))
    commit(store)
    assert store.recovered == {}
    assert int(store.table[0, index.STATE]) == 4


def test_a_seqno_must_be_above_the_high_seqno() -> None:
    store = open_store(FaultyDisk())
    store.stage_mutation(0, b"k", b"", seqno=9, cas=1, rev_seqno=1)
    with pytest.raises(StorageError, match="seqno 9 is not above the high seqno 9"):
        store.stage_mutation(0, b"k", b"", seqno=9, cas=1, rev_seqno=1)


def buffer(*parts: bytes) -> np.ndarray:  # type: ignore[type-arg]
    return np.frombuffer(b"".join(parts), np.uint8).copy()


def test_frames_in_bulk_are_stored_as_they_come_deletions_in_the_form_of_the_log() -> None:
    store = open_store(FaultyDisk())
    mutation = mutation_frame(1, b"k", b"v", seqno=3, cas=4, rev_seqno=5)
    v2 = deletion_frame(1, b"k", seqno=5, cas=4, rev_seqno=6, delete_time=7)
    v1 = bytes([*v2[:4], 18, *v2[5:8], *(len(v2) - 24 - 3).to_bytes(4, "big")]) + b"\0\0\0\x09" + v2[16:24]
    v1 += (8).to_bytes(8, "big") + v2[32:40] + b"\0\0" + b"k"
    staged = store.stage_frames(buffer(mutation, v2, v1), now=99)
    assert staged == (history.DONE, len(mutation) + len(v2) + len(v1), 3, -1)
    commit(store)
    found = store.document(1, b"k")
    assert found is not None
    assert (found.deleted, found.seqno, found.delete_time) == (True, 8, 99)
    assert store.rollback(1, 5) == 5
    found = store.document(1, b"k")
    assert found is not None
    assert (found.seqno, found.delete_time) == (5, 7)


def test_bulk_staging_stops_at_what_is_not_for_it() -> None:
    store = open_store(FaultyDisk())
    good = mutation_frame(1, b"k", b"v", seqno=3, cas=4, rev_seqno=5)
    for bad, code in (
        (good, history.BAD_SEQNO),
        (good[:-1], ingest.PARTIAL),
        (good[:20], ingest.PARTIAL),
        (b"\x80\x56" + good[2:], history.CONTROL),
        (b"\x81" + good[1:], history.CONTROL),
        (mutation_frame(9, b"k", b"v", seqno=4, cas=4, rev_seqno=5), history.BAD_VBUCKET),
        (mutation_frame(1, b"k", b"v", seqno=4, cas=0, rev_seqno=5), history.CONTROL),
        (good[:4] + b"\x1e" + good[5:], history.BAD_KIND),
        (good[:2] + b"\xff\xff" + good[4:], history.BAD_LENGTH),
    ):
        fresh = open_store(FaultyDisk())
        staged = fresh.stage_frames(buffer(good, bad), now=1)
        assert (staged.code, staged.offset, staged.frames) == (code, len(good), 1)
    large = [mutation_frame(0, b"%d" % n, b"x" * 900, seqno=n + 1, cas=1, rev_seqno=1) for n in range(20)]
    data, offset, total = buffer(*large), 0, 0
    while offset < len(data):
        staged = store.stage_frames(data, 1, offset)
        offset, total = staged.offset, total + staged.frames
        commit(store)
    assert total == store.items(0) == 20
    with store.view(0) as view:
        assert len(filled(view)) == len(data)
