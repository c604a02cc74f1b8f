"""Whom a node calls for which vbucket, over nodes that live in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.simulation.cluster import SimCluster
from harness.simulation.host import Crash
from headwater.node.calling import ProducerAddress
from headwater.node.replication.dialer import RETRY_SECONDS_MAX, Dialer
from headwater.wire.dcp import StreamFlag
from headwater.wire.vbucket import State
from tests.node.support import Desk, desk


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    with SimCluster.running(seed=1) as made:
        for at in range(3):
            made.start(at)
        made.first.set_state(0, 0, State.ACTIVE)
        made.run(0.1)
        made.first.follow(1, 0, 0)
        made.run(0.5)
        yield made


def wants(cluster: SimCluster, at: int) -> bool:
    return cluster.hosts[at].server.first.replication.wants(0)


def test_a_replica_that_was_promoted_while_its_producer_was_away_never_follows_it_again(cluster: SimCluster) -> None:
    cluster.crash(0, Crash.KILL)
    cluster.run(0.1)
    cluster.first.set_state(1, 0, State.ACTIVE)
    cluster.run(0.1)
    cluster.first.set(1, 0, b"key")
    cluster.run(0.1)
    assert cluster.first.acknowledged == 1 and not wants(cluster, 1)
    cluster.first.set_state(1, 0, State.DEAD)  # as in the middle of a takeover
    cluster.start(0)
    cluster.run(30.0)
    assert cluster.hosts[1].store.index.durable_seqno(0) == 1


def test_a_taken_over_vbucket_leaves_its_dialer_also_if_the_end_of_the_stream_never_comes(cluster: SimCluster) -> None:
    cluster.first.follow(1, 0, 0, takeover=True)
    assert cluster.run(5.0, lambda: cluster.hosts[1].bucket.is_active(0))
    cluster.network.cut("n0", "n1")
    cluster.run(5.0)
    assert not wants(cluster, 1)
    cluster.first.set_state(1, 0, State.REPLICA)
    cluster.first.set_state(0, 0, State.ACTIVE)
    cluster.run(0.5)
    cluster.first.follow(1, 0, 0)  # the dialer of before can be used again
    cluster.first.set(0, 0, b"key")
    assert cluster.run(20.0, lambda: cluster.hosts[1].store.index.durable_seqno(0) == 1)


def test_a_producer_that_lets_us_in_only_to_hang_up_is_called_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()

    async def main(counter: Desk) -> None:
        counter.loop = asyncio.get_running_loop()
        enough = asyncio.Event()
        dialer = Dialer(counter, ProducerAddress("127.0.0.1", 1, "default"))  # type: ignore[arg-type]
        dialer.wanted[0] = StreamFlag(0)

        async def connect() -> None:
            dialer._lost.set()

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 10:
                enough.set()
                await counter.loop.create_future()

        monkeypatch.setattr(dialer, "_connect", connect)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        task = counter.loop.create_task(dialer._run())
        await enough.wait()
        task.cancel()

    with desk(tmp_path / "s") as counter:
        asyncio.run(main(counter))
    assert waits[-1] >= RETRY_SECONDS_MAX / 2, waits


@pytest.mark.parametrize("error", [ValueError("never seen before"), OSError("refused")])
def test_whatever_an_attempt_breaks_off_by_another_one_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    problems = list[str]()

    async def main(counter: Desk) -> None:
        counter.loop = asyncio.get_running_loop()
        again = asyncio.Event()
        dialer = Dialer(counter, ProducerAddress("127.0.0.1", 1, "default"))  # type: ignore[arg-type]

        async def connect() -> None:
            if problems:
                again.set()
                await counter.loop.create_future()
            problems.append("")
            raise error

        async def sleep(_: float) -> None:
            problems.append(dialer.problem)

        monkeypatch.setattr(dialer, "_connect", connect)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        dialer.follow([0])
        await asyncio.wait_for(again.wait(), 60)
        dialer.stop()

    with desk(tmp_path / "s") as counter:
        asyncio.run(main(counter))
    assert str(error) in problems[-1]
