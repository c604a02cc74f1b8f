import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import pyarrow as pa
import pytest

from headwater import testing
from headwater.client import aio
from headwater.client.changes import ChangeBatch
from headwater.client.progress import Positions
from headwater.cluster.collections import CollectionPath, change, creation
from headwater.cluster.members import Members
from headwater.console import tail
from headwater.console.tail import ROWS_MAX, Delivery, TailFilter
from headwater.errors import ConnectionLost, HeadwaterError, OptionError, RollbackRequired
from headwater.wire.opcodes import Opcode
from tests.cluster.nodes import at

MUCH = 5000


async def until(deliveries: AsyncGenerator[Delivery, None], matched: int) -> list[Delivery]:
    """Return the deliveries up to so many changes that were wanted; the suite's own limit ends a wait in vain."""
    found: list[Delivery] = []
    async for delivery in deliveries:
        found.append(delivery)
        if sum(each.matched for each in found) >= matched:
            break
    return found


def rows(found: list[Delivery]) -> list[tuple[str, str, str]]:
    return [(row["kind"], row["key"], row["value"]) for each in found for row in each.rows]


def test_a_filter_is_read_from_a_form_and_what_can_not_be_is_refused() -> None:
    asked = TailFilter.of({"key": "a", "kind": "deletion", "vbuckets": "0-2,5", "keys_only": "yes"}, 16)
    assert asked == TailFilter(b"a", "deletion", (0, 1, 2, 5), True)
    assert TailFilter.of({}, 16) == TailFilter()
    for wrong in ({"kind": "rumour"}, {"vbuckets": "16"}, {"vbuckets": "x"}):
        with pytest.raises(OptionError):
            TailFilter.of(wrong, 16)


def test_it_begins_with_what_changes_from_then_on_and_shows_all_kinds(node: testing.Node) -> None:
    async def work() -> None:
        async with aio.connect(node.url) as bucket:
            await bucket.set("before", "v")
            async with aclosing(tail.follow(bucket, TailFilter())) as deliveries:
                await anext(deliveries)
                await bucket.set("<b>\x00", b"\xff" * 200)
                await bucket.delete("before")
                found = rows(await until(deliveries, 2))
        assert ("mutation", "<b>\\x00", "\\xff" * 160 + "\u2026 (40 bytes more)") in found
        assert ("deletion", "before", "") in found

    asyncio.run(work())


def test_only_what_is_wanted_is_shown_and_everything_is_counted(node: testing.Node) -> None:
    async def work() -> None:
        async with aio.connect(node.url) as bucket:
            wanted = TailFilter(key=b"needle", kind="mutation", keys_only=True)
            async with aclosing(tail.follow(bucket, wanted)) as deliveries:
                await anext(deliveries)
                await bucket.set_many({f"hay{number}": "x" for number in range(50)})
                await bucket.set("a-needle", "secret value")
                found = await until(deliveries, 1)
                while sum(each.seen for each in found) < 51:
                    found.append(await anext(deliveries))
        assert rows(found) == [("mutation", "a-needle", "")]
        [row] = [row for each in found for row in each.rows]
        assert row["document"] == {"key": "a-needle", "form": "text", "collection": ""}
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["time"])
        assert sum(each.matched for each in found) == 1

    asyncio.run(work())


@pytest.mark.parametrize(
    ("chosen", "shown"), [("shop.orders", ["shop.orders"]), ("all", ["shop.orders", "_default._default"])]
)
def test_of_collections_those_that_are_named_or_all(node: testing.Node, chosen: str, shown: list[str]) -> None:
    async def work() -> None:
        async with Members() as members:
            await change(members, at(node), creation(CollectionPath("shop", "orders")))
        wanted = TailFilter.of({"collection": chosen}, 16)
        async with aio.connect(node.url) as bucket, aclosing(tail.follow(bucket, wanted)) as deliveries:
            await anext(deliveries)
            await bucket.collection("shop.orders").set("a", "v")
            await bucket.set("a", "w")
            found = await until(deliveries, len(shown))
        assert sorted(row["collection"] for each in found for row in each.rows) == sorted(shown)

    asyncio.run(work())


