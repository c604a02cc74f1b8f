"""The model of a vbucket in a cluster: the content of each branch of its history, its owners, and the writes that must
live.

Promised, and checked for every node and every consumer after every step:

    identity    under one vb uuid a seqno has one content, for everybody who shows or holds it, for ever: key, value,
                CAS, revision, flags, expiry. Nothing is there that no owner wrote, and no owner writes what was not
                sent.
    complete    a copy at the end of a snapshot at seqno s holds exactly the newest change of each key up to s, of the
                history that its failover log describes; only tombstones at or below a purge seqno may be missing, and
                the documents that they deleted may not be there either.
    owner       a node becomes active on request (a new branch), because it was active when it crashed (a new branch),
                or at the end of a takeover (the same branch); in the last case no other node may be active in that
                branch, nor come back as active from its disk.
    kept        every acknowledged write is in the owner's history. A promoted replica may lack some: those beyond its
                changes at the promotion are given up. A crash, a takeover, a compaction may give up nothing. A node
                counts as promoted once the new branch is on its disk: a promotion that is lost before gives up
                nothing either.

Pure: no node, no socket, no time. It shares no code with the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Log = Sequence[tuple[int, int]]
"""A failover log: (vb uuid, seqno), newest first."""


LOG_ENTRIES_MAX = 25


class Broken(AssertionError):  # noqa: N818 - what it is
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a seqno; value None for a deletion. `expiry` of a mutation, 0 for a deletion."""

    key: bytes
    value: bytes | None
    cas: int
    rev_seqno: int
    flags: int = 0
    expiry: int = 0


Held = Mapping[bytes, tuple[int, Change]]
"""By key: the newest change, and its seqno."""


def branch_of(log: Log, seqno: int) -> int | None:
    """Return the branch that wrote a seqno; None if the log does not reach back so far."""
    return next((uuid for uuid, begun in log if begun < seqno), None)


def upper_of(log: Log, uuid: int, high_seqno: int) -> int:
    """Return the last seqno of a branch in a log; -1 if the branch is not in it."""
    upper = high_seqno
    for each, begun in log:
        if each == uuid:
            return upper
        upper = begun
    return -1


def has(log: Log, high_seqno: int, uuid: int, seqno: int) -> bool:
    """Return True if the history of this log up to `high_seqno` contains seqno `seqno` of the branch `uuid`."""
    return seqno <= upper_of(log, uuid, high_seqno)


