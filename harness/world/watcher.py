"""Checks every node after each of its events: the owners of vbuckets, and the content of every copy on disk.

The checks here hold at any time:

    owners     no two nodes serve a vbucket in one branch of its history, nor by the same map
    identity   a seqno of a branch has one content for everybody, for ever
    kept       everything that a node had on disk is there after any crash

It also notes since when a node that still serves has been superseded: of such a node's answers only acknowledged
durable writes count, and it must not be able to acknowledge any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.simulation.histories import Broken, Change, Held, Histories, Log, Ownership
from harness.simulation.host import FIRST_BUCKET
from harness.simulation.observer import Observer, Placed
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from harness.world.machines import Machine
    from headwater.wire.cluster_map import ClusterMap


class Branches(Histories):
    """The histories of all branches; whether a value was sent is judged with the operations.

    Attributes:
        on_wrote: called with a change that an owner has made durable, before it is recorded.
        flipped: the numbers of values of which a bit flipped on one disk: `v17-` may be `w17-` where that was copied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flipped: set[str] = set()
        self.on_wrote: Callable[[str, int, Change], None] = lambda who, vb, change: None

    def wrote(self, who: str, vb: int, uuid: int, seqno: int, change: Change) -> None:
        """Note that an owner has made a change durable."""
        change = self.as_written(change)
        if change.value is not None:
            self.sent(vb, change.key, change.value)
        self.on_wrote(who, vb, change)
        super().wrote(who, vb, uuid, seqno, change)

    def shown(self, who: str, vb: int, log: Log, seqno: int, change: Change) -> None:
        """Check a change that a reader holds, or received, in the history of `log`."""
        super().shown(who, vb, log, seqno, self.as_written(change))

    def is_sent(self, vb: int, key: bytes, value: bytes) -> bool:
        """Return True if an owner has stored this value."""
        return (vb, key, value) in self._sent

    def as_written(self, change: Change) -> Change:
        """Return a change as it was before bits flipped."""
        if change.value is None or not self.flipped:
            return change
        text = change.value.decode("latin-1")
        return replace(change, value=unflipped(text, self.flipped).encode("latin-1"))

    def documents(self, held: Held) -> Held:
        """Return the documents that a copy holds, as they were before bits flipped; tombstones, which may be purged,
        are left out.
        """
        found = {key: (seqno, self.as_written(change)) for key, (seqno, change) in held.items()}
        return {key: each for key, each in found.items() if each[1].value is not None}


def unflipped(text: str, numbers: Iterable[str]) -> str:
    """Return a value as it was before a bit of one of these numbers flipped: `w17-` was `v17-`."""
    for number in numbers:
        text = text.replace(f"w{number}-", f"v{number}-") if number else text
    return text


@dataclass(frozen=True, slots=True)
class Turn:
    """A vbucket that became active on a node.

    Attributes:
        is_taken_over: True if that was in the branch of the owner before, as at the end of a move.
    """

    at: float
    vbucket: int
    node: str
    is_taken_over: bool
    is_restart: bool

    @property
    def is_failover(self) -> bool:
        """True if a copy was promoted: with a branch of its own, though it was not the owner before a crash."""
        return not self.is_taken_over and not self.is_restart


@dataclass(slots=True)
class Interval:
    """The time in which a node served a vbucket that had another owner already; `ended` None if it still does."""

    node: str
    vbucket: int
    began: float
    ended: float | None = None


@dataclass(slots=True)
class Turns(Ownership):
    """The nodes that became active: no two in one branch."""

    on_turn: Callable[[int, str, bool, bool], None] = field(default=lambda *_: None)
    logs: dict[int, Log] = field(default_factory=dict)
    """The failover log with which each branch began."""

    def became_active(self, node: str, log: Log, high_seqno: int, *, restarted: bool, clean: bool = True) -> None:
        """Note that a node is active that was not, or that was another process."""
        uuid = log[0][0]
        others = [each for each, branch in self.actives.items() if branch == uuid and each != node]
        if others:
            raise Broken(f"owners: {node} and {others} are active for vbucket {self.vb} in one branch, {uuid:x}")
        is_taken_over = uuid in self.known
        self.known.add(uuid)
        self.logs.setdefault(uuid, tuple(log))
        self.actives[node] = uuid
        self.on_turn(self.vb, node, is_taken_over, restarted)

    def demoted(self, node: str) -> None:
        """Note that a node is no longer active."""
        self.actives.pop(node, None)

    def on_disk(self, node: str, log: Log) -> None:
        """Do nothing: durable logs are of no concern here."""

    def shows(self, node: str, log: Log) -> None:
        """Do nothing: logs are of no concern here."""


