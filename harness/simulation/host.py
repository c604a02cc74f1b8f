"""One node of a simulated cluster: the real server, committer, bucket and store, on simulated time, disk and network.

    host = Host(schedule, network, "n0", vbuckets=4)
    host.start(); host.crash(Crash.POWER); host.start(); host.stop()

The disk outlives the process. A crash takes what was not written (KILL), or what was not synced as well (POWER).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from harness.simulation.scheduler import NOON_SECONDS, Schedule, SimLoop
from headwater.errors import CorruptStore, StorageError
from headwater.failpoints import InjectedFault, armed
from headwater.node.buckets import catalog
from headwater.node.buckets.bucket import Bucket
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.server import Server
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk

if TYPE_CHECKING:
    from harness.simulation.sockets import Network
    from headwater.node.served import ServedBucket
    from headwater.node.storage.disk import Disk

ARENA_BYTES = 64 << 10
SEGMENT_BYTES = 192 << 10
STORE = Path("/store")
FIRST_BUCKET = "default"


class Crash(Enum):
    """The kinds of a process's death."""

    KILL = "the disk keeps all that was written"
    POWER = "the disk keeps what was synced, and any part of the rest"


class Clock:
    """The time of day in a simulated world."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def time_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        return NOON_SECONDS * 1_000_000_000 + int(self._schedule.now * 1e9)

    def monotonic(self) -> float:
        """Return seconds since the beginning."""
        return self._schedule.now


def small_store(config: NodeConfig, disk: Disk | None, schedule: Schedule, random: Random) -> Store:
    """Open the store of a bucket, with segments so small that a run fills several."""
    return Store.open(
        config.data,
        vbuckets=config.vbuckets,
        disk=disk,
        clock=Clock(schedule).monotonic,
        random=random.randbytes,
        segment_bytes=SEGMENT_BYTES,
        arena_bytes=ARENA_BYTES,
    )


@contextmanager
def later_buckets(schedule: Schedule) -> Iterator[None]:
    """Give the buckets that nodes create during a block the simulation's time, random numbers and threads."""
    random = schedule.random
    names = SimpleNamespace(token_hex=lambda size: random.randbytes(size).hex())
    made = partial(Bucket, new_uuid=lambda: random.getrandbits(48))
    with (
        mock.patch.object(catalog, "open_store", lambda config, disk: small_store(config, disk, schedule, random)),
        mock.patch.object(catalog, "Committer", lambda store, loop: Committer(store, loop, loop.pool())),
        mock.patch.object(catalog, "Bucket", made),
        mock.patch.object(catalog, "secrets", names),
    ):
        yield


class Host:
    """A machine with a disk, and perhaps a running node.

    Attributes:
        name: its place in the network.
        loop: that of the running process, None for none. store, bucket, committer, server: of that process.
        starts: the number of processes so far. clock: the machine's.
    """

    store: Store
    bucket: Bucket
    committer: Committer
    server: Server

    def __init__(self, schedule: Schedule, network: Network, name: str, *, vbuckets: int) -> None:
        self.name = name
        self.loop: SimLoop | None = None
        self.disk = FaultyDisk()
        self.starts = 0
        self.clock = Clock(schedule)
        self._schedule, self._network = schedule, network
        self._random = Random(schedule.random.getrandbits(64))  # noqa: S311 - must be repeatable
        self._config = NodeConfig(
            port=network.address(name)[1],
            data=STORE,
            bucket=FIRST_BUCKET,
            vbuckets=vbuckets,
            vbucket_state="none",
            expiry_pager_seconds=1,
            takeover_seconds=2,
            scrub_interval_seconds=7,
            loop_watch_ms=0,
        )

    @property
    def is_up(self) -> bool:
        """True if a process runs."""
        return self.loop is not None

    @property
    def address(self) -> str:
        """The address as host:port."""
        host, port = self._network.address(self.name)
        return f"{host}:{port}"

    @property
    def under_way(self) -> Sequence[Callable[[], None]]:
        """The unfinished work of the process's threads."""
        return () if self.loop is None else [work for pool in self.loop.pools for work in pool.waiting]

    def served(self, bucket: str) -> ServedBucket | None:
        """Return a bucket as the process serves it; None if it does not, or no process runs."""
        return self.server.buckets.get(bucket) if self.is_up else None

    def folders(self) -> set[Path]:
        """Return the folders with files of buckets beside the first."""
        return {path.parent for path in self.disk.files() if path.parent != STORE}

    def start(self) -> bool:
        """Start a node on the disk's content; return False if that fails, which counts as another power cut."""
        try:
            self._start()
        except CorruptStore:
            raise
        except StorageError:
            self._gone(silent=False)
            self.disk = self.disk.crash(self._random)
        return self.is_up

    def _start(self) -> None:
        random = self._random
        self.store = small_store(self._config, self.disk, self._schedule, random)
        self.loop = SimLoop(self._schedule, self._network, self.name)
        loop: Any = self.loop
        self.committer = Committer(self.store, loop, self.loop.pool())
        self.bucket = Bucket(
            self._config.bucket, self.store, self.committer, clock=self.clock, new_uuid=lambda: random.getrandbits(48)
        )
        self.bucket.recover(self._config)
        self.server = Server(self._config, self.bucket, self.committer, loop)
        self.server.catalog.open()
        listener: Any = self._network.listener(self.name)
        self.server.bind(listener)
        self.server.commit_now()
        self.server.listen()
        self.starts += 1

    def stop(self) -> None:
        """End the process in order; if the disk fails at the very end, the state is that after a crash."""
        if self.loop is not None:
            with suppress(StorageError):
                self.loop.complete(self.server.close())
                self.store.close()
            self._gone(silent=False)
            self.disk = self.disk.crash(self._random, lose=0.0)

    def crash(self, how: Crash) -> None:
        """End the process now, in the middle of its work."""
        if self.loop is None:
            return
        under_way = self.under_way
        self._gone(silent=how is Crash.POWER)
        if under_way and self._random.random() < 0.5:
            self._begin_writing(under_way)
        lose = 0.0 if how is Crash.KILL else self._random.choice([0.2, 0.5, 0.8, 1.0])
        self.disk = self.disk.crash(self._random, lose)

    def _begin_writing(self, under_way: Sequence[Callable[[], None]]) -> None:
        """Begin the threads' unfinished work before a crash: write, and perhaps sync."""
        place = self._random.choice(["log.before_sync", "log.after_sync"])
        with armed(f"{place}=raise"):
            for work in under_way:
                try:
                    work()
                except InjectedFault:
                    break

    def _gone(self, *, silent: bool) -> None:
        if self.loop is not None:
            self.loop.kill()
        self.loop = None
        self._network.vanish(self.name, silent)
