"""The promises of a cluster under any faults: the list that docs/reliability.md prints, and the judge of each.

Promises whose break is visible at once are judged while a world runs (watcher.py), all others at its end, when all
faults are lifted and every copy is level. A broken promise is a `Broken`, whose message begins with the promise's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.linearizability import judge as linearizability
from harness.linearizability.model import Model
from harness.linearizability.record import UNANSWERED, Fault, FaultKind, History, Kind, Level, Operation, Outcome
from harness.linearizability.second import Word
from harness.linearizability.window import report
from harness.simulation.histories import LOG_ENTRIES_MAX, Broken, has
from harness.simulation.scheduler import NOON_SECONDS
from harness.world.backups import Backups
from harness.world.mirror import Lake
from harness.world.orders_mirror import OrdersMirror
from harness.world.watcher import unflipped

if TYPE_CHECKING:
    from harness.world.readers import WorldReader
    from harness.world.world import World

POSITIONS_MAX = 300_000
_WORDS = {(False, False): Word.OK, (False, True): Word.UNKNOWN, (True, False): Word.ILLEGAL}
"""By our search's verdict (is_violation, is_undecided): the same verdict as the second judge's word."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """A promise.

    Attributes:
        name: the first word of the message when it is broken.
        judge: checks a world that is at rest; None if it is judged while the world runs.
        by: the judge, for people.
    """

    name: str
    sentence: str
    by: str
    judge: Callable[[World], None] | None = None


# --- judges of a world at rest ----------------------------------------------------------------------------------------


def check_kept(world: World) -> None:
    """Check that the owner's history has all acknowledged writes; of plain ones, where no node was failed over."""
    failed_over = {turn.vbucket for turn in world.watcher.turns if turn.is_failover}
    for operation in world.recorder.history().operations:
        result, vb = operation.result, world.vbucket_of(operation.key)
        if operation.outcome is not Outcome.DONE or not result.vb_uuid:
            continue
        is_plain = not operation.argument.level or world.damage.may_be_lost(operation)
        if is_plain and vb in failed_over:
            continue
        owner = world.owner(vb)
        log = owner.failover.entries
        is_forgotten = len(log) >= LOG_ENTRIES_MAX and result.vb_uuid not in dict(log)
        place = vb, log, owner.high_seqno, result.vb_uuid, result.seqno
        if is_forgotten or has(*place[1:]):
            continue
        if operation.argument.level and world.watcher.branches.is_committed_anew(*place):
            continue
        shown = [f"{uuid:x}@{begun}" for uuid, begun in log]
        raise Broken(
            f"kept: {operation.kind} of {operation.key} (level {operation.argument.level}) was answered as"
            f" {result.vb_uuid:x}@{result.seqno} of vbucket {vb}, whose owner has {owner.high_seqno} of {shown}"
        )


def check_linearizable(world: World) -> None:
    """Check that one order explains all answers."""
    history = world.judged = judged_history(world)
    model = Model(plain_may_be_lost=True, clock_error_seconds=history.clock_error_seconds)
    for verdict in linearizability.judge(history, model, positions_max=POSITIONS_MAX):
        world.counts["keys judged"] += 1
        world.counts["keys undecided"] += verdict.is_undecided
        world.verdicts[verdict.key] = _WORDS[verdict.is_violation, verdict.is_undecided]
        if verdict.is_violation:
            text = report(history.of(verdict.key), model, verdict)
            raise Broken(f"linearizable: vbucket {world.vbucket_of(verdict.key)}\n{text}")


def check_complete(world: World) -> None:
    """Check that each copy and each reader holds the history of its failover log."""
    branches = world.watcher.branches
    for observer, placed in zip(world.watcher.observers, world.watcher.placed, strict=True):
        if placed.is_served:
            observer.check()
    for reader in world.readers:
        for vb in range(world.plan.vbuckets):
            place = reader.position(vb)
            if place.complete and place.seqno:
                log = tuple(place.failover_log)
                branches.check_complete(reader.name, vb, log, reader.documents(vb), place.seqno)


