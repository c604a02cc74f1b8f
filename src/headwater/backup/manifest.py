"""The manifest, which describes a backup, and the checksum by which a changed bit in a JSON file is noticed.

For each vbucket a backup holds a range of seqnos, (from, to], of one history. `to` is a whole position, from which an
increment continues. After a failover the increment's `from` is lower than the `to` before it; changes of the vbucket
above `from` in earlier backups are void, since they were taken back.

The SHA-256 protects from damage, not from people: anybody who can write to the place can replace it. So names in these
files are accepted only in our own form. A name with a slash could lead out of the archive, to be read or removed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from headwater.errors import BackupError, OptionError
from headwater.protocol.dcp.position import Position
from headwater.wire.json_text import read_json
from headwater.wire.manifest import CollectionsManifest

FORMAT = 1
"""The format of files; raised when older headwaters could not read them. Readers refuse unknown formats."""
FORMAT_OF_COLLECTIONS = 2
"""The format of backups with all collections: an older reader would merge equal keys of several collections."""
_KNOWN = (FORMAT, FORMAT_OF_COLLECTIONS)
MANIFEST, BEGUN, INDEX, BACKUPS = "manifest.json", "begun.json", "archive.json", "backups"
REMOVED = "removed"
"""The folder with the notes of removals, in a place without a lock."""

_BACKUP_NAME = re.compile(r"\d{8}T\d{6}Z-(full|increment)(\+\d{4,})?", re.ASCII)
_FILE_NAME = re.compile(r"\d{5,}-\d{5,}(-[0-9a-f]{1,32})?\.parquet", re.ASCII)


def is_backup_name(name: str) -> bool:
    """Return True for a name of a backup in our form."""
    return _BACKUP_NAME.fullmatch(name) is not None


def backup_name(name: object) -> str:
    """Return a name of a backup that stands in a file; ValueError if it is not of our form."""
    if not isinstance(name, str) or not is_backup_name(name):
        raise ValueError(f"{str(name)[:100]!r} is no name of a backup")
    return name


def _file(fields: Mapping[str, Any]) -> BackupFile:
    """Return the BackupFile with these fields; ValueError or TypeError if one is missing or invalid."""
    file = BackupFile(**fields)
    if not isinstance(file.path, str) or not _FILE_NAME.fullmatch(file.path):
        raise ValueError(f"{str(file.path)[:100]!r} is no name of a file of a backup")
    if type(file.rows) is not int or type(file.bytes) is not int or file.rows < 0 or file.bytes < 0:
        raise ValueError(f"{file.path} has rows or bytes that are no numbers")
    return file


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return a JSON object with its own SHA-256, in one canonical form, so that every changed byte is noticed."""
    body = _canonical(content)
    return _canonical({"content": content, "sha256": hashlib.sha256(body).hexdigest()}) + b"\n"


