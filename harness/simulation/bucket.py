"""A bucket of the three simulated nodes, with its operator, writers and consumers, and the model that judges it.

Each bucket has a model of its own, and the nodes' buckets share processes, disks and links: a change that appears in
another bucket than the one it was sent to counts as one that "nobody sent".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from harness.simulation.callers import Caller
from harness.simulation.consumers import Consumer, Seen
from harness.simulation.histories import Broken, Change, Histories, Ownership
from harness.simulation.host import FIRST_BUCKET, Host
from harness.simulation.observer import Observer, Placed
from headwater.node.durable_writes import Copies
from headwater.protocol.dcp.position import Position
from headwater.wire import leb128
from headwater.wire.address import Address
from headwater.wire.cluster_map import NOBODY, ClusterMap
from headwater.wire.features import Feature
from headwater.wire.framing import FrameInfo, RequestInfo, encode_framing
from headwater.wire.header import Frame
from headwater.wire.manifest import COLLECTION_ID_FIRST
from headwater.wire.opcodes import Opcode
from headwater.wire.status import name_of
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from harness.simulation.scheduler import SimLoop
    from harness.simulation.sockets import Network

CONSUMER_SECONDS = 120.0
MAP_EPOCH = 2
"""Newer than any map that a node made of itself."""


class World(Protocol):
    """The part of a cluster that its buckets share."""

    network: Network
    loop: SimLoop
    hosts: list[Host]

    def next_number(self) -> int:
        """Return a new number, unique over all buckets."""

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass, or until a condition holds; return True if it holds."""


