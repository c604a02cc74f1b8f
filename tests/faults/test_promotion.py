"""Which copy a failover takes, on real nodes: a whole one, not one that fills up; a sound one, not a damaged one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from struct import pack, unpack_from

import pytest

from headwater import testing
from headwater.cluster.failover import Failover, Promotion
from headwater.cluster.founding import found_cluster
from headwater.cluster.members import Members
from headwater.cluster.status import status
from headwater.errors import ClusterError, KeyExists
from headwater.testing.node import Node
from headwater.wire.features import Feature
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State
from tests.cluster.nodes import at, rebalance, until_level
from tests.faults.test_damage import flip, segments
from tests.faults.test_numbers import Producer
from tests.node.membership.support import stats
from tests.node.replication.support import Line, content, until


@contextmanager
def three(**second: int) -> Iterator[tuple[Node, Node, Node]]:
    """An owner of one vbucket and its two replicas."""
    with ExitStack() as stack:
        options = ({}, second, {})
        nodes = [stack.enter_context(testing.node(vbuckets=1, vbucket_state="none", **option)) for option in options]

        async def founded() -> None:
            async with Members("default") as members:
                await found_cluster(members, at(*nodes), 2)

        asyncio.run(founded())
        for node in nodes[1:]:
            until(lambda node=node: stats(node, "vbucket").get("vb_0") == "replica", "it follows")  # type: ignore[misc]
        yield nodes[0], nodes[1], nodes[2]


def fail_over(dead: Node, *others: Node) -> list[Promotion]:
    async def work() -> list[Promotion]:
        async with Members("default") as members:
            return list((await Failover(members, at(*others), at(dead)).run()).promotions)

    return asyncio.run(work())


def problems(node: Node) -> str:
    """The problems that `headwater cluster status` shows."""

    async def work() -> str:
        async with Members("default") as members:
            return "; ".join(status(await members.survey(at(node))).problems)

    return asyncio.run(work())


def persisted(node: Node, *features: int) -> int:
    """How far the node says that its copy of vbucket 0 is on disk (OBSERVE_SEQNO)."""
    with Line(node.port) as line:
        assert line.call(Opcode.HELLO, b"reader", b"".join(pack(">H", code) for code in features)).status == 0
        log = line.call(Opcode.GET_FAILOVER_LOG)
        answer = line.call(Opcode.OBSERVE_SEQNO, b"", log.value[:8])
        return int(unpack_from(">BHQQQ", answer.value)[3])


def test_the_whole_replica_takes_over_though_the_one_that_fills_up_is_further() -> None:
    with three() as (owner, whole, fills):
        owner.kill()
        with closing(Producer(whole)) as producer:
            assert producer.marker(3) == 0
            assert [producer.change(seqno) for seqno in (1, 2, 3)] == [0, 0, 0]
        with closing(Producer(fills)) as producer:  # the documents of before were written again, far behind
            assert producer.marker(500) == 0
            assert [producer.change(seqno) for seqno in (1, 20, 30)] == [0, 0, 0]
        until(lambda: persisted(fills) == 30, "what it received is on disk")
        assert persisted(fills, Feature.COMPLETE_SEQNOS) == 0, "a failover to it takes back all of that"
        assert [(each.chosen, each.seqno) for each in fail_over(owner, whole, fills)] == [(at(whole)[0], 3)]
        assert set(content(whole, 0)) == {b"k1", b"k2", b"k3"}


def test_the_sound_replica_takes_over_and_not_one_whose_scrubber_found_damage() -> None:
    with three(scrub_interval_seconds=1) as (owner, spoiled, sound):
        with owner.client() as bucket:
            for number in range(50):
                bucket.set(f"key-{number}", b"value of some length")
        until_level(owner)
        path = segments(spoiled.data)[-1]
        flip(path, path.read_bytes().rindex(b"key-7") + 3)
        until(lambda: stats(spoiled, "vbucket-details")["vb_0:damaged_changes"] != "0", "the scrubber found it")
        assert f"{spoiled.address} has damaged changes of vbucket 0 on its disk" in problems(owner)
        owner.kill()
        assert [(each.chosen, each.flaw) for each in fail_over(owner, spoiled, sound)] == [(at(sound)[0], "")]
        with sound.client() as bucket:
            assert len(bucket.get_many([b"key-%d" % number for number in range(50)])) == 50


def test_a_takeover_that_was_cut_is_undone_where_the_targets_copy_was_found_damaged_since() -> None:
    """An operator's run died between the states, and a bit flipped at the target: it owned the vbucket all the same."""
    with three(scrub_interval_seconds=1) as (owner, spoiled, _):
        with owner.client() as bucket:
            for number in range(50):
                bucket.set(f"key-{number}", b"value of some length")
        until_level(owner)
        path = segments(spoiled.data)[-1]
        flip(path, path.read_bytes().rindex(b"key-7") + 3)

        async def cut() -> None:
            async with Members("default") as members:
                await members.admin(at(spoiled)[0]).set_state(0, State.PENDING)
                await members.admin(at(owner)[0]).set_state(0, State.DEAD)

        asyncio.run(cut())
        until(lambda: stats(spoiled, "vbucket-details")["vb_0:damaged_changes"] != "0", "the scrubber found it")
        with pytest.raises(ClusterError, match=f"{spoiled.address} has damaged changes of the vbuckets 0"):
            rebalance(owner)
        assert [stats(node, "vbucket")["vb_0"] for node in (owner, spoiled)] == ["active", "replica"]
        with owner.client() as bucket:
            assert len(bucket.get_many([b"key-%d" % number for number in range(50)])) == 50


def test_a_damaged_copy_becomes_active_by_force_alone() -> None:
    with three(scrub_interval_seconds=1) as (owner, spoiled, _):
        with owner.client() as bucket:
            bucket.set("key-7", b"value of some length")
        until_level(owner)
        path = segments(spoiled.data)[-1]
        flip(path, path.read_bytes().rindex(b"key-7") + 3)
        until(lambda: stats(spoiled, "vbucket-details")["vb_0:damaged_changes"] != "0", "the scrubber found it")

        async def promoted() -> list[str]:
            async with Members("default") as members:
                admin, found = members.admin(at(spoiled)[0]), []
                for force in (False, True):
                    with suppress(KeyExists):
                        await admin.set_state(0, State.ACTIVE, force=force)
                    found.append(stats(spoiled, "vbucket")["vb_0"])
                await admin.set_state(0, State.ACTIVE)  # it is that already
                return found

        assert asyncio.run(promoted()) == ["replica", "active"]