def check_versions(world: World) -> None:
    """Check that each reader of versions holds every version of its snapshots, and no other."""
    for reader in world.readers:
        if reader.history:
            for vb in range(world.plan.vbuckets):
                _check_versions(world, reader, vb)


def _check_versions(world: World, reader: WorldReader, vb: int) -> None:
    place = reader.position(vb)
    if not place.complete or not place.seqno:
        return
    log, held = tuple(place.failover_log), {at for at in reader.held[vb] if at <= place.seqno}
    written = dict(world.watcher.branches.changes(vb, log, place.seqno))
    wanted = {at for at in written if reader.has_versions(vb, at)}
    lacks, invents = sorted(wanted - held), sorted(held - set(written))
    newest = {seqno for seqno, _ in reader.documents(vb).values()}
    world.counts["versions judged"] += len(wanted)
    world.counts["old versions judged"] += len(wanted - newest)
    if lacks or invents:
        shown = [f"{uuid:x}@{begun}" for uuid, begun in log]
        raise Broken(
            f"versions: {reader.name}, at {place.seqno} of vbucket {vb} {shown}, lacks {lacks} and has {invents} beside"
            f" the history; it has the last versions alone of {reader.gaps[vb]}"
        )


def check_cas(world: World) -> None:
    """Check that in the owner's history the CAS values of a key rise, and that none was the token of a lock of the
    key.
    """
    operations = world.recorder.history().operations
    locks = (
        operation
        for operation in operations
        if operation.kind is Kind.GET_AND_LOCK and operation.outcome is Outcome.DONE
    )
    tokens = {(lock.key.encode("latin-1"), lock.result.cas) for lock in locks}
    for vb in range(world.plan.vbuckets):
        owner = world.owner(vb)
        newest: dict[bytes, int] = {}
        for seqno, change in world.watcher.branches.changes(vb, owner.failover.entries, owner.high_seqno):
            before = newest.get(change.key, 0)
            if change.cas <= before:
                raise Broken(f"cas: seqno {seqno} of vbucket {vb} is {change}, before it the CAS was {before}")
            if (change.key, change.cas) in tokens:
                raise Broken(f"cas: seqno {seqno} of vbucket {vb} is {change}, whose CAS was the token of a lock")
            newest[change.key] = change.cas