def unsealed(data: bytes, path: str, *, is_sound: bool = False) -> dict[str, Any]:
    """Return the content in the bytes of `sealed`.

    Args:
        path: the file's path, for errors.
        is_sound: True if the bytes are known to be those that were written, so that they need no check.

    Raises:
        BackupError: a byte differs from what was written.
    """
    try:
        content = read_json(data)["content"]
        # The canonical form is made again and compared byte for byte, so that nothing in the file escapes the checksum.
        is_whole = isinstance(content, dict) and (is_sound or sealed(content) == data)
    except (ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise BackupError(path, "the file is damaged: it does not match its own SHA-256")
    # After the checksum: a newer format is told from damage.
    if content.get("format") not in _KNOWN:
        formats = f"this headwater knows {FORMAT} and {FORMAT_OF_COLLECTIONS}"
        problem = f"it has format {content.get('format')}, {formats}; use the one that wrote it"
        raise BackupError(path, problem)
    return dict(content)


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes in hex."""
    return hashlib.sha256(data).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A Parquet file of a backup: its name in the backup's folder, rows, bytes and SHA-256."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A vbucket whose history changed since the backup before.

    Attributes:
        had: the seqno that the backup before had reached.
        common: the seqno up to which its changes still count.
        read_from: the seqno from which it was read again, at which an earlier backup was whole.
        purged: the seqno up to which deletions were purged before they were backed up, if that was the reason; 0 after
            a failover.
    """

    vbucket: int
    had: int
    common: int
    read_from: int
    purged: int = 0


@dataclass(frozen=True)
class BackupPart:
    """Some vbuckets, read to an end: their files, the start and end of each, and those that were read again because a
    failover or a purge had changed their history.

    Attributes:
        read_on: vbuckets that a later part read on, with the seqno at which their first part ended. Keys that were
            written in between are in the files twice.
    """

    starts: Mapping[int, int]
    ends: Mapping[int, Position]
    files: tuple[BackupFile, ...]
    changes: Mapping[str, int]
    rolled_back: tuple[RolledBack, ...] = ()
    read_on: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON types."""
        read_on = {"read_on": {str(vb): seqno for vb, seqno in sorted(self.read_on.items())}} if self.read_on else {}
        return read_on | {
            "format": FORMAT,
            "starts": {str(vb): seqno for vb, seqno in sorted(self.starts.items())},
            "ends": [json.loads(self.ends[vb].to_json()) for vb in sorted(self.ends)],
            "files": [asdict(file) for file in self.files],
            "changes": dict(self.changes),
            "rolled_back": [asdict(rollback) for rollback in self.rolled_back],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the part of `to_json`; KeyError, TypeError or ValueError for anything else."""
        ends = [Position.from_fields(each) for each in fields["ends"]]
        return cls(
            {int(vb): int(seqno) for vb, seqno in fields["starts"].items()},
            {position.vbucket: position for position in ends},
            tuple(_file(file) for file in fields["files"]),
            {str(name): int(count) for name, count in fields["changes"].items()},
            tuple(RolledBack(**each) for each in fields.get("rolled_back", ())),  # older notes of a part have none
            {int(vb): int(seqno) for vb, seqno in fields.get("read_on", {}).items()},
        )


def joined(parts: Iterable[BackupPart]) -> BackupPart:
    """Return several parts as one. A vbucket in several begins where the first did and ends where the last did."""
    starts: dict[int, int] = {}
    ends: dict[int, Position] = {}
    files: list[BackupFile] = []
    changes: dict[str, int] = {}
    rolled_back: dict[int, RolledBack] = {}
    read_on: dict[int, int] = {}
    for part in parts:
        read_on = {**{vb: ends[vb].seqno for vb in part.ends.keys() & ends.keys()}, **read_on}
        # The first part's start stays, the last part's end counts.
        starts = {**part.starts, **starts}
        ends |= part.ends
        files += part.files
        rolled_back |= {rollback.vbucket: rollback for rollback in part.rolled_back}
        for name, count in part.changes.items():
            changes[name] = changes.get(name, 0) + count
    return BackupPart(
        starts, ends, tuple(files), changes, tuple(rolled_back[vb] for vb in sorted(rolled_back)), read_on
    )


@dataclass(frozen=True)
class BackupManifest:
    """A finished backup.

    Attributes:
        id: of the backup, also its folder's name.
        parent: the backup before in the chain, and the SHA-256 of its manifest; empty for a full backup.
        bucket, vbuckets: name of the bucket and number of its vbuckets.
        began, ended: ISO 8601, UTC.
        part: everything that was read, as one part.
        collections: scopes and collections that existed at the end; None if only the default collection was read.
        default_only: True if the user chose the default collection alone, whether there were others or not.
        has_histories: False if `collections` does not say which have a history, in a backup of an older release.
    """

    id: str
    parent: str
    parent_sha256: str
    bucket: str
    vbuckets: int
    began: str
    ended: str
    part: BackupPart
    collections: CollectionsManifest | None = None
    default_only: bool = False
    has_histories: bool = True

    @property
    def kind(self) -> str:
        """`full` or `increment`."""
        return "increment" if self.parent else "full"

    @property
    def rolled_back(self) -> tuple[RolledBack, ...]:
        """The vbuckets whose history changed since the parent."""
        return self.part.rolled_back

    @property
    def rows(self) -> int:
        """The number of changes in its files."""
        return sum(file.rows for file in self.part.files)

    @property
    def size(self) -> int:
        """The size of its files in bytes."""
        return sum(file.bytes for file in self.part.files)

    def summary(self) -> dict[str, Any]:
        """Return the facts about a backup that commands show, as JSON types."""
        return {
            "id": self.id,
            "kind": self.kind,
            "parent": self.parent or None,
            "bucket": self.bucket,
            "vbuckets": self.vbuckets,
            "began": self.began,
            "ended": self.ended,
            **self.part.changes,
            "files": len(self.part.files),
            "bytes": self.size,
            "rolled_back": [asdict(rollback) for rollback in self.rolled_back],
            "collections": None if self.collections is None else self.collections.as_json(),
            "default_only": self.default_only,
        }

    def to_bytes(self) -> bytes:
        """Return the manifest file."""
        content = {name: getattr(self, name) for name in _TEXTS} | {"vbuckets": self.vbuckets, "kind": self.kind}
        if self.collections is not None:
            content |= {"format": FORMAT_OF_COLLECTIONS, "collections": self.collections.as_json()}
        if self.default_only:
            content |= {"default_only": True}
        return sealed(self.part.to_json() | content)

    @classmethod
    def from_bytes(cls, data: bytes, path: str, *, is_sound: bool = False) -> Self:
        """Read the manifest file.

        Args:
            is_sound: as for `unsealed`.

        Raises:
            BackupError: it is damaged.
        """
        content = unsealed(data, path, is_sound=is_sound)
        try:
            texts = {name: str(content[name]) for name in _TEXTS}
            for name in filter(None, (texts["id"], texts["parent"])):
                backup_name(name)
            collections = (
                CollectionsManifest.decode(json.dumps(content["collections"]).encode())
                if "collections" in content
                else None
            )
            return cls(
                **texts,
                vbuckets=int(content["vbuckets"]),
                part=BackupPart.from_json(content),
                collections=collections,
                default_only=content.get("default_only") is True,
                has_histories=collections is None or _has_histories(content["collections"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OptionError) as error:
            raise BackupError(path, f"it is no manifest of a backup ({error!r})") from None


_TEXTS = ("id", "parent", "parent_sha256", "bucket", "began", "ended")


def _has_histories(collections: Mapping[str, Any]) -> bool:
    """Return True if a manifest of collections, as JSON types, says of each whether it has a history."""
    return all("history" in each for scope in collections["scopes"] for each in scope.get("collections", ()))
