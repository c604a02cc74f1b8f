"""Processes that a test started, and their descendants: whether they run or are stopped, and their end."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

__all__ = ["descendants", "end_with_all_its_own", "is_stopped", "lives"]


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, parents before their children."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        if (fields := _fields(stat)) is not None:
            parents[int(stat.parent.name)] = int(fields[1])
    pids = [pid]
    for each in pids:
        pids += [child for child, parent in parents.items() if parent == each]
    return pids[1:]


def lives(pid: int) -> bool:
    """Return True if a process exists and has not ended."""
    return (fields := _fields(Path(f"/proc/{pid}/stat"))) is not None and fields[0] != "Z"


def is_stopped(pid: int) -> bool:
    """Return True if a process was stopped by a signal and waits for SIGCONT."""
    return (fields := _fields(Path(f"/proc/{pid}/stat"))) is not None and fields[0] == "T"


def end_with_all_its_own(pid: int) -> None:
    """Send SIGKILL to a process and all its descendants, as if the machine had lost its power."""
    for each in (pid, *descendants(pid)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def _fields(stat: Path) -> list[str] | None:
    """Return the fields of a process after its name, of which the first is its state; None if it is gone."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
