"""Look for damage: every manifest, every link of every chain, every byte of every file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from headwater.backup.archive import Archive, folder
from headwater.backup.collections import paths_of
from headwater.backup.manifest import BackupFile, BackupManifest
from headwater.backup.place import BackupPlace

Tell = Callable[[int, int], None]


@dataclass
class Verified:
    """The outcome of a look.

    Attributes:
        backups, files, bytes: looked at.
        problems: each names the file and says what is wrong.
        unfinished: backups that were begun and are none; the next `create` goes on with them or removes them.
        collections: the names of those that backups looked at have at their end.
    """

    backups: int = 0
    files: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    collections: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return dict(self.__dict__)


def verify(
    archive: Archive, wanted: Iterable[BackupManifest] | None = None, tell: Tell = lambda done, total: None
) -> Verified:
    """Look at all backups of an archive, or at some.

    Args:
        archive: as it was read.
        wanted: backups to look at; None for all, and then at the archive as a whole.
        tell: called with the bytes looked at and those there are to look at, after each file.
    """
    found = Verified()
    if wanted is None:
        found.problems += archive.problems
        found.unfinished = list(archive.unfinished)
    backups = list(archive.backups.values() if wanted is None else wanted)
    total = sum(manifest.size for manifest in backups)
    for manifest in backups:
        found.backups += 1
        found.problems += _links(archive, manifest)
        found.collections = sorted({*found.collections, *paths_of(manifest.collections)})
        for file in manifest.part.files:
            problem = damage(archive.place, manifest.id, file)
            if problem:
                found.problems.append(problem)
            found.files, found.bytes = found.files + 1, found.bytes + file.bytes
            tell(found.bytes, total)
    return found


def _links(archive: Archive, manifest: BackupManifest) -> list[str]:
    """Check that a backup goes on where its parent ended."""
    if not manifest.parent:
        late = [vb for vb, seqno in manifest.part.starts.items() if seqno]
        return [f"{manifest.id}: it is full, and vbucket {late[0]} does not begin at 0"] if late else []
    parent = archive.backups.get(manifest.parent)
    if parent is None or archive.digests[parent.id] != manifest.parent_sha256:
        return [f"{manifest.id}: {manifest.parent}, which it goes on from, is missing or damaged"]
    if (parent.collections is None) != (manifest.collections is None):
        return [f"{manifest.id}: of it and {parent.id}, which it goes on from, only one has all collections"]
    before = parent.part.ends
    gaps = [vb for vb, seqno in manifest.part.starts.items() if seqno > (before[vb].seqno if vb in before else 0)]
    return [f"{manifest.id}: vbucket {gaps[0]} begins behind the end of {parent.id}"] if gaps else []


def damage(place: BackupPlace, backup: str, file: BackupFile) -> str:
    """Say what is wrong with a file of a backup; nothing if all is well."""
    path = folder(backup, file.path)
    try:
        data = place.read(path)
    except FileNotFoundError:
        return f"{path}: the file is missing"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return differs(path, file, data)


def differs(path: str, file: BackupFile, data: bytes) -> str:
    """Say how bytes differ from those that were written; nothing if they do not."""
    if len(data) != file.bytes:
        return f"{path}: the file has {len(data)} bytes, {file.bytes} were written"
    if hashlib.sha256(data).hexdigest() != file.sha256:
        return f"{path}: the file is damaged, its SHA-256 is not {file.sha256}"
    return ""