class Histories:
    """All branches of all vbuckets, as their owners wrote them."""

    def __init__(self) -> None:
        self._branches: dict[tuple[int, int], dict[int, Change]] = {}
        self._sent: set[tuple[int, bytes, bytes]] = set()
        self._purged: dict[int, int] = {}
        self.recorded = 0

    def sent(self, vb: int, key: bytes, value: bytes) -> None:
        """Note that a writer is about to send this value; no two values are the same."""
        self._sent.add((vb, key, value))

    def purged(self, vb: int, seqno: int) -> None:
        """Note that some node has dropped tombstones up to this seqno."""
        self._purged[vb] = max(seqno, self._purged.get(vb, 0))

    def wrote(self, who: str, vb: int, uuid: int, seqno: int, change: Change) -> None:
        """Note that an owner has made a change durable."""
        known = self._branches.setdefault((vb, uuid), {})
        if seqno not in known:
            if change.value is not None and (vb, change.key, change.value) not in self._sent:
                raise Broken(f"identity: {who} wrote {change} as seqno {seqno} of vbucket {vb}, which nobody sent")
            known[seqno] = change
            self.recorded += 1
        self._compare(who, vb, uuid, seqno, change)

    def shown(self, who: str, vb: int, log: Log, seqno: int, change: Change) -> None:
        """Check a change that a reader holds, or received, in the history of `log`."""
        uuid = branch_of(log, seqno)
        if uuid is not None:
            self._compare(who, vb, uuid, seqno, change)

    def _compare(self, who: str, vb: int, uuid: int, seqno: int, change: Change) -> None:
        known = self._branches.get((vb, uuid), {}).get(seqno)
        if known is None:
            raise Broken(f"identity: {who} has {change} as vbucket {vb} {uuid:x}@{seqno}; no owner wrote that")
        if known != change:
            raise Broken(f"identity: {who} has {change} as vbucket {vb} {uuid:x}@{seqno}; it was {known}")

    def may_be_missing(self, vb: int, seqno: int, change: Change) -> bool:
        """Return True if this is a deletion that some node may have purged."""
        return change.value is None and seqno <= self._purged.get(vb, 0)

    def changes(self, vb: int, log: Log, upto: int) -> Iterator[tuple[int, Change]]:
        """Yield every change up to a seqno, in the history of a log (as far as that reaches back)."""
        for uuid, first, last in _ranges(log, upto):
            for seqno, change in sorted(self._branches.get((vb, uuid), {}).items()):
                if first < seqno <= last:
                    yield seqno, change

    def newest(self, vb: int, log: Log, upto: int) -> dict[bytes, tuple[int, Change]]:
        """Return the newest change of each key up to a seqno, in the history of a log (as far as that reaches back)."""
        return {change.key: (seqno, change) for seqno, change in self.changes(vb, log, upto)}

    def is_committed_anew(self, vb: int, log: Log, upto: int, uuid: int, seqno: int) -> bool:
        """Return True if a later branch of a history has the change that an earlier owner wrote as uuid@seqno.

        A promoted copy may have only the prepare of a durable write: its commit gets a seqno of that copy's branch.
        """
        change, ranges = self._branches.get((vb, uuid), {}).get(seqno), list(_ranges(log, upto))
        known = [each for each, _, _ in ranges]
        if change is None or uuid not in known:
            return False
        return any(
            first < at <= last and (again.key, again.value, again.cas) == (change.key, change.value, change.cas)
            for each, first, last in ranges[known.index(uuid) + 1 :]
            for at, again in self._branches.get((vb, each), {}).items()
        )

    def check_complete(self, who: str, vb: int, log: Log, held: Held, upto: int) -> None:
        """Check that a reader consistent at `upto` holds the newest change of each key up to there, or a newer one."""
        for key, (seqno, change) in self.newest(vb, log, upto).items():
            at = held[key][0] if key in held else 0
            if at > upto or at == seqno:
                continue
            if not at and self.may_be_missing(vb, seqno, change):
                continue
            shown = [f"{uuid:x}@{begun}" for uuid, begun in log]
            raise Broken(
                f"complete: {who}, consistent at {upto} of vbucket {vb} {shown}, has {at or 'nothing'} for {key!r}; "
                f"the history says {seqno}: {change}"
            )


def _ranges(log: Log, upto: int) -> Iterator[tuple[int, int, int]]:
    """Yield (vb uuid, seqno before the first, last seqno) of each branch, oldest first."""
    oldest_first = list(reversed(log))
    for at, (uuid, begun) in enumerate(oldest_first):
        last = oldest_first[at + 1][1] if at + 1 < len(oldest_first) else upto
        yield uuid, begun, min(last, upto)


