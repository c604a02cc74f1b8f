"""A disk that keeps synced data over power cuts, seen from the program that cuts the power.

    with mounted(folder) as disk:
        ... processes write below `folder` ...
        disk.cut_at(200)                 the 200th change from now on finds the power gone
        disk.is_frozen()                 True once that has happened
        disk.freeze()                    the power is gone now
        ... kill the processes ...
        disk.restore(seed=7, lose=0.5)   the remaining data is mounted at `folder`

The disk is a program of its own (filesystem.py).
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path
from typing import IO

from harness.small_disk import may_mount

__all__ = ["PowerCutDisk", "mounted", "unmount", "why_not"]

ROOT = Path(__file__).parents[2]
UNMOUNT_SECONDS = 10.0
UNMOUNT_ATTEMPTS = 50


def why_not() -> str:
    """Return why no such disk can be mounted here; "" if it can."""
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    if not may_mount():
        return "only root may mount"
    if importlib.util.find_spec("mfusepy") is None:
        return "no mfusepy: pip install mfusepy"
    if find_library("fuse3") is None:
        return "no libfuse 3 (Debian: fuse3)"
    return ""


class PowerCutDisk:
    """The program that has the disk.

    Attributes:
        cuts: the number of power cuts. changes: the number of changes at the last look.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.cuts = 0
        self.changes = 0
        self._process = process

    def cut_at(self, change: int) -> None:
        """Cut the power at the n-th change from now on."""
        self._look(f"cut-at {change}")

    def is_frozen(self) -> bool:
        """Return True if the power is gone."""
        return self._look("look")

    def freeze(self) -> None:
        """Cut the power now."""
        self._look("freeze")

    def lie(self) -> None:
        """Sync no file from now on, and report success: as if a program left its syncs out."""
        self._look("lie")

    def restore(self, *, seed: int, lose: float) -> None:
        """Mount the remaining data.

        Args:
            lose: the probability with which each piece of unsynced data is lost.
        """
        self.cuts += 1
        self._say(f"restore {seed} {lose}", "mounted")

    def wait(self) -> None:
        """Wait until it is mounted."""
        self._read("mounted")

    def _look(self, said: str) -> bool:
        state, changes = self._say(said, "").split()
        self.changes = int(changes)
        return state == "frozen"

    def _say(self, line: str, answer: str) -> str:
        _pipe(self._process.stdin).write(line + "\n")
        _pipe(self._process.stdin).flush()
        return self._read(answer)

    def _read(self, answer: str) -> str:
        line = _pipe(self._process.stdout).readline().strip()
        if not line:
            why = why_not() or "its own words stand above"
            raise OSError(f"the disk of power cuts ended before it said {answer or 'its state'!r}: {why}")
        if answer not in line:
            raise OSError(f"the disk of power cuts said {line!r} instead of {answer!r}")
        return line


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise TypeError("the process has no pipes")
    return stream


@contextmanager
def mounted(folder: Path) -> Iterator[PowerCutDisk]:
    """Mount a disk at a folder, for a block."""
    command = [sys.executable, "-m", "harness.power_cuts.filesystem", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        disk = PowerCutDisk(process)
        disk.wait()
        try:
            yield disk
        finally:
            _end(process, folder)


def _end(process: subprocess.Popen[str], folder: Path) -> None:
    """Unmount the disk and end its program. If a process has a file open it can't be unmounted, and is detached."""
    _pipe(process.stdin).close()
    try:
        process.wait(UNMOUNT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        unmount(folder, attempts=0)


def unmount(place: Path, *, attempts: int = UNMOUNT_ATTEMPTS) -> None:
    """Unmount a disk that is no longer used; detach one that a process still uses."""
    for _ in range(attempts):
        if not subprocess.run(["umount", str(place)], stderr=subprocess.DEVNULL, check=False).returncode:
            return
        time.sleep(0.02)
    subprocess.run(["umount", "-l", str(place)], check=False)
