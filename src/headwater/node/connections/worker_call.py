"""A connection from this worker to another one, over its unix socket, for one client: bytes out, whole frames in.

A subclass handles whole messages in `_take`, and the end of the connection in `_lost`.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

RECEIVE_BYTES: Final = 256 << 10


def number_of(path: str) -> int:
    """Return the number of the worker that listens at a path (workers/worker.py)."""
    return int(path.rpartition("-")[2])


def own_number(paths: Iterable[str]) -> int:
    """Return this worker's number: the number from 0 on that none of the other workers' paths has."""
    others = {number_of(path) for path in paths}
    return next(each for each in range(len(others) + 1) if each not in others)


def own_path(paths: Iterable[str]) -> str:
    """Return the path at which this worker listens, derived from the paths of the other workers."""
    others = list(paths)
    return f"{others[0].rpartition('-')[0]}-{own_number(others)}"


class WorkerCall(ABC):
    """A connection to another worker. It first sends `begin`, the frame that introduces the client.

    Raises:
        OSError: no worker listens at the path.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, path: str, begin: bytes) -> None:
        self._loop = loop
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        try:
            self._sock.connect(path)
        except OSError:
            self._sock.close()
            raise
        self._out, self._in = bytearray(begin), bytearray()
        self._is_watched = self._is_writing = self._is_broken = False
        self.watch()

    @property
    def is_closed(self) -> bool:
        """True if either worker has closed the connection."""
        return self._sock.fileno() < 0

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that wait to be sent."""
        return len(self._out)

    @property
    def kept_bytes(self) -> int:
        """The number of bytes held: output that waits to be sent, and an incomplete message."""
        return len(self._out) + len(self._in)

    def watch(self) -> None:
        """Start reading from the other worker."""
        if not self._is_watched and not self.is_closed:
            self._is_watched = True
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def unwatch(self) -> None:
        """Stop reading for now."""
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._sock.fileno())

    def close(self) -> None:
        """Close the connection, and drop unsent and unread bytes."""
        self.unwatch()
        if self._is_writing:
            self._loop.remove_writer(self._sock.fileno())
            self._is_writing = False
        self._sock.close()
        self._out.clear()
        self._in.clear()

    def _write(self) -> None:
        """Send as much as the socket has room for.

        A broken connection is handled later, by the loop, never within this call: the caller has not yet recorded its
        request, and answers that arrived before the end are still to be read.
        """
        if self.is_closed:
            return
        try:
            del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()
            self._is_broken = True
            self._loop.call_soon(self._readable)
        if bool(self._out) != self._is_writing:
            self._is_writing = bool(self._out)
            if self._is_writing:
                self._loop.add_writer(self._sock.fileno(), self._writable)
            else:
                self._loop.remove_writer(self._sock.fileno())

    def _writable(self) -> None:
        self._write()
        self._wrote()

    def _readable(self) -> None:
        if self.is_closed:
            return
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._lost()
            return
        if self._is_broken:
            self._loop.call_soon(self._readable)
        self._in += data
        consumed = self._take(self._in)
        if not self.is_closed:
            del self._in[:consumed]
            self._taken()

    @abstractmethod
    def _take(self, data: bytearray) -> int:
        """Handle whole frames at the beginning of `data`; return their size in bytes. May close the connection."""

    @abstractmethod
    def _taken(self) -> None:
        """Continue after frames were handled."""

    @abstractmethod
    def _lost(self) -> None:
        """Handle the end of the connection; everything that the other worker sent has been handled."""

    @abstractmethod
    def _wrote(self) -> None:
        """Continue after waiting bytes were sent."""
