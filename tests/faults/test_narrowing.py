"""A rebalance that takes a copy away, on real nodes: what that copy made a majority of stays."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable

import pytest

from headwater.cluster.answers import CopyReport
from headwater.cluster.members import Members
from headwater.cluster.rebalance import Rebalance
from headwater.errors import HeadwaterError
from headwater.testing.node import Node
from headwater.wire.cluster_map import ClusterMap
from tests.cluster.nodes import at
from tests.faults.test_promotion import fail_over, three
from tests.node.test_durable_writes import Writer

KEYS = [b"k%d" % number for number in range(12)]
VALUE = bytes(1 << 20)
"""All of them together are more than sockets hold, so a replica that is stopped can't have been sent all."""


def write_durably(to: Node) -> list[int]:
    with Writer(to.port) as writer:
        return [writer.set(key, VALUE).status for key in KEYS]


def test_a_copy_goes_only_when_the_one_that_stays_has_what_was_acknowledged_while_the_map_was_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replica that stays is paused; the owner and the one that goes acknowledge durable writes; the owner has the
    narrower map, and pauses until it is asked for its seqnos; the owner dies as soon as the copy is deleted."""

    async def work(owner: Node, second: Node, third: Node) -> Node:
        async with Members("default") as members:
            run = Rebalance(members, at(owner), replicas=1)
            (move,) = (await run.plan()).moves
            stays, goes = (second, third) if move.after[1] == at(second)[0] else (third, second)
            assert move.dropped_from == tuple(at(goes))
            asked, leaves = members.admin(at(owner)[0]), members.admin(at(goes)[0])
            set_config, copies, delete = asked.set_config, asked.copies, leaves.delete
            narrowed: list[int] = []

            async def narrow(epoch: int, rev: int, bucket: str, config: bytes) -> None:
                is_narrower = at(goes)[0] not in ClusterMap.from_json(config, at(owner)[0]).copies(0) and not narrowed
                if is_narrower:
                    narrowed.append(rev)
                    os.kill(stays.pid, signal.SIGSTOP)
                    assert set(await asyncio.to_thread(write_durably, owner)) == {0}
                await set_config(epoch, rev, bucket, config)
                if is_narrower:
                    os.kill(owner.pid, signal.SIGSTOP)
                    os.kill(stays.pid, signal.SIGCONT)

            async def wake_and_ask(vbuckets: Iterable[int]) -> dict[int, CopyReport]:
                if owner.is_running:
                    os.kill(owner.pid, signal.SIGCONT)
                return await copies(vbuckets)

            async def delete_and_kill(vbucket: int) -> None:
                await delete(vbucket)
                owner.kill()

            monkeypatch.setattr(asked, "set_config", narrow)
            monkeypatch.setattr(asked, "copies", wake_and_ask)
            monkeypatch.setattr(leaves, "delete", delete_and_kill)
            with pytest.raises(HeadwaterError):  # it goes on to the last map, and the owner is dead
                await run.run()
            return stays

    with three() as nodes:
        stays = asyncio.run(work(*nodes))
        assert [each.chosen for each in fail_over(*nodes)] == at(stays)
        with Writer(stays.port) as reader:
            assert [key for key in KEYS if reader.got(key) != VALUE] == []
