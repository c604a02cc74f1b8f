"""The prepares of a vbucket, as its log tells them: staged, over, and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import DiskFull
from headwater.node.storage.staging import CONTROL_RESERVE_BYTES
from headwater.node.storage.store import Store
from headwater.node.vbucket.prepares import Key, VBucketPrepares
from headwater.wire import dcp

K, OTHER = Key(0, b"k"), Key(8, b"k")


def prepare(key: bytes = b"\0k", value: bytes = b"v") -> dcp.Prepare:
    return dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=key, value=value, cas=1 << 16)


def commit(store: Store) -> None:
    batch = store.freeze()
    assert batch is not None
    store.write(batch)
    store.settle(batch)


def again(path: Path) -> tuple[Store, VBucketPrepares]:
    store = Store.open(path, vbuckets=2)
    found = VBucketPrepares(0, store, lambda: {0, 8})
    found.read()
    return store, found


@pytest.mark.parametrize("how", ["waits", "commits", "aborts", "a document behind it"])
def test_what_waits_is_what_the_log_says_after_the_store_was_opened_again(tmp_path: Path, how: str) -> None:
    store, prepares = again(tmp_path)
    assert prepares.add(prepare()) == 1 and prepares.add(prepare(b"\x08k")) == 2
    if how == "commits":
        assert prepares.commit(K, 5) == 3 and dict(prepares.committed(0, 9)) == {3: 1}
    if how == "aborts":
        assert prepares.abort(K, 5) == 3
    if how == "a document behind it":
        store.staging.mutation(0, b"k", b"w", cas=2 << 16, rev_seqno=1)
    commit(store)
    store.close()
    store, prepares = again(tmp_path)
    assert prepares.pending == ({K: 1, OTHER: 2} if how == "waits" else {OTHER: 2})
    assert store.index.high_seqno(0) == (2 if how == "waits" else 3)
    found = store.document(0, b"k")
    assert (None if found is None else found.value) == {"commits": b"v", "a document behind it": b"w"}.get(how)
    store.close()


def test_a_rollback_between_prepare_and_commit_lets_it_wait_again(tmp_path: Path) -> None:
    store, prepares = again(tmp_path)
    prepares.add(prepare())
    prepares.commit(K, 5)
    commit(store)
    store.rollback(0, 1)
    prepares.read()
    assert prepares.pending == {K: 1} and store.document(0, b"k") is None
    assert prepares.commit(K, 5) == 2
    store.close()


def test_the_manifest_says_that_programs_of_before_do_not_know_prepares(tmp_path: Path) -> None:
    store, prepares = again(tmp_path)
    assert (tmp_path / "MANIFEST").read_bytes().split()[1] == b"2"
    prepares.add(prepare())
    assert (tmp_path / "MANIFEST").read_bytes().split()[1] == b"4"
    store.close()


def test_the_newest_that_waits_at_or_below_a_seqno(tmp_path: Path) -> None:
    store, prepares = again(tmp_path)
    prepares.add(prepare())
    prepares.add(prepare(b"\x08k"))
    assert [prepares.newest(seqno) for seqno in (0, 1, 2, 9)] == [0, 1, 2, 2]
    store.close()


def test_a_document_for_whose_mark_there_is_no_room_is_not_staged_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, prepares = again(tmp_path)
    prepares.add(prepare(value=bytes(1000)))
    commit(store)
    room = (
        CONTROL_RESERVE_BYTES + 1000 + 100
    )  # of a disk that is nearly full: the document fits, the mark behind it does not
    monkeypatch.setattr(type(store.log), "room", property(lambda log: room))
    monkeypatch.setattr(store.log, "make_room", lambda control=0: None)
    store.staging.take_back()
    with pytest.raises(DiskFull):
        prepares.commit(K, 5)
    assert store.index.high_seqno(0) == 1 and prepares.pending == {K: 1}
    monkeypatch.undo()
    store.staging.take_back()
    assert prepares.commit(K, 5) == 2
    store.close()
