"""Folders whose names are on the disk once they are made.

A file that is synced is there after a power cut if its name is, and its folder's name in the folder above, and so on
up (fsync(2)): who promises that something is on the disk makes its folders here.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

__all__ = ["USUAL_MODE", "make_folder", "sync_folder"]

USUAL_MODE: Final = 0o777


def make_folder(folder: Path, mode: int = USUAL_MODE, *, above: int = USUAL_MODE) -> None:
    """Make a folder, and those above it, where they are not there; on return their names are on the disk.

    Args:
        folder: where.
        mode: of the folder, less the umask.
        above: of those above it.
    """
    missing_folders = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing_folders):
        each.mkdir(mode if each == folder else above, exist_ok=True)
        with contextlib.suppress(PermissionError):  # who may make a name in a folder need not be allowed to read it
            sync_folder(each.parent)
    if not folder.is_dir():
        folder.mkdir(mode, exist_ok=True)  # raises what is wrong with it


def sync_folder(folder: Path) -> None:
    """Return once the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
