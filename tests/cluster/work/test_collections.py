"""Work on collections, on one node."""

import asyncio

import pytest

from headwater import testing
from headwater.cluster.collections import CollectionPath
from headwater.cluster.members import Members
from headwater.cluster.work import AlterCollection, CreateCollection, DropCollection, SetHistory, WorkRun
from headwater.errors import OptionError, WorkRefused
from tests.cluster.nodes import at
from tests.cluster.test_collections import apart, of_one_map


def test_a_collection_is_made_and_dropped_by_the_ids_that_were_shown() -> None:
    async def doing(node: testing.Node) -> None:
        async with Members() as members:
            seeds, orders = at(node), CreateCollection("shop.orders", max_ttl=60)
            assert (await orders.plan(members, seeds)).lines[1] == "No document in it lives longer than 60 s"
            assert (await orders.run(members, seeds, WorkRun())).line == "shop.orders is there; manifest 2"
            assert (await orders.plan(members, seeds)).is_empty
            drop = DropCollection("shop")
            shown = await drop.plan(members, seeds)
            assert shown.lines == ("shop.orders", "shop would be dropped with all documents of these")
            assert (shown.ids, shown.facts["would_drop"]) == ({"shop.orders": "8"}, ["shop.orders"])
            await DropCollection("shop.orders").run(members, seeds, WorkRun())
            await CreateCollection("shop.orders").run(members, seeds, WorkRun())
            for forced in (False, True):
                with pytest.raises(WorkRefused, match="shop is not what was shown"):
                    await DropCollection("shop", force=forced).run(members, seeds, WorkRun(plan=shown))
            outcome = await drop.run(members, seeds, WorkRun(plan=await drop.plan(members, seeds)))
            assert outcome.facts["dropped"]
            with pytest.raises(WorkRefused, match="there is no shop; see headwater collection list"):
                await drop.plan(members, seeds)
            with pytest.raises(WorkRefused, match="is not found"):
                await drop.run(members, seeds, WorkRun())

    with testing.node(vbuckets=4) as node:
        asyncio.run(doing(node))


def test_a_forced_drop_takes_nothing_that_was_not_shown() -> None:
    """Force drops an id under all its names: another node may have given it to another collection since."""

    async def doing(first: testing.Node, second: testing.Node) -> None:
        async with Members() as members:
            seeds, drop = at(first), DropCollection("shop.a", force=True)
            await CreateCollection("shop").run(members, seeds, WorkRun())
            await apart(members, at(first)[0], CollectionPath("shop", "a"))
            shown = await drop.plan(members, seeds)
            assert shown.ids == {"shop.a 8": "8"}
            await apart(members, at(second)[0], CollectionPath("shop", "b"))
            with pytest.raises(WorkRefused, match=r"shop\.a is not what was shown"):
                await drop.run(members, seeds, WorkRun(plan=shown))
            kept = await members.admin(at(second)[0]).manifest()
            assert kept.collection("shop", "b") is not None
            shown = await drop.plan(members, seeds)
            assert shown.lines[:2] == ("shop.a 8", "shop.b 8")
            assert (await drop.run(members, seeds, WorkRun(plan=shown))).facts["dropped"]
            with pytest.raises(WorkRefused, match=r"there is no shop\.a"):
                await drop.plan(members, seeds)

    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4) as two:
        of_one_map(one, two)
        asyncio.run(doing(one, two))


def test_a_collection_is_given_a_history_and_loses_it() -> None:
    async def doing(node: testing.Node) -> None:
        async with Members() as members:
            seeds = at(node)
            made = CreateCollection("shop.carts", history="off")
            assert (await made.plan(members, seeds)).lines[1] == "Readers of every version get the last one alone"
            await made.run(members, seeds, WorkRun())
            gives, takes = (AlterCollection("shop.carts", history=each) for each in ("on", "off"))
            shown = await gives.plan(members, seeds)
            assert shown.lines == ("Readers of every version of shop.carts get the old ones",) and not shown.is_empty
            assert (await takes.plan(members, seeds)).is_empty
            outcome = await gives.run(members, seeds, WorkRun())
            assert (outcome.line, outcome.facts["history"]) == ("shop.carts has a history; manifest 3", True)
            assert (await gives.run(members, seeds, WorkRun())).line == outcome.line, "there is nothing to change"
            await SetHistory("default", collections="off").run(members, seeds, WorkRun())
            await CreateCollection("shop.plain").run(members, seeds, WorkRun())
            assert (await AlterCollection("shop.plain", history="off").plan(members, seeds)).is_empty
            await CreateCollection("shop.carts").run(members, seeds, WorkRun())
            with pytest.raises(WorkRefused, match=r"shop\.carts is there, with a history: headwater collection alter"):
                await made.run(members, seeds, WorkRun())
            missing = AlterCollection("shop.none", history="on")
            with pytest.raises(WorkRefused, match=r"there is no shop\.none"):
                await missing.plan(members, seeds)
            with pytest.raises(WorkRefused, match="is not found"):
                await missing.run(members, seeds, WorkRun())

    with testing.node(vbuckets=4) as node:
        asyncio.run(doing(node))


def test_a_scope_and_a_collection_are_named_by_their_kinds() -> None:
    assert CreateCollection("shop").title == "Make scope shop"
    assert DropCollection("shop.carts").title == "Drop collection shop.carts"
    assert DropCollection("shop.carts").question == "Drop shop.carts with all its documents?"
    with pytest.raises(OptionError, match="a scope has none"):
        CreateCollection("shop", max_ttl=5)
    with pytest.raises(OptionError, match="a scope has none"):
        CreateCollection("shop", history="on")
    with pytest.raises(OptionError, match="a scope has no history"):
        AlterCollection("shop", history="on")
