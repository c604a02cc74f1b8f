"""The bucket: recovering vbuckets, telling readers, going back after a lost batch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headwater.node.buckets.bucket import Bucket
from headwater.node.config import NodeConfig
from headwater.node.storage.staging import ArenaFull
from headwater.node.storage.store import Store
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.vbucket import State
from tests.node.support import Clock, Desk, SteppedCommitter, Talk


def reopened(path: Path, *, clean: bool, counter: Desk) -> Bucket:
    """The same store in the next process."""
    counter.committer.commit()
    counter.store.close(clean=clean)
    store = Store.open(path, vbuckets=4)
    bucket = Bucket("default", store, SteppedCommitter(store), clock=Clock())  # type: ignore[arg-type]
    bucket.recover(NodeConfig(vbuckets=4))
    return bucket


def test_a_new_store_gets_its_vbuckets_active_or_none(tmp_path: Path) -> None:
    for state, count in (("active", 4), ("none", 0)):
        store = Store.open(tmp_path / state, vbuckets=4)
        bucket = Bucket("default", store, SteppedCommitter(store))  # type: ignore[arg-type]
        bucket.recover(NodeConfig(vbuckets=4, vbucket_state=state))
        assert len(bucket.vbuckets) == count and len(set(bucket.uuids.tolist()) - {0}) == count
        store.close()


def test_after_a_clean_stop_history_goes_on(talk: Talk, counter: Desk, tmp_path: Path) -> None:
    talk.one(1, key=b"k", extras=bytes(8))
    before = counter.bucket.uuid, counter.bucket.vbuckets[0].failover.entries
    bucket = reopened(tmp_path / "store", clean=True, counter=counter)
    assert (bucket.uuid, bucket.vbuckets[0].failover.entries) == before
    bucket.store.close()


def test_after_an_unclean_stop_every_active_vbucket_begins_a_branch(talk: Talk, counter: Desk, tmp_path: Path) -> None:
    talk.one(1, key=b"k", extras=bytes(8))
    talk.one(0x3D, extras=b"\2", vbucket=3)
    bucket = reopened(tmp_path / "store", clean=False, counter=counter)
    assert [len(bucket.vbuckets[vb].failover) for vb in range(4)] == [2, 2, 2, 1]
    assert bucket.vbuckets[0].failover.newest.seqno == 1
    assert bucket.uuids[0] == bucket.vbuckets[0].failover.newest.vb_uuid
    bucket.store.close()


def test_a_bucket_made_anew_in_the_same_place_has_another_uuid(tmp_path: Path) -> None:
    uuids = set()
    for _ in range(2):
        store = Store.open(tmp_path / "store", vbuckets=4)
        uuids.add(Bucket("default", store, SteppedCommitter(store)).uuid)  # type: ignore[arg-type]
        store.close()
        shutil.rmtree(tmp_path / "store")
    assert len(uuids) == 2


def test_a_stop_is_unclean_even_if_nobody_wrote_anything_since_the_start(counter: Desk, tmp_path: Path) -> None:
    bucket = reopened(tmp_path / "store", clean=True, counter=counter)
    bucket.committer.commit()  # type: ignore[attr-defined]
    bucket.store.close(clean=False)
    store = Store.open(tmp_path / "store", vbuckets=4)
    assert not store.clean
    store.close()


class Reader:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.position = 0

    def advanced(self) -> None:
        self.heard.append("advanced")

    def state_changed(self) -> None:
        self.heard.append("state")

    def rolled_back(self) -> None:
        self.heard.append("back")

    def damaged(self) -> None:
        self.heard.append("damaged")


def test_readers_hear_of_their_own_vbucket_only(talk: Talk, counter: Desk) -> None:
    readers = [Reader(), Reader()]
    for vb, reader in enumerate(readers):
        counter.bucket.vbuckets[vb].readers.add(reader)
    talk.one(1, key=b"k", extras=bytes(8), vbucket=1)
    counter.committer.commit()
    counter.committer.commit()
    assert [reader.heard for reader in readers] == [[], ["advanced"]]


def test_a_lost_batch_takes_state_changes_and_documents_back(talk: Talk, counter: Desk) -> None:
    talk.one(1, key=b"k", extras=bytes(8), value=b"durable")
    counter.committer.commit()
    talk.one(1, key=b"k", extras=bytes(8), value=b"lost")
    talk.one(0x3D, extras=b"\4", vbucket=2)
    reader = Reader()
    counter.bucket.vbuckets[2].readers.add(reader)
    batch = counter.store.freeze()
    assert batch is not None
    error = OSError("gone")
    lost = counter.store.abandon(batch, error)
    for callback in counter.committer.on_failure:
        callback(error, lost)  # type: ignore[operator]
    assert lost == [2] and counter.bucket.state(2) is State.ACTIVE and reader.heard == ["state"]
    assert talk.one(0, key=b"k").value == b"durable"
    assert talk.one(1, key=b"k", extras=bytes(8), vbucket=2).status == 0


def test_a_drop_without_room_leaves_the_vbucket_and_is_done_once_there_is_room(talk: Talk, counter: Desk) -> None:
    """Gone in memory only, it would leave its rows to the next vbucket of that number."""
    talk.one(1, key=b"k", extras=bytes(8), value=b"v", vbucket=1)
    counter.committer.commit()
    talk.one(1, key=b"k", extras=bytes(8), value=b"v", vbucket=2)
    batch, delete = counter.store.freeze(), Frame(0x80, 0x3F, vbucket=1).encode()
    assert batch is not None
    counter.store.staging._room = 0  # until this batch is on the disk
    with pytest.raises(ArenaFull):
        counter.bucket.drop_vbucket(1)
    assert counter.bucket.state(1) is State.ACTIVE and talk.one(0, key=b"k", vbucket=1).value == b"v"
    assert talk.give(delete) == 0
    counter.store.write(batch)
    counter.store.settle(batch)
    counter.committer.commit()
    assert talk.give(delete) == len(delete)
    (answer,) = FrameBuffer().receive_data(talk.bytes_sent())
    assert answer.status == 0 and counter.bucket.state(1) is None and counter.store.index.rows(1) == 0
