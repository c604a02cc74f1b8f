"""Creates a backup: reads each vbucket from the end of the backup before to its present end, into Parquet files.

Vbuckets are read part by part. Once a part's streams have ended, its files and the positions that it reached are noted.
A run continues after the last note of a killed one. It also reads on for the vbuckets already noted, so that all
vbuckets end where they stood when the backup was finished rather than when it was begun.

Where a place has no lock (an object store), a second run may take over a backup although the first run is still alive.
Each run writes its own id into the backup's folder when it begins or continues, and into the names of its files. A run
that finds another id before it notes a part, removes one or writes the manifest ends: the other run uses its earlier
notes. Two runs may also begin within a second, under one name, and read different vbuckets. So a run also writes there
which runs' notes it continues, and no others count.

A failover may take changes back. A node that does not know a position any more answers with the seqno up to which the
histories agree. Then the vbucket is read again from the newest position at or below that seqno at which an earlier
backup was whole (its end, or 0), and the backup notes this. Later changes in earlier backups are void.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from headwater.backup.archive import Archive, folder, fresh_id, now
from headwater.backup.collections import COLUMNS as OF_COLLECTIONS
from headwater.backup.collections import holds_more
from headwater.backup.files import FILE_BYTES, PartFiles
from headwater.backup.manifest import (
    BEGUN,
    FORMAT,
    FORMAT_OF_COLLECTIONS,
    MANIFEST,
    BackupManifest,
    BackupPart,
    RolledBack,
    joined,
    sealed,
    unsealed,
)
from headwater.backup.place import BackupPlace
from headwater.client.unread import may_read_all
from headwater.errors import BackupError, DataLoss, RollbackRequired, TransportError
from headwater.failpoints import failpoint
from headwater.protocol.dcp.position import FailoverLog, Position, safe_point
from headwater.spark.columns import RowMaker
from headwater.spark.offsets import U64_MAX
from headwater.spark.planner import Range
from headwater.spark.schema import COLUMNS
from headwater.wire.manifest import CollectionsManifest

if TYPE_CHECKING:
    from headwater.client import Client

NAMES = tuple(name for name in COLUMNS if name != "modified_at")
"""The columns of an archive's files; `modified_at` is left out, for the CAS holds the same time."""

PART_CHANGES = 1_000_000
BATCH_BYTES = 4 << 20
ENDLESS_ROWS = (1 << 62) - 1
TELL_SECONDS = 0.25
ROLLBACKS_MAX = 10_000
"""The most rollbacks in one backup: a bucket that was created anew has one for each vbucket, never endlessly many."""


@dataclass
class BackupProgress:
    """The progress of a backup.

    Attributes:
        id: id of the backup.
        total: changes to read at most. done: seqnos passed so far.
        rows, bytes: written so far.
        resumed: vbuckets that an earlier attempt had read.
    """

    id: str = ""
    total: int = 0
    done: int = 0
    rows: int = 0
    bytes: int = 0
    resumed: int = 0


Tell = Callable[[BackupProgress], None]


@dataclass
class Choice:
    """A user's choices: a full backup instead of an increment, some vbuckets only, and sizes.

    All collections are read if the bucket has more than the default one, unless `default_only`. All backups of a chain
    make the same choice: if the backup before made the other one, this backup is full. A user who may read only parts
    of the bucket is refused, unless `default_only`: hidden documents would be missing without any sign of it.
    """

    full: bool = False
    default_only: bool = False
    vbuckets: tuple[int, ...] | None = None
    part_changes: int = PART_CHANGES
    file_bytes: int = FILE_BYTES


def create(
    place: BackupPlace, client: Client, bucket: str, choice: Choice, tell: Tell = lambda done: None
) -> BackupManifest:
    """Back up a bucket: the changes since the newest backup of the archive, or all of it.

    Args:
        place: place of the archive; created if missing.
        client: client of the bucket.
        bucket: its name, for the manifest.
        choice: the user's choices.
        tell: called with the progress, a few times a second.

    Raises:
        BackupError: the archive is damaged or of another bucket, another process changes it, or a vbucket has no node.
        TransportError, StatusError: a node did not answer; the next call continues the backup.
    """
    with place.lock():
        archive = Archive(place)
        archive.require_sound()
        if archive.index is None:  # before the first manifest: one without an index is an archive that has lost it
            archive.write_index({})
        return _Run(archive, client, bucket, choice, tell).run()