@dataclass(slots=True)
class Ownership:
    """The owner of one vbucket, whose history counts.

    Attributes:
        holder: the node that was made owner last.
        uuid, log: its newest branch, and its log when it became owner; 0 and nothing if that promotion was lost.
        actives: nodes that are active, or would be again after a crash, with the branch they are active in.
        is_vacant: True if the holder was demoted.
        requests: the number of requests to become active so far.
        promised: by node, the requests to become active that may still take effect there.
        answered: (vb uuid, seqno) of all acknowledged writes.
        acknowledged: those that must be in the owner's history.
        is_certain: True once the holder's branch is on its disk, so that it can't forget the promotion any more.
    """

    vb: int
    holder: str = ""
    uuid: int = 0
    log: Log = ()
    actives: dict[str, int] = field(default_factory=dict)
    promised: dict[str, list[int]] = field(default_factory=dict)
    answered: set[tuple[int, int]] = field(default_factory=set)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    known: set[int] = field(default_factory=set)
    discarded: int = 0
    is_vacant: bool = False
    is_certain: bool = False
    requests: int = 0

    def acked(self, uuid: int, seqno: int) -> None:
        """Note that a write was acknowledged. It counts if it is in the owner's history."""
        self.answered.add((uuid, seqno))
        if uuid == self.uuid or has(self.log, 0, uuid, seqno):
            self.acknowledged.add((uuid, seqno))

    def promise(self, node: str) -> int:
        """Note that a node is about to get a request to become active; return the request's number."""
        self.requests += 1
        self.promised.setdefault(node, []).append(self.requests)
        return self.requests

    def settled(self, node: str, request: int) -> None:
        """Note that a request was answered, and its effect seen. A request whose answer was lost may take effect
        later.
        """
        if request in self.promised.get(node, ()):
            self.promised[node].remove(request)

    def began(self, node: str) -> None:
        """Note that a process was started, which no request to the one before will reach."""
        self.promised.pop(node, None)

    def demoted(self, node: str) -> None:
        """Note that a node is no longer active, and not because of a takeover: it may follow others, and lose what they
        lack.
        """
        self.is_vacant |= node == self.holder

    def on_disk(self, node: str, log: Log) -> None:
        """Note that a node's log is durable: if it was made owner with one of these branches, that promotion is
        certain.
        """
        self.is_certain |= node == self.holder and self.uuid in dict(log)

    def shows(self, node: str, log: Log) -> None:
        """Note a node's present log. If the node was made owner in a branch that the log lacks, the promotion was lost.

        The batch with the new branch was lost, by an error of the disk or a crash. The branch is "persisted with the
        vbucket" (failover 1) or there is none: no answer was sent, and no client can rely on it. So the node is what it
        was before, dead perhaps, and may lack changes that it had received but not yet on disk. It does not own the
        vbucket, and the operator decides who does (failover 4: "mover decides"). Once the branch has been on the disk
        there is no such excuse.
        """
        if node == self.holder and not self.is_certain and self.uuid not in dict(log):
            self.demoted(node)
            self.uuid, self.log = 0, ()

    def chosen(self, node: str, log: Log, high_seqno: int) -> None:
        """Let this node's history count from now on: changes that it lacks are given up, changes that it has must
        stay.
        """
        self.is_vacant = self.is_certain = False
        self.holder, self.uuid, self.log = node, log[0][0], log
        before = self.acknowledged
        self.acknowledged = {each for each in self.answered if has(log, high_seqno, *each)}
        self.discarded += len(before - self.acknowledged)

    def not_active_on_disk(self, node: str) -> None:
        """Note that after a crash the node would not be active."""
        self.actives.pop(node, None)

    def became_active(self, node: str, log: Log, high_seqno: int, *, restarted: bool, clean: bool = True) -> None:
        """Note that a node is active that was not, or that was another process, which may have stopped in order."""
        uuid = log[0][0]
        if uuid in self.known and restarted and not clean:
            raise Broken(f"owner: {node} is active for vbucket {self.vb} after a crash, and goes on in branch {uuid:x}")
        if uuid in self.known:
            self._taken_over(node, log, high_seqno)
        elif restarted:
            self._came_back(node, log, high_seqno)
        elif not self.promised.get(node):
            raise Broken(f"owner: {node} made itself active for vbucket {self.vb}")
        else:
            self.promised[node].pop(0)
            if node == self.holder and not self.is_vacant:
                self.check_kept(node, log, high_seqno)  # made dead by a takeover that came to nothing
            self.chosen(node, log, high_seqno)
        self.known.add(uuid)
        self.actives[node] = uuid

    def _taken_over(self, node: str, log: Log, high_seqno: int) -> None:
        uuid = log[0][0]
        others = [each for each, branch in self.actives.items() if branch == uuid and each != node]
        if others:
            raise Broken(f"owner: {node} took vbucket {self.vb} over, but {others} would still be active, in {uuid:x}")
        if uuid == self.uuid:
            self.holder, self.log = node, log
            self.check_kept(node, log, high_seqno)

    def _came_back(self, node: str, log: Log, high_seqno: int) -> None:
        if node not in self.actives:
            raise Broken(f"owner: {node} came back as active for vbucket {self.vb}; it was not when it died")
        if self.actives[node] == self.uuid:
            self.holder, self.uuid, self.log, self.is_vacant = node, log[0][0], log, False
            self.check_kept(node, log, high_seqno)

    def check_kept(self, node: str, log: Log, high_seqno: int) -> None:
        """Check that the owner's history has every acknowledged write."""
        known = {uuid for uuid, _ in log}
        forgets = len(log) >= LOG_ENTRIES_MAX  # of branches so far back nobody can say anything
        lost = sorted(
            seqno
            for uuid, seqno in self.acknowledged
            if not has(log, high_seqno, uuid, seqno) and (uuid in known or not forgets)
        )
        if lost:
            shown = [f"{uuid:x}@{begun}" for uuid, begun in log]
            raise Broken(
                f"kept: {node} owns vbucket {self.vb} up to {high_seqno} {shown}; acknowledged and lost: {lost}"
            )
