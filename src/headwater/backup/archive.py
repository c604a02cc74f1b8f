"""An archive: its index, its backups, and the chain that leads to each.

The index names every backup with the SHA-256 of its manifest, so that a missing manifest is noticed. A backup is
finished once its manifest is written. If a run dies before the index names it, the backup counts all the same, and the
next `create` enters it. A backup to be removed is listed as such first, so that half of it never counts.

Where a place has no lock, a `create` that read the archive before a removal may write the index behind it, and name
what is gone. So a removal leaves a note there, whose name is the backup's: a backup with such a note is removed,
whatever the index says. The notes stay, since nobody knows how long such a `create` may live; a name is never used
twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headwater.backup.manifest import (
    BACKUPS,
    FORMAT,
    INDEX,
    MANIFEST,
    REMOVED,
    BackupManifest,
    backup_name,
    digest,
    is_backup_name,
    sealed,
    unsealed,
)
from headwater.backup.place import BackupPlace
from headwater.errors import BackupError

MOMENT = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class ArchiveIndex:
    """The file archive.json: the archive's id, backups with their manifests' SHA-256, and backups being removed."""

    archive: str
    backups: dict[str, str]
    removing: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the content of the index's file."""
        content = {"format": FORMAT, "archive": self.archive, "backups": self.backups, "removing": list(self.removing)}
        return sealed(content)

    @classmethod
    def read(cls, place: BackupPlace) -> ArchiveIndex | None:
        """Return the index of a place, None if it has none yet.

        Raises:
            BackupError: it is damaged, or has an invalid name of a backup.
        """
        try:
            data = place.read(INDEX)
        except FileNotFoundError:
            return None
        path = f"{place.name}/{INDEX}"
        content = unsealed(data, path)
        try:
            backups = {backup_name(name): str(sha256) for name, sha256 in content["backups"].items()}
            return cls(str(content["archive"]), backups, tuple(map(backup_name, content["removing"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BackupError(path, f"it is no index of an archive ({error})") from None


class Archive:
    """A place with backups in it.

    Args:
        earlier: the same place as it was read before: unchanged manifests are not parsed again. None for none.

    Attributes:
        backups: finished backups, oldest first.
        problems: the faults of other backups; `verify` reports them, other operations refuse those backups.
        unfinished: folders of backups without a manifest.
        removing: backups that are being removed, of which files may be left.
    """

    def __init__(self, place: BackupPlace, earlier: Archive | None = None) -> None:
        self.place = place
        self._earlier_backups = (
            {} if earlier is None else {earlier.digests[name]: earlier.backups[name] for name in earlier.backups}
        )
        self.backups: dict[str, BackupManifest] = {}
        self.digests: dict[str, str] = {}
        self.problems: list[str] = []
        self.unfinished: list[str] = []
        self.removing: tuple[str, ...] = ()
        self.index = ArchiveIndex.read(place)
        names = place.names(BACKUPS)
        # An archive's first act is its index, so manifests without one mean that the index was lost, and with it the
        # knowledge of what was there.
        if self.index is None and any(place.size(f"{BACKUPS}/{name}/{MANIFEST}") is not None for name in names):
            self.problems.append(f"{INDEX}: the file is missing")
        self._load(names)

    def _load(self, names: Iterable[str]) -> None:
        indexed_backups = self.index.backups if self.index else {}
        removing = set(self.index.removing) if self.index else set[str]()
        all_names = sorted({*names, *indexed_backups})
        # Half of one that is removed may be gone already: it must count neither as a backup nor as one that is damaged.
        problems = {
            name: problem
            for name in all_names
            if name not in removing and (problem := self._read(name, indexed_backups))
        }
        # Looked up behind the manifests: of one that was removed while we read, the note was there before.
        removed_names = {name for name in self.place.names(REMOVED) if is_backup_name(name)}
        for name in removed_names:
            self.backups.pop(name, None)
            self.digests.pop(name, None)
        self.unfinished = [name for name in self.unfinished if name not in removed_names]
        self.removing = tuple(sorted(removing | removed_names.intersection(names)))
        self.problems += [problem for name, problem in problems.items() if name not in removed_names]

    def _read(self, name: str, digests: Mapping[str, str]) -> str:
        """Read a backup's manifest; return the fault of the backup, "" for none."""
        path = f"{BACKUPS}/{name}/{MANIFEST}"
        try:
            data = self.place.read(path)
            sha256 = digest(data)
            # The index says by the SHA-256 that these are the bytes that were written.
            is_sound = sha256 == digests.get(name)
            manifest = self._earlier_backups.get(sha256) or BackupManifest.from_bytes(data, path, is_sound=is_sound)
        except FileNotFoundError:
            if name in digests:
                return f"{path}: the file is missing"
            self.unfinished.append(name)
            return ""
        except BackupError as error:
            return str(error)
        # A manifest that the index does not know yet is of a run that died before it entered it; it counts by its
        # own checksum.
        if sha256 != digests.get(name, sha256) or manifest.id != name:
            return f"{path}: it is another manifest than the index names"
        self.backups[name], self.digests[name] = manifest, sha256
        return ""

    @property
    def newest(self) -> BackupManifest | None:
        """The newest backup, or None."""
        return self.backups[max(self.backups)] if self.backups else None

    def chain(self, backup: str) -> list[BackupManifest]:
        """Return the backups that a restore of this one needs: the full backup first, this one last.

        Raises:
            BackupError: there is no such backup, or one that it needs is missing or damaged.
        """
        chain: list[BackupManifest] = []
        name, sha256 = backup, self.digests.get(backup, "")
        while name:
            manifest = self.backups.get(name)
            # The child knows its parent by the SHA-256, so another backup under the same name can't take its place in
            # the chain.
            if manifest is None or self.digests[name] != sha256:
                choices = "" if chain else f"; there are {', '.join(self.backups) or 'none'}"
                reason = f", which {chain[-1].id} goes on from," if chain else ""
                raise BackupError(self.place.name, f"backup {name}{reason} is not there, or damaged{choices}")
            chain.append(manifest)
            name, sha256 = manifest.parent, manifest.parent_sha256
        return chain[::-1]

    def enter(self) -> None:
        """Write an index with all finished backups, and no others."""
        self.write_index(self.digests, self.removing)

    def note_removal(self, backups: Iterable[str]) -> None:
        """Leave the notes of a removal, before its first file goes; nothing in a place with a lock."""
        if not self.place.has_lock:
            # The newest first: a process that dies among the notes leaves no increment without what it goes on from.
            for name in sorted(backups, reverse=True):
                self.place.write(f"{REMOVED}/{name}", b"removed\n")  # stores take what is empty for a folder

    def write_index(self, backups: dict[str, str], removing: Iterable[str] = ()) -> None:
        """Replace the index."""
        name = self.index.archive if self.index else uuid.uuid4().hex
        self.index = ArchiveIndex(name, dict(sorted(backups.items())), tuple(removing))
        # Replaced whole: a process that dies here leaves the old index or the new one.
        self.place.write(INDEX, self.index.to_bytes())

    def require_sound(self) -> None:
        """Check that the archive has lost nothing, before it is continued.

        Raises:
            BackupError: with the first problem.
        """
        if self.problems:
            others = (
                f" ({len(self.problems)} problems in all: headwater backup verify)" if len(self.problems) > 1 else ""
            )
            raise BackupError(self.place.name, f"{self.problems[0]}{others}")


def fresh_id(kind: str, names: Iterable[str]) -> str:
    """Return a name for a backup that begins now; it sorts behind all that are taken."""
    moment, newest = datetime.now(UTC).strftime(MOMENT), max(names, default="")
    name = f"{moment}-{kind}"
    if name > newest:
        return name
    # Two within a second, or a clock that was set back: behind the newest, whatever the clock says.
    stem, _, number = newest.partition("+")
    return f"{stem}+{int(number or 0) + 1:04d}"


def now() -> str:
    """Return the current time in a manifest's form."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def folder(backup: str, *names: Any) -> str:
    """Return the path of a backup's folder, or of a file in it; BackupError for a name that leads elsewhere."""
    parts = (backup, *map(str, names))
    for part in parts:
        # Names come from files that anybody with access to the place may have written.
        if part in ("", ".", "..") or "/" in part or "\0" in part:
            raise BackupError(BACKUPS, f"{part[:100]!r} is no name in an archive")
    return "/".join((BACKUPS, *parts))