class SimBucket:
    """One bucket, from its creation to its drop; a later one of the same name is another.

    Attributes:
        placed, observers, callers: by node. owners: by vbucket. consumers, histories.
        bystanders: connections on which no durable write waits.
        acknowledged: the number of answered writes. durable_answers: those that waited for a majority, by status.
        superseded: by vbucket and key that was written durably with success: the values that it must never have again,
            since they were answered before that write was sent.
        has_map: True if the nodes have cluster maps; otherwise every node counts as a copy of every vbucket.
    """

    def __init__(self, world: World, name: str, *, vbuckets: int, consumers: int) -> None:
        self.world, self.name, self.hosts = world, name, world.hosts
        self.vbuckets = range(vbuckets)
        self.histories = Histories()
        self.owners = {vb: Ownership(vb) for vb in self.vbuckets}
        self.placed = [Placed(host, name) for host in world.hosts]
        self.observers = [Observer(each, self.histories, self.owners) for each in self.placed]
        self._seen_buckets: list[object] = [None] * len(self.placed)
        self.callers, self.bystanders, self.admins = self._callers(), self._callers(), self._callers()
        self.aware = self._callers(Feature.COLLECTIONS)
        selected = "" if name == FIRST_BUCKET else name
        self.consumers = [
            Consumer(world.network, world.loop, f"c{at} of {name}", self.vbuckets, bucket=selected)
            for at in range(consumers)
        ]
        for consumer in self.consumers:
            consumer.on_seen = self._seen
        self.collections: dict[int, str] = {}
        self.acknowledged, self.has_map = 0, False
        self.durable_answers: Counter[str] = Counter()
        self.superseded: dict[tuple[int, bytes], set[bytes | int]] = {}
        self._answered: dict[tuple[int, bytes], set[bytes | int]] = {}
        self._manifests = self._collection = 0
        self._cas: dict[tuple[int, int, bytes], int] = {}

    def _callers(self, *features: Feature) -> list[Caller]:
        selected = "" if self.name == FIRST_BUCKET else self.name
        network, loop = self.world.network, self.world.loop
        return [Caller(network, loop, host.name, *features, bucket=selected) for host in self.hosts]

    # --- what becomes of the nodes ----------------------------------------------------------------------------------

    def started(self, at: int) -> None:
        """Note that a process was started, which may serve the bucket."""
        self._seen_buckets[at] = None
        for owner in self.owners.values():
            owner.began(self.placed[at].name)
        if not self.placed[at].is_served:
            self.observers[at].vanished()
        self._look_whether_served(at)

    def event(self, at: int) -> None:
        """Check a node after an event in its process."""
        self._look_whether_served(at)
        if self.placed[at].is_served:
            self.observers[at].event()

    def gone(self, at: int) -> None:
        """Note that a process is about to end, or has just ended in order."""
        if self._seen_buckets[at] is not None:
            self.observers[at].gone()

    def hang_up(self, at: int) -> None:
        """Close all connections to a node except those of consumers."""
        for caller in (self.callers[at], self.bystanders[at], self.admins[at], self.aware[at]):
            caller.hang_up()

    def _look_whether_served(self, at: int) -> None:
        placed = self.placed[at]
        now = placed.bucket if placed.is_served else None
        if now is self._seen_buckets[at]:
            return
        self._seen_buckets[at] = now
        if now is None:
            self.observers[at].vanished()
        else:
            if not self.has_map:
                others = frozenset(host.address for host in self.hosts if host is not placed.host)
                now.durable_writes.copies_of = lambda _: Copies(len(self.hosts), others)
            self.observers[at].started()

    # --- the operator -----------------------------------------------------------------------------------------------

    @property
    def is_founded(self) -> bool:
        """True if every vbucket has had its first owner."""
        return all(owner.holder for owner in self.owners.values())

    def found(self) -> None:
        """Let the first node own every vbucket, and the others follow it."""
        for vb in self.vbuckets:
            self.set_state(0, vb, State.ACTIVE)
            for at in range(1, len(self.placed)):
                self.follow(at, 0, vb)

    def send_map(self, to: int, revision: int, members: Sequence[int], *, is_owned: bool = True) -> None:
        """Send SET_CLUSTER_CONFIG with these nodes as members; the first owns all vbuckets, or none does without
        `is_owned`.
        """
        servers = {at: Address(*self.world.network.address(self.hosts[at].name)) for at in members}
        copies = tuple(range(len(members)))
        chains = (copies if is_owned else (NOBODY, *copies),) * len(self.vbuckets)
        known = ClusterMap(
            self.name, "0" * 32, MAP_EPOCH, revision, tuple(servers.values()), chains, len(self.hosts) - 1
        )
        version, value = MAP_EPOCH.to_bytes(8) + revision.to_bytes(8), known.to_json(servers.get(to))
        self.admins[to].ask(
            Opcode.SET_CLUSTER_CONFIG, lambda _: None, key=self.name.encode(), extras=version, value=value
        )

    def set_state(self, at: int, vb: int, state: State) -> None:
        """Send SET_VBUCKET."""
        owner, name = self.owners[vb], self.placed[at].name
        request = owner.promise(name) if state is State.ACTIVE else 0

        def answered(answer: Frame | None) -> None:
            if answer is not None:
                owner.settled(name, request)

        self.admins[at].ask(Opcode.SET_VBUCKET, answered, extras=bytes([state]), vbucket=vb)

    def delete_vbucket(self, at: int, vb: int) -> None:
        """Send DEL_VBUCKET."""
        self.admins[at].ask(Opcode.DEL_VBUCKET, lambda _: None, vbucket=vb)

    def follow(self, at: int, source: int, vb: int, *, takeover: bool = False) -> None:
        """Let a vbucket follow another node, or take it over from there."""
        asked = {"from": self.hosts[source].address, "vbuckets": str(vb), "takeover": takeover}
        self.admins[at].ask(Opcode.IOCTL_SET, lambda _: None, key=b"replicate", value=json.dumps(asked).encode())

    def leave(self, at: int, source: int) -> None:
        """Let a node stop following another one."""
        asked = {"from": self.hosts[source].address}
        self.admins[at].ask(Opcode.IOCTL_SET, lambda _: None, key=b"replicate.stop", value=json.dumps(asked).encode())

    def compact(self, at: int, vb: int, *, everything: bool) -> None:
        """Send COMPACT_DB; with `everything` it also drops all tombstones that can be dropped."""
        extras = bytes(16) + bytes([everything]) + bytes(7)
        self.admins[at].ask(Opcode.COMPACT_DB, lambda _: None, extras=extras, vbucket=vb)

    def change_collections(self, *, drop: bool) -> None:
        """Create a new collection, or drop the oldest, on all nodes, as `headwater collection` does."""
        if drop and self.collections:
            del self.collections[min(self.collections)]
        else:
            self._collection += 1
            self.collections[COLLECTION_ID_FIRST + self._collection] = f"c{self._collection}"
        self._manifests += 1
        named = [{"uid": f"{number:x}", "name": name} for number, name in self.collections.items()]
        scope = {"uid": "0", "name": "_default", "collections": [{"uid": "0", "name": "_default"}, *named]}
        value = json.dumps({"uid": f"{self._manifests:x}", "scopes": [scope]}).encode()
        for admin in self.admins:
            admin.ask(Opcode.COLLECTIONS_SET_MANIFEST, lambda _: None, value=value)

    # --- writers ----------------------------------------------------------------------------------------------------

    def set_in_collection(self, at: int, vb: int, key: bytes) -> None:
        """Send SET for the newest collection, which the node may not know yet, or no more."""
        collection, number = max(self.collections, default=COLLECTION_ID_FIRST), self.world.next_number()
        sections = {"key": leb128.join_key(collection, key), "value": b"%d" % number, "extras": bytes(8)}
        self.aware[at].ask(Opcode.SET, lambda _: None, vbucket=vb, **sections)

    def ask(self, at: int, opcode: int, vb: int, key: bytes, answered: Callable[[int], None]) -> None:
        """Send a request for a document, and call `answered` with the status; not if the connection is lost."""

        def heard(answer: Frame | None) -> None:
            if answer is not None:
                answered(answer.status)

        self.bystanders[at].ask(opcode, heard, key=key, vbucket=vb)

    def set_durably(
        self, at: int, vb: int, key: bytes, *, level: int, timeout_ms: int, meanwhile: bool = False
    ) -> None:
        """Send a durable SET of a new value, which waits for a majority.

        Args:
            meanwhile: True for a connection on which no earlier durable write waits.
        """
        number = self.world.next_number()
        value = b"%d" % number
        self.histories.sent(vb, key, value)
        asked = FrameInfo(RequestInfo.DURABILITY, bytes([level]) + timeout_ms.to_bytes(2))
        framing = encode_framing([asked])
        self._write(at, vb, key, Opcode.SET, meanwhile=meanwhile, value=value, extras=bytes(8), framing=framing)

    def delete_durably(self, at: int, vb: int, key: bytes) -> None:
        """Send a durable DELETE, which waits for a majority."""
        asked = FrameInfo(RequestInfo.DURABILITY, bytes([1]) + (200).to_bytes(2))
        self._write(at, vb, key, Opcode.DELETE, framing=encode_framing([asked]))

    def set(
        self,
        at: int,
        vb: int,
        key: bytes,
        *,
        expiry: int = 0,
        cas: bool = False,
        size: int = 0,
        meanwhile: bool = False,
    ) -> None:
        """Send SET of a new value.

        Args:
            cas: True to replace only the version that was answered last.
            meanwhile: True for a connection on which no earlier durable write waits.
        """
        number = self.world.next_number()
        value = b"%d" % number + b"x" * size
        self.histories.sent(vb, key, value)
        given = self._cas.get((at, vb, key), 0) if cas else 0
        extras = number.to_bytes(4) + expiry.to_bytes(4)
        self._write(at, vb, key, Opcode.SET, meanwhile=meanwhile, value=value, extras=extras, cas=given)

    def delete(self, at: int, vb: int, key: bytes) -> None:
        """Send DELETE."""
        self._write(at, vb, key, Opcode.DELETE)

    def _write(
        self, at: int, vb: int, key: bytes, opcode: int, *, meanwhile: bool = False, **sections: bytes | int
    ) -> None:
        before = frozenset(self._answered.get((vb, key), ()))

        def answered(answer: Frame | None) -> None:
            if answer is not None and "framing" in sections:
                self.durable_answers[name_of(answer.status)] += 1
            if answer is not None and answer.status == 0:
                self.acknowledged += 1
                self._cas[at, vb, key] = answer.cas
                uuid, seqno = int.from_bytes(answer.extras[:8]), int.from_bytes(answer.extras[8:16])
                self.owners[vb].acked(uuid, seqno)
                if opcode == Opcode.SET:
                    self._answered.setdefault((vb, key), set()).add(sections["value"])
                    if "framing" in sections:
                        self.superseded.setdefault((vb, key), set()).update(before)

        caller = (self.bystanders if meanwhile else self.callers)[at]
        caller.ask(opcode, answered, key=key, vbucket=vb, **sections)

    def _seen(self, consumer: Consumer, seen: Seen, position: Position) -> None:
        change = Change(seen.key, seen.value, seen.cas, seen.rev_seqno, seen.flags, seen.expiry)
        self.histories.shown(consumer.name, seen.vbucket, position.failover_log, seen.seqno, change)

    # --- judging ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the invariants that hold at any time."""
        for placed, observer in zip(self.placed, self.observers, strict=True):
            if placed.is_served:
                observer.check()
        for consumer in self.consumers:
            for vb in self.vbuckets:
                self._check_consumer(consumer, vb)

    def _check_consumer(self, consumer: Consumer, vb: int) -> None:
        position = consumer.position(vb)
        if position.complete and position.seqno:
            held = {
                seen.key: (seen.seqno, Change(seen.key, seen.value, seen.cas, seen.rev_seqno, seen.flags, seen.expiry))
                for seen in consumer.told[vb]
            }
            self.histories.check_complete(consumer.name, vb, position.failover_log, held, position.seqno)

    def holder(self, vb: int) -> int:
        """Return the node that should own a vbucket: the last one that was made its owner; if that was demoted, an
        active one.
        """
        names = [each.name for each in self.placed]
        official = names.index(self.owners[vb].holder) if self.owners[vb].holder else 0
        actives = [at for at, each in enumerate(self.placed) if each.is_served and each.bucket.is_active(vb)]
        return actives[0] if actives and self.owners[vb].is_vacant else official

    def give_owners(self) -> None:
        """Give every vbucket one owner, which all others follow from the beginning."""
        nodes = range(len(self.hosts))
        for at in nodes:
            for source in nodes:
                self.leave(at, source)
        self.world.run(1.0)
        holders = {vb: self.holder(vb) for vb in self.vbuckets}
        for vb, holder in holders.items():
            if not self.placed[holder].bucket.is_active(vb):
                self.set_state(holder, vb, State.ACTIVE)
            elif self.owners[vb].is_vacant:
                found = self.placed[holder].bucket.vbuckets[vb]
                self.owners[vb].chosen(self.placed[holder].name, found.failover.entries, found.high_seqno)
            for at in nodes:
                if at != holder:
                    self.set_state(at, vb, State.REPLICA)
        self.world.run(1.0)
        for vb, holder in holders.items():
            for at in nodes:
                if at != holder:
                    self.follow(at, holder, vb)

    def difference(self) -> str:
        """Return a difference between a replica and its active, in words; empty if all are equal."""
        for host in self.placed:
            if not host.is_served:
                return f"bucket {self.name} is not at {host.name}"
        for vb in self.vbuckets:
            owner = self.placed[self.holder(vb)].bucket.vbuckets.get(vb)
            for host in self.placed:
                found = host.bucket.vbuckets.get(vb)
                if owner is None or found is None:
                    return f"vbucket {vb} is not at {host.name}"
                shown = (found.durable_seqno, found.failover.entries)
                wanted = (owner.high_seqno, owner.failover.entries)
                if shown != wanted:
                    return f"vbucket {vb} at {host.name} is {shown}, its owner's is {wanted}"
                if found.prepares.pending:
                    return f"vbucket {vb} at {host.name}: {found.prepares.pending} still wait"
        return ""

    def check_everything(self) -> None:
        """Check the bucket at rest: replicas equal their actives, consumers end equal to the owner, no acknowledged
        write is lost.
        """
        for vb in self.vbuckets:
            holder = self.holder(vb)
            owner = self.placed[holder].bucket.vbuckets[vb]
            self.owners[vb].check_kept(owner_name := self.placed[holder].name, owner.failover.entries, owner.high_seqno)
            held = self.observers[holder].held(vb)
            for host, observer in zip(self.placed, self.observers, strict=True):
                unequal = set(observer.held(vb).items()) ^ set(held.items())
                if any(not self.histories.may_be_missing(vb, *change) for _, change in unequal):
                    raise Broken(f"equal: vbucket {vb} of {host.name} differs from {owner_name}: {unequal}")
            self._check_collections(vb, holder)
            self._drain_to_the_end(vb, holder)

    def _check_collections(self, vb: int, holder: int) -> None:
        """Check that all copies have the same collections, and the same documents in those that exist."""
        alive = self.placed[holder].bucket.vbuckets[vb].collections.alive
        for host, observer in zip(self.placed, self.observers, strict=True):
            known = host.bucket.vbuckets[vb].collections
            if known.alive != alive:
                raise Broken(f"equal: vbucket {vb} of {host.name} has the collections {known.alive}, not {alive}")
            for number in alive:
                if number and observer.held(vb, number) != self.observers[holder].held(vb, number):
                    raise Broken(f"equal: collection {number} of vbucket {vb} differs at {host.name}")

    def _drain_to_the_end(self, vb: int, holder: int) -> None:
        with self.placed[holder].store.view(vb) as view:
            high = view.end_seqno  # of what consumers without collections are shown
        for consumer in self.consumers:
            consumer.resume()
            if not consumer.is_connected or consumer.target != self.placed[holder].name:
                consumer.connect(self.placed[holder].name)

            def level(consumer: Consumer = consumer) -> bool:
                if not consumer.is_connected:
                    consumer.connect(self.placed[holder].name)
                elif vb in consumer.idle_vbuckets():
                    consumer.ask([vb])
                position = consumer.position(vb)
                return consumer.streams(vb) and position.complete and position.seqno == high

            if not self.world.run(CONSUMER_SECONDS, level):
                told = f"{consumer.name} is at {consumer.position(vb)} after {CONSUMER_SECONDS:g} s, not at {high}"
                raise Broken(f"equal: {told}: {consumer.error}")
            self._check_consumer(consumer, vb)