def test_of_vbuckets_only_those_that_are_asked_for(node: testing.Node) -> None:
    async def work() -> None:
        async with aio.connect(node.url) as bucket:
            keys = [f"v{number}" for number in range(64)]
            mine = [key for key in keys if bucket.vbucket_of(key) == 3]
            async with aclosing(tail.follow(bucket, TailFilter(vbuckets=(3,)))) as deliveries:
                await anext(deliveries)
                await bucket.set_many(dict.fromkeys(keys, "v"))
                found = await until(deliveries, len(mine))
        assert sorted(row[1] for row in rows(found)) == sorted(mine)

    asyncio.run(work())


def test_a_flood_is_counted_whole_and_its_newest_changes_are_shown(node: testing.Node) -> None:
    async def work() -> None:
        async with aio.connect(node.url) as bucket, aclosing(tail.follow(bucket, TailFilter())) as deliveries:
            await anext(deliveries)
            await bucket.set_many({f"flood{number}": "x" * 100 for number in range(MUCH)})
            found = await until(deliveries, MUCH)
        assert sum(each.seen for each in found) == MUCH
        assert max(len(each.rows) for each in found) <= ROWS_MAX
        told = [each.to_json() for each in found]
        assert sum(each["left"] + len(each["rows"]) for each in told) == MUCH

    asyncio.run(work())


def test_a_node_that_comes_back_is_gone_on_with_behind_the_last_change() -> None:
    async def work(node: testing.Node) -> None:
        async with (
            aio.connect(node.url, timeout_seconds=60.0) as bucket,
            aclosing(tail.follow(bucket, TailFilter())) as deliveries,
        ):
            await anext(deliveries)
            await bucket.set("one", "1")
            found = await until(deliveries, 1)
            await asyncio.to_thread(node.stop)
            while not found[-1].notice:
                found.append(await anext(deliveries))
            assert found[-1].notice == tail.AWAY
            await asyncio.to_thread(node.start)
            await asyncio.to_thread(write, node)
            found += await until(deliveries, 1)
            assert [row[1] for row in rows(found)] == ["one", "two"]
            assert tail.ON in [each.notice for each in found]

    def write(node: testing.Node) -> None:
        with node.client() as bucket:
            bucket.set("two", "2")

    with testing.node(vbuckets=4) as node:
        asyncio.run(work(node))


class BreaksAfterABatch:
    """A client whose feed hands out one batch behind the first delivery, and loses its node before the next is due."""

    def __init__(self, lost: HeadwaterError) -> None:
        self._lost, self.starts = lost, list[object]()

    def batches(self, start: object, **_: object) -> "BreaksAfterABatch":
        self.starts.append(start)
        return self

    async def __aenter__(self) -> "BreaksAfterABatch":
        self._batches = [batch(), batch(b"pending")]
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def __aiter__(self) -> "BreaksAfterABatch":
        return self

    async def __anext__(self) -> ChangeBatch:
        if not self._batches:
            raise self._lost
        return self._batches.pop(0)

    positions = "behind the pending one"


def batch(*keys: bytes) -> ChangeBatch:
    count = len(keys)
    numbers = {
        "opcode": [int(Opcode.DCP_MUTATION)] * count,
        "vbucket": [0] * count,
        "seqno": [1] * count,
        "cas": [9] * count,
    }
    columns = {name: pa.array(values, pa.int64()) for name, values in numbers.items()}
    texts = {"key": pa.array(keys, pa.binary()), "value": pa.array([b"v"] * count, pa.binary())}
    return ChangeBatch(pa.record_batch(columns | texts), (), Positions({}, [], {}))


@pytest.mark.parametrize(
    ("lost", "notice", "next_start"),
    [
        (ConnectionLost("node:1", "gone"), tail.AWAY, "behind the pending one"),
        (RollbackRequired(3, 9, 4), "Vbucket 3 went back to seqno 4", "now"),
    ],
)
def test_what_was_not_due_yet_is_shown_when_a_node_goes_away(
    lost: HeadwaterError, notice: str, next_start: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "WAIT_SECONDS", 0.0)

    async def work() -> None:
        client = BreaksAfterABatch(lost)
        async with aclosing(tail.follow(cast("aio.AsyncClient", client), TailFilter(), lambda: 0.0)) as deliveries:
            assert rows([await anext(deliveries)]) == []
            shown = await anext(deliveries)
            assert (rows([shown]), shown.notice[: len(notice)]) == ([("mutation", "pending", "v")], notice)
            await anext(deliveries)
            assert client.starts == ["now", next_start]

    asyncio.run(work())
