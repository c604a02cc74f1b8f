"""Replicas that are promoted amid a snapshot: the history of their failover log must be the one that they hold.

    play(seed, rounds=12)

In a round a replica is cut off; documents that it has are written again at their owner, and some are deleted. It
receives a part of the one snapshot with all that it missed, in which a document stands at its newest place alone, and
becomes active at once. So it has neither the newest version of some documents nor the one before, and its new branch
must begin where it had whole states: otherwise a reader of the owner would continue at it, and keep documents that are
not there.

The third node has all that the owner has, some of it by a snapshot that is longer; it gives up the lost changes,
perhaps while a consumer reads them. Other consumers stopped long before, and continue at the new owner. Deletions may
be purged.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from harness.simulation.cluster import SimCluster
from harness.simulation.histories import Broken
from harness.simulation.sockets import Link
from headwater.wire.vbucket import State

VB = 0
KEYS = tuple(b"key-%d" % number for number in range(12))
SIZES = (0, 300, 2000)
PAUSES = (0.0, 0.001, 0.01, 0.05)
PATIENCE_SECONDS = 60.0
CALL_SECONDS = 5.0
"""The longest that it takes a replica to call its owner again."""
BYTES_MIN, DOUBLINGS = 300, 6.0
"""The fewest bytes of the snapshot that arrive, and how often that number is doubled at most."""


def play(seed: int, rounds: int) -> int:
    """Run the rounds of a seed; return in how many a replica was promoted amid a snapshot.

    Raises:
        Broken: a promise does not hold.
    """
    with SimCluster.running(seed, vbuckets=1) as cluster:
        promotions = Promotions(cluster)
        promotions.begin()
        for _ in range(rounds):
            promotions.round()
        return promotions.torn


class Promotions:
    """An owner whose documents are written again, and a replica that misses these writes, receives a part and is
    promoted.

    Attributes:
        torn: the number of replicas that were promoted amid a snapshot.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster, self._bucket = cluster, cluster.first
        self._random = Random(cluster.schedule.random.getrandbits(64))  # noqa: S311 - must be repeatable
        self.torn = 0

    def begin(self) -> None:
        """Let the first node own the vbucket, and the others follow it."""
        for at in range(len(self._cluster.hosts)):
            self._cluster.start(at)
        self._bucket.found()
        self._until_level()

    def round(self) -> None:
        """Run one promotion, lift all faults, and wait until all copies are equal."""
        random, owner = self._random, self._bucket.holder(VB)
        others = [each for each in range(len(self._cluster.hosts)) if each != owner]
        at, third = random.sample(others, 2)
        self._write(owner, random.randrange(4, 16))
        self._until_level()
        self._drain([owner])
        if random.random() < 0.5:
            self._cut_off(owner, third)
            self._write(owner, random.randrange(1, 6))
        self._miss(owner, at)
        self._connect(owner, third)
        if random.random() < 0.8:
            self._hear_a_part(owner, at)
        self._promote(at)
        self._drain([at, third])
        self._cluster.settle()
        self._cluster.check_everything()

    def _miss(self, owner: int, at: int) -> None:
        """Cut a replica off from the following steps: one change or many, a purge, a consumer that stays behind."""
        random = self._random
        self._cut_off(owner, at)
        for consumer in self._bucket.consumers:
            if random.random() < 0.4:
                consumer.disconnect()
        self._write(owner, random.choice((1, random.randrange(4, 16))))
        if random.random() < 0.3:
            self._bucket.change_collections(drop=random.random() < 0.5)
            self._cluster.run(0.5)
        if random.random() < 0.3:
            self._bucket.compact(owner, VB, everything=True)
            self._cluster.run(1.0)

    def _write(self, owner: int, count: int) -> None:
        random = self._random
        for key in random.choices(KEYS, k=count):
            if random.random() < 0.15:
                self._bucket.delete(owner, VB, key)
            else:
                self._bucket.set(owner, VB, key, size=random.choice(SIZES))
            self._cluster.run(random.choice(PAUSES))
        self._cluster.run(0.5)

    def _cut_off(self, owner: int, at: int) -> None:
        network, hosts = self._cluster.network, self._cluster.hosts
        network.set_link(hosts[owner].name, hosts[at].name, Link.DOWN)
        network.cut(hosts[owner].name, hosts[at].name)

    def _connect(self, owner: int, third: int) -> None:
        """Let the third node receive everything, in one snapshot if it was cut off."""
        hosts = self._cluster.hosts
        self._cluster.network.set_link(hosts[owner].name, hosts[third].name, Link.UP)
        self._cluster.run(CALL_SECONDS)

    def _hear_a_part(self, owner: int, at: int) -> None:
        """Let a replica receive bytes until it is amid a snapshot, or a while has passed: it may receive all, or
        nothing.
        """
        hosts, count = self._cluster.hosts, int(BYTES_MIN * 2 ** (self._random.random() * DOUBLINGS))
        self._cluster.network.let_through(hosts[owner].name, hosts[at].name, count)
        self._cluster.run(2 * CALL_SECONDS, lambda: self._is_amid_a_snapshot(at))
        self._cluster.run(0.5)

    def _is_amid_a_snapshot(self, at: int) -> bool:
        found = self._bucket.placed[at].bucket.vbuckets[VB]
        return found.is_receiving_snapshot and found.durable_seqno > found.complete_seqno

    def _promote(self, at: int) -> None:
        self.torn += self._is_amid_a_snapshot(at)
        self._bucket.set_state(at, VB, State.ACTIVE)
        if not self._cluster.run(PATIENCE_SECONDS, lambda: self._cluster.hosts[at].bucket.state(VB) is State.ACTIVE):
            raise Broken(f"owner: n{at} was not promoted in {PATIENCE_SECONDS:g} s")
        self._cluster.run(0.1)
        self._bucket.check()

    def _drain(self, nodes: Sequence[int]) -> None:
        """Let each consumer continue at one of these nodes, from its position."""
        for consumer in self._bucket.consumers:
            consumer.connect(self._cluster.hosts[self._random.choice(nodes)].name)
        self._cluster.run(1.0)
        self._bucket.check()

    def _until_level(self) -> None:
        if not self._cluster.run(PATIENCE_SECONDS, lambda: not self._bucket.difference()):
            raise Broken(f"equal: {PATIENCE_SECONDS:g} s have passed: {self._bucket.difference()}")
