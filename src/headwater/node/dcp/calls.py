"""The connections to other workers for one client's DCP connection, for producers and for consumers.

A `DcpCall` is a DCP connection to another worker, with its open streams. `DcpCalls` are all such connections of a
client; a worker that reads too slowly pauses the client.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

from headwater.node.connections.worker_call import WorkerCall
from headwater.wire.status import name_of

if TYPE_CHECKING:
    from headwater.node.kv.api import Session

__all__ = ["ENTRY_BYTES", "REQUESTS_BYTES_MAX", "DcpCall", "DcpCalls"]

REQUESTS_BYTES_MAX: Final = 256 << 10
"""The most bytes of the client's messages that wait for a worker; above this, the client is paused."""
ENTRY_BYTES: Final = 256
"""The approximate memory of the state of a stream, or of an unanswered request."""


class DcpCall(WorkerCall):
    """A DCP connection to another worker, for one client.

    Attributes:
        streams: the open streams of the connection.
    """

    streams: Collection[object]

    def tell(self, data: bytes) -> None:
        """Queue a message that has no answer, and send it at once if the socket has room."""
        self._out += data
        self.flush()

    def flush(self) -> None:
        """Send waiting bytes, unless the socket had no room for earlier ones."""
        if self._out and not self._is_writing:
            self._write()


Key = TypeVar("Key")
Call = TypeVar("Call", bound=DcpCall)


class DcpCalls(Generic[Key, Call]):
    """A client's connections to other workers, by a key that the subclass chooses."""

    HELD_UP_BY: ClassVar[str]
    """The reason of the pause of the client's connection while a worker reads too slowly."""

    def __init__(self, kv: Session) -> None:
        self._kv = kv
        self._calls: dict[Key, Call] = {}

    @property
    def stream_count(self) -> int:
        """The number of the client's streams at other workers."""
        return sum(len(call.streams) for call in self._calls.values())

    def flush(self) -> None:
        """Send the requests of a burst; pause the client if too many bytes wait for a worker."""
        waiting_bytes = 0
        for call in tuple(self._calls.values()):
            call.flush()
            waiting_bytes = max(waiting_bytes, call.waiting_bytes)
        if waiting_bytes > REQUESTS_BYTES_MAX:
            self._kv.connection.pause(self.HELD_UP_BY)

    def read_on(self) -> None:
        """Resume the client if no worker has too many waiting bytes any more."""
        if all(call.waiting_bytes <= REQUESTS_BYTES_MAX for call in self._calls.values()):
            self._kv.connection.resume(self.HELD_UP_BY)

    def refused(self, status: int) -> None:
        """Drop the client's connection, because a worker refused the client's OPEN."""
        self._kv.connection.drop(f"another worker refused to open it: {name_of(status)}", fault=False)

    def close(self) -> None:
        """Close all connections to other workers."""
        for call in tuple(self._calls.values()):
            call.close()
        self._calls.clear()

    def _forget(self, call: Call) -> None:
        self._calls = {key: each for key, each in self._calls.items() if each is not call}
