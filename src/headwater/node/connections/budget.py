"""The memory that connections hold together, bytes that came and bytes that wait to leave; over it one of them goes.

The one that goes is the one that holds most: who sends half a frame of 30 MiB on a hundred connections, or does not
read his answers, loses a connection for each of the others that wants a few bytes.
"""

from __future__ import annotations

from typing import Final, Protocol


class Holder(Protocol):
    """A connection, as far as a budget is concerned."""

    def drop(self, cause: str) -> None:
        """Close now; `release` follows from within."""


class Budget:
    """The share of memory that a group of connections may hold.

    Args:
        limit_bytes: for all together; each_bytes: for one of them.
        whose: what to call them in the line that tells why one went.

    Attributes:
        held_bytes: what they hold now. dropped: how many had to go.
    """

    def __init__(self, limit_bytes: int, each_bytes: int, whose: str) -> None:
        self.limit_bytes: Final = limit_bytes
        self.each_bytes: Final = each_bytes
        self.held_bytes: int = 0
        self.dropped: int = 0
        self._whose = whose
        self._held: dict[Holder, int] = {}

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """A connection holds so much from now on; it, or the one that holds most, may be dropped for it."""
        self.held_bytes += size_bytes - self._held.get(holder, 0)
        self._held[holder] = size_bytes
        if size_bytes > self.each_bytes:
            self._drop(holder, f"holds {size_bytes} bytes of memory, {self.each_bytes} are allowed")
        while self.held_bytes > self.limit_bytes:
            most = max(self._held, key=self._held.__getitem__)
            self._drop(
                most, f"{self._whose} hold more than {self.limit_bytes} bytes, and it {self._held[most]} of them"
            )

    def release(self, holder: Holder) -> None:
        """A connection holds nothing any more."""
        self.held_bytes -= self._held.pop(holder, 0)

    def _drop(self, holder: Holder, cause: str) -> None:
        self.release(holder)
        self.dropped += 1
        holder.drop(cause)
