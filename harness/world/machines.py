"""A machine of a simulated world: its faults besides crashes of its process and of its power."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from unittest import mock

from harness.simulation.host import Clock, Host
from headwater.node import server
from headwater.node.users import logins
from headwater.node.users.file import UsersFile
from headwater.testing.faults import FaultyDisk
from headwater.wire.users import UserList

if TYPE_CHECKING:
    from harness.simulation.scheduler import Schedule
    from harness.simulation.sockets import Network

THREAD_SECONDS = 0.003
"""The longest time that a write and its sync take on a healthy disk."""


class MachineClock(Clock):
    """The time of day on one machine: ahead or behind, and faster or slower than it should be."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.ahead_seconds = self.rate = self._since = 0.0

    def time_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        return super().time_ns() + int((self.ahead_seconds + self.rate * (self.monotonic() - self._since)) * 1e9)

    def jump(self, seconds: float) -> None:
        """Move the time ahead, or (negative) back."""
        self.ahead_seconds += seconds

    def drift(self, rate: float) -> None:
        """Gain `rate` seconds in each second from now on."""
        self.ahead_seconds += self.rate * (self.monotonic() - self._since)
        self.rate, self._since = rate, self.monotonic()

    def set_right(self) -> None:
        """Set the right time, without drift."""
        self.ahead_seconds = self.rate = 0.0


class DiskUsersFile(UsersFile):
    """The list of users on a simulated disk, which has no file modes, and one process."""

    def __init__(self, folder: Path, disk: FaultyDisk) -> None:
        super().__init__(folder, disk)
        self._simulated = disk

    def load_list(self) -> UserList | None:
        """Return the list of users; None if there is no file."""
        return super().load_list() if self.path in self._simulated._names else None

    def _refuse_others(self, path: Path, advice: str) -> None:
        """Do nothing: there are no other users of the disk."""

    @contextmanager
    def _alone(self) -> Iterator[None]:
        yield

    def signature(self) -> tuple[int, int, int] | None:
        """Return numbers that differ for another content; None if there is no file."""
        found = self._simulated._names.get(self.path)
        return None if found is None else (zlib.crc32(found.memory[: found.size].tobytes()), found.size, 0)


class Machine(Host):
    """A host whose process can be stopped for a while, and whose disk may be slow, full or failing."""

    clock: MachineClock

    def __init__(
        self,
        schedule: Schedule,
        network: Network,
        name: str,
        *,
        vbuckets: int,
        users: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(schedule, network, name, vbuckets=vbuckets)
        self._config = replace(self._config, users=users)
        self.clock = MachineClock(schedule)
        self.thread_seconds = THREAD_SECONDS

    def pause(self, seconds: float) -> None:
        """Stop the process (SIGSTOP); it continues after so many seconds."""
        if self.loop is not None:
            self.loop.sleeps_until = self._schedule.now + seconds

    def go_on(self) -> None:
        """Continue a stopped process now; its delayed events keep their later times."""
        if self.loop is not None:
            self.loop.sleeps_until = 0.0

    def slow_down(self, seconds: float) -> None:
        """Let each piece of work of the process's threads take up to so many seconds."""
        self.thread_seconds = seconds
        for pool in self.loop.pools if self.loop is not None else ():
            pool.seconds = seconds

    def fill(self, room_bytes: int) -> None:
        """Limit the free room of the disk."""
        used = sum(inode.reserved for inode in self.disk._names.values())
        self.disk.capacity = used + room_bytes

    def repair(self) -> None:
        """Restore the disk's room and speed, end its failures, and set the clock right."""
        self.disk.heal()
        self.disk.capacity = None
        self.slow_down(THREAD_SECONDS)
        self.clock.set_right()

    def _start(self) -> None:
        """Start a node whose list of users is on the simulated disk, and whose logins use simulated threads."""
        file = partial(DiskUsersFile, disk=self.disk)
        threads = mock.patch.object(logins, "ThreadPoolExecutor", lambda *_: self.loop and self.loop.pool())
        with mock.patch.object(server, "UsersFile", file), threads:
            super()._start()

    def start(self) -> bool:
        """Start a node on the disk's content; return False if that fails."""
        is_up = super().start()
        self.slow_down(self.thread_seconds)
        return is_up
