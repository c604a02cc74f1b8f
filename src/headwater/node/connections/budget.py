"""The memory that all connections hold together, for incoming and outgoing bytes; above the limit a connection is
dropped.

The connection that holds most is dropped. A client that sends half a frame of 30 MiB on a hundred connections, or does
not read its answers, loses one of its connections whenever another client needs a few bytes.
"""

from __future__ import annotations

from typing import Final, Protocol


class Holder(Protocol):
    """The interface of a connection that a budget needs."""

    def drop(self, cause: str) -> None:
        """Close now; calls `Budget.release` from within."""


class Budget:
    """The share of memory that a group of connections may hold.

    Args:
        limit_bytes: the limit for all connections together.
        each_bytes: the limit for one connection.
        whose: name of the group in the log line about a dropped connection.

    Attributes:
        held_bytes: the bytes that all connections hold now.
        dropped: the number of dropped connections.
    """

    def __init__(self, limit_bytes: int, each_bytes: int, whose: str) -> None:
        self.limit_bytes: Final = limit_bytes
        self.each_bytes: Final = each_bytes
        self.held_bytes: int = 0
        self.dropped: int = 0
        self._whose = whose
        self._held: dict[Holder, int] = {}

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """Set the number of bytes that a connection holds; this may drop it, or the connection that holds most."""
        self.held_bytes += size_bytes - self._held.get(holder, 0)
        self._held[holder] = size_bytes
        if size_bytes > self.each_bytes:
            self._drop(holder, f"holds {size_bytes} bytes of memory, {self.each_bytes} are allowed")
        while self.held_bytes > self.limit_bytes:
            # Drop the connection that holds most, not this one, which may need a few bytes only.
            most = max(self._held, key=self._held.__getitem__)
            self._drop(
                most, f"{self._whose} hold more than {self.limit_bytes} bytes, and it {self._held[most]} of them"
            )

    def release(self, holder: Holder) -> None:
        """Remove a connection, which holds nothing any more."""
        self.held_bytes -= self._held.pop(holder, 0)

    def _drop(self, holder: Holder, cause: str) -> None:
        # Before `drop`, which may call `hold` or `release` again.
        self.release(holder)
        self.dropped += 1
        holder.drop(cause)
