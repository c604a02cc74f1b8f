"""A check for damage: of every manifest, every link of every chain and every byte of every file."""

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
    """The outcome of a check.

    Attributes:
        backups, files, bytes: how many of each were checked.
        problems: messages; each names the file and the fault.
        unfinished: backups that were begun and not finished; the next `create` continues or removes them.
        collections: names of the collections at the ends of the checked backups.
    """

    backups: int = 0
    files: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    collections: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON types."""
        return dict(self.__dict__)


def verify(
    archive: Archive, manifests: Iterable[BackupManifest] | None = None, tell: Tell = lambda done, total: None
) -> Verified:
    """Check all backups of an archive, or some.

    Args:
        archive: as it was read.
        manifests: backups to check; None for all, and for the archive as a whole.
        tell: called after each file with the bytes checked and their total.
    """
    outcome = Verified()
    if manifests is None:
        outcome.problems += archive.problems
        outcome.unfinished = list(archive.unfinished)
    backups = list(archive.backups.values() if manifests is None else manifests)
    total = sum(manifest.size for manifest in backups)
    for manifest in backups:
        outcome.backups += 1
        outcome.problems += _links(archive, manifest)
        outcome.collections = sorted({*outcome.collections, *paths_of(manifest.collections)})
        for file in manifest.part.files:
            problem = damage(archive.place, manifest.id, file)
            if problem:
                outcome.problems.append(problem)
            outcome.files, outcome.bytes = outcome.files + 1, outcome.bytes + file.bytes
            tell(outcome.bytes, total)
    return outcome


def _links(archive: Archive, manifest: BackupManifest) -> list[str]:
    """Return a problem if a backup does not begin where its parent ended."""
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
    """Return the fault of a file of a backup, in words; empty if it is sound."""
    path = folder(backup, file.path)
    try:
        data = place.read(path)
    except FileNotFoundError:
        return f"{path}: the file is missing"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return differs(path, file, data)


def differs(path: str, file: BackupFile, data: bytes) -> str:
    """Return how bytes differ from those that were written, in words; empty if they do not."""
    if len(data) != file.bytes:
        return f"{path}: the file has {len(data)} bytes, {file.bytes} were written"
    if hashlib.sha256(data).hexdigest() != file.sha256:
        return f"{path}: the file is damaged, its SHA-256 is not {file.sha256}"
    return ""
