"""The operators of a simulated cluster: their work is the product's own code, run as a process that may be killed.

    await do(Work.FAILOVER, desk, seeds, node)

An operator that is refused tries again for a while, as people do. It uses only what the product reports, and nothing
that only the simulation knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from enum import Enum
from random import Random

from headwater.client.routing import Address
from headwater.cluster import buckets, collections, users
from headwater.cluster.failover import Failover, FailoverPlan
from headwater.cluster.founding import found_cluster
from headwater.cluster.known import bucket_nodes
from headwater.cluster.members import Members
from headwater.cluster.proxied import Limits
from headwater.cluster.rebalance import Rebalance
from headwater.cluster.refusals import FailoverRefusal
from headwater.errors import ClusterError, HeadwaterError

BUCKET = "default"
SECOND_BUCKET = "orders"
WITHOUT_HISTORY = "c1"
"""One of the collections that come and go: readers of every version get the last versions of it."""
HISTORY_SECONDS = (0, 1, 5, 30, 86_400)
HISTORY_BYTES = (0, 0, 1 << 20, 1 << 30)
ANSWER_SECONDS = 2.0
AGAIN_SECONDS = 2.0
CLASH = "are not of one bucket"
"""A part of the refusal to join two nodes of which each has collections that the other lacks."""
LIMITS = Limits(connect_seconds=ANSWER_SECONDS, answer_seconds=5.0, handover_seconds=20.0, patience_seconds=15.0)


class Work(Enum):
    """The kinds of an operator's work."""

    FAILOVER = "failover"
    FORCED_FAILOVER = "failover --force"
    UNASKED_FAILOVER = "failover --accept unknown"
    ADD = "rebalance --add"
    REMOVE = "rebalance --remove"
    REPLICAS = "rebalance --replicas"
    COLLECTION = "collection"
    MAKE_BUCKET = "bucket create"
    DROP_BUCKET = "bucket drop"
    PURGE = "purge"
    HISTORY = "bucket history"


_ACCEPTED: dict[Work, Collection[FailoverRefusal]] = {
    Work.FAILOVER: (),
    Work.UNASKED_FAILOVER: (FailoverRefusal.UNKNOWN,),
    Work.FORCED_FAILOVER: tuple(FailoverRefusal),
}
LOGIN: tuple[str | None, str | None] = (None, None)
"""The operators' name and password in the present world; None for both if it has no users."""


def login_options() -> dict[str, str]:
    """Return the operators' name and password as options of readers and writers; empty without logins."""
    return {name: text for name, text in zip(("user", "password"), LOGIN, strict=True) if text is not None}


def members(bucket: str = BUCKET) -> Members:
    """Return the nodes as an operator connects to them."""
    return Members(bucket, *LOGIN, timeout_seconds=ANSWER_SECONDS)


async def make_cluster(nodes: Sequence[Address], replicas: int) -> None:
    """Send the nodes their first map."""
    async with members() as connected:
        await found_cluster(connected, nodes, replicas)


async def do(
    work: Work, seeds: Sequence[Address], node: Address, random: Random, attempts: int = 4, *, bucket: str = BUCKET
) -> bool:
    """Do a piece of work, again if it is refused; return True if it succeeded."""
    return len(await refusals(work, seeds, node, random, attempts, bucket=bucket)) < attempts


async def refusals(
    work: Work, seeds: Sequence[Address], node: Address, random: Random, attempts: int = 4, *, bucket: str = BUCKET
) -> list[HeadwaterError]:
    """Do a piece of work, again if it is refused; return the refusals, as many as attempts if it did not succeed."""
    found: list[HeadwaterError] = []
    while len(found) < attempts:
        if found:
            await asyncio.sleep(AGAIN_SECONDS)
        try:
            async with members(bucket) as connected:
                await _once(work, connected, seeds, node, random)
        except HeadwaterError as error:
            found.append(error)
        else:
            break
    return found


async def fail_over_at_a_loss(
    seeds: Sequence[Address], node: Address, bucket: str, look: Callable[[FailoverPlan], None]
) -> None:
    """Fail a node over at any loss; `look` is called with the plan before."""
    others = [seed for seed in seeds if seed != node]
    async with members(bucket) as connected:
        failover = Failover(connected, others, [node], force=True, lose_data=True)
        look(await failover.plan())
        await failover.run()


