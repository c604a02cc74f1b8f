"""Roles that have to wait: for room in the batch, on the disk, for a batch that was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.node.calling import ProducerAddress
from headwater.node.membership.following import Following
from headwater.node.membership.map import read_map
from headwater.node.membership.reconciler import LOST_SECONDS, Reconciler
from headwater.node.membership.roles import News
from headwater.wire.vbucket import State
from tests.node.membership.support import cluster_map
from tests.node.membership.test_following import Dialers
from tests.node.support import Desk, desk


class Loop:
    """A loop that calls back when the test says so, and notes how long that was to take."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._callbacks: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0.0, callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.waits.append(seconds)
        self._callbacks.append(callback)

    def run_all(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


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


def test_on_a_full_disk_what_needs_no_record_is_served(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that started again refused all reads until there was room, though it knew that all of it was its own."""
    monkeypatch.setattr(type(rig.desk.store), "full", property(lambda store: True))
    rig.bucket.fence(range(4))
    assert not rig.ask((1, 0), (0, 1), (0, 1), (-1,))
    assert rig.bucket.fenced == {0} and rig.reconciler.waiting == [0] and rig.states == [State.ACTIVE] * 4
    assert rig.dialers.streams == {}
    rig.bucket.fence(range(4))
    assert rig.ask(*[(0, 1)] * 4), "nothing is left to be done"
    assert not rig.bucket.fenced


def lose_the_batch(rig: Rig) -> None:
    batch = rig.desk.store.freeze()
    lost = rig.desk.store.abandon(batch, OSError("gone"))
    for callback in rig.desk.committer.on_failure:
        callback(OSError("gone"), lost)  # type: ignore[operator]


@pytest.fixture
def loop(rig: Rig) -> Iterator[Loop]:
    rig.desk.loop = made = Loop()  # type: ignore[assignment]
    yield made


def test_what_comes_back_with_a_lost_batch_is_not_served_and_given_up_again(rig: Rig, loop: Loop) -> None:
    assert rig.ask((1,), (0,), (0,), (0,))
    lose_the_batch(rig)
    assert rig.bucket.state(0) is State.ACTIVE and not rig.bucket.is_active(0)
    loop.run_all()
    assert rig.bucket.state(0) is State.DEAD and not rig.bucket.fenced


def test_what_was_given_up_once_and_taken_over_since_is_kept_when_another_record_is_lost(rig: Rig, loop: Loop) -> None:
    """The next map is not there yet, as behind an operator who was killed, and a compaction notes what it purges."""
    assert rig.ask((1, 0), (0,), (0,), (0,))
    rig.desk.committer.commit()
    rig.bucket.vbuckets[0].set_state(State.ACTIVE, new_branch=False)
    rig.desk.committer.commit()
    rig.desk.store.staging.record_again(0)
    rig.desk.committer.wrote()
    lose_the_batch(rig)
    loop.run_all()
    assert rig.bucket.is_active(0)


def test_a_replica_whose_first_batch_was_lost_is_made_again_and_follows(rig: Rig, loop: Loop) -> None:
    rig.bucket.drop_vbucket(0)
    rig.desk.committer.commit()
    assert rig.ask((1, 0), (0,), (0,), (0,)) and rig.dialers.streams == {0: "b"}
    lose_the_batch(rig)
    rig.dialers.streams.clear()  # as a dialer does that finds no such vbucket
    assert rig.bucket.state(0) is None
    loop.run_all()
    assert rig.bucket.state(0) is State.REPLICA and rig.dialers.streams == {0: "b"}


def test_a_dead_vbucket_whose_batch_as_a_replica_was_lost_becomes_one_again(rig: Rig, loop: Loop) -> None:
    rig.bucket.vbuckets[0].set_state(State.DEAD)
    rig.desk.committer.commit()
    assert rig.ask((1, 0), (0,), (0,), (0,))
    lose_the_batch(rig)
    assert rig.bucket.state(0) is State.DEAD
    loop.run_all()
    assert rig.bucket.state(0) is State.REPLICA


def test_roles_are_not_taken_again_at_once_while_each_batch_is_lost(rig: Rig, loop: Loop) -> None:
    rig.ask((1, 0), (0,), (0,), (0,))
    for _ in range(3):
        lose_the_batch(rig)
        loop.run_all()
        assert rig.bucket.state(0) is State.REPLICA
    assert loop.waits == [LOST_SECONDS] * 3


def test_an_operators_word_lifts_the_fence_of_one_vbucket(rig: Rig) -> None:
    rig.reconciler.serves = False
    rig.bucket.fenced.update(range(4))
    assert rig.ask((0,), (0,), (1, 0), (1,))
    assert rig.bucket.fenced == {0, 1} and rig.states[2:] == [State.REPLICA, State.DEAD]
    rig.reconciler.overruled(1)
    assert rig.bucket.is_active(1) and not rig.bucket.is_active(0)


@pytest.mark.parametrize("stop", ["made dead", "deleted"])
def test_a_fenced_vbucket_that_an_operator_stops_is_fenced_again_when_that_is_lost(
    rig: Rig, loop: Loop, stop: str
) -> None:
    """A node came back, its disk failed as a rebalance stopped it, and it served the vbucket by its old map."""
    rig.reconciler.serves = False
    rig.bucket.fence(range(4))
    assert rig.ask((0,), (0,), (0,), (0,))
    if stop == "deleted":
        rig.bucket.drop_vbucket(0)
    else:
        rig.bucket.vbuckets[0].set_state(State.DEAD)
        rig.reconciler.overruled(0)
    assert 0 not in rig.bucket.fenced
    lose_the_batch(rig)
    assert rig.bucket.state(0) is State.ACTIVE and not rig.bucket.is_active(0)
    loop.run_all()
    assert not rig.bucket.is_active(0)
    rig.reconciler.serves = True
    assert rig.ask((0,), (0,), (0,), (0,)) and rig.bucket.is_active(0)


def test_a_fence_that_ended_with_a_batch_on_disk_stays_away(rig: Rig, loop: Loop) -> None:
    rig.bucket.fence([0])
    rig.bucket.vbuckets[0].set_state(State.DEAD)
    rig.reconciler.overruled(0)
    rig.desk.committer.commit()
    rig.bucket.vbuckets[0].set_state(State.ACTIVE)
    rig.desk.committer.commit()
    rig.bucket.vbuckets[0].set_state(State.REPLICA)
    lose_the_batch(rig)
    assert rig.bucket.is_active(0)


def test_what_is_active_here_and_anothers_by_the_map_stays_behind_the_fence(rig: Rig) -> None:
    rig.bucket.fenced.update(range(4))
    config = cluster_map(1, ["a:1", "b:2"], [(0,), (1,), (1, 0), (-1,)], this=0)
    rig.reconciler.known = read_map(config, bucket="default", vbuckets=4)
    rig.reconciler.ask(range(4))
    assert rig.reconciler.reconcile()
    assert rig.bucket.fenced == {1, 2} and rig.states == [State.ACTIVE] * 4
