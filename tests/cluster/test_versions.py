"""Every version of a document at the node that takes a vbucket over: after a failover, a takeover and a rollback."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from headwater import client
from headwater.client import Before, Lack
from headwater.client.changes import Mutation, SnapshotMarker
from headwater.client.durability import DurabilityChoice
from headwater.cluster import buckets
from headwater.cluster.collections import CollectionPath, Edit, alteration, change, creation
from headwater.cluster.failover import Failover
from headwater.cluster.members import Members
from headwater.testing.node import Node
from headwater.wire.vbucket import vbucket_of

from .contents import vbuckets
from .nodes import VBUCKETS, at, empty_nodes, init, rebalance, until_level

KEYS = [f"key-{number}" for number in range(60)]
PLAIN = CollectionPath("shop", "plain")
Versions = dict[str, list[str]]


def keep_history(seed: Node) -> None:
    async def work() -> None:
        async with Members() as members:
            await buckets.keep_history(members, at(seed), "default", 3600, None)

    asyncio.run(work())


def fail_over(seed: Node, dead: Node, *, force: bool = False) -> None:
    async def work() -> None:
        async with Members() as members:
            await Failover(members, at(seed), at(dead), force=force).run()

    asyncio.run(work())


def write(
    to: Node, ledger: Versions, values: Iterable[str], keys: Iterable[str] = KEYS, durability: DurabilityChoice = None
) -> None:
    """Write each key with each value, and note it."""
    with client.connect(to.url, timeout_seconds=60.0) as bucket:
        for value in values:
            for key in keys:
                bucket.set(key, value, durability=durability)
                ledger[key].append(value)


def check_before(change: Mutation, older: list[str], *, is_whole: bool) -> None:
    """A change comes with the version in front of it; where some are missing, with none that is a wrong one."""
    if change.before is Lack.NOT_KEPT:
        assert not is_whole
    elif change.before is None:
        assert not older
    else:
        assert isinstance(change.before, Before) and (change.before.text == older[-1] if older else not is_whole)


def read(seed: Node) -> tuple[Versions, list[SnapshotMarker]]:
    """Return the versions of each document in order, and the markers of snapshots that lack some. What each change
    replaced is checked."""
    versions: Versions = defaultdict(list)
    lacking = []
    with client.connect(seed.url) as bucket, bucket.changes(until="now", before=True, markers=True) as changes:
        for event in changes:
            if isinstance(event, SnapshotMarker) and event.is_deduplicated:
                lacking.append(event)
            elif isinstance(event, Mutation):
                check_before(event, versions[event.key.decode()], is_whole=not lacking)
                versions[event.key.decode()].append(event.value.decode())
    return versions, lacking


def test_after_a_failover_the_new_owner_shows_every_version_durable_writes_among_them() -> None:
    with empty_nodes(2) as nodes:
        one, two = nodes
        init(*nodes, replicas=1)
        keep_history(one)
        ledger: Versions = defaultdict(list)
        write(one, ledger, "abc")
        write(one, ledger, "de", KEYS[:20], "majority")
        write(one, ledger, "fg")
        until_level(*nodes)
        one.kill()
        fail_over(two, one)
        assert read(two) == (ledger, [])
        write(two, ledger, "hi")
        assert read(two) == (ledger, [])
        two.kill()
        two.restart()
        assert read(two) == (ledger, [])


def test_a_collection_without_a_history_has_none_at_the_new_owner_and_others_keep_theirs() -> None:
    with empty_nodes(2) as nodes:
        one, two = nodes
        init(*nodes, replicas=1)
        keep_history(one)
        alter(one, creation(PLAIN, history=False))
        ledger: Versions = defaultdict(list)
        with client.connect(one.url, timeout_seconds=60.0) as bucket:
            for value in "abc":
                write(one, ledger, value)
                bucket.collection(str(PLAIN)).set_many(dict.fromkeys(KEYS, value))
        until_level(*nodes)
        one.kill()
        fail_over(two, one)
        two.kill()
        two.restart()
        assert read(two) == (ledger, [])
        assert read_of(two, str(PLAIN)) == {key: ["c"] for key in KEYS}
        alter(two, alteration(PLAIN, history=True))
        with client.connect(two.url, timeout_seconds=60.0) as bucket:
            for value in "de":
                bucket.collection(str(PLAIN)).set_many(dict.fromkeys(KEYS, value))
        assert read_of(two, str(PLAIN)) == {key: ["d", "e"] for key in KEYS}, "what was before was not to be kept"


def alter(seed: Node, edit: Edit) -> None:
    async def work() -> None:
        async with Members() as members:
            await change(members, at(seed), edit)

    asyncio.run(work())


def read_of(seed: Node, collection: str) -> Versions:
    """Return the versions of a collection's documents in order."""
    versions: Versions = defaultdict(list)
    with (
        client.connect(seed.url) as bucket,
        bucket.changes(until="now", history=True, collections=[collection]) as changes,
    ):
        for event in changes:
            if isinstance(event, Mutation):
                versions[event.key.decode()].append(event.value.decode())
    return versions


def test_after_a_takeover_and_at_a_new_copy_every_version_is_there() -> None:
    with empty_nodes(3) as nodes:
        one, two, three = nodes
        init(one, two, replicas=1)
        keep_history(one)
        ledger: Versions = defaultdict(list)
        write(one, ledger, "abc")
        rebalance(one, add=at(three))
        write(one, ledger, "de")
        assert read(three) == (ledger, [])
        rebalance(three, remove=at(one))
        write(two, ledger, "fg", durability="majority")
        until_level(two, three)
        two.kill()
        fail_over(three, two)
        assert read(three) == (ledger, [])


def test_what_a_failover_took_back_is_in_no_history_and_what_was_before_still_is() -> None:
    with empty_nodes(2) as nodes:
        one, two = nodes
        init(*nodes, replicas=1)
        keep_history(one)
        ledger: Versions = defaultdict(list)
        write(one, ledger, "abc")
        until_level(*nodes)
        two.kill()
        owned = vbuckets(one.port)
        mine = [key for key in KEYS if owned[vbucket_of(key.encode(), VBUCKETS)] == 1]
        write(one, defaultdict(list), "lost", mine)
        one.kill()
        two.restart()
        fail_over(two, one, force=True)
        write(two, ledger, "de")
        one.restart()
        rebalance(two, add=at(one))
        until_level(*nodes)
        two.kill()
        fail_over(one, two)
        write(one, ledger, "f")
        assert read(one) == (ledger, [])


def test_without_a_history_a_new_owner_says_that_versions_are_missing_and_shows_its_own() -> None:
    with empty_nodes(2) as nodes:
        one, two = nodes
        init(*nodes, replicas=1)
        ledger: Versions = defaultdict(list)
        write(one, ledger, "abc")
        until_level(*nodes)
        one.kill()
        fail_over(two, one)
        write(two, ledger, "de")
        versions, lacking = read(two)
        assert lacking
        assert {key: values[-3:] for key, values in versions.items()} == {key: ["c", "d", "e"] for key in KEYS}
