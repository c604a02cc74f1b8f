"""Takeovers to be broken: two nodes with a proxy in front of each, and a vbucket under writes that is watched."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

from harness.checker import Ledger
from harness.owners import Nomad, OwnerWatch, check_history
from harness.workload import rows
from headwater import client
from headwater.client.routing import Address
from headwater.cluster.admin import Endpoint, NodeAdmin
from headwater.cluster.mover import Mover
from headwater.cluster.proxied import Limits
from headwater.cluster.proxy import Liveness
from headwater.errors import MoveError
from headwater.testing.proxy import Fault, FaultProxy
from headwater.wire.vbucket import State

from .scripts import Script

VBUCKETS = 128
SECONDS = 240
QUICK = Liveness(noop_seconds=0.2, silent_seconds=1.5)
AT_ONCE = Limits(connect_seconds=10.0, liveness=QUICK, answer_seconds=10.0, patience_seconds=0.0)
PATIENT = Limits(connect_seconds=60.0, liveness=Liveness(), answer_seconds=60.0, patience_seconds=240.0)


class Pair:
    """Two nodes, a proxy in front of each, and vbuckets for many cases."""

    def __init__(self, one, other):
        self.nodes = {"a": one, "b": other}
        self.links = {"a": FaultProxy(one.address), "b": FaultProxy(other.address)}
        self.vbuckets = itertools.count()

    def endpoints(self):
        return [Endpoint(Address("127.0.0.1", self.links[name].port)) for name in "ab"]

    def ask(self, name, work):
        """Return the result of `work`, given an administrator of the node."""

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

    def kill_at(self, step, name):
        """Kill a node when a step has come; the event is set once it is dead."""
        killed = threading.Event()

        def kill():
            self.pair.nodes[name].kill()
            killed.set()
            return Fault.NONE

        self.break_at(step, kill)
        return killed

    def move_to(self, step, limits):
        """Ask for the move until the step was reached, which a busy machine may need more than one try for; whether
        the last try failed."""
        give_up = time.monotonic() + SECONDS
        while time.monotonic() < give_up:
            self.script.begin_anew()
            try:
                self.pair.move(self.vb, limits)
            except MoveError:
                if step in self.script.seen:
                    return True
            else:
                assert step in self.script.seen
                return False
        raise AssertionError(f"step {step} was not reached")

    def heal(self):
        """The link is whole again; what was stalled is reset."""
        for link in self.pair.links.values():
            link.before = None
            link.cut()

    def check(self):
        """The move is done; all that was promised is held."""
        assert self.nomad.wait(5, node="b"), "the new owner takes no writes"
        assert self.watch.wait_samples(6), "nobody looked at the owners"
        self.nomad.finish()
        self.watch.finish()
        states = [self.pair.state(name, self.vb) for name in "ab"]
        assert states == [State.DEAD, State.ACTIVE]
        with client.connect(self.pair.nodes["b"].url) as bucket:
            batches = bucket.batches(vbuckets=[self.vb], until="now")
            self.ledger.settle([change for batch in batches for change in rows(batch)])
        check_history(self.log(), self.nomad.acknowledged, self.before)

    def log(self):
        return self.pair.ask("b", lambda admin: admin.failover_log(self.vb))
