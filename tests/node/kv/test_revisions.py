"""Revisions of new keys: above all that was ever deleted in the vbucket, whatever became of the tombstones.

Who resolves conflicts by revision would otherwise prefer a deletion, purged here long ago, to the document that came
after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.testing.node import Node, node
from headwater.wire.numbers import GIVEN_MAX, HELD_MAX
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.replication.support import call, failover_log, put, replicate, set_state, state, until

EVERYTHING = bytes(16) + b"\1" + bytes(7)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Node]:
    with node(vbuckets=2) as running:
        yield running


def revision(at: Node, key: str, vb: int = 0) -> int:
    """As GET_META tells it."""
    answer = call(at, Opcode.GET_META, key.encode(), vbucket=vb)
    assert answer.status == Status.SUCCESS, answer
    return int.from_bytes(answer.extras[12:20])


def delete(at: Node, key: str, vb: int = 0) -> None:
    assert call(at, Opcode.DELETE, key.encode(), vbucket=vb).status == Status.SUCCESS


def delete_at(at: Node, key: str, changes: int, vb: int = 0) -> None:
    """Write a key so often, and delete it: its tombstone has revision changes + 1."""
    for number in range(changes):
        put(at, vb, key, b"%d" % number)
    delete(at, key, vb)
    assert revision(at, key, vb) == changes + 1


def purge(at: Node) -> None:
    assert call(at, Opcode.COMPACT_DB, extras=EVERYTHING).status == Status.SUCCESS


def test_a_new_key_starts_above_the_highest_revision_ever_deleted(owner: Node) -> None:
    put(owner, 0, "before", b"1")
    put(owner, 0, "live2", b"1")
    delete_at(owner, "live1", 2)
    delete(owner, "live2")
    assert call(owner, Opcode.INCREMENT, b"ctr", b"", bytes(8) + bytes(7) + b"\x0a" + bytes(4), 0).status == 0
    put(owner, 0, "set", b"1")
    assert call(owner, Opcode.ADD, b"add", b"1", bytes(8), 0).status == 0
    assert [revision(owner, key) for key in ("before", "ctr", "set", "add")] == [1, 4, 4, 4]
    put(owner, 0, "live2", b"again")
    put(owner, 1, "elsewhere", b"1")
    assert (revision(owner, "live2"), revision(owner, "elsewhere", 1)) == (3, 1)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_it_does_so_after_a_purge_and_a_restart(owner: Node, end: str) -> None:
    delete_at(owner, "gone", 6)
    put(owner, 0, "other", b"1")
    purge(owner)
    assert call(owner, Opcode.GET_META, b"gone").status == Status.KEY_ENOENT
    assert revision(owner, "other") == 8
    if end == "stop":
        owner.stop()
    else:
        owner.kill()
    owner.start()
    put(owner, 0, "gone", b"again")
    assert revision(owner, "gone") == 8


def test_it_does_so_after_a_compaction_that_dropped_a_tombstone_under_its_new_document(owner: Node) -> None:
    delete_at(owner, "back", 6)
    put(owner, 0, "back", b"again")
    for _ in range(200):
        put(owner, 0, "filler", b"1")
    purge(owner)
    owner.kill()
    owner.start()
    put(owner, 0, "new", b"1")
    assert revision(owner, "new") == 8


def test_a_replica_that_was_filled_after_the_purge_does_so_when_it_is_promoted(owner: Node) -> None:
    delete_at(owner, "gone", 6)
    put(owner, 0, "other", b"1")
    purge(owner)
    with node(vbuckets=2, vbucket_state="none") as replica, node(vbuckets=2, vbucket_state="none") as third:
        replicate(replica, owner.address, "0")
        until(lambda: failover_log(replica, 0) == failover_log(owner, 0), "it follows")
        replicate(third, replica.address, "0")
        until(lambda: call(third, Opcode.GET_META, b"other").status != Status.KEY_ENOENT, "the third has it")
        until(lambda: failover_log(third, 0) == failover_log(owner, 0), "it follows")
        owner.kill()
        for promoted in (replica, third):
            promoted.kill()
            promoted.start()
            set_state(promoted, 0, State.ACTIVE)
            put(promoted, 0, "gone", b"again")
            assert revision(promoted, "gone") == 8
    owner.start()


def test_who_takes_a_vbucket_over_does_so(owner: Node) -> None:
    delete_at(owner, "gone", 6)
    put(owner, 0, "other", b"1")
    purge(owner)
    with node(vbuckets=2, vbucket_state="none") as new:
        replicate(new, owner.address, "0", takeover=True)
        until(lambda: state(new, 0) is State.ACTIVE, "the takeover")
        put(new, 0, "gone", b"again")
        assert revision(new, "gone") == 8


def test_a_rolled_back_replica_does_so(owner: Node) -> None:
    """The deletion that was given up may have been seen elsewhere; nothing that comes later may lose to it."""
    with node(vbuckets=2, vbucket_state="none") as replica:
        put(owner, 0, "other", b"1")
        replicate(replica, owner.address, "0")
        until(lambda: failover_log(replica, 0) == failover_log(owner, 0), "it follows")
        until(lambda: call(replica, Opcode.GET_META, b"other").status != Status.KEY_ENOENT, "it has it")
        owner.kill()
        set_state(replica, 0, State.ACTIVE)
        delete_at(replica, "gone", 6)
        set_state(replica, 0, State.REPLICA)
        owner.start()
        put(owner, 0, "other", b"2")
        replicate(replica, owner.address, "0")
        until(lambda: failover_log(replica, 0) == failover_log(owner, 0), "it gave up its branch")
        set_state(replica, 0, State.ACTIVE)
        replica.kill()
        replica.start()
        put(replica, 0, "gone", b"again")
        assert revision(replica, "gone") == 8


def test_a_vbucket_that_was_deleted_begins_anew(owner: Node) -> None:
    delete_at(owner, "gone", 6)
    assert call(owner, Opcode.DEL_VBUCKET).status == Status.SUCCESS
    set_state(owner, 0, State.ACTIVE)
    put(owner, 0, "gone", b"again")
    assert revision(owner, "gone") == 1


@pytest.mark.parametrize("given", [GIVEN_MAX, HELD_MAX])
def test_every_revision_that_a_node_gives_is_one_that_another_takes(owner: Node, given: int) -> None:
    """A backup whose documents have higher ones could not be restored."""
    meta = bytes(8) + given.to_bytes(8) + (1 << 16).to_bytes(8)
    assert call(owner, Opcode.SET_WITH_META, b"end", b"1", meta).status == Status.SUCCESS
    put(owner, 0, "end", b"2")
    delete(owner, "end")
    put(owner, 0, "fast", b"1")
    assert call(owner, Opcode.INCREMENT, b"plain", b"", bytes(8) + bytes(7) + b"\x0a" + bytes(4)).status == 0
    given_by_node = [revision(owner, key) for key in ("end", "fast", "plain")]
    assert given_by_node == [given] * 3
    for number in given_by_node:
        meta = bytes(8) + number.to_bytes(8) + (1 << 17).to_bytes(8)
        assert call(owner, Opcode.SET_WITH_META, b"copy", b"1", meta, 1).status in {Status.SUCCESS, Status.KEY_EEXISTS}


def test_of_versions_with_the_highest_revision_the_newer_one_wins(owner: Node) -> None:
    meta = bytes(8) + GIVEN_MAX.to_bytes(8) + (1 << 16).to_bytes(8)
    assert call(owner, Opcode.SET_WITH_META, b"k", b"old", meta).status == Status.SUCCESS
    put(owner, 0, "k", b"new")
    assert call(owner, Opcode.SET_WITH_META, b"k", b"old", meta).status == Status.KEY_EEXISTS
