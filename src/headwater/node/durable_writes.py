"""Durable writes of a bucket: each waits for its replicas, and then commits or aborts.

    begin ──prepare staged──► waits ──on the disks of a majority──► commit staged ──durable──► success
                                ├──timeout──► abort staged ──► ambiguous
                                └──the vbucket is no longer served here──► ambiguous; the new owner decides

The majority is that of the copies in the cluster map, including this node's. A copy counts once the prepare is on its
disk, so all three levels have the same meaning here. A node that is missing in the map never counts.

A prepare without a waiting request (the node restarted, or was promoted from replica) is committed once a majority has
it, or all remaining copies of the map if these are fewer. A client may have read that the write succeeded, and no
client has read that it failed; no other node knows more.

Prepares are committed in their order, because a replica acknowledges all prepares up to a seqno.

Source: dcp 2.17, 10; kv.md 2, "Durable mutations". Reasons: docs/decisions/0068.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headwater.errors import StorageError
from headwater.invariants import node_invariant
from headwater.node.committer import FULL_DISK_SECONDS
from headwater.node.refused import CommandRefused
from headwater.node.storage.staging import ArenaFull
from headwater.node.vbucket.prepares import Key, key_of
from headwater.wire.durability import DurabilityLevel, majority_of
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.committer import Committer
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.wire.dcp import Prepare

TIMEOUT_SECONDS = 30.0
"""The time for a request without a timeout of its own."""

_GONE = "the vbucket is not served here any more, and who owns it now decides"


class WritesOwner(Protocol):
    """The part of a bucket that its durable writes need."""

    vbuckets: dict[int, VBucket]
    committer: Committer
    on_changed: list[Callable[[int], None]]

    def is_active(self, vbucket: int) -> bool:
        """Return True if the vbucket is active here and not fenced."""

    def now(self) -> int:
        """Return the Unix time in seconds."""


class Copies(NamedTuple):
    """The copies of a vbucket by the cluster map.

    Attributes:
        wanted: the configured number of copies, this node's included, even if there are fewer nodes.
        others: the names of the other nodes with a copy.
        is_member: True if this node's copy counts; False if the map does not contain this node.
    """

    wanted: int = 1
    others: frozenset[str] = frozenset()
    is_member: bool = True

    @property
    def majority(self) -> int:
        """The number of copies that must have a prepare."""
        return majority_of(self.wanted)

    @property
    def there(self) -> int:
        """The number of nodes in the map that have a copy."""
        return self.is_member + len(self.others)


@dataclass(eq=False, slots=True)
class DurableWrite:
    """A durable write with a waiting request.

    Attributes:
        vbucket: the vbucket's number.
        key: the document's key.
        seqno: the seqno of the prepare.
        outcome: gets the seqno of the commit, or CommandRefused.
        timer: the timer of the timeout; None if there is none.
    """

    vbucket: int
    key: Key
    seqno: int
    outcome: asyncio.Future[int]
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    def succeed(self, seqno: int) -> None:
        """Answer the waiting request: the write is committed, and on disk."""
        self._stop()
        if not self.outcome.done():
            self.outcome.set_result(seqno)

    def fail(self, why: str) -> None:
        """Answer the waiting request with SYNC_WRITE_AMBIGUOUS: the write may or may not have happened."""
        self._stop()
        if not self.outcome.done():
            self.outcome.set_exception(CommandRefused(Status.SYNC_WRITE_AMBIGUOUS, why))
            self.outcome.exception()  # marks it as read: if the connection is closed, nobody else reads it

    def _stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class DurableWrites:
    """The durable writes of a bucket; call all methods from the event loop's thread.

    Attributes:
        copies_of: returns the copies of a vbucket by the cluster map; only this node's copy without a map.
        held: the vbuckets in which a write may wait.
        begun: the number of requests, by level.
    """

    def __init__(self, bucket: WritesOwner) -> None:
        self.copies_of: Callable[[int], Copies] = lambda vb: Copies()
        self.held: set[int] = set()
        self.begun: dict[DurabilityLevel, int] = dict.fromkeys(DurabilityLevel, 0)
        self._bucket = bucket
        self._writes: dict[tuple[int, Key], DurableWrite] = {}
        self._acknowledged: dict[int, dict[str, int]] = {}
        # Writes whose commit is staged; their clients get the answer when its batch is durable. They are not in
        # `_writes` any more, so neither the timeout nor a change of state can answer them a second time.
        self._commits: list[tuple[int, int, DurableWrite]] = []  # batch, seqno of the commit, write
        self._decided: dict[
            int, int
        ] = {}  # by vbucket: the batch with the last commit of a write that no request waits for
        self._ended: dict[int, int] = {}  # by vbucket without waiting writes: the batch with its last commit or abort
        self._abandoned: set[int] = set()  # vbuckets in which writes without a waiting request must be aborted
        self._settling: set[int] = set()  # vbuckets in which they must be committed, without waiting for copies
        self._unsettled: set[int] = set()  # vbuckets whose handover waits for room
        self._retries: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def heed(self, committer: Committer) -> None:
        """Subscribe to the committer's commits and lost batches, and to changes of vbuckets."""
        committer.on_durable.append(self._durable)
        committer.on_failure.append(self._lost)
        self._bucket.on_changed.append(self.look_at)

    # --- calls for requests -----------------------------------------------------------------------------------------

    def check_possible(self, vbucket: int) -> None:
        """Raise CommandRefused if a durable write can't succeed, because the map does not contain this node, or too few
        nodes for a majority have a copy.
        """
        copies = self.copies_of(vbucket)
        if not copies.is_member:
            raise CommandRefused(Status.DURABILITY_IMPOSSIBLE, "the cluster map leaves this node out")
        if copies.there < copies.majority:
            message = f"{copies.majority} of {copies.wanted} copies must have it, and {copies.there} nodes have one"
            raise CommandRefused(Status.DURABILITY_IMPOSSIBLE, message)

    def refuse_in_flight(self, vbucket: int, collection: int, key: bytes, *, writes: bool) -> None:
        """Raise CommandRefused for a request on a document with a durable write in flight, if the request changes the
        document (`writes`).

        If no request waits for that write (it is from a former owner), reads are refused as well, because a client may
        have read that the write succeeded (kv.md 2).
        """
        key_there = Key(collection, key)
        if key_there not in self._bucket.vbuckets[vbucket].prepares.pending:
            return
        if (vbucket, key_there) not in self._writes:
            raise CommandRefused(Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS, "a write of an owner before is being settled")
        if writes:
            raise CommandRefused(Status.SYNC_WRITE_IN_PROGRESS, "another durable write of the document is in flight")

    def refuse_unsettled(self, vbucket: int, collection: int, *, on_disk: bool = False) -> None:
        """Raise CommandRefused for a request that reads several documents of a collection, if a write of a former owner
        in it is unsettled.

        A client may have read that this write succeeded, so no read may return the state before it.

        Args:
            vbucket: the vbucket's number.
            collection: the collection's id.
            on_disk: True if the request reads only what is on disk, where the commit of such a write must be as well.
        """
        of_before = vbucket in self.held and any(each.collection == collection for each in self._of_before(vbucket))
        if of_before or (on_disk and not self.is_settled(vbucket, {collection})):
            raise CommandRefused(Status.ETMPFAIL, "a write of an owner before is being settled")

    def is_settled(self, vbucket: int, collections: Collection[int] | None) -> bool:
        """Return True if all writes of former owners in these collections (None: in all) are settled and on disk.

        Then the durable seqno of the vbucket includes every write of which a client may have read that it succeeded.
        """
        # False while a commit is staged but not on disk: the durable seqno does not include it yet.
        if self._decided.get(vbucket, 0) > self._bucket.committer.durable:
            return False
        if vbucket not in self.held:
            return True
        return not any(collections is None or each.collection in collections for each in self._of_before(vbucket))

    def is_in_flight(self, vbucket: int, collection: int, key: bytes) -> bool:
        """Return True if a document has a durable write in flight."""
        return vbucket in self.held and Key(collection, key) in self._bucket.vbuckets[vbucket].prepares.pending

    def begin(self, vbucket: int, prepare: Prepare, timeout_ms: int | None) -> DurableWrite:
        """Stage a prepare, and begin to wait for replicas; return the write, whose `outcome` the request awaits.

        Args:
            vbucket: the vbucket's number.
            prepare: the prepare; its key begins with the id of its collection.
            timeout_ms: the time in milliseconds after which the write is aborted; None for TIMEOUT_SECONDS.

        Raises:
            ArenaFull, DiskFull: nothing was staged.
        """
        vbucket_ = self._bucket.vbuckets[vbucket]
        # The prepare first: if there is no room for it, nothing else of the request may be recorded.
        seqno = vbucket_.prepares.add(prepare)
        loop = asyncio.get_running_loop()
        write = DurableWrite(vbucket, key_of(prepare.key), seqno, loop.create_future())
        self._writes[vbucket, write.key] = write
        self.held.add(vbucket)
        self.begun[DurabilityLevel(prepare.durability_level)] += 1
        # From here on the fast path, which does not check prepares, must leave this vbucket's requests to the plain
        # path.
        vbucket_.show_state()
        seconds = TIMEOUT_SECONDS if timeout_ms is None else timeout_ms / 1000
        write.timer = loop.call_later(seconds, self._out_of_time, write)
        return write

    def abort_all(self, vbucket: int) -> None:
        """Abort all durable writes in flight in a vbucket, because its documents are deleted.

        Raises:
            ArenaFull, DiskFull: some aborts had no room.
        """
        vbucket_ = self._bucket.vbuckets.get(vbucket)
        for key in tuple(vbucket_.prepares.pending) if vbucket_ is not None else ():
            self._abort(vbucket, key, "the bucket was flushed")

    def abort_of_before(self, vbucket: int) -> None:
        """Abort the prepares that this node has from its time as a replica, because it took the vbucket over with a
        stream without prepares.

        The former owner has ended all of these before the takeover, and has sent committed writes as documents.
        """
        self._abandoned.add(vbucket)
        self.advance(vbucket)

    def settle_before(self, vbucket: int) -> bool:
        """Commit the durable writes without a waiting request in a vbucket that will be handed over; return True if all
        of them are settled.

        These commits do not wait for replicas, because clients may have read that the writes succeeded. Writes with a
        waiting request are aborted later, at the handover.

        Returns False if there is no room yet, or the vbucket is fenced. When that may have changed, the vbucket's
        readers, one of which is the takeover stream, are woken.
        """
        vbucket_ = self._bucket.vbuckets[vbucket]
        # In a vbucket that is not active, the owner decides about the prepares.
        if not vbucket_.prepares.pending or vbucket_.state is not State.ACTIVE:
            return True
        # A fenced vbucket may have another owner by now, who may have ended the same prepare differently.
        if not self._bucket.is_active(vbucket):
            return False
        # Copies that get no prepares, such as the target of this move, count for no majority, so a majority might never
        # come. An abort would be wrong, because success may have been reported (decision 0068).
        self._settling.add(vbucket)
        self.advance(vbucket)
        self._settling.discard(vbucket)
        # A prepare with a waiting request may be aborted at the handover, because no client has read that it succeeded.
        is_settled = all((vbucket, key) in self._writes for key in vbucket_.prepares.pending)
        if not is_settled and vbucket not in self._unsettled:
            self._unsettled.add(vbucket)
            self._bucket.committer.when_room(lambda: self._settle_again(vbucket_))
        return is_settled

    # --- calls about replicas ---------------------------------------------------------------------------------------

    def acknowledged(self, vbucket: int, node: str, seqno: int) -> None:
        """Note that a node has every prepare up to a seqno on its disk."""
        seqnos_by_node = self._acknowledged.setdefault(vbucket, {})
        # Acknowledgements on two streams of one node may cross, so a lower one is ignored: only `follows_from` means
        # that data was lost.
        if seqno > seqnos_by_node.get(node, 0):
            seqnos_by_node[node] = seqno
            if vbucket in self.held:
                self.advance(vbucket)

    def follows_from(self, vbucket: int, node: str, seqno: int) -> None:
        """Note that a replica starts a stream at a seqno: it has no prepares above it, even if it has acknowledged some
        before it lost its disk or was rolled back.
        """
        seqnos_by_node = self._acknowledged.get(vbucket, {})
        # Otherwise a replica that has lost its disk would still count for prepares that it no longer has, and a
        # failover to it would lose a confirmed write.
        if seqno < seqnos_by_node.get(node, 0):
            seqnos_by_node[node] = seqno

    def acknowledged_by(self, vbucket: int) -> Mapping[str, int]:
        """Return the acknowledged seqno of each node that has acknowledged prepares of a vbucket."""
        return self._acknowledged.get(vbucket, {})

    # --- calls about the node ---------------------------------------------------------------------------------------

    def look_at(self, vbucket: int) -> None:
        """Update the writes of a vbucket after it changed its state, or was created, dropped, fenced or unfenced."""
        vbucket_ = self._bucket.vbuckets.get(vbucket)
        if vbucket_ is not None and vbucket_.prepares.pending:
            self.held.add(vbucket)
        if vbucket_ is None or vbucket_.state is not State.ACTIVE:  # replicas acknowledge again on their next streams
            self._acknowledged.pop(vbucket, None)
        if vbucket not in self.held:
            return
        if self._bucket.is_active(vbucket):
            # Later, because the caller may be in the middle of a change. A takeover without prepares sets the state
            # first, and aborts its prepares then (`abort_of_before`); a commit before that would commit an aborted
            # write.
            self._later(vbucket, 0.0)
        else:
            self._abandoned.discard(vbucket)
            # Only the new owner decides about these writes now, so AMBIGUOUS is the only correct answer here.
            self._give_up(vbucket)

    def map_changed(self) -> None:
        """Check all waiting writes again, because fewer nodes may be enough by the new cluster map."""
        for vb in tuple(self.held):
            self.advance(vb)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to settle the writes that the log has without an end, once the node serves."""
        self._loop = loop
        for vb in self._bucket.vbuckets:
            self.look_at(vb)

    def stop(self) -> None:
        """Stop settling writes, because the bucket is dropped; answer waiting requests as ambiguous."""
        for write in (*self._writes.values(), *(write for _, _, write in self._commits)):
            write.fail("the bucket was dropped")
        self._writes.clear()
        self._commits.clear()
        self.held.clear()

    def advance(self, vbucket: int) -> None:
        """Commit the writes of a vbucket that a majority has. Abort those that a former owner has ended, or whose
        collection was dropped. If there is no room, try again later.
        """
        vbucket_ = self._bucket.vbuckets.get(vbucket)
        if vbucket_ is None or not vbucket_.prepares.pending:
            self._leave(vbucket)
            self._abandoned.discard(vbucket)
            return
        if not self._bucket.is_active(vbucket):
            return
        try:
            # Aborts come before commits, because a prepare of a dropped collection would block later prepares: commits
            # keep the order of the prepares.
            self._abort_abandoned(vbucket_)
            self._abort_dropped(vbucket_)
            self._commit_reached(vbucket_)
        # There is room again after the next freeze.
        except ArenaFull:
            self._bucket.committer.when_room(lambda: self.advance(vbucket))
        except StorageError:
            self._later(vbucket, FULL_DISK_SECONDS)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _of_before(self, vbucket: int) -> Iterator[Key]:
        """Return the keys with a write in flight for which no request waits here: writes from a former owner or
        process.
        """
        pending = self._bucket.vbuckets[vbucket].prepares.pending
        return (each for each in pending if (vbucket, each) not in self._writes)

    def _abort_abandoned(self, vbucket: VBucket) -> None:
        if vbucket.id in self._abandoned:
            for key in [key for key in vbucket.prepares.pending if (vbucket.id, key) not in self._writes]:
                self._abort(vbucket.id, key, "the former owner gave it up")
            self._abandoned.discard(vbucket.id)

    def _abort_dropped(self, vbucket: VBucket) -> None:
        """Abort the writes in dropped collections. For replicas the drop has ended these writes, so they no longer
        acknowledge them.
        """
        alive = vbucket.collections.alive
        # If a crash loses these aborts, the drop is still in the log before them, and ends the prepares as well.
        for key in [key for key in vbucket.prepares.pending if key.collection not in alive]:
            self._abort(vbucket.id, key, "its collection was dropped")

    def _commit_reached(self, vbucket: VBucket) -> None:
        copies = self.copies_of(vbucket.id)
        by_majority = self._reached(vbucket, copies, copies.majority)
        # For writes without a waiting request, all copies in the map are enough if these are fewer than a majority.
        by_all_left = self._reached(vbucket, copies, min(copies.majority, copies.there))
        if vbucket.id in self._settling:
            by_all_left = vbucket.durable_seqno
        # Only in the order of the prepares: SEQNO_ACKNOWLEDGED has one seqno for all prepares up to it (dcp 2.17), so a
        # replica could not report that it lacks an earlier prepare than a committed one.
        while (first := next(iter(vbucket.prepares.pending.items()), None)) is not None:
            key, seqno = first
            # A write with a waiting request needs the promised majority. A write without one may have been reported as
            # successful by a former owner, so it must not wait for copies that no map has (decision 0083).
            if seqno > (by_majority if (vbucket.id, key) in self._writes else by_all_left):
                return
            durable = vbucket.durable_seqno
            node_invariant(seqno <= durable, "vbucket {}: prepare {} commits at {}", vbucket.id, seqno, durable)
            self._commit(vbucket, key)

    def _reached(self, vbucket: VBucket, copies: Copies, needed: int) -> int:
        """Return the seqno up to which `needed` copies, including this node's, have all changes on disk; 0 if the map
        has too few copies, or does not contain this node.
        """
        # Without this node in the map, a majority of other copies may not include the new owner.
        if not copies.is_member or needed > copies.there:
            return 0
        node_invariant(needed > 0, "vbucket {}: no copy is needed of {}", vbucket.id, copies.there)
        durable, seqnos_by_node = vbucket.durable_seqno, self._acknowledged.get(vbucket.id, {})
        others = sorted((seqnos_by_node.get(name, 0) for name in copies.others), reverse=True)
        # This node's copy counts with its durable seqno; of the others, in descending order, the last needed one
        # decides.
        return durable if needed == 1 else min(durable, others[needed - 2])

    def _commit(self, vbucket: VBucket, key: Key) -> None:
        # This node may have got the committed document in a snapshot from disk, without the mark. A second commit would
        # overwrite newer versions of the document.
        if (vbucket.id, key) not in self._writes and vbucket.prepares.is_over(key):
            vbucket.prepares.settle(self._bucket.now())
            self._decided[vbucket.id] = self._bucket.committer.wrote()
            self._settled(vbucket)
            return
        node_invariant(vbucket.state is State.ACTIVE, "vbucket {} commits, and is not active", vbucket.id)
        seqno = vbucket.prepares.commit(key, self._bucket.now())
        gate = self._bucket.committer.wrote()
        durable = self._bucket.committer.durable
        node_invariant(gate > durable, "a commit in batch {}, batch {} is durable", gate, durable)
        # The answer waits for the batch of the commit: after a crash before that, only the prepare is left, and a
        # failover might not find a majority for it.
        write = self._writes.pop((vbucket.id, key), None)
        if write is not None:
            self._commits.append((gate, seqno, write))
        else:
            self._decided[vbucket.id] = gate
        self._settled(vbucket)

    def _abort(self, vbucket: int, key: Key, why: str) -> None:
        vbucket_ = self._bucket.vbuckets[vbucket]
        vbucket_.prepares.abort(key, self._bucket.now())
        self._bucket.committer.wrote()
        write = self._writes.pop((vbucket, key), None)
        if write is not None:
            # The answer need not wait for the disk: if the abort is lost, the prepare may still be committed later,
            # which AMBIGUOUS allows.
            write.fail(why)
        self._settled(vbucket_)

    def _settled(self, vbucket: VBucket) -> None:
        vbucket.show_state()
        if not vbucket.prepares.pending:
            self._leave(vbucket.id)

    def _leave(self, vbucket: int) -> None:
        """Remove a vbucket from `held`, because no write waits in it."""
        if vbucket in self.held:
            self.held.discard(vbucket)
            # If the open batch is lost, the prepares wait again, and `_lost` must look for them in this vbucket.
            self._ended[vbucket] = self._bucket.committer.open

    def _out_of_time(self, write: DurableWrite) -> None:
        # A later write of the same key has a timer of its own.
        if self._writes.get((write.vbucket, write.key)) is not write:
            return  # committed, and on its way to the disk
        try:
            self._abort(write.vbucket, write.key, "not enough replicas had it in time")
        # The client gets its answer at its timeout, even if the disk is full; only the abort is tried again.
        except StorageError as full:
            write.fail(f"not enough replicas had it in time, and its abort waits for room: {full}")
            write.timer = asyncio.get_running_loop().call_later(FULL_DISK_SECONDS, self._out_of_time, write)

    def _give_up(self, vbucket: int) -> None:
        """Answer the waiting requests of a vbucket as ambiguous; its prepares stay for the new owner."""
        for each in [write for write in self._writes.values() if write.vbucket == vbucket]:
            del self._writes[each.vbucket, each.key]
            each.fail(_GONE)

    def _settle_again(self, vbucket: VBucket) -> None:
        self._unsettled.discard(vbucket.id)
        vbucket.advanced()

    def _later(self, vbucket: int, seconds: float) -> None:
        if vbucket in self._retries or self._loop is None:  # before `start`, which looks at all vbuckets
            return

        def again() -> None:
            self._retries.discard(vbucket)
            self.advance(vbucket)
            if (vbucket_ := self._bucket.vbuckets.get(vbucket)) is not None:
                vbucket_.advanced()  # a takeover may have waited for the end of a fence

        self._loop.call_later(seconds, again)
        self._retries.add(vbucket)

    def _durable(self) -> None:
        """After a batch has become durable, answer the writes whose commits are on disk, and check the waiting ones."""
        if self._commits:
            durable = self._bucket.committer.durable
            committed = [commit for commit in self._commits if commit[0] <= durable]
            self._commits = [commit for commit in self._commits if commit[0] > durable]
            for _, seqno, write in committed:
                write.succeed(seqno)
        if self._decided:
            self._decided = {vb: gate for vb, gate in self._decided.items() if gate > self._bucket.committer.durable}
        if self._ended:
            self._ended = {vb: batch for vb, batch in self._ended.items() if batch > self._bucket.committer.durable}
        for vb in tuple(self.held):
            vbucket = self._bucket.vbuckets.get(vb)
            if vbucket is not None and vbucket.inbound is not None:
                # This node's copy is a replica: prepares in the batch, for which the producer waits, are now on disk.
                vbucket.inbound.prepares_durable()
            self.advance(vb)

    def _lost(self, _: BaseException, vbucket_numbers: Iterable[int]) -> None:
        """Return to the state on disk after a batch was lost, which may have contained prepares, commits or aborts."""
        # The commits are undone with their batch, and the prepares wait again. Their majorities still have them, so
        # they will be committed later; until then AMBIGUOUS is the only correct answer.
        commits, self._commits = self._commits, []
        ended, self._ended = self._ended, {}
        for _gate, _seqno, write in commits:
            write.fail("the batch with its commit could not be written")
        vbuckets = self._bucket.vbuckets
        for vb in {*self.held, *vbucket_numbers, *ended, *(write.vbucket for _, _, write in commits)} & vbuckets.keys():
            vbuckets[vb].prepares.read()
            vbuckets[vb].show_state()
            if vbuckets[vb].prepares.pending:
                self.held.add(vb)
                self._later(vb, FULL_DISK_SECONDS)  # replicas acknowledge a prepare only once
        for (vb, key), write in tuple(self._writes.items()):
            # Another prepare of the same key may wait, so the seqno must be equal, too.
            if vb not in vbuckets or vbuckets[vb].prepares.pending.get(key) != write.seqno:
                del self._writes[vb, key]
                write.fail("the batch with its prepare could not be written")
