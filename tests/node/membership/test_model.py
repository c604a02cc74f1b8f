"""A model of a cluster: takeovers, maps that arrive late or never, crashes, failovers.

No vbucket is ever served by two nodes, none loses its only owner, and what the last map says is served in the end.

The members are real, on a disk in memory; vbuckets are states in a table, and a takeover is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.node.membership.map import read_map
from headwater.node.membership.member import Membership
from headwater.node.refused import CommandRefused
from headwater.testing.faults import FaultyDisk
from headwater.wire.address import Address
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.membership.support import EPOCH, cluster_map
from tests.node.membership.test_following import Dialers

NODES, VBUCKETS = 3, 3
ADDRESSES = [f"n{number}:1" for number in range(NODES)]
FOLDER = Path("/node")


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Run what never really waits here."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits for something")


class VBucket:
    """A state, and nothing in it."""

    handover = inbound = None
    gate = 0

    def __init__(self, state: State) -> None:
        self.state = state

    def set_state(self, state: State) -> None:
        self.state = state


class Loop:
    """Does at once what would be done in a thread, and nothing that would be done later."""

    def time(self) -> float:
        return 0.0

    async def run_in_executor(self, _: None, work: Callable[..., None], *arguments: object) -> None:
        work(*arguments)

    def create_task(self, work: Coroutine[Any, Any, None]) -> SimpleNamespace:
        work.close()
        return SimpleNamespace(cancel=lambda: None)


class Host:
    """A node: what survives its crashes (disk, states), and its life of now (`member`, None while it is down)."""

    def __init__(self, index: int, vbuckets: dict[int, VBucket]) -> None:
        self.index, self.disk, self.vbuckets = index, FaultyDisk(), vbuckets
        self.disk.make_directory(FOLDER)
        self.member: Membership | None = None
        self.start()

    def start(self) -> None:
        self.config_set: tuple[tuple[int, int], bytes] | None = None
        self.fenced: set[int] = set()
        arena = np.zeros(1 << 20, np.uint8)
        known = SimpleNamespace(is_member=False)
        known.join = lambda: setattr(known, "is_member", True)
        staging = SimpleNamespace(room=lambda: (arena, 0))
        store = SimpleNamespace(disk=self.disk, path=FOLDER, full=False, staging=staging, declarations=known)
        self.bucket = SimpleNamespace(
            store=store,
            name="default",
            vbucket_count=VBUCKETS,
            vbuckets=self.vbuckets,
            fenced=self.fenced,
            fence=self.fenced.update,
            unfence=self.fenced.discard,
            committer=SimpleNamespace(on_failure=[], durable=0),
            state=lambda vb: self.vbuckets[vb].state if vb in self.vbuckets else None,
            create_vbucket=lambda vb, state: self.vbuckets.update({vb: VBucket(state)}),
            is_active=self.serves,
        )
        self.replication, self.loop = Dialers(), Loop()
        self.tell_of_map = lambda: None  # nobody is connected
        self.is_client_there = lambda agent: False
        self.config, self.cluster = SimpleNamespace(users={}, account=(None, None)), self
        self.users = SimpleNamespace(required=False)
        self.member = Membership(self)  # type: ignore[arg-type]
        self.member.start()
        self.member._own_told(None)  # it is no copy

    def take(self, version: tuple[int, int], config: bytes) -> None:
        """Take a map, as `ServedMap.take`."""
        self.config_set = version, config

    @property
    def version(self) -> tuple[int, int]:
        return self.config_set[0] if self.config_set else (1, 1)

    @property
    def is_set(self) -> bool:
        return self.config_set is not None

    def serves(self, vb: int) -> bool:
        found = self.vbuckets.get(vb)
        return self.member is not None and found is not None and found.state is State.ACTIVE and vb not in self.fenced


class Cluster(RuleBasedStateMachine):
    """Three nodes and an orchestrator that never errs, but is interrupted wherever a rule ends."""

    def __init__(self) -> None:
        super().__init__()
        first = {vb: VBucket(State.ACTIVE) for vb in range(VBUCKETS)}
        self.hosts = [Host(index, first if index == 0 else {}) for index in range(NODES)]
        self.rev = 1
        self.unfinished: set[int] = set()  # promotions that were interrupted: the map names one who is none yet
        self.chains = [(0, 1)] * VBUCKETS
        for host in self.hosts:
            self.send(host)

    def map_for(self, host: Host) -> bytes:
        return cluster_map(self.rev, ADDRESSES, self.chains, host.index)

    def send(self, host: Host) -> None:
        assert host.member is not None
        finish(host.member.take((EPOCH, self.rev), self.map_for(host)))

    def next_map(self, chains: dict[int, tuple[int, ...]]) -> None:
        self.rev += 1
        self.chains = [chains.get(vb, chain) for vb, chain in enumerate(self.chains)]

    @property
    def up(self) -> list[Host]:
        return [host for host in self.hosts if host.member is not None]

    @rule(vb=st.integers(0, VBUCKETS - 1), to=st.integers(0, NODES - 1), told=st.booleans())
    def take_over(self, vb: int, to: int, told: bool) -> None:
        """A vbucket moves, to a node that was given the newest map before; with luck the next one is made at once."""
        source, target = self.hosts[self.chains[vb][0]], self.hosts[to]
        if source is target or not source.serves(vb) or target.member is None:
            return
        self.send(target)
        found = target.vbuckets.setdefault(vb, VBucket(State.REPLICA))
        if found.state is not State.REPLICA:
            return
        source.vbuckets[vb].state, found.state = State.DEAD, State.ACTIVE
        if told:
            self.settle_owner(vb)

    @rule(vb=st.integers(0, VBUCKETS - 1))
    def settle_owner(self, vb: int) -> None:
        """The orchestrator finds an owner that its map does not name, as a repeated rebalance does, and names it."""
        owners = [host.index for host in self.up if vb in host.vbuckets and host.vbuckets[vb].state is State.ACTIVE]
        if len(self.up) == NODES and len(owners) == 1 and owners[0] != self.chains[vb][0]:
            self.next_map({vb: (owners[0], (owners[0] + 1) % NODES)})

    @rule(vb=st.integers(0, VBUCKETS - 1), replica=st.integers(0, NODES - 1))
    def change_replica(self, vb: int, replica: int) -> None:
        head = self.chains[vb][0]
        self.next_map({vb: (head,) if replica == head else (head, replica)})

    @rule(index=st.integers(0, NODES - 1))
    def deliver(self, index: int) -> None:
        """The newest map reaches a node."""
        if (host := self.hosts[index]).member is not None:
            self.send(host)

    @rule(one=st.integers(0, NODES - 1), other=st.integers(0, NODES - 1))
    def ask(self, one: int, other: int) -> None:
        asker, answers = self.hosts[one], self.hosts[other]
        if asker is answers or asker.member is None or answers.config_set is None or answers.member is None:
            return
        host, port = ADDRESSES[other].split(":")
        finish(asker.member._receive_map(Address(host, int(port)), answers.config_set[1]))

    @rule(index=st.integers(0, NODES - 1))
    def crash(self, index: int) -> None:
        self.hosts[index].member = None

    @rule(index=st.integers(0, NODES - 1))
    def restart(self, index: int) -> None:
        if self.hosts[index].member is None:
            self.hosts[index].start()

    @precondition(lambda self: len(self.up) == NODES - 1)
    @rule(interrupted=st.booleans())
    def fail_over(self, interrupted: bool) -> None:
        """The replicas of the node that is down are promoted: the map to a majority first, then SET_VBUCKET."""
        (dead,) = (host.index for host in self.hosts if host.member is None)
        promoted = {
            vb: (chain[1], chain[0])
            for vb, chain in enumerate(self.chains)
            if chain[0] == dead and len(chain) > 1 and not self.owned(vb)
            if self.hosts[chain[1]].bucket.state(vb) is State.REPLICA
        }
        self.next_map(promoted)
        self.unfinished.update(promoted)
        for host in self.up:
            self.send(host)
        if interrupted:
            return
        self.unfinished.difference_update(promoted)
        for vb, chain in promoted.items():
            owner = self.hosts[chain[0]]
            assert owner.member is not None and vb in owner.vbuckets
            owner.vbuckets[vb].state = State.ACTIVE
            owner.member.state_set(vb)

    def owned(self, vb: int) -> bool:
        """Whether a node that is up owns it: the orchestrator asks before it promotes anybody."""
        return any(vb in host.vbuckets and host.vbuckets[vb].state is State.ACTIVE for host in self.up)

    @rule(index=st.integers(0, NODES - 1))
    def an_old_map_is_refused(self, index: int) -> None:
        host = self.hosts[index]
        if host.member is None or host.version == (EPOCH, 1):
            return
        before = [host.bucket.state(vb) for vb in range(VBUCKETS)]
        try:
            finish(host.member.take((EPOCH, 1), cluster_map(1, ADDRESSES, [(2,)] * VBUCKETS, index)))
        except CommandRefused as refused:
            assert refused.status == Status.KEY_EEXISTS
        else:
            raise AssertionError("it took an older map")
        assert before == [host.bucket.state(vb) for vb in range(VBUCKETS)]

    @invariant()
    def nobody_serves_what_another_serves(self) -> None:
        for vb in range(VBUCKETS):
            serving = [host.index for host in self.up if host.serves(vb)]
            assert len(serving) < 2, f"vbucket {vb} is served by {serving}"

    @invariant()
    def none_loses_its_only_owner(self) -> None:
        for vb in set(range(VBUCKETS)) - self.unfinished:
            assert any(host.bucket.state(vb) is State.ACTIVE for host in self.hosts), f"vbucket {vb} has no owner"

    @invariant()
    def a_member_is_what_the_newest_map_it_knows_says(self) -> None:
        for host in self.up:
            assert host.member is not None and host.config_set is not None
            known = read_map(host.config_set[1], bucket="default", vbuckets=VBUCKETS)
            assert known.this == host.index and known.version == host.version <= (EPOCH, self.rev)
            for vb in range(VBUCKETS):
                if known.is_replica(vb) and host.bucket.state(vb) is State.REPLICA:
                    assert host.member.following.sources.get(vb) == known.owner(vb)

    def teardown(self) -> None:
        """Everything comes up and hears the last map: whoever is its owner and active serves."""
        for host in self.hosts:
            if host.member is None:
                host.start()
        for host in self.hosts:
            self.send(host)
        for vb, chain in enumerate(self.chains):
            owner = self.hosts[chain[0]]
            assert owner.serves(vb) or owner.bucket.state(vb) is not State.ACTIVE
        self.nobody_serves_what_another_serves()


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, print_blob=False)
