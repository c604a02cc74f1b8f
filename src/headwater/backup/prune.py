"""Removes old backups, in whole chains: an increment can't be restored without the backups before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headwater.backup.archive import Archive, folder
from headwater.backup.manifest import BACKUPS, INDEX, MANIFEST, BackupManifest
from headwater.backup.place import BackupPlace
from headwater.errors import BackupError, OptionError
from headwater.failpoints import failpoint

NOTHING_HERE = "there is no backup here"


@dataclass(frozen=True)
class PrunedBackups:
    """The backups to remove, or those that were removed.

    Attributes:
        backups: their ids. bytes: the size of their files.
        leftovers: folders that are no backups.
        kept: the ids of the others.
    """

    backups: tuple[str, ...]
    bytes: int
    leftovers: tuple[str, ...]
    kept: tuple[str, ...]


def plan(
    archive: Archive, keep: int | None, older_than: timedelta | None, clock: Callable[[], datetime] | None = None
) -> PrunedBackups:
    """Choose the backups to remove. The newest chain always stays.

    Args:
        archive: as it was read.
        keep: number of full backups that stay, with their increments.
        older_than: chains whose newest backup ended longer ago are removed.
        clock: returns the current time.

    Raises:
        OptionError: neither is given, or `keep` is 0.
        BackupError: there is no archive.
    """
    _check(keep, older_than)
    moment = (clock or (lambda: datetime.now(UTC)))()
    chains: dict[str, list[BackupManifest]] = {}
    roots: dict[str, str] = {}
    for name, manifest in archive.backups.items():
        # Backups come by name, so a parent stands before its increments.
        roots[name] = roots.get(manifest.parent, manifest.parent) if manifest.parent else name
        chains.setdefault(roots[name], []).append(manifest)
    ordered = sorted(chains.values(), key=lambda chain: chain[-1].id, reverse=True)
    removable: list[BackupManifest] = []
    for place, chain in enumerate(ordered):
        many = keep is not None and place >= keep
        old = older_than is not None and datetime.fromisoformat(chain[-1].ended) < moment - older_than
        # The newest chain is number 0 and stays, whatever the options say.
        if place and (many if older_than is None else old if keep is None else many and old):
            removable += chain
    names = {manifest.id for manifest in removable}
    if not archive.backups and not archive.index:
        raise BackupError(archive.place.name, NOTHING_HERE)
    return PrunedBackups(
        tuple(sorted(names)),
        sum(manifest.size for manifest in removable),
        archive.removing,
        tuple(name for name in archive.backups if name not in names),
    )


def _check(keep: int | None, older_than: timedelta | None) -> None:
    if keep is None and older_than is None:
        raise OptionError("keep", None, "left out, unless --older-than is given")
    if keep is not None and keep < 1:
        raise OptionError("keep", keep, "at least 1: the newest full backup stays")


def carry_out(place: BackupPlace, keep: int | None, older_than: timedelta | None) -> PrunedBackups:
    """Remove the backups that `plan` chooses, and those that an earlier attempt left.

    Raises:
        OptionError: as for `plan`.
        BackupError: there is no archive, it is damaged, or another process changes it.
    """
    _check(keep, older_than)
    if place.size(INDEX) is None and not place.names(BACKUPS):  # the lock would make the folder
        raise BackupError(place.name, NOTHING_HERE)
    with place.lock():
        archive = Archive(place)
        archive.require_sound()
        plan_ = plan(archive, keep, older_than)
        going = sorted({*plan_.backups, *plan_.leftovers})
        if going:
            digests = {name: archive.digests[name] for name in plan_.kept}
            archive.note_removal(going)
            # First the index says what goes: a process that dies among the removals leaves nothing that a restore would
            # take for whole.
            archive.write_index(digests, going)
            failpoint("backup.removing")
            for name in going:
                # The manifest first, for without it the folder is no backup.
                place.remove(folder(name, MANIFEST))
                place.remove(folder(name))
            failpoint("backup.removed")
            archive.write_index(digests)
        return plan_
