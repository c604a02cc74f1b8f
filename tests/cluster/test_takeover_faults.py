"""A node, the mover or the link dies at every step of a takeover, while somebody writes; then the same move is asked
for again. One owner, one history, nothing lost (failover 4, with its table of failures)."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys

import pytest

from headwater import client, testing
from headwater.client.routing import Address
from headwater.cluster.admin import Endpoint, NodeAdmin
from headwater.cluster.lane import Limits
from headwater.cluster.mover import Mover
from headwater.cluster.proxy import Liveness
from headwater.errors import MoveError
from headwater.testing.checker import Ledger
from headwater.testing.owners import Nomad, OwnerWatch, check_history
from headwater.testing.proxy import Fault, FaultProxy
from headwater.testing.workload import rows
from headwater.wire.vbucket import State

from .scripts import STEPS, Script

VBUCKETS = 128
QUICK = Liveness(noop_seconds=0.2, silent_seconds=1.0)
AT_ONCE = Limits(connect_seconds=3.0, liveness=QUICK, answer_seconds=3.0, patience_seconds=0.0)
PATIENT = Limits(connect_seconds=3.0, liveness=QUICK, answer_seconds=5.0, patience_seconds=40.0)
GIVING_BACK_SECONDS = 1.0


class Pair:
    """Two nodes, a proxy in front of each, and vbuckets for many cases."""

    def __init__(self, one, other):
        self.nodes = {"a": one, "b": other}
        self.links = {"a": FaultProxy(one.address), "b": FaultProxy(other.address)}
        self.vbuckets = itertools.count()

    def endpoints(self):
        return [Endpoint(Address("127.0.0.1", self.links[name].port)) for name in "ab"]

    def ask(self, name, work):
        """What `work` returns, given an administrator of the node."""

        async def run():
            async with await NodeAdmin.connect(Address("127.0.0.1", self.nodes[name].port)) as admin:
                return await work(admin)

        return asyncio.run(run())

    def state(self, name, vb):
        return self.ask(name, lambda admin: admin.state(vb))

    def move(self, vb, limits):
        async def run():
            async with Mover(*self.endpoints(), limits=limits) as mover:
                return await mover.move(vb)

        return asyncio.run(run())

    def close(self):
        for link in self.links.values():
            link.close()


@pytest.fixture(scope="module")
def pair():
    with testing.node(vbuckets=VBUCKETS) as one, testing.node(vbuckets=VBUCKETS, vbucket_state="none") as other:
        made = Pair(one, other)
        yield made
        made.close()


class Case:
    """One vbucket under writes, watched; `check` after the move was asked for again."""

    def __init__(self, pair):
        self.pair, self.vb, self.ledger = pair, next(pair.vbuckets), Ledger()
        ports = {name: node.port for name, node in pair.nodes.items()}
        self.before = pair.ask("a", lambda admin: admin.failover_log(self.vb))
        self.nomad = Nomad(self.ledger, ports, self.vb)
        self.watch = OwnerWatch(ports["a"], ports["b"], self.vb)

    def __enter__(self):
        self.nomad.start()
        self.watch.start()
        assert self.nomad.wait(20)
        return self

    def __exit__(self, kind, value, traceback):
        for link in self.pair.links.values():
            link.before = None
            link.cut()
        for node in self.pair.nodes.values():
            if not node.is_running:
                node.restart()
        self.nomad.finish()
        self.watch.finish()

    def break_at(self, step, act):
        self.script = Script(step, act, self.nomad)
        self.script.attach(self.pair.links["a"], self.pair.links["b"])

    def heal(self):
        """The link is whole again; what was stalled is reset."""
        for link in self.pair.links.values():
            link.before = None
            link.cut()

    def check(self):
        """The move is done; all that was promised is held."""
        assert self.nomad.wait(5, node="b"), "the new owner takes no writes"
        self.nomad.finish()
        self.watch.finish()
        states = [self.pair.state(name, self.vb) for name in "ab"]
        assert states == [State.DEAD, State.ACTIVE]
        with client.connect(self.pair.nodes["b"].url) as bucket:
            batches = bucket.batches(vbuckets=[self.vb], until="now")
            self.ledger.settle([change for batch in batches for change in rows(batch)])
        check_history(self.log(), self.nomad.acknowledged, self.before)
        assert self.watch.samples > 10

    def log(self):
        return self.pair.ask("b", lambda admin: admin.failover_log(self.vb))


def test_a_takeover_without_faults_keeps_the_history_and_every_write(pair):
    with Case(pair) as case:
        case.break_at(0, lambda: Fault.NONE)
        moved = pair.move(case.vb, AT_ONCE)
        case.check()
        assert case.script.seen == set(STEPS)
        assert (moved.attempts, case.log()) == (1, case.before)


LINK_FAULTS = [
    *((step, Fault.CUT_AFTER if step == 8 else Fault.CUT) for step in STEPS),
    *((step, Fault.STALL) for step in STEPS),
    *((step, Fault.CORRUPT) for step in (1, 3, 7, 9, 11)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "fault"), LINK_FAULTS, ids=lambda value: getattr(value, "name", value))
def test_the_link_fails_at_a_step_and_the_move_is_asked_for_again(pair, step, fault):
    with Case(pair) as case:
        case.break_at(step, lambda: fault)
        if step < 12:  # at the end of the stream all is done, and its loss is harmless
            with pytest.raises(MoveError):
                pair.move(case.vb, AT_ONCE)
        else:
            pair.move(case.vb, AT_ONCE)
        assert step in case.script.seen
        case.heal()
        pair.move(case.vb, PATIENT)
        case.check()


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 4, 6, 7, 8, 9, 10, 11, 12])
def test_the_link_fails_at_a_step_and_the_mover_goes_on_by_itself(pair, step):
    with Case(pair) as case:
        case.break_at(step, lambda: Fault.CUT)
        pair.move(case.vb, PATIENT)
        assert step in case.script.seen
        case.check()


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 4, 6, 7, 8, 9, 10, 11, 12])
@pytest.mark.parametrize("name", ["a", "b"], ids={"a": "source", "b": "target"}.get)
def test_a_node_is_killed_at_a_step_and_comes_back(pair, name, step):
    with Case(pair) as case:
        node = pair.nodes[name]

        def kill():
            node.kill()
            return Fault.NONE

        case.break_at(step, kill)
        try:
            pair.move(case.vb, AT_ONCE)
        except MoveError:
            assert not node.is_running
        assert step in case.script.seen
        case.heal()
        node.restart()
        pair.move(case.vb, PATIENT)
        case.check()


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, 8, 9])
def test_a_target_that_dies_before_it_could_be_active_gives_the_vbucket_back_at_once(pair, step):
    with Case(pair) as case:

        def kill():
            pair.nodes["b"].kill()
            return Fault.NONE

        case.break_at(step, kill)
        briefly = Limits(connect_seconds=3.0, liveness=QUICK, patience_seconds=GIVING_BACK_SECONDS)
        with pytest.raises(MoveError):
            pair.move(case.vb, briefly)
        assert pair.state("a", case.vb) is State.ACTIVE
        assert case.nomad.wait(5, node="a"), "the old owner takes no writes"
        case.heal()
        pair.nodes["b"].restart()
        pair.move(case.vb, PATIENT)
        case.check()


MOVER_STEPS = [
    "move.connected",
    "move.replica_made",
    "move.copying",
    "move.persisted",
    "move.closed",
    "move.taking_over",
    "move.pending_sent",
    "move.pending_answered",
    "move.active_sent",
    "move.active_answered",
    "move.owned",
]


@pytest.mark.slow
@pytest.mark.parametrize("place", MOVER_STEPS)
def test_the_mover_is_killed_at_a_step_and_the_same_is_typed_again(pair, place, monkeypatch):
    with Case(pair) as case:
        ends = [f"127.0.0.1:{pair.links[name].port}" for name in "ab"]
        typed = ["move", "--from", ends[0], "--to", ends[1], "--takeover", "--vbuckets", str(case.vb)]
        command = [sys.executable, "-m", "headwater", *typed]
        monkeypatch.setenv("HEADWATER_FAILPOINTS", f"{place}=kill")
        assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == -9
        monkeypatch.delenv("HEADWATER_FAILPOINTS")
        again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (again.returncode, again.stderr) == (0, "")
        case.check()
