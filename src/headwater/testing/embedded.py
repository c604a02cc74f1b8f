"""A whole node in this process, on a thread of its own, with a chosen disk and clock.

    disk, clock = FaultyDisk(capacity=64 << 20), WallClock()
    with embedded(disk=disk, clock=clock) as node:
        ... clients connect to node.port ...
        disk.capacity = 0; clock.shift_seconds = -3600

The same server, committer and store as `headwater serve`; only signals are missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from headwater.node.buckets.bucket import Bucket
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.run import warm_up
from headwater.node.server import Server
from headwater.node.storage.disk import Disk
from headwater.node.storage.store import Store

START_SECONDS = 180.0
ARENA_BYTES = 1 << 20
SEGMENT_BYTES = 4 << 20


class WallClock:
    """A clock whose time of day is shifted by `shift_seconds`; its monotonic time is not."""

    def __init__(self) -> None:
        self.shift_seconds: float = 0.0

    def time_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        return time.time_ns() + int(self.shift_seconds * 1e9)

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()


class Embedded(Thread):
    """A running node; created by `embedded`.

    Attributes:
        port: its port on 127.0.0.1. store: the node's store. server: the node's server.
    """

    def __init__(self, config: NodeConfig, disk: Disk | None, clock: WallClock) -> None:
        super().__init__(daemon=True)
        self.port: int = 0
        self.store: Store
        self.server: Server
        self.error: BaseException | None = None
        self.ready: Event = Event()
        self._config, self._disk, self._clock = config, disk, clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event: asyncio.Event

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # `stop` raises it again
            self.error = error
        finally:
            self.ready.set()

    def stop(self) -> None:
        """Stop the node in order; raise the error with which it ended, if there is one."""
        if self._loop is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._stop_event.set)
        self.join(START_SECONDS)
        if self.error is not None:
            raise self.error

    async def _serve(self) -> None:
        self._loop, self._stop_event = asyncio.get_running_loop(), asyncio.Event()
        self.store = Store.open(
            self._config.data,
            vbuckets=self._config.vbuckets,
            disk=self._disk,
            segment_bytes=SEGMENT_BYTES,
            arena_bytes=ARENA_BYTES,
        )
        clean = False
        try:
            committer = Committer(self.store, self._loop)
            bucket = Bucket(self._config.bucket, self.store, committer, clock=self._clock)
            bucket.recover(self._config)
            warm_up()
            self.server = Server(self._config, bucket, committer, self._loop)
            self.server.bind()
            committer.commit_now()
            _, self.port = self.server.listen()
            self.ready.set()
            await self._stop_event.wait()
            await self.server.close()
            clean = True
        finally:
            self.store.close(clean=clean)


@contextmanager
def embedded(
    path: Path = Path("/embedded"), *, disk: Disk | None = None, clock: WallClock | None = None, vbuckets: int = 4
) -> Iterator[Embedded]:
    """Run a node in this process, for a block. Its largest document is what fits into a batch of 1 MiB.

    Args:
        path: the folder of its store, on `disk`.
        disk: None for the real disk.
        clock: the time of day; None for the real time.
    """
    node = Embedded(NodeConfig(port=0, data=path, vbuckets=vbuckets), disk, clock or WallClock())
    node.start()
    node.ready.wait(START_SECONDS)
    if node.error is not None:
        raise node.error
    try:
        yield node
    finally:
        node.stop()
