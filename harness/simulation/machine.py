"""The model-based test of a cluster: hypothesis drives three simulated nodes, and shrinks the steps that break them.

Writes (set, delete, expiry, CAS, durable ones, in collections that come and go, in two buckets of which one comes and
goes), failovers, rollbacks, takeovers, crashes of processes and of power, restarts, broken and stalled links, failing
disks, compaction, consumers that move from node to node: in any order, a few milliseconds or some seconds apart.
`teardown` lifts all faults and checks everything against the model (histories.py has the promises); most of it is
checked after each step as well.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.simulation.cluster import SimCluster
from harness.simulation.host import Crash
from harness.simulation.lines import PLACE
from harness.simulation.sockets import Link
from headwater.errors import HeadwaterError
from headwater.wire.vbucket import State

NODES = st.integers(0, 2)
BUCKETS = st.integers(0, 1)
CONSUMERS = st.integers(0, 2)
VBUCKETS = st.integers(0, 1)
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
PAUSES = st.sampled_from([0.0, 0.0, 0.001, 0.003, 0.01, 0.05])
"""Seconds that pass after a step: about what a message or a sync takes."""


class ClusterMachine(RuleBasedStateMachine):
    """One example: a fresh cluster, and its steps."""

    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.cluster: SimCluster

    @initialize(seed=st.integers(0, 2**32 - 1), buckets=st.integers(1, 2))
    def begin(self, seed: int, buckets: int) -> None:
        """Start the cluster: n0 owns every vbucket, n1 and n2 follow it."""
        self.cluster = cluster = self.stack.enter_context(SimCluster.running(seed))
        for at in range(3):
            cluster.start(at)
        cluster.first.found()
        if buckets == 2:
            cluster.make_bucket()
        cluster.run(0.5)
        self.counts["examples"] += 1

    def passed(self, name: str, pause: float) -> None:
        """End a step, and let some time pass."""
        self.counts[name] += 1
        self.counts["steps"] += 1
        self.cluster.run(pause)

    # --- writers ----------------------------------------------------------------------------------------------------

    @rule(
        which=BUCKETS,
        vb=VBUCKETS,
        keys=st.lists(KEYS, min_size=1, max_size=6),
        size=st.sampled_from([0, 0, 3000]),
        pause=PAUSES,
    )
    def write_to_the_owner(self, which: int, vb: int, keys: list[bytes], size: int, pause: float) -> None:
        """Send some sets to the owner, one after the other, without waiting."""
        bucket = self.cluster.bucket(which)
        for key in keys:
            bucket.set(bucket.holder(vb), vb, key, size=size)
        self.passed("sets", pause)

    @rule(which=BUCKETS, at=NODES, vb=VBUCKETS, key=KEYS, how=st.sampled_from(["set", "cas", "expires"]), pause=PAUSES)
    def write_anywhere(self, which: int, at: int, vb: int, key: bytes, *, how: str, pause: float) -> None:
        """Send a write to any node, also to one that owns nothing any more, or wrongly believes that it does."""
        bucket = self.cluster.bucket(which)
        bucket.set(at, vb, key, cas=how == "cas", expiry=2 if how == "expires" else 0)
        self.passed("set anywhere", pause)

    @rule(which=BUCKETS, vb=VBUCKETS, key=KEYS, pause=PAUSES)
    def delete(self, which: int, vb: int, key: bytes, pause: float) -> None:
        """Delete a key."""
        bucket = self.cluster.bucket(which)
        bucket.delete(bucket.holder(vb), vb, key)
        self.passed("delete", pause)

    @rule(which=BUCKETS, vb=VBUCKETS, count=st.integers(2, 30), pause=PAUSES)
    def write_a_lot(self, which: int, vb: int, count: int, pause: float) -> None:
        """Write enough for several batches and snapshots."""
        bucket = self.cluster.bucket(which)
        for number in range(count):
            bucket.set(bucket.holder(vb), vb, b"abcdefgh"[number % 8 :][:1], size=number * 20)
            if number % 7 == 0:
                self.cluster.run(0.001)
        self.passed("many sets", pause)

    @rule(
        which=BUCKETS, vb=VBUCKETS, keys=st.lists(KEYS, min_size=1, max_size=3), level=st.integers(1, 3), pause=PAUSES
    )
    def write_durably(self, which: int, vb: int, keys: list[bytes], level: int, pause: float) -> None:
        """Send durable writes that wait for a majority, one after the other on one connection."""
        bucket = self.cluster.bucket(which)
        for key in keys:
            bucket.set_durably(bucket.holder(vb), vb, key, level=level, timeout_ms=500)
        self.passed("durable sets", pause)

    @rule(which=BUCKETS, at=NODES, vb=VBUCKETS, key=KEYS, deletes=st.booleans(), pause=PAUSES)
    def write_durably_anywhere(self, which: int, at: int, vb: int, key: bytes, *, deletes: bool, pause: float) -> None:
        """Send a durable write or deletion to any node, also to one that owns nothing any more."""
        bucket = self.cluster.bucket(which)
        if deletes:
            bucket.delete_durably(at, vb, key)
        else:
            bucket.set_durably(at, vb, key, level=1, timeout_ms=20)
        self.passed("durable anywhere", pause)

    @rule(which=BUCKETS, vb=VBUCKETS, key=KEYS, pause=PAUSES)
    def write_to_a_collection(self, which: int, vb: int, key: bytes, pause: float) -> None:
        """Write a document to the newest collection."""
        bucket = self.cluster.bucket(which)
        bucket.set_in_collection(bucket.holder(vb), vb, key)
        self.passed("sets in collections", pause)

    # --- the operator -----------------------------------------------------------------------------------------------

    @rule(which=BUCKETS, drop=st.booleans(), pause=PAUSES)
    def change_collections(self, which: int, drop: bool, pause: float) -> None:
        """Create a collection, or drop one with its documents."""
        bucket = self.cluster.bucket(which)
        bucket.change_collections(drop=drop)
        self.passed("collections changed", pause)

    @rule(drop=st.booleans(), pause=PAUSES)
    def change_the_second_bucket(self, drop: bool, pause: float) -> None:
        """Create or drop the second bucket, or continue an unfinished creation or drop."""
        (self.cluster.drop_bucket if drop else self.cluster.make_bucket)()
        self.passed("drop bucket" if drop else "make bucket", pause)

    @rule(at=NODES, fails=st.booleans(), pause=PAUSES)
    def move_everything(self, at: int, fails: bool, pause: float) -> None:
        """Let one node own all vbuckets of all buckets: by takeovers, or promoted as in a failover."""
        for bucket in self.cluster.buckets_in_use:
            for vb in bucket.vbuckets:
                if fails:
                    bucket.set_state(at, vb, State.ACTIVE)
                elif at != (holder := bucket.holder(vb)):
                    bucket.follow(at, holder, vb, takeover=True)
        self.passed("everything fails over" if fails else "everything is taken over", pause)

    @rule(which=BUCKETS, at=NODES, vb=VBUCKETS, pause=PAUSES)
    def fail_over(self, which: int, at: int, vb: int, pause: float) -> None:
        """Promote a node, whatever the owner does meanwhile."""
        bucket = self.cluster.bucket(which)
        bucket.set_state(at, vb, State.ACTIVE)
        self.passed("failover", pause)

    @rule(which=BUCKETS, at=NODES, source=NODES, vb=VBUCKETS, pause=PAUSES)
    def come_back(self, which: int, at: int, source: int, vb: int, pause: float) -> None:
        """Make a node a replica of another: an old owner of the new one, or any of any."""
        bucket = self.cluster.bucket(which)
        if at == source:
            source = bucket.holder(vb)
        if at != source:
            bucket.set_state(at, vb, State.REPLICA)
            self.cluster.run(0.01)
            bucket.follow(at, source, vb)
            self.passed("come back as a replica", pause)

    @rule(which=BUCKETS, at=NODES, vb=VBUCKETS, pause=PAUSES)
    def follow_the_owner(self, which: int, at: int, vb: int, pause: float) -> None:
        """Let a copy follow the owner, as in a cluster."""
        bucket = self.cluster.bucket(which)
        holder = bucket.holder(vb)
        if at != holder:
            bucket.follow(at, holder, vb)
            self.passed("follow", pause)

    @rule(which=BUCKETS, at=NODES, vb=VBUCKETS, pause=PAUSES)
    def take_over(self, which: int, at: int, vb: int, pause: float) -> None:
        """Let a node take a vbucket over without a loss."""
        bucket = self.cluster.bucket(which)
        holder = bucket.holder(vb)
        if at != holder:
            bucket.follow(at, holder, vb, takeover=True)
            self.passed("takeover", pause)

    @rule(which=BUCKETS, at=NODES, source=NODES, pause=PAUSES)
    def stop_following(self, which: int, at: int, source: int, pause: float) -> None:
        """Let a node stop following a producer, perhaps in the middle of a takeover."""
        bucket = self.cluster.bucket(which)
        bucket.leave(at, source)
        self.passed("leave", pause)

    @rule(which=BUCKETS, at=NODES, vb=VBUCKETS, state=st.sampled_from([State.DEAD, State.PENDING]), pause=PAUSES)
    def set_another_state(self, which: int, at: int, vb: int, state: State, pause: float) -> None:
        """Set a vbucket to dead or pending by hand, as a mover does that cleans up."""
        bucket = self.cluster.bucket(which)
        bucket.set_state(at, vb, state)
        self.passed(f"set {state.name.lower()}", pause)

    @rule(which=BUCKETS, at=NODES, vb=VBUCKETS, pause=PAUSES)
    def delete_a_copy(self, which: int, at: int, vb: int, pause: float) -> None:
        """Delete a replica."""
        bucket = self.cluster.bucket(which)
        if at != bucket.holder(vb) and self.cluster.hosts[at].name != bucket.owners[vb].holder:
            bucket.delete_vbucket(at, vb)
            self.passed("delete vbucket", pause)

    @rule(which=BUCKETS, at=NODES, vb=VBUCKETS, everything=st.booleans(), pause=PAUSES)
    def compact(self, which: int, at: int, vb: int, everything: bool, pause: float) -> None:
        """Compact a log: old versions are removed, and perhaps all tombstones."""
        bucket = self.cluster.bucket(which)
        bucket.compact(at, vb, everything=everything)
        self.passed("compact", pause)

    # --- faults -----------------------------------------------------------------------------------------------------

    @rule(at=NODES, how=st.sampled_from(Crash), back=st.booleans(), pause=PAUSES)
    def crash(self, at: int, how: Crash, back: bool, pause: float) -> None:
        """Crash a process or its machine; it may be back at once."""
        self.cluster.crash(at, how)
        if back:
            self.cluster.run(0.005)
            self.cluster.start(at)
        self.passed(f"crash {how.name.lower()}", pause)

    @rule(at=NODES, pause=PAUSES)
    def start(self, at: int, pause: float) -> None:
        """Start a node that is down."""
        self.cluster.start(at)
        self.passed("start", pause)

    @rule(at=NODES, pause=PAUSES)
    def restart(self, at: int, pause: float) -> None:
        """Restart a node in order."""
        if self.cluster.hosts[at].is_up:
            self.cluster.stop(at)
            self.cluster.start(at)
            self.passed("restart", pause)

    @rule(one=NODES, other=NODES, link=st.sampled_from(Link), pause=PAUSES)
    def change_a_link(self, one: int, other: int, link: Link, pause: float) -> None:
        """Change the link between two nodes, or a node and its clients."""
        places = self.cluster.hosts[one].name, PLACE if one == other else self.cluster.hosts[other].name
        self.cluster.network.set_link(*places, link)
        self.passed(f"link {link.name.lower()}", pause)

    @rule(one=NODES, other=NODES, count=st.integers(0, 1500), again=st.booleans(), pause=PAUSES)
    def let_through(self, one: int, other: int, count: int, again: bool, pause: float) -> None:
        """Let so many more bytes of a node arrive at another one, or at its clients: that may tear a snapshot."""
        places = self.cluster.hosts[one].name, PLACE if one == other else self.cluster.hosts[other].name
        if again:  # what comes is a snapshot of all that is lacking
            self.cluster.network.cut(*places)
        self.cluster.network.let_through(*places, count)
        self.passed("let some bytes through", pause)

    @rule(one=NODES, other=NODES, pause=PAUSES)
    def cut(self, one: int, other: int, pause: float) -> None:
        """Reset all connections between two places."""
        places = self.cluster.hosts[one].name, PLACE if one == other else self.cluster.hosts[other].name
        self.cluster.network.cut(*places)
        self.passed("cut", pause)

    @rule(at=NODES, nth=st.integers(1, 6), pause=PAUSES)
    def fail_the_disk(self, at: int, nth: int, pause: float) -> None:
        """Let one of the next changes of a disk fail."""
        self.cluster.hosts[at].disk.fail(nth)
        self.passed("disk error", pause)

    # --- consumers and time -----------------------------------------------------------------------------------------

    @rule(which=CONSUMERS, at=NODES, pause=PAUSES)
    def drain(self, which: int, at: int, pause: float) -> None:
        """Let a consumer continue at some node from its position."""
        self.cluster.consumer(which).connect(self.cluster.hosts[at].name)
        self.passed("drain", pause)

    @precondition(lambda self: any(each.is_connected for each in self.cluster.consumers))
    @rule(which=CONSUMERS, paused=st.booleans(), pause=PAUSES)
    def pause_a_consumer(self, which: int, paused: bool, pause: float) -> None:
        """Pause a consumer's reading, or resume it."""
        consumer = self.cluster.consumer(which)
        (consumer.pause if paused else consumer.resume)()
        consumer.ask(consumer.idle_vbuckets())
        self.passed("pause or resume a consumer", pause)

    @rule(seconds=st.sampled_from([0.005, 0.02, 0.1, 0.1, 0.5, 3.0, 30.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.passed("wait", seconds)

    @invariant()
    def everything_is_as_promised(self) -> None:
        """Check the invariants that hold at any time."""
        if hasattr(self, "cluster"):
            self.cluster.check()

    def failed(self, error: BaseException) -> None:
        """Keep the error of a broken promise; hypothesis continues to look for fewer steps."""

    def teardown(self) -> None:
        """Bring the cluster to rest, and check that all copies are equal."""
        error = sys.exc_info()[1]
        try:
            if isinstance(error, AssertionError | HeadwaterError):
                self.failed(error)
            elif error is None and hasattr(self, "cluster"):
                self._come_to_rest(self.cluster)
        finally:
            self.stack.close()

    def _come_to_rest(self, cluster: SimCluster) -> None:
        try:
            cluster.settle()
            cluster.check_everything()
        except (AssertionError, HeadwaterError) as error:
            self.failed(error)
            raise
        for bucket in cluster.buckets:
            self.counts["acknowledged"] += bucket.acknowledged
            for status, count in bucket.durable_answers.items():
                self.counts[f"durable {status}"] += count
            self.counts["rollbacks of consumers"] += sum(consumer.rollbacks for consumer in bucket.consumers)
            self.counts["writes a failover gave up"] += sum(owner.discarded for owner in bucket.owners.values())
        for bucket in cluster.buckets[1:]:
            self.counts["acknowledged in the second bucket"] += bucket.acknowledged
