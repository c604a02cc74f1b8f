"""Which nodes there are, by the map of any of their buckets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account, edited
from headwater.client.routing import Address
from headwater.cluster import buckets, collections, users
from headwater.cluster.buckets import BucketWish
from headwater.cluster.founding import found_cluster
from headwater.cluster.known import known_map
from headwater.cluster.members import Members
from headwater.cluster.rebalance import Rebalance
from headwater.errors import TransportError
from headwater.testing.node import Node, node
from headwater.wire.manifest import CollectionsManifest

from .nodes import at
from .test_users import ROOT, SECRET, private

Result = TypeVar("Result")


def test_nodes_that_are_alone_have_no_map_with_others_and_members_have() -> None:
    with node(vbuckets=4, vbucket_state="none") as one, node(vbuckets=4, vbucket_state="none") as other:

        async def work() -> None:
            async with Members() as members:
                assert await known_map(members, at(one)) == (at(one)[0], None)
                made = await found_cluster(members, at(one, other), 1)
            async with Members() as members:
                first, known = await known_map(members, at(other))
                assert first == Address(other.host, other.port)
                assert known is not None and (known.uuid, set(known.servers)) == (made.map.uuid, set(at(one, other)))

        asyncio.run(work())


def on(seeds: list[Address], work: Callable[[Members, list[Address]], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with Members("default", "root", ROOT) as members:
            return await work(members, seeds)

    return asyncio.run(run())


@contextmanager
def with_users(count: int, folder: Path) -> Iterator[list[Node]]:
    """Nodes without vbuckets that know each other's users once they are members."""
    password, secret = private(folder / "root", ROOT), private(folder / "secret", SECRET)
    login = {"user": "root", "password_file": password, "cluster_secret_file": secret}
    with ExitStack() as stack:
        yield [stack.enter_context(node(vbuckets=4, vbucket_state="none", **login)) for _ in range(count)]  # type: ignore[arg-type]


def add_everything(seeds: list[Address]) -> None:
    """Add a collection, a bucket and a user."""
    made = Account.create("pass", read_grants("read"))
    on(
        seeds,
        lambda members, seeds: collections.change(
            members, seeds, collections.creation(collections.CollectionPath("shop", "orders"))
        ),
    )
    on(seeds, lambda members, seeds: buckets.create(members, seeds, BucketWish("more")))
    on(seeds, lambda members, seeds: users.change(members, seeds, lambda known: edited(known, {}, {"ann": made})))


def has(which: Node) -> tuple[bool, bool, bool]:
    """Whether a node itself has what `add_everything` adds."""

    async def work(members: Members, seeds: list[Address]) -> tuple[bool, bool, bool]:
        admin = members.admin(seeds[0])
        manifest: CollectionsManifest = await admin.manifest()
        names = [found.name for _, found in manifest.each_collection()]
        return "orders" in names, "more" in await admin.buckets(), "ann" in (await admin.users()).entries

    return on(at(which), work)


def without(*left: Node) -> None:
    """Give some members a map that names them alone; the others do not hear of it, as if they were away."""

    async def work(members: Members, seeds: list[Address]) -> None:
        survey = await members.survey(seeds)
        await members.send(survey.map.with_servers(seeds))

    on(at(*left), work)


def test_what_is_changed_by_the_address_of_a_former_member_is_changed_at_the_one_that_is_left(tmp_path: Path) -> None:
    with with_users(2, tmp_path) as (former, left):
        on(at(former, left), lambda members, seeds: found_cluster(members, seeds, 0))
        on(at(left), lambda members, seeds: Rebalance(members, seeds, remove=at(former)).run())
        add_everything(at(former))
        assert (has(former), has(left)) == ((False, False, False), (True, True, True))


def test_what_is_changed_by_the_address_of_a_node_that_was_left_out_unheard_is_changed_at_members(
    tmp_path: Path,
) -> None:
    with with_users(3, tmp_path) as (former, *left):
        on(at(former, *left), lambda members, seeds: found_cluster(members, seeds, 0))
        without(*left)
        add_everything(at(former))
        assert [has(each) for each in left] == [(True, True, True), (True, True, True)]
        assert has(former)[:2] == (False, False)  # users it may ask the members for, as it takes itself for one


def test_an_address_of_a_node_that_is_away_or_alone_by_now_is_passed_over(tmp_path: Path) -> None:
    with with_users(4, tmp_path) as (away, alone, *left):
        on(at(*left), lambda members, seeds: found_cluster(members, seeds, 0))
        away.stop()
        add_everything(at(away, alone, *left))
        assert [has(each) for each in (alone, *left)] == [(False, False, False), (True, True, True), (True, True, True)]
        with pytest.raises(TransportError):
            on(at(away), known_map)
