"""Roles that have to wait: for room in the batch, on the disk, for a batch that was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.node.calling import ProducerAddress
from headwater.node.membership.following import Following
from headwater.node.membership.map import read_map
from headwater.node.membership.reconciler import Reconciler
from headwater.node.membership.roles import News
from headwater.wire.vbucket import State
from tests.node.membership.support import cluster_map
from tests.node.membership.test_following import Dialers
from tests.node.support import Desk, desk


class Rig:
    """A desk, and the map of two nodes of which it is the first."""

    def __init__(self, made: Desk) -> None:
        self.desk, self.bucket, self.dialers = made, made.bucket, Dialers()
        following = Following(self.dialers, lambda at: ProducerAddress(at.host, at.port, "default"))  # type: ignore[arg-type]
        self.reconciler = Reconciler(made, following)  # type: ignore[arg-type]
        self.reconciler.serves = True

    def ask(self, *chains: tuple[int, ...]) -> bool:
        config = cluster_map(1, ["a:1", "b:2"], chains, this=0)
        self.reconciler.known = read_map(config, bucket="default", vbuckets=4)
        self.reconciler.ask(range(4), News.OWNER)
        return self.reconciler.reconcile()

    @property
    def states(self) -> list[State | None]:
        return [self.bucket.state(vb) for vb in range(4)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with desk(tmp_path / "store") as made:
        yield Rig(made)


def test_vbuckets_take_their_roles_and_replicas_follow(rig: Rig) -> None:
    assert rig.ask((0, 1), (1, 0), (1,), (-1,))
    assert rig.states == [State.ACTIVE, State.REPLICA, State.DEAD, State.ACTIVE]
    assert rig.dialers.streams == {1: "b"} and rig.reconciler.waiting == []


def test_without_room_the_rest_waits_for_the_next_batch(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    arena, _ = rig.desk.store.staging.room()
    fills = iter([0, len(arena)])
    monkeypatch.setattr(rig.desk.store.staging, "room", lambda: (arena, next(fills)))
    assert not rig.ask(*[(1, 0)] * 4)
    monkeypatch.undo()
    assert rig.states == [State.REPLICA, *[State.ACTIVE] * 3] and rig.reconciler.waiting == [1, 2, 3]
    assert rig.reconciler.reconcile() and rig.states == [State.REPLICA] * 4


def test_waiting_for_room_ends_with_the_commit(rig: Rig) -> None:
    async def wait() -> None:
        waiter = asyncio.create_task(rig.reconciler.room())
        await asyncio.sleep(0)
        rig.desk.committer.commit()
        await asyncio.wait_for(waiter, 120)

    asyncio.run(wait())


def test_on_a_full_disk_nothing_happens_that_could_not_be_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(rig.desk.store), "full", property(lambda store: True))
    assert not rig.ask(*[(1, 0)] * 4)
    assert rig.states == [State.ACTIVE] * 4


def test_what_comes_back_with_a_lost_batch_is_not_served_and_given_up_again(rig: Rig) -> None:
    rig.desk.loop = asyncio.new_event_loop()
    assert rig.ask((1,), (0,), (0,), (0,))
    batch = rig.desk.store.freeze()
    lost = rig.desk.store.abandon(batch, OSError("gone"))
    for callback in rig.desk.committer.on_failure:
        callback(OSError("gone"), lost)  # type: ignore[operator]
    assert rig.bucket.state(0) is State.ACTIVE and not rig.bucket.is_active(0)
    assert rig.reconciler.reconcile()
    assert rig.bucket.state(0) is State.DEAD and not rig.bucket.fenced
    rig.desk.loop.close()


def test_an_operators_word_lifts_the_fence_of_one_vbucket(rig: Rig) -> None:
    rig.reconciler.serves = False
    rig.bucket.fenced.update(range(4))
    assert rig.ask((0,), (0,), (1, 0), (1,))
    assert rig.bucket.fenced == {0, 1} and rig.states[2:] == [State.REPLICA, State.DEAD]
    rig.reconciler.overruled(1)
    assert rig.bucket.is_active(1) and not rig.bucket.is_active(0)


def test_what_is_active_here_and_anothers_by_the_map_stays_behind_the_fence(rig: Rig) -> None:
    rig.bucket.fenced.update(range(4))
    config = cluster_map(1, ["a:1", "b:2"], [(0,), (1,), (1, 0), (-1,)], this=0)
    rig.reconciler.known = read_map(config, bucket="default", vbuckets=4)
    rig.reconciler.ask(range(4))
    assert rig.reconciler.reconcile()
    assert rig.bucket.fenced == {1, 2} and rig.states == [State.ACTIVE] * 4
