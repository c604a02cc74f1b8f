"""Make a backup: read each vbucket from where the backup before ended up to its present end, into Parquet files.

Vbuckets are read part by part. A part's files and the positions it came to are noted when its streams have ended;
whoever is killed goes on behind the last note, and tops up what was noted, so that all vbuckets end where they stood
when the backup was finished rather than when it was begun.

Where a place has no lock (an object store), a second run may take a backup over whose first run still lives. Each run
writes its own word into the backup's folder as it begins or goes on, files have it in their names, and whoever finds
another word there before noting a part or writing the manifest ends: what was noted before that is the other's to use.

A node that does not know a position any more, since a failover took changes back, says how far the histories agree.
Then the vbucket is read again from the newest place at or below that at which an earlier backup was whole (its end, or
0), and the backup says so. What earlier backups hold above it is void.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from headwater.errors import BackupError, DataLoss, RollbackRequired
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
"""The columns of an archive's files: a time that is the CAS over again is not among them."""

PART_CHANGES = 1_000_000
BATCH_BYTES = 4 << 20
ENDLESS_ROWS = (1 << 62) - 1
TELL_SECONDS = 0.25
ROLLBACKS_MAX = 10_000
"""Of one backup. A bucket that was set up anew has one for each vbucket; without an end there would be a loop."""