def check_equal(world: World) -> None:
    """Check that each replica has the documents of its owner."""
    for vb in range(world.plan.vbuckets):
        copies = world.copies(vb)
        held = {at: world.watcher.branches.documents(world.watcher.observers[at].held(vb)) for at in copies}
        for at in copies[1:]:
            if held[at] != held[copies[0]]:
                ours, theirs = held[copies[0]], held[at]
                different = sorted(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
                raise Broken(f"equal: {world.name(at)} and the owner {world.name(copies[0])} differ in {different}")


def check_rights(world: World) -> None:
    """Check that no guest got an answer, or stored a document, without a right to it."""
    for part in (world.guests, world.tenants):
        if part is not None:
            part.judge()


def check_buckets(world: World) -> None:
    """Check that the second bucket's clients saw only that bucket, and only the life that existed."""
    if world.orders is not None:
        world.orders.judge()
        if world.orders.lives[-1].made is not None:
            world.job(OrdersMirror).check()


def check_backups(world: World) -> None:
    """Check that each backup is a state, and the restored one as well."""
    world.job(Backups).check()


def check_lake(world: World) -> None:
    """Check that each version of the mirror's table was a state, and that the last is level."""
    world.job(Lake).check()


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "linearizable",
        "one order of all operations on a key explains every answer to its clients: reads, CAS, counters, locks,"
        " expiry and durable writes; a failover may take plain writes back, the newest first, and nothing else may;"
        " a write whose answer was lost, or ambiguous, took effect once or never",
        "`harness.linearizability`, over what clients saw",
        check_linearizable,
    ),
    Invariant(
        "kept",
        "what was acknowledged at a level is in the owner's history after every failover; what was acknowledged without"
        " one, after everything but a failover; what a node had on disk is there after any crash",
        "the vb uuid and seqno of each answer, against the owner's failover log; of a durable write whose prepare alone"
        " was at the copy that was promoted, the same change (key, value and CAS) in its branch",
        check_kept,
    ),
    Invariant(
        "owners",
        "no two nodes serve a vbucket in one branch of its history, nor by the same map",
        "`Watcher`, after each event of each node",
    ),
    Invariant(
        "identity",
        "under one vb uuid a seqno has one content, for every copy and every reader, for ever",
        "`Watcher`, each batch that comes to a disk, and each change that a reader is told",
    ),
    Invariant(
        "complete",
        "who stands at the end of a snapshot, copy or reader, holds the newest change of each key of the history that"
        " his failover log describes: every stream is a prefix of one history",
        "`harness.simulation.histories`, of all copies and readers",
        check_complete,
    ),
    Invariant(
        "versions",
        "a reader that asked for every version holds each change of the history that his failover log describes, but in"
        " snapshots that came from disk and did not promise history; it holds no other",
        "`harness.simulation.histories`, of a reader of versions in half of the worlds",
        check_versions,
    ),
    Invariant(
        "before",
        "who asked for what each change replaced is shown the version of the same key with the highest seqno below it,"
        " in the history of his failover log; or that there was no document; or that it is not kept any more",
        "`harness.world.befores`, as each change comes, of half of the readers of versions",
    ),
    Invariant(
        "cas",
        "whatever the clocks do, in a history each change of a key has a higher CAS than the one before, and none has a"
        " CAS that was given to somebody as the token of a lock: what was compared with it is what it was",
        "`harness.simulation.histories`, of the owner of each vbucket",
        check_cas,
    ),
    Invariant(
        "equal",
        "when all faults are over, every copy becomes equal to its owner, and every reader comes to the end",
        "all copies, document by document",
        check_equal,
    ),
    Invariant(
        "damage",
        "with one copy damaged, a flipped bit is found within two intervals of the scrubber, or a start is refused;"
        " `cluster status` says so; from then on the node answers nothing with it. Until then it serves that one bit,"
        " and may copy it; nothing else differs. All other promises hold, the machine can be replaced without --force;"
        " with it, where the last other member was started anew and waits for the damaged one: then what that one"
        " acknowledged alone meanwhile may be lost, and nothing else. Where an earlier failover was cut off before it"
        " had asked the damaged machine, it is replaced with --accept unknown: then what machines acknowledged that"
        " are no members now may be lost, of the vbuckets that are named",
        "`harness.world.damage`, and each judge above, which is shown the bit as it was",
    ),
    Invariant(
        "rights",
        "from when a node has acknowledged a change of rights, it answers nobody who has no right to it by then: no"
        " value is read, no write takes effect, no stream shows a change that was written later; of those with rights"
        " in single collections no scan lists keys, and no stream that began later shows a change or an event; over"
        " restarts, failovers and changes that went to some nodes alone",
        "`harness.world.rights`, over all that guests were answered and shown; `harness.world.tenants` of single"
        " collections",
        check_rights,
    ),
    Invariant(
        "buckets",
        "one order explains every answer to the clients of a second bucket, in which keys have the same names; a"
        " failover of it alone may take plain writes back, and touches nothing of the first; once all nodes have"
        " dropped it, one that is made anew is empty, and no value of the first bucket comes up in it",
        "`harness.world.orders`, each of its lives by `harness.linearizability`",
        check_buckets,
    ),
    Invariant(
        "whole",
        "when all faults are over, one rebalance of each bucket makes every node a member again and settles all that"
        " operators left half done, without force",
        "an operator, by the product's own code",
    ),
    Invariant(
        "backup",
        "each vbucket of a backup is the state at a seqno of a history that there was, with all that was acknowledged"
        " before the backup was begun and is in the history that survives; who restores it into an empty cluster has"
        " the same documents",
        "`harness.world.backups`, row by row, against what every branch holds",
        check_backups,
    ),
    Invariant(
        "lake",
        "each version of a mirror's table is a state that the bucket had, every vbucket at the seqno that the table's"
        " record tells, also after a failover; when all faults are over one run makes it level, and the change log"
        " leads to the same. A log with every version has each change of the history once, but those for which a"
        " warning said that only last versions were read, and none that no owner wrote; what a change replaced is as"
        " promised above",
        "`harness.world.mirror`, each version as its commit appears, and `harness.lake_faults` at the end; in half of"
        " the worlds `harness.world.versions`, each row of the log as its commit appears, and the whole log at the end",
        check_lake,
    ),
)