async def is_outside(seeds: Sequence[Address], node: Address, bucket: str = BUCKET) -> bool:
    """Return True if the others' map is without a node, by the first answer of one of them; False if none answers."""
    others = [seed for seed in seeds if seed != node]
    try:
        async with members(bucket) as connected:
            survey = await connected.survey(others, without=[node])
    except HeadwaterError:
        await asyncio.sleep(AGAIN_SECONDS)
        return False
    return node not in survey.map.servers


def proposes_loss(refusal: HeadwaterError) -> bool:
    """Return True if a refusal proposes an option by which data may be lost."""
    return isinstance(refusal, ClusterError) and any(each in refusal.advice for each in ("--lose-data", "--accept"))


def proposed_by_all(refusals: Sequence[HeadwaterError]) -> set[FailoverRefusal]:
    """Return the refusals that every refused failover proposes to override if the dead node never comes back."""
    return {each for each in FailoverRefusal if all(_proposes(each, refusal) for refusal in refusals)}


def _proposes(option: FailoverRefusal, refusal: HeadwaterError) -> bool:
    return isinstance(refusal, ClusterError) and option.option in refusal.advice


async def _once(work: Work, connected: Members, seeds: Sequence[Address], node: Address, random: Random) -> None:
    others = [seed for seed in seeds if seed != node] or [node]
    if work in _ACCEPTED:
        await Failover(connected, others, [node], accept=_ACCEPTED[work]).run()
    elif work is Work.ADD:
        await Rebalance(connected, others, add=[node], limits=LIMITS, vbuckets_at_once=random.choice([1, 2, 8])).run()
    elif work is Work.REMOVE:
        await Rebalance(connected, others, remove=[node], limits=LIMITS).run()
    elif work is Work.REPLICAS:
        await Rebalance(connected, others, replicas=random.randrange(1, 3), limits=LIMITS).run()
    elif work is Work.COLLECTION:
        await _collection(connected, others, random)
    elif work is Work.MAKE_BUCKET:
        await buckets.create(connected, others, buckets.BucketWish(SECOND_BUCKET))
    elif work is Work.DROP_BUCKET:
        await buckets.drop(connected, others, SECOND_BUCKET)
    elif work is Work.HISTORY:
        await buckets.keep_history(
            connected, others, BUCKET, random.choice(HISTORY_SECONDS), random.choice(HISTORY_BYTES)
        )
    else:
        await _purge(connected, node)


async def _collection(connected: Members, seeds: Sequence[Address], random: Random) -> None:
    path = collections.CollectionPath("shop", f"c{random.randrange(3)}")
    known = await collections.current(connected, seeds)
    making = collections.creation(path, history=path.collection != WITHOUT_HISTORY)
    edit = collections.removal(path) if path.is_in(known) else making
    await collections.change(connected, seeds, edit)


async def _purge(connected: Members, node: Address) -> None:
    admin = connected.admin(node)
    for vbucket in await admin.states():
        await admin.purge(vbucket, 0)


async def make_whole(nodes: Sequence[Address], seconds: float, bucket: str = BUCKET) -> str:
    """Bring all nodes into a bucket's cluster and finish all open work; return the reason why that fails, "" if it
    succeeds.
    """
    loop = asyncio.get_running_loop()
    until, problem = loop.time() + seconds, ""
    while loop.time() < until:
        try:
            async with members(bucket) as connected:
                await _settle(connected, nodes)
        except HeadwaterError as error:
            problem = str(error)
            if CLASH in problem:
                await _drop_collections_of_strangers(nodes, bucket)
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            return ""
    return problem


async def _drop_collections_of_strangers(nodes: Sequence[Address], bucket: str) -> None:
    """Drop the collections that a refusal names as strange.

    A machine with another disk is a cluster of its own, and an operator who names it alone creates collections there.
    """
    async with members(bucket) as connected:
        for node in nodes:
            with suppress(HeadwaterError):
                is_member = node in (await connected.survey(nodes)).map.servers
                if not is_member and await bucket_nodes(connected, [node]) == [node]:
                    await collections.drop_everywhere(connected, [node], collections.CollectionPath("shop"))


async def _settle(connected: Members, nodes: Sequence[Address]) -> None:
    survey = await connected.survey(nodes)
    outside = [node for node in nodes if node not in survey.map.servers]
    await Rebalance(connected, nodes, add=outside, limits=LIMITS).run()


__all__ = ["Work", "do", "make_cluster", "make_whole", "members", "users"]