@dataclass
class _UnfinishedBackup:
    """An unfinished backup: its id, the chain that it continues, the id of this run, and the parts read so far."""

    id: str
    chain: list[BackupManifest]
    began: str
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    parts: list[tuple[str, BackupPart]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)


@dataclass(frozen=True)
class _Counted:
    """The notes that count in an unfinished backup: those in `notes`, and all notes of the runs in `runs`."""

    notes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    @classmethod
    def of_mark(cls, mark: Mapping[str, Any]) -> _Counted:
        """Return the notes that count for a run that continues a backup with this mark; KeyError if the mark has no
        notes.
        """
        return cls(tuple(mark["notes"]), (*mark["runs"], str(mark["run"])))

    def __contains__(self, note: str) -> bool:
        return note in self.notes or note.removesuffix(".json").rpartition("-")[2] in self.runs


class _Run:
    """One attempt at a backup."""

    def __init__(self, archive: Archive, client: Client, bucket: str, choice: Choice, tell: Tell) -> None:
        self.archive, self.place, self.client, self.bucket = archive, archive.place, client, bucket
        self.choice, self._tell, self._told_at = choice, tell, 0.0
        self.progress = BackupProgress()
        self.lost: dict[int, RolledBack] = {}
        self._from: dict[int, Position] = {}
        self._rollbacks = 0
        self._reads_all = False
        self._vbuckets = client.map.vbuckets

    def run(self) -> BackupManifest:
        """Read the bucket, and finish the backup."""
        self._reads_all = self._wants_all()
        unfinished = self._read_to_the_end()
        if not self._reads_all and self._wants_all():  # the first one came while the default one was read
            self._clear(unfinished)
            self._reads_all, self.lost, self._from = True, {}, {}
            unfinished = self._read_to_the_end()
        return self._finish(unfinished)

    def _wants_all(self) -> bool:
        """Return True if all collections are read: the bucket has more than the default one, or the chain reads all."""
        if self.choice.default_only:
            return False
        newest = None if self.choice.full else self.archive.newest
        return (newest is not None and newest.collections is not None) or holds_more(self._manifest())

    def _manifest(self) -> CollectionsManifest:
        """Return the newest manifest of all nodes that send rows: rows of a collection it lacks could not be restored.

        Nodes show a user with rights in parts of the bucket those parts alone, under the uid of the whole manifest.

        Raises:
            BackupError: the user may read parts of the bucket only.
        """
        manifest = self.client.newest_manifest(self.choice.vbuckets)
        if not manifest.uid:  # there never was a collection that could be hidden
            return manifest
        may_read = may_read_all(self.client, self.choice.vbuckets)
        manifest = self.client.newest_manifest(self.choice.vbuckets)
        if may_read and may_read_all(self.client, self.choice.vbuckets):  # rights may be taken between two answers
            return manifest
        problem = f"this user may read only a part of bucket {self.bucket}, and a backup would lack the rest: give that"
        problem += " user the role stream in all of it, or back up --default-collection-only (into a place of its own)"
        raise BackupError(self.place.name, problem)

    def _read_to_the_end(self) -> _UnfinishedBackup:
        unfinished = self._begin()
        self.progress.id = unfinished.id
        self.progress.resumed = len({vb for _, part in unfinished.parts for vb in part.ends})
        while not self._attempt(unfinished):
            pass
        return unfinished

    # ------------------------------------------------------------------ where to begin

    def _begin(self) -> _UnfinishedBackup:
        """Return the backup to work on: an unfinished one with the same parent and choices, or a new one."""
        newest = self.archive.newest
        if newest is not None:
            self._check(newest)
        parent = None if self.choice.full else newest
        if parent is not None and (parent.collections is not None) != self._reads_all:
            parent = None  # its positions say nothing of what was left out
        chain = [] if parent is None else self.archive.chain(parent.id)
        for name in self.archive.unfinished:
            unfinished = self._resumed(name, chain)
            if unfinished is not None:
                return unfinished
            self._discard(name)
        unfinished = _UnfinishedBackup(fresh_id("increment" if chain else "full", self.archive.backups), chain, now())
        self._mark(unfinished)
        failpoint("backup.begun")
        return unfinished

    def _discard(self, name: str) -> None:
        """Remove an unfinished backup of another choice, after taking it over with a mark that no run continues.

        The run of that backup may be alive and about to finish. Either it finds the mark after it has written its
        manifest, and does not report the backup as finished, or the manifest was there before the mark, and is found
        here.
        """
        unfinished = _UnfinishedBackup(name, [], "")
        # The mark has no parent and no notes, so that `_resumed` of any other run refuses it, too.
        self.place.write(folder(name, BEGUN), sealed({"format": FORMAT, "run": unfinished.run}))
        self._clear(unfinished)

    def _clear(self, unfinished: _UnfinishedBackup) -> None:
        """Remove the files of an unfinished backup that is ours; files of a run that takes it over meanwhile stay.

        Raises:
            BackupError: another run works on it, or has finished it.
        """
        names = self.place.names(folder(unfinished.id))
        self._remove(unfinished, [name for name in names if name != BEGUN])
        # Its former run may have been about to finish: a manifest that was not there when the backup was ours already
        # was written behind our mark, so that run does not report the backup, and the manifest's files are gone.
        if MANIFEST in self.place.names(folder(unfinished.id)):
            self._require_ours(unfinished)
            self.place.remove(folder(unfinished.id, MANIFEST))
        # The mark goes last: a process that dies before leaves a folder that the next run still knows for an unfinished
        # backup.
        self.place.remove(folder(unfinished.id, BEGUN))
        self.place.remove_empty(folder(unfinished.id))

    def _mark(self, unfinished: _UnfinishedBackup, counted: _Counted = _Counted()) -> None:
        """Write the mark into the backup's folder: what is read, the id of this run, and the notes of other runs that
        it continues.
        """
        content: dict[str, Any] = {"format": FORMAT, "parent": unfinished.chain[-1].id if unfinished.chain else ""}
        content |= {"began": unfinished.began, "vbuckets": list(self.choice.vbuckets or ()), "run": unfinished.run}
        content |= {"notes": counted.notes, "runs": counted.runs}
        if self._reads_all:
            content |= {"format": FORMAT_OF_COLLECTIONS, "collections": "all"}
        self.place.write(folder(unfinished.id, BEGUN), sealed(content))

    def _require_ours(self, unfinished: _UnfinishedBackup) -> None:
        """Check that no other run works on this backup.

        Raises:
            BackupError: another run does.
        """
        path = folder(unfinished.id, BEGUN)
        try:
            run = unsealed(self.place.read(path), path).get("run")
        except FileNotFoundError:
            run = None
        # A mark that is gone means the same: another run has cleared the folder.
        if run != unfinished.run:
            problem = "another run has taken this backup over; one at a time, and this one is of no use any more"
            raise BackupError(f"{self.place.name}/{folder(unfinished.id)}", problem)

    def _check(self, newest: BackupManifest) -> None:
        present = (self.bucket, self.client.map.vbuckets)
        if present != (newest.bucket, newest.vbuckets):
            description = f"{newest.bucket} with {newest.vbuckets} vbuckets"
            problem = f"it holds bucket {description}, this one is {present[0]} with {present[1]}; choose another place"
            raise BackupError(self.place.name, problem)

    def _resumed(self, name: str, chain: list[BackupManifest]) -> _UnfinishedBackup | None:
        try:
            mark = unsealed(self.place.read(folder(name, BEGUN)), folder(name, BEGUN))
            counted = _Counted.of_mark(mark)
        except (FileNotFoundError, BackupError, KeyError):  # a mark of an older version tells not whose notes count
            return None
        same = (chain[-1].id if chain else "", list(self.choice.vbuckets or ()))
        if (
            (mark.get("parent"), mark.get("vbuckets")) != same
            or ("collections" in mark) != self._reads_all
            # A backup that sorts below the newest would be found as its predecessor by the next one.
            or name <= max(self.archive.backups, default="")
        ):
            return None
        unfinished = _UnfinishedBackup(name, chain, str(mark.get("began", "")))
        self._mark(unfinished, counted)  # before the notes are read: from here on no other run can finish this backup
        unfinished.parts = list(
            _connected(unfinished, (part for part in self._noted_parts(name) if part[0] in counted))
        )
        # A run that was taken over may write the note at which it was behind its last look at the mark: not counted.
        self._require_ours(unfinished)
        # From now on these notes count by name alone; the runs before may write no more that count.
        self._mark(unfinished, _Counted(tuple(note for note, _ in unfinished.parts)))
        self._sweep(unfinished)
        numbers = [int(note.split("-")[1].partition(".")[0]) for note, _ in unfinished.parts]
        # Behind all that count, for the order of the notes is the order in which the parts were read.
        unfinished.numbers = count(max(numbers, default=-1) + 1)
        return unfinished

    def _noted_parts(self, name: str) -> Iterator[tuple[str, BackupPart]]:
        """Yield the parts that are whole, with the names of their notes."""
        for note in self.place.names(folder(name)):
            if not _is_note(note):
                continue
            # A note that is damaged, or whose files are cut, is as if the part had never been read; it is read anew.
            with suppress(BackupError, KeyError, TypeError, ValueError):
                part = BackupPart.from_json(unsealed(self.place.read(folder(name, note)), note))
                if all(self.place.size(folder(name, file.path)) == file.bytes for file in part.files):
                    yield note, part

    def _sweep(self, unfinished: _UnfinishedBackup) -> None:
        """Remove the files that no note names, which are those of an unfinished part."""
        named_files = {BEGUN, *(note for note, _ in unfinished.parts)}
        named_files |= {file.path for _, part in unfinished.parts for file in part.files}
        self._remove(unfinished, [name for name in self.place.names(folder(unfinished.id)) if name not in named_files])

    def _remove(self, unfinished: _UnfinishedBackup, names: Collection[str]) -> None:
        """Remove files that were seen in a backup's folder: first the notes, without which the others belong to no
        part.

        A run that takes over marks the backup as its own before it reads the notes. So if the backup is still ours
        after their removal, no other run has read them, and none will; and files of other runs have other names.

        Raises:
            BackupError: another run works on this backup, or has finished it.
        """
        if not names:
            return
        self._require_ours(unfinished)
        self._require_unfinished(unfinished.id, names)
        for note in filter(_is_note, names):
            self.place.remove(folder(unfinished.id, note))
        self._require_ours(unfinished)
        for name in names:
            if not _is_note(name):
                self.place.remove(folder(unfinished.id, name))

    def _require_unfinished(self, backup: str, names: Collection[str]) -> None:
        """Check that no other run has finished a backup since the archive was read, before its folder is cleaned up.

        Raises:
            BackupError: another run has.
        """
        if MANIFEST in names:
            raise BackupError(f"{self.place.name}/{folder(backup)}", "another run has just finished it; try again")

    # ------------------------------------------------------------------ reading

    def _attempt(self, unfinished: _UnfinishedBackup) -> bool:
        """Read all that is missing; return False if a vbucket was rolled back, so that starts and ends must be computed
        again.
        """
        starts = self._starts(unfinished)
        ends = self._ends()
        pending = self._pending(starts, ends)
        self.progress.total = sum(max(ends[vb] - starts[vb].seqno, 0) for vb in pending)
        self.progress.done = 0
        for group in self._groups(pending, starts, ends):
            try:
                self._read(unfinished, {vb: starts[vb] for vb in group}, {vb: ends[vb] for vb in group})
            except RollbackRequired as rollback:
                self._roll_back(unfinished, starts, rollback)
                return False
            except TransportError:
                if not self._has_less(group, ends):
                    raise
                return False  # what was waited for will not come
        return not self._reads_another_history(unfinished)

    def _has_less(self, vbuckets: Iterable[int], ends: Mapping[int, int]) -> bool:
        """Return True if a vbucket's high seqno is below its planned end by now: a failover took changes back."""
        now_there = self._ends()
        return any(now_there.get(vb, 0) < ends[vb] for vb in vbuckets)

    def _reads_another_history(self, unfinished: _UnfinishedBackup) -> bool:
        """Return True if a vbucket was read on a branch that its present failover log does not have.

        So it is if the bucket was dropped and created again between two parts. No stream reports that, since none was
        open; another attempt reads these vbuckets again.
        """
        read = joined(part for _, part in unfinished.parts).ends
        # Only vbuckets that the bucket has still: one with fewer was made anew, which `_finish` refuses.
        logs = self.client.failover_logs(vb for vb in read if vb < self.client.map.vbuckets)
        return any(read[vb].seqno and read[vb].vb_uuid not in {uuid for uuid, _ in log} for vb, log in logs.items())

    def _starts(self, unfinished: _UnfinishedBackup) -> dict[int, Position]:
        """Return the start of each vbucket: after this backup's notes, a rollback, the backup before, or 0."""
        vbuckets = self.choice.vbuckets or range(self.client.map.vbuckets)
        read = joined(part for _, part in unfinished.parts).ends
        before = unfinished.chain[-1].part.ends if unfinished.chain else {}
        starts = {}
        for vb in vbuckets:
            if vb in read:
                # Before the place of a rollback: what was read after it has been noted since.
                starts[vb] = read[vb]
            elif vb in self._from:
                starts[vb] = self._from[vb]
            else:
                starts[vb] = before.get(vb) or Position.beginning(vb)
        return starts

    def _ends(self) -> dict[int, int]:
        highs = self.client.seqnos("all" if self._reads_all else None)
        vbuckets = self.choice.vbuckets or range(self.client.map.vbuckets)
        ownerless = [vb for vb in vbuckets if vb not in highs]
        if ownerless:
            problem = f"{len(ownerless)} of {len(vbuckets)} vbuckets have no active node, the first is {ownerless[0]}"
            raise BackupError(
                self.place.name, f"{problem}: this would be no whole backup; wait for them, or name those to be read"
            )
        return {vb: highs[vb] for vb in vbuckets}

    def _pending(self, starts: Mapping[int, Position], ends: Mapping[int, int]) -> list[int]:
        """Return the vbuckets whose changes, or only whose history, differ from their start."""
        logs = self.client.failover_logs(starts)
        return [
            vb
            for vb, start in starts.items()
            # An equal seqno alone says nothing: after a failover the same number of other changes may be there. A
            # stream tells, by the failover log.
            if ends[vb] != start.seqno or (start.seqno and tuple(logs[vb]) != start.failover_log)
        ]

    def _groups(
        self, pending: list[int], starts: Mapping[int, Position], ends: Mapping[int, int]
    ) -> Iterator[list[int]]:
        group: list[int] = []
        size = 0
        for vb in pending:
            group.append(vb)
            size += max(ends[vb] - starts[vb].seqno, 0)
            if size >= self.choice.part_changes:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _read(self, unfinished: _UnfinishedBackup, starts: dict[int, Position], ends: dict[int, int]) -> None:
        """Read some vbuckets and write a note of them."""
        number, done = next(unfinished.numbers), self.progress.done
        with PartFiles(self.place, unfinished.id, number, unfinished.run, self.choice.file_bytes) as out:
            positions = self._drain(out, starts, ends)
            files = tuple(out.close())
        rolled_back = tuple(self.lost[vb] for vb in sorted(starts) if vb in self.lost)
        part = BackupPart({vb: start.seqno for vb, start in starts.items()}, positions, files, out.changes, rolled_back)
        note = f"part-{number:05d}-{unfinished.run}.json"
        # The files were written before this look, under names with our own run's id: where the backup was taken over
        # they are in nobody's way.
        self._require_ours(unfinished)
        self.place.write(folder(unfinished.id, note), sealed(part.to_json()))
        unfinished.parts.append((note, part))
        failpoint("backup.part_noted")
        self.progress.rows += out.rows
        self.progress.bytes += out.bytes
        self._say(done + _seqnos_passed(starts, positions))

    def _drain(self, out: PartFiles, starts: dict[int, Position], ends: dict[int, int]) -> dict[int, Position]:
        """Write the changes of some vbuckets; return the positions reached."""
        names = NAMES + OF_COLLECTIONS if self._reads_all else NAMES
        maker = RowMaker(names, "binary", "binary")
        done, logs = self.progress.done, None
        # One whose end lies below what we hold is asked for all the same: the node says how much of it is history.
        until = {vb: max(end, starts[vb].seqno) for vb, end in ends.items()}
        feed = self.client.batches(
            starts,
            vbuckets=list(starts),
            until=until,
            xattrs=True,
            deleted_xattrs=True,
            batch_bytes=BATCH_BYTES,
            collections="all" if self._reads_all else None,
        )
        with feed as batches:
            for batch in batches:
                if batch.failover_logs is not logs:
                    logs = batch.failover_logs
                    _expect(maker, starts, logs)
                if len(batch):
                    out.add(maker.rows(batch.records))
                if time.monotonic() >= self._told_at + TELL_SECONDS:
                    self._say(done + _seqnos_passed(starts, batch.positions), out)
            # Each vbucket is at the end of a snapshot here: a stream with an end runs to the end of the snapshot that
            # contains it (dcp 8.5).
            return batches.positions

    def _say(self, progress: int, out: PartFiles | None = None) -> None:
        self._told_at, self.progress.done = time.monotonic(), progress
        progress_ = self.progress
        if out is not None:
            progress_ = BackupProgress(**self.progress.__dict__)
            progress_.rows, progress_.bytes = progress_.rows + out.rows, progress_.bytes + out.bytes
        self._tell(progress_)

    def _roll_back(
        self, unfinished: _UnfinishedBackup, starts: Mapping[int, Position], rollback: RollbackRequired
    ) -> None:
        """Note the positions from which vbuckets must be read again, and remove this backup's files of them."""
        purge_seqnos = rollback.purged if isinstance(rollback, DataLoss) else {rollback.vbucket: 0}
        for vb in sorted(purge_seqnos):
            requested = rollback.requested if vb == rollback.vbucket else starts[vb].seqno
            self._read_again(unfinished, starts[vb], requested, rollback.common, purge_seqnos[vb])
        self._rollbacks += 1
        if self._rollbacks > ROLLBACKS_MAX:
            raise BackupError(self.place.name, "the bucket's history changes again and again; try later") from rollback

    def _read_again(
        self, unfinished: _UnfinishedBackup, start: Position, requested: int, common: int, purge_seqno: int
    ) -> None:
        vb = start.vbucket
        # A part holds several vbuckets. All of it goes, and with it the later parts that continue one of its vbuckets;
        # what is left has no gap.
        connected = list(_connected(unfinished, (part for part in unfinished.parts if vb not in part[1].ends)))
        self._drop(unfinished, [part for part in unfinished.parts if part not in connected])
        unfinished.parts = connected
        # A place that was refused itself is none to return to; one that was only left behind is.
        futile = start if requested <= start.seqno else None
        self._from[vb] = place = safe_point((p for p in _points(unfinished, vb) if p != futile), vb, common)
        # A second rollback may have found a place at which nothing of the backup before is lost.
        self.lost.pop(vb, None)
        if unfinished.chain and vb in (ends := unfinished.chain[-1].part.ends) and ends[vb].seqno > place.seqno:
            self.lost[vb] = RolledBack(vb, ends[vb].seqno, common, place.seqno, purge_seqno)

    def _drop(self, unfinished: _UnfinishedBackup, parts: list[tuple[str, BackupPart]]) -> None:
        """Remove parts with their files; as `_remove`."""
        files = (file.path for _, part in parts for file in part.files)
        self._remove(unfinished, [*(note for note, _ in parts), *files])

    # ------------------------------------------------------------------ the end

    def _finish(self, unfinished: _UnfinishedBackup) -> BackupManifest:
        """Write the manifest, which makes this a finished backup of the archive; return it."""
        now_there = Archive(self.place, self.archive)
        now_there.require_sound()
        newest = now_there.newest
        read_newest = self.archive.newest
        # On a place without a lock another run may have finished: this one continues a chain that is not the newest any
        # more.
        if (newest and newest.id) != (read_newest and read_newest.id):
            raise BackupError(self.place.name, "another backup was made meanwhile; make this one again")
        if self.client.map.vbuckets != self._vbuckets:
            problem = f"the bucket had {self._vbuckets} vbuckets and was made anew with {self.client.map.vbuckets}"
            raise BackupError(self.place.name, f"{problem} meanwhile; choose another place for what it is now")
        before = unfinished.chain[-1] if unfinished.chain else None
        manifest = BackupManifest(
            unfinished.id,
            before.id if before else "",
            self.archive.digests[before.id] if before else "",
            self.bucket,
            self.client.map.vbuckets,
            unfinished.began,
            now(),
            self._joined_parts(unfinished),
            # Asked for behind all that was read: it has each collection that a row can be of, unless that was dropped.
            self._manifest() if self._reads_all else None,
            self.choice.default_only,
        )
        failpoint("backup.before_manifest")
        self._require_ours(unfinished)
        self.place.write(folder(unfinished.id, MANIFEST), manifest.to_bytes())
        self._require_ours(unfinished)  # who did not see the manifest yet may have removed it
        failpoint("backup.after_manifest")
        archive = Archive(self.place, now_there)
        archive.require_sound()  # the index is written by what is there, and it alone tells what was
        archive.enter()
        failpoint("backup.entered")
        for name in (BEGUN, *(note for note, _ in unfinished.parts)):
            self.place.remove(folder(unfinished.id, name))
        return manifest

    def _joined_parts(self, unfinished: _UnfinishedBackup) -> BackupPart:
        """Return all parts as one, completed by the vbuckets that had nothing to read: those without changes since the
        backup before, and those that a failover left empty.
        """
        read = joined(part for _, part in unfinished.parts)
        before = unfinished.chain[-1].part.ends if unfinished.chain else {}
        # All vbuckets of the chain, read or not: a vbucket that a later backup does not name would begin at 0 for a
        # restore, and all its rows count as void.
        places = {**before, **self._starts(unfinished)}
        starts = {**{vb: place.seqno for vb, place in places.items()}, **read.starts}
        rolled_back = {rollback.vbucket: rollback for rollback in read.rolled_back} | self.lost
        rolled = tuple(rolled_back[vb] for vb in sorted(rolled_back))
        return BackupPart(starts, places, read.files, read.changes, rolled, read.read_on)


