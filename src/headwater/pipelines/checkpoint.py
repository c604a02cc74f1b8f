"""Spark's checkpoint of a query, repaired after its last files were truncated.

Spark renames each file into place and does not sync it, so a power cut may leave the newest files empty or incomplete,
and Spark refuses to start from those. Their content is not needed: a job's batch may come twice, and a sink has its own
record. So the query goes back to the last batch whose files are whole.

A file is a line with its version, then lines of JSON; Hadoop keeps checksums beside it in `.<name>.crc`, a header and a
CRC-32 for each piece. Only folders of this machine are checked: object stores have no half files.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
import zlib
from pathlib import Path
from typing import Final

METADATA, OFFSETS, COMMITS = "metadata", "offsets", "commits"
BEGINNING_LOST = "beginning-lost"
"""An empty file of ours: the first batch was forgotten, too."""

_LINES = {OFFSETS: 2, COMMITS: 1}
"""So many lines follow that of the version at least: what the query was set to, and the offset of each source."""

_VERSION = re.compile(rb"v\d+")

log: Final = logging.getLogger(__name__)


def mend(checkpoint: str | Path) -> bool:
    """Remove truncated files and all later ones.

    Returns: True if the query has lost its first batch, so that it must read everything again, wherever its options let
    it begin.

    Raises:
        OSError: the folder can't be read, or its files not be removed.
    """
    folder = local_folder(checkpoint)
    if folder is None or not folder.is_dir():
        return False
    _mend_metadata(folder / METADATA)
    cut = [number for kind in (OFFSETS, COMMITS) for number, path in _batches(folder / kind) if not _is_whole(path)]
    if cut:
        _forget(folder, min(cut))
    return (folder / BEGINNING_LOST).exists() and not _batches(folder / OFFSETS)


def _forget(folder: Path, first: int) -> None:
    """Remove batches from number `first` on, the newest first: Spark would accept a commit without its offsets."""
    log.warning("%s: the files of batch %d are cut; the query goes back to what was before", folder, first)
    # Noted before the files go: after a kill in between nothing else would tell that the first batch is gone.
    if first <= min(number for kind in (OFFSETS, COMMITS) for number, _ in _batches(folder / kind)):
        (folder / BEGINNING_LOST).touch()
    for kind in (COMMITS, OFFSETS):
        for number, path in reversed(_batches(folder / kind)):
            if number >= first:
                _remove(path)


def local_folder(checkpoint: str | Path) -> Path | None:
    """Return a checkpoint that lies on this machine as a path; None for one that lies elsewhere."""
    scheme, colon, path = str(checkpoint).partition(":")
    if not colon or "/" in scheme:
        return Path(checkpoint)
    return Path("/" + path.lstrip("/")) if scheme == "file" else None


def _batches(folder: Path) -> list[tuple[int, Path]]:
    names = [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
    return sorted((int(path.name), path) for path in names)


def _is_whole(path: Path) -> bool:
    data = path.read_bytes()
    _mend_sums(path, data)
    version, *lines = data.split(b"\n")
    is_complete = len(lines) >= _LINES[path.parent.name] and all(map(_is_object, lines))
    return is_complete and _VERSION.fullmatch(version) is not None


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _mend_metadata(path: Path) -> None:
    """Write a new query id if the file with it can't be read; Spark does not start without one."""
    if not path.exists():
        return
    data = path.read_bytes()
    _mend_sums(path, data)
    if not _is_object(data):
        _remove(path)
        path.write_text(json.dumps({"id": str(uuid.uuid4())}))


def _mend_sums(path: Path, data: bytes) -> None:
    """Remove a file's checksums if they do not match its bytes; without them Hadoop reads the file as it is."""
    sums = _sums_of(path)
    if sums.exists() and not _agree(sums.read_bytes(), data):
        sums.unlink(missing_ok=True)


def _agree(sums: bytes, data: bytes) -> bool:
    piece = int.from_bytes(sums[4:8])
    if len(sums) < 8 or sums[:4] != b"crc\0" or not piece:
        return False
    expected = (zlib.crc32(data[at : at + piece]).to_bytes(4) for at in range(0, len(data), piece))
    return sums[8:] == b"".join(expected)


def _remove(path: Path) -> None:
    # The sums first: Hadoop reads a file without them, but refuses one with those of another content.
    _sums_of(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _sums_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")