@dataclass
class BackupProgress:
    """How far a backup is.

    Attributes:
        id: the backup's.
        total, done: changes to read at most, and how many seqnos lie behind by now.
        rows, bytes: written so far.
        resumed: vbuckets that an attempt before this one had read.
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
    """The choices of a user: a full backup though an increment would do, some vbuckets only, and sizes.

    Of a bucket that has more than the default collection all are read, unless `default_only`. A chain keeps to one of
    both: where the backup before was of the other kind, this one is full.
    """

    full: bool = False
    default_only: bool = False
    vbuckets: tuple[int, ...] | None = None
    part_changes: int = PART_CHANGES
    file_bytes: int = FILE_BYTES


def create(
    place: BackupPlace, client: Client, bucket: str, choice: Choice, tell: Tell = lambda done: None
) -> BackupManifest:
    """Back a bucket up: what changed since the newest backup of the archive, or all of it.

    Args:
        place: of the archive; made if missing.
        client: of the bucket.
        bucket: its name, for the manifest.
        choice: what to read.
        tell: called with the progress, a few times a second.

    Raises:
        BackupError: the archive is damaged or of another bucket, somebody else changes it, or a vbucket has no node.
        TransportError, StatusError: a node did not answer; the next call goes on.
    """
    with place.lock():
        archive = Archive(place)
        archive.require_sound()
        if archive.index is None:  # before the first manifest: one without an index is an archive that has lost it
            archive.write_index({})
        return _Run(archive, client, bucket, choice, tell).run()


@dataclass
class _Begun:
    """A backup under way: its id, the chain it goes on from, the word of this run, and the parts that are read."""

    id: str
    chain: list[BackupManifest]
    began: str
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    parts: list[tuple[str, BackupPart]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)


class _Run:
    """One attempt."""

    def __init__(self, archive: Archive, client: Client, bucket: str, choice: Choice, tell: Tell) -> None:
        self.archive, self.place, self.client, self.bucket = archive, archive.place, client, bucket
        self.choice, self._tell, self._told_at = choice, tell, 0.0
        self.progress = BackupProgress()
        self.lost: dict[int, RolledBack] = {}
        self._from: dict[int, Position] = {}
        self._rollbacks = 0
        self._reads_all = False

    def run(self) -> BackupManifest:
        """Read, and make what was read a backup."""
        self._reads_all = self._wants_all()
        begun = self._read_to_the_end()
        if not self._reads_all and self._wants_all():  # the first one came while the default one was read
            self.place.remove(folder(begun.id))
            self._reads_all, self.lost, self._from = True, {}, {}
            begun = self._read_to_the_end()
        return self._finish(begun)

    def _wants_all(self) -> bool:
        """Whether all collections are read: there are more than the default one, or there were in this chain."""
        if self.choice.default_only:
            return False
        newest = None if self.choice.full else self.archive.newest
        return (newest is not None and newest.collections is not None) or holds_more(self._manifest())

    def _manifest(self) -> CollectionsManifest:
        """Ask all nodes that send rows: those of a collection that is not in the manifest could not be restored."""
        return self.client.newest_manifest(self.choice.vbuckets)

    def _read_to_the_end(self) -> _Begun:
        begun = self._begin()
        self.progress.id = begun.id
        self.progress.resumed = len({vb for _, part in begun.parts for vb in part.ends})
        while not self._attempt(begun):
            pass
        return begun

    # ------------------------------------------------------------------ where to begin

    def _begin(self) -> _Begun:
        """Go on with what was begun from the same place, or begin anew."""
        newest = self.archive.newest
        if newest is not None:
            self._check(newest)
        parent = None if self.choice.full else newest
        if parent is not None and (parent.collections is not None) != self._reads_all:
            parent = None  # its positions say nothing of what was left out
        chain = [] if parent is None else self.archive.chain(parent.id)
        for name in self.archive.unfinished:
            begun = self._resumed(name, chain)
            if begun is not None:
                return begun
            self._require_unfinished(name, self.place.names(folder(name)))
            self.place.remove(folder(name))
        begun = _Begun(fresh_id("increment" if chain else "full", self.archive.backups), chain, now())
        self._mark(begun)
        failpoint("backup.begun")
        return begun

    def _mark(self, begun: _Begun) -> None:
        """Say in the backup's folder what is read, and that it is this run that reads."""
        told: dict[str, Any] = {"format": FORMAT, "parent": begun.chain[-1].id if begun.chain else ""}
        told |= {"began": begun.began, "vbuckets": list(self.choice.vbuckets or ()), "run": begun.run}
        if self._reads_all:
            told |= {"format": FORMAT_OF_COLLECTIONS, "collections": "all"}
        self.place.write(folder(begun.id, BEGUN), sealed(told))

    def _require_ours(self, begun: _Begun) -> None:
        """Look whether another run works on this backup by now.

        Raises:
            BackupError: it does.
        """
        path = folder(begun.id, BEGUN)
        try:
            found = unsealed(self.place.read(path), path).get("run")
        except FileNotFoundError:
            found = None
        if found != begun.run:
            told = "another run has taken this backup over; one at a time, and this one is of no use any more"
            raise BackupError(f"{self.place.name}/{folder(begun.id)}", told)

    def _check(self, newest: BackupManifest) -> None:
        here = (self.bucket, self.client.map.vbuckets)
        if here != (newest.bucket, newest.vbuckets):
            held = f"{newest.bucket} with {newest.vbuckets} vbuckets"
            told = f"it holds bucket {held}, this one is {here[0]} with {here[1]}; choose another place"
            raise BackupError(self.place.name, told)

    def _resumed(self, name: str, chain: list[BackupManifest]) -> _Begun | None:
        try:
            told = unsealed(self.place.read(folder(name, BEGUN)), folder(name, BEGUN))
        except (FileNotFoundError, BackupError):
            return None
        same = (chain[-1].id if chain else "", list(self.choice.vbuckets or ()))
        if (
            (told.get("parent"), told.get("vbuckets")) != same
            or ("collections" in told) != self._reads_all
            or name <= max(self.archive.backups, default="")
        ):
            return None
        begun = _Begun(name, chain, str(told.get("began", "")))
        self._mark(begun)  # before the look at what is noted: from here on another run notes nothing that lasts
        begun.parts = list(_connected(begun, self._noted(name)))
        self._sweep(begun)
        numbers = [int(note.split("-")[1].partition(".")[0]) for note, _ in begun.parts]
        begun.numbers = count(max(numbers, default=-1) + 1)
        return begun

    def _noted(self, name: str) -> Iterator[tuple[str, BackupPart]]:
        """Yield the parts that are whole."""
        for note in self.place.names(folder(name)):
            if not (note.startswith("part-") and note.endswith(".json")):
                continue
            with suppress(BackupError, KeyError, TypeError, ValueError):
                part = BackupPart.from_json(unsealed(self.place.read(folder(name, note)), note))
                if all(self.place.size(folder(name, file.path)) == file.bytes for file in part.files):
                    yield note, part

    def _sweep(self, begun: _Begun) -> None:
        """Remove what no note names: files of a part that was not finished."""
        kept = {BEGUN, *(note for note, _ in begun.parts)}
        kept |= {file.path for _, part in begun.parts for file in part.files}
        there = self.place.names(folder(begun.id))
        self._require_unfinished(begun.id, there)
        for name in there:
            if name not in kept:
                self.place.remove(folder(begun.id, name))

    def _require_unfinished(self, backup: str, there: list[str]) -> None:
        """Refuse to tidy a folder in which another run has finished its backup since the look at the archive."""
        if MANIFEST in there:
            raise BackupError(f"{self.place.name}/{folder(backup)}", "another run has just finished it; try again")

    # ------------------------------------------------------------------ reading

    def _attempt(self, begun: _Begun) -> bool:
        """Read all that is missing; False when a vbucket has to be read from elsewhere, or ends elsewhere by now."""
        starts = self._starts(begun)
        ends = self._ends()
        pending = self._pending(starts, ends)
        self.progress.total = sum(max(ends[vb] - starts[vb].seqno, 0) for vb in pending)
        self.progress.done = 0
        for wanted in self._groups(pending, starts, ends):
            try:
                self._read(begun, {vb: starts[vb] for vb in wanted}, {vb: ends[vb] for vb in wanted})
            except RollbackRequired as refused:
                self._roll_back(begun, starts, refused)
                return False
        return True

    def _starts(self, begun: _Begun) -> dict[int, Position]:
        """Return where to go on from: this backup's notes, a rollback, the backup before, the beginning."""
        wanted = self.choice.vbuckets or range(self.client.map.vbuckets)
        read = joined(part for _, part in begun.parts).ends
        before = begun.chain[-1].part.ends if begun.chain else {}
        starts = {}
        for vb in wanted:
            if vb in read:
                starts[vb] = read[vb]
            elif vb in self._from:
                starts[vb] = self._from[vb]
            else:
                starts[vb] = before.get(vb) or Position.beginning(vb)
        return starts

    def _ends(self) -> dict[int, int]:
        highs = self.client.seqnos("all" if self._reads_all else None)
        wanted = self.choice.vbuckets or range(self.client.map.vbuckets)
        missing = [vb for vb in wanted if vb not in highs]
        if missing:
            told = (
                f"{len(missing)} of {len(wanted)} vbuckets have no active node, the first is {missing[0]}: this would"
            )
            raise BackupError(self.place.name, f"{told} be no whole backup; wait for them, or name those to be read")
        return {vb: highs[vb] for vb in wanted}

    def _pending(self, starts: Mapping[int, Position], ends: Mapping[int, int]) -> list[int]:
        """Return the vbuckets that have changed, be it their history alone."""
        logs = self.client.failover_logs(starts)
        return [
            vb
            for vb, start in starts.items()
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

    def _read(self, begun: _Begun, starts: dict[int, Position], ends: dict[int, int]) -> None:
        """Read some vbuckets and note that they are."""
        number, done = next(begun.numbers), self.progress.done
        with PartFiles(self.place, begun.id, number, begun.run, self.choice.file_bytes) as out:
            reached = self._drain(out, starts, ends)
            files = tuple(out.close())
        lost = tuple(self.lost[vb] for vb in sorted(starts) if vb in self.lost)
        part = BackupPart({vb: start.seqno for vb, start in starts.items()}, reached, files, out.changes, lost)
        note = f"part-{number:05d}-{begun.run}.json"
        self._require_ours(begun)
        self.place.write(folder(begun.id, note), sealed(part.to_json()))
        begun.parts.append((note, part))
        failpoint("backup.part_noted")
        self.progress.rows += out.rows
        self.progress.bytes += out.bytes
        self._say(done + _passed(starts, reached))

    def _drain(self, out: PartFiles, starts: dict[int, Position], ends: dict[int, int]) -> dict[int, Position]:
        """Write the changes of some vbuckets; return where they came to."""
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
                    self._say(done + _passed(starts, batch.positions), out)
            return batches.positions

    def _say(self, done: int, out: PartFiles | None = None) -> None:
        self._told_at, self.progress.done = time.monotonic(), done
        shown = self.progress
        if out is not None:
            shown = BackupProgress(**self.progress.__dict__)
            shown.rows, shown.bytes = shown.rows + out.rows, shown.bytes + out.bytes
        self._tell(shown)

    def _roll_back(self, begun: _Begun, starts: Mapping[int, Position], refused: RollbackRequired) -> None:
        """Note from where vbuckets have to be read again; what this backup has of them goes."""
        purged = refused.purged if isinstance(refused, DataLoss) else {refused.vbucket: 0}
        for vb in sorted(purged):
            requested = refused.requested if vb == refused.vbucket else starts[vb].seqno
            self._read_again(begun, starts[vb], requested, refused.common, purged[vb])
        self._rollbacks += 1
        if self._rollbacks > ROLLBACKS_MAX:
            raise BackupError(self.place.name, "the bucket's history changes again and again; try later") from refused

    def _read_again(self, begun: _Begun, start: Position, requested: int, common: int, purged: int) -> None:
        vb = start.vbucket
        kept = list(_connected(begun, (each for each in begun.parts if vb not in each[1].ends)))
        notes = {note for note, _ in kept}
        for note, part in begun.parts:
            if note not in notes:
                # First the note: without it the files are nobody's.
                self.place.remove(folder(begun.id, note))
                for file in part.files:
                    self.place.remove(folder(begun.id, file.path))
        begun.parts = kept
        # A place that was refused itself is none to return to; one that was only left behind is.
        futile = start if requested <= start.seqno else None
        self._from[vb] = place = safe_point((p for p in _points(begun, vb) if p != futile), vb, common)
        self.lost.pop(vb, None)
        if begun.chain and vb in (ends := begun.chain[-1].part.ends) and ends[vb].seqno > place.seqno:
            self.lost[vb] = RolledBack(vb, ends[vb].seqno, common, place.seqno, purged)

    # ------------------------------------------------------------------ the end

    def _finish(self, begun: _Begun) -> BackupManifest:
        """Make what was read a backup of the archive."""
        newest = Archive(self.place).newest
        mine = self.archive.newest
        if (newest and newest.id) != (mine and mine.id):
            raise BackupError(self.place.name, "another backup was made meanwhile; make this one again")
        before = begun.chain[-1] if begun.chain else None
        manifest = BackupManifest(
            begun.id,
            before.id if before else "",
            self.archive.digests[before.id] if before else "",
            self.bucket,
            self.client.map.vbuckets,
            begun.began,
            now(),
            self._whole(begun),
            # Asked for behind all that was read: it has each collection that a row can be of, unless that was dropped.
            self._manifest() if self._reads_all else None,
        )
        failpoint("backup.before_manifest")
        self._require_ours(begun)
        self.place.write(folder(begun.id, MANIFEST), manifest.to_bytes())
        self._require_ours(begun)  # who did not see the manifest yet may have removed it
        failpoint("backup.after_manifest")
        Archive(self.place).enter()
        failpoint("backup.entered")
        for name in (BEGUN, *(note for note, _ in begun.parts)):
            self.place.remove(folder(begun.id, name))
        return manifest

    def _whole(self, begun: _Begun) -> BackupPart:
        """Return all that was read, with the vbuckets of which there was nothing to read: those that have not changed
        since the backup before, and those that a failover left empty."""
        read = joined(part for _, part in begun.parts)
        before = begun.chain[-1].part.ends if begun.chain else {}
        places = {**before, **self._starts(begun)}
        starts = {**{vb: place.seqno for vb, place in places.items()}, **read.starts}
        lost = {each.vbucket: each for each in read.rolled_back} | self.lost
        return BackupPart(starts, places, read.files, read.changes, tuple(lost[vb] for vb in sorted(lost)))


def _passed(starts: Mapping[int, Position], reached: Mapping[int, Position]) -> int:
    """Return how many seqnos were passed on the way."""
    return sum(place.seqno - starts[vb].seqno for vb, place in reached.items())


def _connected(begun: _Begun, parts: Iterable[tuple[str, BackupPart]]) -> Iterator[tuple[str, BackupPart]]:
    """Yield the parts that go on from what there is: the backup before, and those that were yielded.

    A vbucket is in several parts when it was topped up. Where the first of them goes, be it for another vbucket of
    that part, those behind it would leave a gap that no later reading fills.
    """
    before = begun.chain[-1].part.ends if begun.chain else {}
    reached = {vb: place.seqno for vb, place in before.items()}
    for note, part in parts:
        if all(seqno <= reached.get(vb, 0) for vb, seqno in part.starts.items()):
            reached |= {vb: place.seqno for vb, place in part.ends.items()}
            yield note, part


def _points(begun: _Begun, vbucket: int) -> list[Position]:
    """Return the places of a vbucket at which a backup of the chain was whole."""
    return [manifest.part.ends[vbucket] for manifest in begun.chain if vbucket in manifest.part.ends]


def _expect(maker: RowMaker, starts: Mapping[int, Position], logs: Mapping[int, FailoverLog]) -> None:
    """Tell the maker of rows which branch of history wrote which changes."""
    for vb, log in logs.items():
        if vb in starts:
            start = starts[vb].seqno
            maker.expect(Range(vb, starts[vb].vb_uuid, start, ENDLESS_ROWS, ENDLESS_ROWS), log, U64_MAX)
