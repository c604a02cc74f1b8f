"""Small file systems of their own, really mounted, for tests of full disks. Root only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["KINDS", "may_mount", "small_filesystem"]

KINDS: Final = ("tmpfs", "ext4")


def may_mount() -> bool:
    """Return True if this process may mount a file system (root, outside of most containers)."""
    probe = "import ctypes; exit(ctypes.CDLL(None).unshare(0x00020000))"  # CLONE_NEWNS asks for the same right
    return os.geteuid() == 0 and subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


@contextmanager
def small_filesystem(path: Path, mebibytes: int, kind: str = "tmpfs") -> Iterator[None]:
    """Mount a file system of a size at `path`, which is created, for a block; `kind` is one of KINDS."""
    path.mkdir()
    image = path.parent / f"{path.name}.image"
    if kind == "ext4":
        _make_image(image, mebibytes)
        how = ["-o", "loop", str(image)]
    else:
        how = ["-t", "tmpfs", "-o", f"size={mebibytes}m", "headwater-test"]
    subprocess.run(["mount", *how, str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)
        image.unlink(missing_ok=True)


def _make_image(image: Path, mebibytes: int) -> None:
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    # No blocks that only root may use: what is left on the disk is left for the node.
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