class Watcher:
    """The watch over the first bucket on all machines.

    Args:
        now: seconds since the beginning.

    Attributes:
        turns: the nodes that became active, in order.
        superseded: which nodes continued to serve though others owned, and when.
        ended: when the last process of each machine ended.
        branches: the content of every branch. observers: of each machine.
        newest: the newest map with which a process has ended; None before the first.
    """

    def __init__(self, machines: Sequence[Machine], vbuckets: int, now: Callable[[], float]) -> None:
        self.turns: list[Turn] = []
        self.superseded: list[Interval] = []
        self.ended = [0.0] * len(machines)
        self.branches = Branches()
        self.newest: ClusterMap | None = None
        self._machines, self._now = machines, now
        self._owned = {vb: Turns(vb, on_turn=self._on_turn) for vb in range(vbuckets)}
        owners: dict[int, Ownership] = dict(self._owned)
        self.placed = [Placed(machine, FIRST_BUCKET) for machine in machines]
        self.observers = [Observer(each, self.branches, owners) for each in self.placed]
        self._serving: list[tuple[int, ...]] = [()] * len(machines)
        self._seen: list[tuple[int, int]] = [(-1, -1)] * len(machines)

    def started(self, at: int) -> None:
        """Note that a process was started."""
        self._seen[at] = (-1, -1)
        self.observers[at].started()
        self._look(at)

    def gone(self, at: int) -> None:
        """Note that a process is about to end."""
        self.ended[at] = self._now()
        known = self._machines[at].server.first.membership.map
        if known is not None and (self.newest is None or known.version > self.newest.version):
            self.newest = known
        self.observers[at].gone()
        for owned in self._owned.values():
            owned.actives.pop(self._machines[at].name, None)
        self._serve(at, ())

    def event(self, at: int) -> None:
        """Check a machine after an event in its process."""
        bucket = self.placed[at].bucket
        seen = (bucket.map_changes, len(bucket.fenced))
        if seen != self._seen[at]:
            self._seen[at] = seen
            self.observers[at].event()
            self._look(at)

    def log_of(self, vb: int, uuid: int) -> Log:
        """Return the failover log with which a branch began; Broken if no owner began it."""
        found = self._owned[vb].logs.get(uuid)
        if found is None:
            raise Broken(f"identity: no owner of vbucket {vb} had the branch {uuid:x}")
        return found

    def serving(self, vb: int) -> list[str]:
        """Return the nodes that serve a vbucket."""
        return [each.name for each, serves in zip(self._machines, self._serving, strict=True) if vb in serves]

    def was_superseded(self, node: str, vb: int, began: float, ended: float) -> bool:
        """Return True if a node served although another node owned the vbucket, at some time in between."""
        return any(
            each.node == node
            and each.vbucket == vb
            and each.began <= ended
            and (each.ended is None or each.ended >= began)
            for each in self.superseded
        )

    def _on_turn(self, vb: int, node: str, is_taken_over: bool, is_restart: bool) -> None:
        self.turns.append(Turn(self._now(), vb, node, is_taken_over, is_restart))

    def _look(self, at: int) -> None:
        bucket = self.placed[at].bucket
        self._serve(at, tuple(vb for vb in self._owned if bucket.is_active(vb)))

    def _serve(self, at: int, vbuckets: tuple[int, ...]) -> None:
        before, self._serving[at] = self._serving[at], vbuckets
        for vb in set(before) - set(vbuckets):
            self._no_more(self._machines[at].name, vb)
        for vb in sorted(set(vbuckets) - set(before)):
            self._compare(at, vb)

    def _no_more(self, node: str, vb: int) -> None:
        for each in self.superseded:
            if each.node == node and each.vbucket == vb and each.ended is None:
                each.ended = self._now()

    def _compare(self, at: int, vb: int) -> None:
        """Note, when a node begins to serve a vbucket, which of the nodes that serve it is superseded."""
        for other in range(len(self._machines)):
            if other == at or vb not in self._serving[other]:
                continue
            one, two = self._map_of(at, vb), self._map_of(other, vb)
            if one == two:
                names = f"{self._machines[at].name} and {self._machines[other].name}"
                raise Broken(f"owners: {names} both serve vbucket {vb}, by map {one}")
            late = other if one > two else at
            self.superseded.append(Interval(self._machines[late].name, vb, self._now()))

    def _map_of(self, at: int, vb: int) -> tuple[tuple[int, int], int]:
        """Return the version of a node's map, and 1 if that gives it the vbucket, else 0."""
        known = self._machines[at].server.first.membership.map
        if known is None:
            return (0, 0), 0
        return known.version, int(known.is_owner(vb))

    def state(self, at: int, vb: int) -> State | None:
        """Return the state of a vbucket on a machine; None if it is not there, or no node runs."""
        return self.placed[at].bucket.state(vb) if self._machines[at].is_up else None
