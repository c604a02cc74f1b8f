"""Durable writes while an operator fails nodes over by cluster maps: every acknowledged write is there afterwards.

    play(seed, rounds=4)
    play_torn(seed, rounds=4)
    play_handed_over(seed, rounds=4)

Three nodes or four have a copy each. In a round links stall, nodes die and come back, the vbucket changes hands; a
replica that lost all its data, or was away for a while, may have received a part of what it lacks. Then one node is
failed over, dead or not, reached by the others or not, and joins again. The operator acts as `headwater cluster
failover`: first a map without it and without an owner, then a look at the remaining copies, then the map with the best
of them, which becomes active.

A write on a majority of the copies survives the loss of all others: of one of three, of one of four, and of a second
one of four, where the owner dies together with a replica.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from harness.simulation.cluster import SimCluster
from harness.simulation.histories import Broken
from harness.simulation.host import Crash
from harness.simulation.sockets import Link
from headwater.cluster.survey import Copy, best
from headwater.wire.address import Address
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status, name_of
from headwater.wire.vbucket import State

VB = 0
STEPS = 12
PATIENCE_SECONDS = 60.0
CALL_SECONDS = 5.0
"""The longest that it takes a replica to call its owner again."""
PAUSES = (0.0, 0.001, 0.003, 0.01, 0.05, 0.3, 2.0)
TIMEOUTS_MS = (30, 300, 3000)
LONG_MS = 20_000
LOCKED = {Status.SYNC_WRITE_IN_PROGRESS, Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS}
SIZES = (0, 0, 300, 2000)
"""The bytes by which a document is longer than its number."""


def play(seed: int, rounds: int) -> None:
    """Run the rounds of a seed: with three nodes where it is even, with four where it is odd.

    Raises:
        Broken: a promise does not hold.
    """
    with SimCluster.running(seed, vbuckets=1, nodes=3 + seed % 2) as cluster:
        failovers = Failovers(cluster)
        failovers.begin()
        for _ in range(rounds):
            failovers.round()


def play_torn(seed: int, rounds: int) -> int:
    """Run rounds in each of which the owner is lost while one of two replicas has a durable write amid a snapshot.

    Returns: the number of rounds in which it was amid a snapshot when the owner was lost.

    Raises:
        Broken: a promise does not hold.
    """
    with SimCluster.running(seed, vbuckets=1) as cluster:
        failovers = Failovers(cluster)
        failovers.begin()
        return sum(failovers.torn_round() for _ in range(rounds))


def play_handed_over(seed: int, rounds: int) -> None:
    """Run rounds in each of which a vbucket changes hands while durable writes wait that no majority has.

    Raises:
        Broken: a promise does not hold.
    """
    with SimCluster.running(seed, vbuckets=1, nodes=4) as cluster:
        failovers = Failovers(cluster)
        failovers.begin()
        for _ in range(rounds):
            failovers.handed_over_round()


class Failovers:
    """An operator, writers and faults; `members` are the nodes of the newest map, the owner first."""

    def __init__(self, cluster: SimCluster) -> None:
        self._nodes = range(len(cluster.hosts))
        self.members = list(self._nodes)
        self._cluster, self._bucket = cluster, cluster.first
        self._random = Random(cluster.schedule.random.getrandbits(64))  # noqa: S311 - must be repeatable
        self._revision = self._written = 0

    def begin(self) -> None:
        """Let the first node own the vbucket, and all others follow."""
        self._bucket.has_map = True
        for at in self.members:
            self._cluster.start(at)
        self._go_on_with(self.members)
        self._until_level()

    def round(self) -> None:
        """Cause faults, fail a node over, cause more faults, and wait until all copies are level."""
        random = self._random
        before: tuple[Callable[[], bool], ...] = (lambda: False, self._empty_a_copy, self._tear_a_snapshot)
        if len(self.members) > 3:
            before += (self._empty_under_a_write,)
        if not random.choice(before)():
            self._steps()
            self._fail_over([self.members[0] if random.random() < 0.7 else random.choice(self.members[1:])])
        self._steps()
        self._heal()
        self._join_again()
        self._until_level()
        self._check()

    def torn_round(self) -> bool:
        """Lose the owner while one replica has received a part of a snapshot with a durable write, and the other
        replica lacks it.

        The other replica is the best copy: writes that it lacks must not have been acknowledged. Return True if the
        first replica was amid the snapshot.
        """
        random, (owner, at, other) = self._random, self._shuffled()
        for _ in range(random.randrange(2, 8)):
            self._write_to_owner()
        self._until_level()
        self._cut_off(owner, at)
        for _ in range(random.randrange(1, 4)):
            self._write_to_owner()
        self._cluster.run(1.0)
        self._stall(owner, [other])
        self._bucket.set_durably(owner, VB, self._known_key(), level=1, timeout_ms=LONG_MS)
        self._write_meanwhile(owner)
        self._let_through(owner, at)
        self._cluster.run(2 * CALL_SECONDS, lambda: self._is_amid_a_snapshot(at))
        self._cluster.run(random.random())
        is_torn = self._is_amid_a_snapshot(at)
        self._fail_over([owner])
        self._heal()
        self._join_again()
        self._until_level()
        self._check()
        return is_torn

    def handed_over_round(self) -> None:
        """Hand the vbucket from the owner to one of three replicas while both have durable writes that the other two
        lack.

        All their keys must be free at once: the former owner may be lost just then, and nobody knows when the others
        are back.
        """
        random, (owner, target, *others) = self._random, self._shuffled()
        for _ in range(random.randrange(2, 8)):
            self._write_to_owner()
        self._until_level()
        self._stall(owner, others)
        keys = random.sample([b"key-%d" % number for number in range(1, self._written + 2)], 2)
        for key, meanwhile in zip(keys, (False, True), strict=True):
            self._bucket.set_durably(owner, VB, key, level=1, timeout_ms=LONG_MS, meanwhile=meanwhile)
            self._cluster.run(random.choice(PAUSES[:6]))
        self._bucket.follow(target, owner, VB, takeover=True)
        self._until(lambda: self._state(target) is State.ACTIVE, "the vbucket has changed hands")
        if random.random() < 0.5:
            self._cluster.crash(owner, random.choice(tuple(Crash)))
        self._check_free(target, keys)
        self._heal()
        self._go_on_with([target, *(at for at in self.members if at != target)])
        self._until_level()
        self._check()

    def _check_free(self, at: int, keys: list[bytes]) -> None:
        """Check that no key is locked at a node: each can be read and written."""
        answers: list[int] = []
        for key in keys:
            self._bucket.ask(at, Opcode.GET, VB, key, answers.append)
        if not self._cluster.run(CALL_SECONDS, lambda: len(answers) == len(keys)):
            raise Broken(f"locked: {len(keys) - len(answers)} of {keys} can't be read at their new owner")
        if locked := set(answers) & LOCKED:
            raise Broken(f"locked: {keys} wait for a former owner's writes: {[name_of(each) for each in locked]}")
        before = self._bucket.acknowledged
        for key in keys:
            self._bucket.set(at, VB, key)
        if not self._cluster.run(CALL_SECONDS, lambda: self._bucket.acknowledged == before + len(keys)):
            raise Broken(f"locked: {keys} can't be written at their new owner")

    # --- what happens -----------------------------------------------------------------------------------------------

    def _steps(self) -> None:
        random = self._random
        for _ in range(random.randrange(STEPS)):
            what = random.choices((self._write, self._change_a_link, self._crash, self._hand_over), (12, 3, 1, 1))[0]
            what()
            self._cluster.run(random.choice(PAUSES))

    def _write(self) -> None:
        """Send a write to the owner by the newest map, or to any node that might believe that it is the owner."""
        random = self._random
        for _ in range(random.randrange(1, 4)):
            at = self.members[0] if random.random() < 0.7 else random.choice(self._nodes)
            self._bucket.set_durably(at, VB, self._key(), level=1, timeout_ms=random.choice(TIMEOUTS_MS))

    def _key(self) -> bytes:
        """Return a new key, or one that was written before, which a snapshot has at its new place alone."""
        if self._written and self._random.random() < 0.4:
            return self._known_key()
        self._written += 1
        return b"key-%d" % self._written

    def _known_key(self) -> bytes:
        return b"key-%d" % self._random.randint(1, self._written)

    def _empty_a_copy(self) -> bool:
        """Let a replica lose all its data, while the others have all acknowledged writes, and refill it in part.

        The replica then has newer keys than the others, and lacks keys that were written again. Return True if it has a
        part.
        """
        random, (owner, at, *others) = self._random, self._shuffled()
        for _ in range(random.randrange(2, 8)):
            self._write_to_owner()
        # Answered, every one: what this replica and the owner alone have must not be what is lost.
        self._cluster.run(2 * TIMEOUTS_MS[-1] / 1000)
        self._until_level()
        if random.random() < 0.7:
            self._stall(owner, others)
            self._write_meanwhile(owner)
        self._empty(owner, at)
        self._cluster.run(random.random() * CALL_SECONDS)
        return False

    def _tear_a_snapshot(self) -> bool:
        """Cut a replica off, and let it receive a part of the one snapshot with all that it missed; return True if it
        has a part.

        The snapshot has durable writes that wait for this replica, others that do not, and keys that it has and that
        were written again since.
        """
        random, (owner, at, *others) = self._random, self._shuffled()
        self._cut_off(owner, at)
        for _ in range(random.randrange(4)):
            self._write_to_owner()
        if random.random() < 0.7:
            self._stall(owner, others)
            self._bucket.set_durably(owner, VB, self._key(), level=1, timeout_ms=LONG_MS)
        self._write_meanwhile(owner)
        self._let_through(owner, at)
        self._cluster.run(random.random() * CALL_SECONDS)
        return False

    def _empty_under_a_write(self) -> bool:
        """Let one of three replicas acknowledge a durable write and lose it; then a second one acknowledges it as well.

        That is no majority of four: owner and second replica are lost.
        """
        owner, at, other, last = self._shuffled()
        self._stall(owner, [other, last])
        self._bucket.set_durably(owner, VB, self._key(), level=1, timeout_ms=LONG_MS)
        self._cluster.run(self._random.choice((0.05, 0.3)))
        self._empty(owner, at)
        if not self._cluster.run(CALL_SECONDS, lambda: self._has_a_part(at)):
            return False
        network, hosts = self._cluster.network, self._cluster.hosts
        network.set_link(hosts[owner].name, hosts[other].name, Link.UP)
        self._cluster.run(1.0)
        self._fail_over([owner, other])
        return True

    def _has_a_part(self, at: int) -> bool:
        """Return True if an emptied copy receives a snapshot, so that its owner knows that it begins anew."""
        found = self._bucket.placed[at].bucket.vbuckets.get(VB)
        return found is not None and found.inbound is not None and found.snapshot_end > 0

    def _is_amid_a_snapshot(self, at: int) -> bool:
        found = self._bucket.placed[at].bucket.vbuckets[VB]
        return found.is_receiving_snapshot and found.durable_seqno > found.complete_durable_seqno

    def _cut_off(self, owner: int, at: int) -> None:
        network, hosts = self._cluster.network, self._cluster.hosts
        network.set_link(hosts[owner].name, hosts[at].name, Link.DOWN)
        network.cut(hosts[owner].name, hosts[at].name)

    def _shuffled(self) -> list[int]:
        """Return the owner, and the replicas in any order."""
        return [self.members[0], *self._random.sample(self.members[1:], len(self.members) - 1)]

    def _stall(self, owner: int, others: list[int]) -> None:
        hosts = self._cluster.hosts
        for other in others:
            self._cluster.network.set_link(hosts[owner].name, hosts[other].name, Link.STALLED)

    def _empty(self, owner: int, at: int) -> None:
        """Let a replica lose all its data, and follow its owner again, with a part of the changes held back."""
        self._bucket.delete_vbucket(at, VB)
        self._until(lambda: self._state(at) is None, "the copy is gone")
        self._let_through(owner, at)
        self._bucket.set_state(at, VB, State.REPLICA)
        self._send(self.members)

    def _let_through(self, owner: int, at: int) -> None:
        """Let a number of bytes arrive at a replica, so that it may have a part of a snapshot."""
        hosts, count = self._cluster.hosts, int(300 * 2 ** (self._random.random() * 5))
        self._cluster.network.let_through(hosts[owner].name, hosts[at].name, count)

    def _write_meanwhile(self, owner: int) -> None:
        """Write existing documents again, without a wait for other copies: their changes move to the end of the
        history.
        """
        for _ in range(self._random.randrange(4, 12)):
            key = self._known_key() if self._written else self._key()
            self._bucket.set(owner, VB, key, size=self._random.choice(SIZES), meanwhile=True)
            self._cluster.run(self._random.choice(PAUSES[:3]))

    def _write_to_owner(self) -> None:
        self._bucket.set_durably(self.members[0], VB, self._key(), level=1, timeout_ms=TIMEOUTS_MS[-1])
        self._cluster.run(self._random.choice(PAUSES[:3]))

    def _change_a_link(self) -> None:
        one, other = self._random.sample(self._nodes, 2)
        hosts, link = self._cluster.hosts, self._random.choice(tuple(Link))
        self._cluster.network.set_link(hosts[one].name, hosts[other].name, link)

    def _crash(self) -> None:
        at = self._random.choice(self._nodes)
        self._cluster.crash(at, self._random.choice(tuple(Crash)))
        self._cluster.run(self._random.choice(PAUSES))
        self._cluster.start(at)

    def _hand_over(self) -> None:
        """Hand the vbucket to one of its replicas, if nothing prevents it."""
        if len(self.members) < 2:
            return
        owner, target = self.members[0], self._random.choice(self.members[1:])
        self._bucket.follow(target, owner, VB, takeover=True)
        if not self._cluster.run(2.0, lambda: self._state(target) is State.ACTIVE):
            self._end_hand_overs([target])
        if self._state(target) is State.ACTIVE:
            self._go_on_with([target, *(at for at in self.members if at != target)])
        elif self._state(owner) is State.ACTIVE:
            self._bucket.set_state(target, VB, State.REPLICA)
            self._bucket.follow(target, owner, VB)
        else:
            self._fail_over([])

    # --- the operator -----------------------------------------------------------------------------------------------

    def _fail_over(self, dead: list[int]) -> None:
        """Fail these nodes over: the best remaining copy becomes the owner."""
        left = [at for at in self.members if at not in dead]
        for at in left:
            self._cluster.start(at)
        self._end_hand_overs(left)
        self._send(left, is_owned=False)
        if dead and self._random.random() < 0.5:
            self._steps_of_writers()
        copies = [self._copy(at) for at in left]
        chosen = self._owner(left, left[copies.index(best(copies))])
        self._go_on_with([chosen, *(at for at in left if at != chosen)])
        self._bucket.check()

    def _owner(self, members: list[int], otherwise: int) -> int:
        """Return the active node among these: a hand-over may have ended unnoticed."""
        return next((at for at in members if self._state(at) is State.ACTIVE), otherwise)

    def _end_hand_overs(self, members: list[int]) -> None:
        """Cancel unfinished hand-overs between these nodes."""
        for target in members:
            for source in self._nodes:
                self._bucket.leave(target, source)

        def are_over() -> bool:
            found = (self._bucket.placed[at].bucket.vbuckets.get(VB) for at in members)
            return all(each is None or each.inbound is None or not each.inbound.takes_over for each in found)

        self._until(are_over, "no vbucket changes hands")

    def _steps_of_writers(self) -> None:
        for _ in range(3):
            self._write()
            self._cluster.run(self._random.choice(PAUSES))

    def _copy(self, at: int) -> Copy:
        found = self._bucket.placed[at].bucket.vbuckets.get(VB)
        address = Address("", at)
        if found is None:
            return Copy(address, 0, ())
        return Copy(address, found.durable_seqno, found.failover.entries, found.complete_durable_seqno)

    def _go_on_with(self, members: list[int]) -> None:
        """Send the map, and let the first of these nodes own the vbucket."""
        self.members = members
        self._send(members)
        if self._state(members[0]) is not State.ACTIVE:
            self._bucket.set_state(members[0], VB, State.ACTIVE)
            self._until(lambda: self._state(members[0]) is State.ACTIVE, "the chosen copy is active")

    def _send(self, members: list[int], *, is_owned: bool = True) -> None:
        """Send the next map to all of these nodes."""
        self._revision += 1
        revision = self._revision
        for at in members:
            self._bucket.send_map(at, revision, members, is_owned=is_owned)

        def have_it() -> bool:
            return all(self._cluster.hosts[at].server.first.cluster.version[1] == revision for at in members)

        self._until(have_it, f"all members have map {revision}")

    def _heal(self) -> None:
        """Start all nodes, and restore all links."""
        for one, host in enumerate(self._cluster.hosts):
            self._cluster.start(one)
            for other in self._cluster.hosts[:one]:
                self._cluster.network.set_link(host.name, other.name, Link.UP)
                self._cluster.network.cut(host.name, other.name)

    def _join_again(self) -> None:
        """Let the failed-over node follow again; it first gives up a hand-over that the others do not know of."""
        owner = self._owner(self.members, self.members[0])
        self.members = [owner, *(at for at in self.members if at != owner)]
        outsiders = [at for at in self._nodes if at not in self.members]
        for at in outsiders:
            if self._state(at) is State.ACTIVE:
                self._bucket.set_state(at, VB, State.DEAD)
        self._until(lambda: all(self._state(at) is not State.ACTIVE for at in outsiders), "nobody else owns it")
        self._go_on_with([*self.members, *outsiders])

    # --- the end ----------------------------------------------------------------------------------------------------

    def _until_level(self) -> None:
        """Wait until all copies are equal, and no write waits any more."""
        self._until(lambda: not self._difference(), "all copies are equal")

    def _difference(self) -> str:
        found = [self._bucket.placed[at].bucket.vbuckets.get(VB) for at in self.members]
        shown = {(each.durable_seqno, each.failover.entries) for each in found if each is not None}
        states = [None if each is None else each.state for each in found]
        waits = [each.prepares.pending for each in found if each is not None and each.prepares.pending]
        if len(shown) == 1 and states == [State.ACTIVE, *[State.REPLICA] * (len(found) - 1)] and not waits:
            return ""
        return f"{states}, {sorted(shown)}, in flight: {waits}"

    def _check(self) -> None:
        """Check that every successful write, or a later one of its key, is there, and that all copies are equal."""
        held = [self._bucket.observers[at].held(VB) for at in self.members]
        for (_, key), superseded in self._bucket.superseded.items():
            if key not in held[0]:
                raise Broken(f"durable: {key!r} was told to have been written, and is not at the owner")
            if (value := held[0][key][1].value) in superseded:
                raise Broken(f"durable: {key!r} is {value!r} again, which was told to have been written over")
        if any(other != held[0] for other in held[1:]):
            raise Broken("equal: the copies have the same seqnos, and other documents")
        self._bucket.check()

    def _state(self, at: int) -> State | None:
        host = self._cluster.hosts[at]
        return host.bucket.state(VB) if host.is_up else None

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        if not self._cluster.run(PATIENCE_SECONDS, condition):
            raise Broken(f"{PATIENCE_SECONDS:g} s have passed until {what}: {self._difference()}")
