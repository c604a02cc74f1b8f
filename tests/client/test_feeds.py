"""Drains of a real node, over both clients: what was written comes, through kill -9 and resume."""

import asyncio
from contextlib import suppress

import pytest

from headwater import testing
from headwater.client import Deletion, Mutation, Position, StreamEnd
from headwater.client.drainer import Handout
from headwater.client.feeds import AsyncChanges, Changes
from headwater.client.options import DrainOptions
from headwater.client.progress import Positions
from headwater.errors import NothingCame, RollbackRequired
from headwater.kernels.columns import Arena
from headwater.protocol.dcp.consumer_stream import ConsumerStream
from headwater.protocol.dcp.events import Advanced
from headwater.transport.aio import Waiters
from headwater.transport.waiting import Ready, Steps


@pytest.fixture(scope="module")
def node():
    with testing.node(vbuckets=8) as running:
        yield running


def folded(events) -> dict[bytes, bytes]:
    """Return the documents of a reader who applied the changes in order."""
    held: dict[bytes, bytes] = {}
    for event in events:
        if isinstance(event, Mutation):
            held[event.key] = event.value
        elif isinstance(event, Deletion):
            held.pop(event.key, None)
    return held


def test_what_was_written_is_what_is_drained(driver, node):
    client = driver.connect(f"{node.address}/default")
    client.set_many({f"feed-{i}": str(i) for i in range(3000)})
    client.delete_many(f"feed-{i}" for i in range(0, 3000, 3))
    with client.changes(until="now") as changes:
        held = folded(changes)
    assert {int(value) for key, value in held.items() if key.startswith(b"feed-")} == {i for i in range(3000) if i % 3}


def patiently(changes) -> Mutation:
    """Return the next document, however often the drain tells that nothing came."""
    while True:
        with suppress(TimeoutError):
            return next(event for event in changes if isinstance(event, Mutation))


def test_who_waits_for_a_change_that_never_comes_hears_it_and_may_go_on(driver, node):
    client = driver.connect(f"{node.address}/default")
    with client.changes("now", max_wait_seconds=0.2) as changes:
        for _ in range(2):
            with pytest.raises(TimeoutError, match=r"no change for 0\.2 s"):
                next(event for event in changes if isinstance(event, Mutation))
        client.set("at-last", "v")
        assert patiently(changes).key == b"at-last"


class OnlyAdvances:
    """A drain that hands out nothing but seqnos that its vbucket passed, one in each second."""

    def __init__(self, wait: float | None) -> None:
        self.options, self.now = DrainOptions(max_wait_seconds=wait), 0.0
        self.positions = Positions({0: Position.beginning(0)}, [], {})

    def clock(self) -> float:
        return self.now

    def advance(self) -> Steps[Handout]:
        self.now += 1.0
        passed = Advanced(ConsumerStream(0), int(self.now), (int(self.now), int(self.now)))
        yield Ready((), 0.0)
        return Handout(Arena(value_bytes=64).batch(), [(0, passed)], Positions({}, [], {0: ((0xA, 0),)}))


def test_seqnos_that_pass_without_an_event_keep_nobody_waiting_for_longer_than_he_said():
    drain = OnlyAdvances(3.0)
    changes = Changes(drain)
    for seconds in (3.0, 6.0):
        with pytest.raises(NothingCame):
            next(changes)
        assert (drain.now, changes.position(0).seqno) == (seconds, int(seconds))

    async def work() -> None:
        feed = AsyncChanges(OnlyAdvances(3.0), Waiters())
        with pytest.raises(NothingCame):
            await anext(feed)
        assert feed.position(0) == feed.positions[0] == Position(0, 0xA, 3, 3, 3)

    asyncio.run(work())


def test_batches_and_changes_agree(driver, node):
    client = driver.connect(f"{node.address}/default")
    client.set_many({f"agree-{i}": "x" * i for i in range(500)})
    with client.changes(until="now") as changes:
        single = [(event.vbucket, event.seqno, event.key, event.value) for event in changes if hasattr(event, "key")]
    with client.batches(until="now") as batches:
        columns = ("vbucket", "seqno", "key", "value")
        rows = [row for batch in batches for row in zip(*(batch.records[c].to_pylist() for c in columns), strict=True)]
    assert sorted(single) == sorted(rows) and changes.positions == batches.positions


def test_live_changes_arrive_while_the_drain_waits(driver, node):
    client, writer = driver.connect(f"{node.address}/default"), driver.connect(f"{node.address}/default")
    with client.changes("now") as changes:
        for i in range(20):
            writer.set("live", str(i))
            event = next(e for e in changes if isinstance(e, Mutation))
            assert (event.key, event.value) == (b"live", str(i).encode())


def test_a_drain_survives_kill_minus_nine_without_losing_or_repeating(driver):
    with testing.node(vbuckets=4) as node:
        client = driver.connect(f"{node.address}/default")
        client.set_many({f"a-{i}": "1" for i in range(400)})
        got = []
        with client.changes(until=None) as changes:
            while len(got) < 400:
                event = next(changes)
                got += [(event.vbucket, event.seqno)] if isinstance(event, Mutation) else []
            node.kill()
            node.restart()
            client.set_many({f"b-{i}": "2" for i in range(400)})
            while len(got) < 800:
                event = next(changes)
                got += [(event.vbucket, event.seqno)] if isinstance(event, Mutation) else []
    assert len(set(got)) == 800


def test_saved_positions_go_on_where_they_were_after_a_restart(driver):
    with testing.node(vbuckets=4) as node:
        client = driver.connect(f"{node.address}/default")
        client.set_many({f"a-{i}": "1" for i in range(100)})
        with client.changes(until="now") as changes:
            assert len(folded(changes)) == 100
        saved = changes.positions
        node.kill()
        node.restart()
        client.set("later", "2")
        with client.changes(saved, until="now") as resumed:
            events = list(resumed)
        assert folded(events) == {b"later": b"2"} and sum(isinstance(event, StreamEnd) for event in events) == 4


def test_a_drain_outlives_a_vbucket_that_changes_its_state_and_quotes_the_new_history(driver, node):
    client = driver.connect(f"{node.address}/default")
    key = next(f"moved-{i}" for i in range(1000) if client.vbucket_of(f"moved-{i}") == 5)
    client.set(key, "1")
    with client.changes("now", vbuckets=[5]) as changes:
        client.set(key, "2")
        assert next(e for e in changes if isinstance(e, Mutation)).value == b"2"
        before = changes.positions[5]
        client.set_vbucket_state(5, "dead")
        client.set_vbucket_state(5, "active")
        client.set(key, "3")
        assert next(e for e in changes if isinstance(e, Mutation)).value == b"3"
        after = changes.positions[5]
    log = client.failover_log(5)
    assert after.seqno == before.seqno + 1 and after.vb_uuid == log[0][0] != before.vb_uuid == log[1][0]


def test_a_reader_that_is_ahead_of_the_node_is_sent_back(driver, node):
    client = driver.connect(f"{node.address}/default")
    uuid, high = client.failover_log(6)[0][0], client.seqnos()[6]
    ahead = {6: Position(6, uuid, high + 10, high + 10, high + 10)}
    with client.changes(ahead, vbuckets=[6], until="now") as changes, pytest.raises(RollbackRequired) as caught:
        list(changes)
    assert (caught.value.requested, caught.value.common) == (high + 10, high)