def _is_note(name: str) -> bool:
    return name.startswith("part-") and name.endswith(".json")


def _seqnos_passed(starts: Mapping[int, Position], positions: Mapping[int, Position]) -> int:
    """Return the number of seqnos between start and reached positions."""
    return sum(place.seqno - starts[vb].seqno for vb, place in positions.items())


def _connected(
    unfinished: _UnfinishedBackup, parts: Iterable[tuple[str, BackupPart]]
) -> Iterator[tuple[str, BackupPart]]:
    """Yield the parts that continue the backup before or a part already yielded.

    A vbucket is in several parts if more of it was read later. If its first part is left out, perhaps because of
    another vbucket in that part, its later parts would leave a gap that no later part fills.
    """
    before = unfinished.chain[-1].part.ends if unfinished.chain else {}
    end_seqnos = {vb: place.seqno for vb, place in before.items()}
    for note, part in parts:
        if all(seqno <= end_seqnos.get(vb, 0) for vb, seqno in part.starts.items()):
            end_seqnos |= {vb: place.seqno for vb, place in part.ends.items()}
            yield note, part


def _points(unfinished: _UnfinishedBackup, vbucket: int) -> list[Position]:
    """Return the positions of a vbucket at which a backup of the chain was whole."""
    return [manifest.part.ends[vbucket] for manifest in unfinished.chain if vbucket in manifest.part.ends]


def _expect(maker: RowMaker, starts: Mapping[int, Position], logs: Mapping[int, FailoverLog]) -> None:
    """Pass the failover logs to the maker of rows, which takes the vb uuid of each change from them."""
    for vb, log in logs.items():
        if vb in starts:
            start = starts[vb].seqno
            maker.expect(Range(vb, starts[vb].vb_uuid, start, ENDLESS_ROWS, ENDLESS_ROWS), log, U64_MAX)
