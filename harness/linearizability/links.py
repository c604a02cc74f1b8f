"""A network between real nodes that can be cut: each node is reached through a proxy, its door, which knows the caller.

    with Links() as links:
        door = links.door("n0", lambda: node.port)       # others reach the node at this port
        links.owns(node.pid, "n0")                       # and connections of this process are n0's
        links.set("n1", "n0", Link.CUT)                  # n1's connections to n0 end, and no new ones begin

All processes are on the loopback, so a connection's caller is looked up in /proc (Linux): the process whose socket has
its port. Connections of unregistered processes belong to OTHERS: operators and others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from threading import Thread
from types import TracebackType

__all__ = ["OTHERS", "Link", "Links"]

OTHERS = "others"
READ_BYTES = 256 << 10


class Link(Enum):
    """The state of the link from a caller to a node."""

    UP = "connections are made, and bytes pass"
    CUT = "connections are ended, and new ones as well"
    STALLED = "connections are made and stay open, and nothing passes"


class _Pair:
    """A connection and its continuation behind the door."""

    def __init__(self, source: str, target: str, *writers: asyncio.StreamWriter) -> None:
        self.source, self.target, self.writers = source, target, writers
        self.moving = asyncio.Event()

    def reset(self) -> None:
        """Reset both connections at once."""
        self.moving.set()
        for writer in self.writers:
            writer.transport.abort()


class Links:
    """Doors of nodes, and their connections; `with` runs them in a thread of their own. All methods are for other
    threads.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._owners: dict[int, str] = {}
        self._states: dict[tuple[str, str], Link] = {}
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Links:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def door(self, target: str, port: Callable[[], int]) -> int:
        """Open a door to a node, whose own port may change; return the port of the door."""

        async def opened() -> int:
            server = await asyncio.start_server(
                lambda reader, writer: self._come(target, port, reader, writer), "127.0.0.1", 0
            )
            self._servers.append(server)
            return int(server.sockets[0].getsockname()[1])

        return asyncio.run_coroutine_threadsafe(opened(), self._loop).result()

    def owns(self, pid: int, name: str) -> None:
        """Register a process, so that its connections are those of the node `name`."""
        self._owners[pid] = name

    def set(self, source: str, target: str, link: Link) -> None:
        """Set the state of the link from one node to another."""

        async def change() -> None:
            self._states[source, target] = link
            for pair in [pair for pair in self._pairs if (pair.source, pair.target) == (source, target)]:
                if link is Link.CUT:
                    pair.reset()
                elif link is Link.UP:
                    pair.moving.set()
                else:
                    pair.moving.clear()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result()

    def state(self, source: str, target: str) -> Link:
        """Return the state of the link from one node to another."""
        return self._states.get((source, target), Link.UP)

    # --- in the thread ----------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for pair in tuple(self._pairs):
            pair.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _come(
        self, target: str, port: Callable[[], int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = self._owners.get(_beginner(writer, self._owners), OTHERS)
        if self.state(source, target) is Link.CUT:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port(), limit=READ_BYTES)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(source, target, writer, back)
        self._pairs.add(pair)
        if self.state(source, target) is Link.CUT:
            pair.reset()
        elif self.state(source, target) is Link.UP:
            pair.moving.set()
        for one, other in ((reader, back), (there, writer)):
            task = self._loop.create_task(self._move(pair, one, other))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _move(self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                await pair.moving.wait()
                writer.write(data)
                await writer.drain()
        pair.reset()
        self._pairs.discard(pair)


def _beginner(writer: asyncio.StreamWriter, owners: dict[int, str]) -> int:
    """Return which of these processes opened a connection; 0 for none of them."""
    port = int(writer.get_extra_info("peername")[1])
    here = int(writer.get_extra_info("sockname")[1])
    ends = f"0100007F:{port:04X} 0100007F:{here:04X} "
    try:
        lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    inode = next((line.split()[9] for line in lines if ends in line), "")
    # A copy: another thread registers processes meanwhile.
    return next((pid for pid in tuple(owners) if _has(pid, f"socket:[{inode}]")), 0)


def _has(pid: int, what: str) -> bool:
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as found:
        return any(_leads_to(each.path, what) for each in found)
    return False


def _leads_to(path: str, what: str) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(path) == what  # noqa: PTH115 -- what it leads to is no path
    return False
