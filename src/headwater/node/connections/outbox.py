"""A queue of outgoing items in order, each with the batch that it waits for (its gate).

An item whose batch is not durable holds back all later items: answers are sent in the order of their requests, and an
early answer would confirm a write that a crash could still undo.
"""

from __future__ import annotations

from collections import deque

from headwater.invariants import node_invariant


class Outbox:
    """A first-in first-out queue of (bytes, gate). Sizes are in bytes; gates are batch numbers, 0 for none."""

    def __init__(self) -> None:
        self._items: deque[tuple[bytes | memoryview, int]] = deque()
        self._offset = 0  # bytes of the first item that have left
        self.queued_bytes: int = 0

    @property
    def empty(self) -> bool:
        """True if no item waits."""
        return not self._items

    @property
    def gate(self) -> int:
        """The batch that the first item waits for; 0 if it waits for none, or there is no item."""
        return self._items[0][1] if self._items else 0

    def push(self, data: bytes | memoryview, gate: int) -> None:
        """Append an item."""
        self._items.append((data, gate))
        self.queued_bytes += len(data)

    def ready(self, durable: int, limit: int) -> bytes | memoryview:
        """Return the next bytes that may be sent once batch `durable` is on disk, about `limit` at most; empty if there
        are none.
        """
        # The first item alone decides: a later item may be free, but its answer would confirm the write of the first.
        if not self._items or self._items[0][1] > durable:
            return b""
        first = self._items[0][0]
        if len(self._items) == 1 and not self._offset and len(first) < limit:
            return first  # all there is, and none of it has left: the usual case
        if self._offset or len(first) >= limit or len(self._items) == 1:
            return memoryview(first)[self._offset : self._offset + limit]
        pieces: list[bytes | memoryview] = []
        size = 0
        for data, gate in self._items:
            if gate > durable or size + len(data) > limit:
                break
            pieces.append(data)
            size += len(data)
        return b"".join(pieces)

    def sent(self, count: int) -> None:
        """Remove the first `count` bytes, which have been sent."""
        node_invariant(0 <= count <= self.queued_bytes, "{} bytes left of {}", count, self.queued_bytes)
        if count == self.queued_bytes:
            self.clear()
            return
        self.queued_bytes -= count
        count += self._offset
        while self._items and count >= len(self._items[0][0]):
            count -= len(self._items.popleft()[0])
        self._offset = count

    def ungate(self) -> None:
        """Allow all waiting output to be sent, because the batches that it waits for are on disk."""
        self._items = deque((data, 0) for data, _ in self._items)

    def clear(self) -> None:
        """Drop all items."""
        self._items.clear()
        self._offset = self.queued_bytes = 0
