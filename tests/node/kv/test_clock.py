"""HOLD_CLOCK: what a node promises, and which vbuckets it excepts."""

from __future__ import annotations

import asyncio

from headwater import testing
from headwater.node.kv.clock import hold_clock
from headwater.wire.admin import HoldClock, HoldClockResponse
from headwater.wire.dcp import Prepare
from headwater.wire.numbers import HELD_MAX
from headwater.wire.opcodes import Opcode
from tests.node.aware import Aware
from tests.node.support import NOON, Desk, Talk

NOW = NOON * 1_000_000_000


def held(talk: Talk, cas: int) -> HoldClockResponse:
    return asyncio.run(hold_clock(talk.kv, HoldClock(wanted_cas=cas)))


def test_a_node_promises_at_most_the_time_of_its_clock(talk: Talk) -> None:
    assert held(talk, 0).held_cas == 0
    assert held(talk, NOW - 5).held_cas == NOW - 5
    answer = held(talk, NOW + 10**18)
    assert (answer.held_cas, answer.now, answer.exceptions) == (NOW, NOW, [])


def test_a_durable_write_under_way_is_excepted_with_its_cas(counter: Desk, talk: Talk) -> None:
    vbucket = counter.bucket.vbuckets[1]
    early = counter.bucket.next_cas(1)
    vbucket.prepares.add(Prepare(key=b"\0k", value=b"v", cas=early, by_seqno=0, rev_seqno=1, durability_level=1))
    counter.bucket.clock.seconds += 10  # type: ignore[attr-defined]
    answer = held(talk, NOW + 10**10)
    assert answer.exceptions == [(1, early)] and early < answer.held_cas


def test_a_vbucket_with_the_highest_cas_of_all_is_excepted(counter: Desk, talk: Talk) -> None:
    counter.store.staging.mutation(3, b"k", b"v", cas=HELD_MAX, rev_seqno=1)
    counter.committer.commit()
    assert held(talk, NOW).exceptions == [(3, 0)]


def test_the_answer_waits_for_changes_that_are_not_on_disk_yet(counter: Desk, talk: Talk) -> None:
    """A reader takes the seqnos behind the answer for all changes up to the promise."""
    counter.session().one(1, key=b"k", extras=bytes(8))
    held(talk, NOW)
    assert talk.kv.written_gate == counter.committer.open


def test_a_client_holds_the_clock_of_a_node_that_it_may_stream_from() -> None:
    with testing.node(vbuckets=4) as node, node.client() as client:
        first = client.hold_clocks()
        assert first.cas == 0 and first.now and not first.problem
        held_ = client.hold_clocks(first.now)
        assert held_.cas == first.now
        assert client.set(b"k", b"v") > held_.cas
        with Aware(node.port) as line:
            assert line.ask(Opcode.HOLD_CLOCK, extras=bytes(8)).status == 0
            assert line.ask(Opcode.HOLD_CLOCK, extras=bytes(7)).status == 4


def test_a_promise_survives_a_node_that_is_killed() -> None:
    with testing.node(vbuckets=4) as node:
        with node.client() as client:
            promised = client.hold_clocks(client.hold_clocks().now).cas
        node.kill()
        node.restart()
        with node.client() as client:
            assert client.hold_clocks().cas >= promised