def table() -> str:
    """Return the promises as docs/reliability.md prints them."""
    rows = [f"| {invariant.name} | {invariant.sentence} | {invariant.by} |" for invariant in INVARIANTS]
    return "\n".join(["| promise | | judged by |", "|---|---|---|", *rows])


def judge(world: World) -> None:
    """Judge a world that is at rest.

    Raises:
        Broken: a promise does not hold.
    """
    for invariant in INVARIANTS:
        if invariant.judge is not None:
            invariant.judge(world)


# --- what clients saw -------------------------------------------------------------------------------------------------


def judged_history(world: World) -> History:
    """Return the history without the answers of superseded nodes, and with the faults that explain answers.

    A node that was cut off, or stopped, while it was failed over serves until it gets the map, some seconds later
    (docs/howto/cluster.md). Its answers meanwhile are old: its reads are left out, its plain writes are a "maybe". A
    durable write is neither: the node must not acknowledge one.
    """
    history = world.recorder.history()
    kept = (_weighed(world, _as_written(world, operation)) for operation in history.operations)
    operations = tuple(each for each in kept if each is not None)
    return replace(history, operations=operations, faults=faults(world))


def _as_written(world: World, operation: Operation) -> Operation:
    """Return an operation with its read value as it was before a bit flipped; unchanged if the node had found the
    damage.
    """
    value, result = operation.result.value, operation.result
    if not value or not world.damage.flips:
        return operation
    began = operation.called - NOON_SECONDS
    known = (
        flip
        for flip in world.damage.flips
        if flip.found_at is not None and world.name(flip.node) == world.name_of(result.node) and flip.found_at < began
    )
    numbers = {flip.number for flip in world.damage.flips} - {each.number for each in known}
    return replace(operation, result=replace(result, value=unflipped(value, numbers)))


def _weighed(world: World, operation: Operation) -> Operation | None:
    vb, result = world.vbucket_of(operation.key), operation.result
    if world.damage.may_be_lost(operation):
        operation = replace(operation, argument=replace(operation.argument, level=Level.NONE))
    began = operation.called - NOON_SECONDS
    ended = began if operation.answered is None else operation.answered - NOON_SECONDS
    if not world.watcher.was_superseded(world.name_of(result.node), vb, began, ended):
        return operation
    if operation.outcome is Outcome.DONE and operation.argument.level:
        return operation
    if operation.outcome is Outcome.DONE and operation.kind is not Kind.GET:
        return replace(operation, result=UNANSWERED, answered=None)
    return operation if operation.outcome is Outcome.MAYBE else None


def faults(world: World) -> tuple[Fault, ...]:
    """Return failovers, moves and restarts as faults, each for the keys of its vbucket, at its time."""
    keys: dict[int, list[str]] = {}
    for key in world.recorder.history().keys:
        keys.setdefault(world.vbucket_of(key), []).append(key)
    found = []
    for turn in world.watcher.turns:
        kind = FaultKind.FAILOVER if turn.is_failover else FaultKind.MOVE if turn.is_taken_over else FaultKind.RESTART
        at = NOON_SECONDS + turn.at
        found.append(Fault(kind, at, at, tuple(keys.get(turn.vbucket, ())), f"{turn.node} becomes active"))
    return tuple(found)
