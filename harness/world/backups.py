"""Backups of a simulated cluster during faults, by the product's own code, into a store that loses answers.

Operators create backups, full ones and increments, and are killed halfway; two may work at a time. At the end of a
world each backup of the archive is checked against the histories: every vbucket is the state at a seqno of a history
that existed, and has all changes that were acknowledged before the backup was begun. One is restored into an empty
cluster, by operators that are killed as well, and the cluster has the same documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from harness.linearizability.record import Outcome
from harness.simulation.histories import LOG_ENTRIES_MAX, Broken, Change, Held, Histories, Log, has
from harness.simulation.host import FIRST_BUCKET
from harness.simulation.observer import Observer, Placed
from harness.simulation.scheduler import NOON_SECONDS
from harness.world import blocking, operators
from harness.world.machines import Machine
from harness.world.rights import KNOWN
from harness.world.steps import Fault
from harness.world.watcher import Turns
from headwater import client
from headwater.backup.archive import Archive
from headwater.backup.collections import lacking
from headwater.backup.create import Choice, create
from headwater.backup.place import place_of
from headwater.backup.restore import RestorePoint, point_of, restore, rows_of
from headwater.backup.verify import verify
from headwater.client.routing import Address
from headwater.cluster import collections
from headwater.errors import HeadwaterError
from headwater.spark.settings import parse_write

if TYPE_CHECKING:
    from harness.world.blocking import BlockingProgram
    from harness.world.steps import Step
    from harness.world.world import World
    from headwater.backup.manifest import BackupManifest

PLACE = "s3://copies/bucket"
VAULT = "vault"
ATTEMPTS = 5
AGAIN_SECONDS = 2.0
PATIENCE_SECONDS = 120.0
ADDITIONS_MAX = 1000
OF_EXPIRY_SECONDS = 5.0
"""A restored document that expires within so many seconds may be missing."""
CAS_MASK = (1 << 64) - 1

Documents = dict[bytes, Change]


@dataclass(frozen=True, slots=True)
class MadeBackup:
    """A backup whose operator lived to its end: its id, and begin and end of the attempt that finished it."""

    id: str
    began: float
    ended: float


class Backups:
    """The archive of a world, and the operators who work on it.

    Attributes:
        made: the backups that operators finished.
    """

    def __init__(self, world: World) -> None:
        self.made: list[MadeBackup] = []
        self._world = world
        self._random = Random(f"backups of {world.plan.seed}")  # noqa: S311 - must be repeatable
        self._is_used = False

    def begin(self, step: Step) -> Callable[[], None] | None:
        """Let an operator begin a backup; return the function that kills the operator, None for an operator that is to
        live.
        """
        self._is_used = True
        random = self._random
        full = step.fault is Fault.FULL_BACKUP
        choice = Choice(full=full, part_changes=random.choice([1, 10, 60]), file_bytes=random.choice([1000, 50_000]))
        operator = self._world.run_blocking("backup", partial(self._attempts, choice))

        def kill() -> None:
            self._world.counts["backups killed"] += not operator.is_over
            operator.kill()

        return kill if step.lasts else None

    def _attempts(self, choice: Choice, attempts: int = ATTEMPTS) -> bool:
        """Do an operator's work, with repetitions if it fails; return True if it succeeded."""
        for attempt in range(attempts):
            if attempt:
                blocking.sleep(AGAIN_SECONDS)
            try:
                self._attempt(choice)
            except (HeadwaterError, OSError):
                self._world.counts["backups refused"] += 1
                continue
            return True
        return False

    def _attempt(self, choice: Choice) -> None:
        world = self._world
        began = world.now()
        with client.connect(world.url, *operators.LOGIN) as bucket:
            manifest = create(place_of(PLACE), bucket, FIRST_BUCKET, choice)
        self.made.append(MadeBackup(manifest.id, began, world.now()))
        world.counts[f"backups: {manifest.kind}"] += 1
        world.counts["backups read again after a failover"] += bool(manifest.rolled_back)

    # --- the end ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Create one more backup, check all, and restore one of them.

        Raises:
            Broken: a promise does not hold.
        """
        if not self._is_used:
            return
        world = self._world
        last = world.run_blocking("last-backup", partial(self._attempts, Choice(), 20))
        if not world.schedule.run(PATIENCE_SECONDS, lambda: last.is_over) or last.error or not last.result:
            raise last.error or Broken("backup: no backup could be made of a cluster without faults")
        archive = Archive(place_of(PLACE))
        if problems := verify(archive).problems:
            raise Broken(f"backup: {problems[0]}")
        for manifest in archive.backups.values():
            self._check_one(archive, manifest)
        if lost := {each.id for each in self.made} - archive.backups.keys():
            raise Broken(f"backup: {sorted(lost)} were made, and are not in the archive")
        self._restore(archive, point_of(archive, self._random.choice(sorted(archive.backups))))

    def _check_one(self, archive: Archive, manifest: BackupManifest) -> None:
        """Check a backup, with those that it continues, against the histories."""
        point = point_of(archive, manifest.id)
        held = documents_of(rows_of(archive, point))
        for vb, place in manifest.part.ends.items():
            expected = self._state(vb, place.failover_log, place.seqno)
            ours = {key: self._world.watcher.branches.as_written(each) for key, each in held.get(vb, {}).items()}
            compare(f"backup {manifest.id}", vb, place.seqno, ours, expected)
        for each in self.made:
            if each.id == manifest.id:
                self._check_acknowledged(each, manifest)
        self._world.counts["backups judged"] += 1

    def _state(self, vb: int, log: Log, seqno: int) -> Documents:
        """Return the documents of a history at a seqno."""
        return self._present(self._world.watcher.branches.newest(vb, log, seqno))

    def _present(self, held: Held) -> Documents:
        """Return the documents among the newest changes of keys, as they were before bits flipped."""
        return {key: change for key, (_, change) in self._world.watcher.branches.documents(held).items()}

    def _check_acknowledged(self, made: MadeBackup, manifest: BackupManifest) -> None:
        """Check that a backup has all changes that were acknowledged before it was begun and that survive.

        A node that had been failed over and did not know of it may have been its source.
        """
        world = self._world
        for operation in world.recorder.history().operations:
            result, vb = operation.result, world.vbucket_of(operation.key)
            if operation.outcome is not Outcome.DONE or not result.vb_uuid or operation.end >= made.began:
                continue
            owner, place = world.owner(vb), manifest.part.ends[vb]
            log = place.failover_log
            if max(len(log), len(owner.failover.entries)) >= LOG_ENTRIES_MAX or self._was_superseded(vb, made):
                continue
            survives = has(owner.failover.entries, owner.high_seqno, result.vb_uuid, result.seqno)
            if survives and not has(log, place.seqno, result.vb_uuid, result.seqno):
                raise Broken(
                    f"backup: {made.id} has vbucket {vb} to {place.seqno} of {[f'{each:x}@{at}' for each, at in log]};"
                    f" {operation.kind} of {operation.key} was answered before it was begun, as"
                    f" {result.vb_uuid:x}@{result.seqno}"
                )

    def _was_superseded(self, vb: int, made: MadeBackup) -> bool:
        began, ended = made.began - NOON_SECONDS, made.ended - NOON_SECONDS
        watcher = self._world.watcher
        return any(watcher.was_superseded(machine.name, vb, began, ended) for machine in self._world.machines)

    # --- restoring --------------------------------------------------------------------------------------------------

    def _restore(self, archive: Archive, point: RestorePoint) -> None:
        """Restore a point into an empty cluster, and compare the documents there."""
        world = self._world
        users = KNOWN if world.plan.has_users else {}
        vault = Machine(world.schedule, world.network, VAULT, vbuckets=world.plan.vbuckets, users=users)
        vault.start()
        world.clocks[VAULT] = vault.clock
        address = Address(*world.network.address(VAULT))
        world.complete("vault-founder", partial(operators.make_cluster, [address], 0), PATIENCE_SECONDS)
        self._make_collections(point, address)
        while not self._restored(archive, point, vault):
            pass
        self._until_durable(vault)
        found = Observer(Placed(vault, FIRST_BUCKET), Histories(), {vb: Turns(vb) for vb in point.upto})
        for vb, count in point.upto.items():
            place = point.chain[count - 1].part.ends[vb]
            expected = self._state(vb, place.failover_log, place.seqno)
            held = self._present(found.held(vb))
            compare("the restored bucket", vb, place.seqno, held, self._alive(held, expected))
        world.counts["restored documents"] += sum(len(found.held(vb)) for vb in point.upto)
        vault.stop()

    def _make_collections(self, point: RestorePoint, address: Address) -> None:
        """Create the collections that the bucket lacks, as the command does."""

        def ask() -> list[Any]:
            with client.connect(f"couchbase://{address}/{FIRST_BUCKET}", *operators.LOGIN) as bucket:
                return lacking(bucket, point.backups, None)

        async def make(missing: list[Any]) -> None:
            async with operators.members() as connected:
                await collections.make(connected, [address], missing)

        missing: Any = self._completed("collections", ask)
        if missing:
            self._world.complete("collections-maker", partial(make, missing), PATIENCE_SECONDS)

    def _restored(self, archive: Archive, point: RestorePoint, vault: Machine) -> bool:
        """Make one attempt at a restore, which may be killed; return True if it succeeded."""
        world = self._world
        given = {"url": f"couchbase://{vault.address}/{FIRST_BUCKET}", "withMeta": "true"}
        target = parse_write(given | operators.login_options())
        operator = world.run_blocking("restorer", partial(restore, archive, point, target))
        if self._random.random() < 0.5:
            world.schedule.run(self._random.random() * 0.1, lambda: operator.is_over)
            world.counts["restores killed"] += not operator.is_over
            operator.kill()
        else:
            world.schedule.run(PATIENCE_SECONDS, lambda: operator.is_over)
        return self._is_done(operator)

    @staticmethod
    def _is_done(operator: BlockingProgram) -> bool:
        if operator.error is not None:
            raise operator.error
        return operator.is_over and not operator.is_killed

    def _completed(self, name: str, work: Callable[[], object]) -> object:
        made = self._world.run_blocking(name, work)
        self._world.schedule.run(PATIENCE_SECONDS, lambda: made.is_over)
        if not self._is_done(made):
            raise Broken(f"backup: {name} has not come to an end")
        return made.result

    def _until_durable(self, vault: Machine) -> None:
        def is_level() -> bool:
            return all(vbucket.durable_seqno == vbucket.high_seqno for vbucket in vault.bucket.vbuckets.values())

        self._world.schedule.run(PATIENCE_SECONDS, is_level)

    def _alive(self, held: Mapping[bytes, Change], expected: Documents) -> Documents:
        """Return the documents without those that may have expired since."""
        soon = self._world.now() + OF_EXPIRY_SECONDS
        return {key: each for key, each in expected.items() if key in held or not 0 < each.expiry <= soon}


def documents_of(batches: Iterator[Any]) -> dict[int, Documents]:
    """Return the documents of the default collection that the rows of a backup lead to, by vbucket."""
    found: dict[int, Documents] = {}
    for batch in batches:
        for row in batch.to_pylist():
            if row.get("collection") not in (None, "_default"):
                continue
            held, key = found.setdefault(row["vbucket"], {}), bytes(row["key"])
            held.pop(key, None)
            if row["event"] == "mutation":
                held[key] = change_of(row, key)
    return found


def change_of(row: Mapping[str, Any], key: bytes) -> Change:
    """Return a row as a change of the model of histories."""
    value = bytes(row["value"] or b"")
    return Change(key, value, row["cas"] & CAS_MASK, row["rev_seqno"], row["flags"], row["expiry"])


def compare(who: str, vb: int, seqno: int, held: Mapping[bytes, Change], expected: Mapping[bytes, Change]) -> None:
    """Compare documents.

    Raises:
        Broken: they differ; the message has some of them.
    """
    different = sorted(key for key in {**held, **expected} if held.get(key) != expected.get(key))
    if different:
        key = different[0]
        raise Broken(
            f"backup: {who} has vbucket {vb} at {seqno}, and of {len(different)} documents another version than that"
            f" history; {key!r}: {held.get(key)} for {expected.get(key)}"
        )
