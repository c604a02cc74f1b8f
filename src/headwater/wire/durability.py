"""The levels of a durable write: their numbers on the wire, and their names.

Source: specification, wire.md 1.4 (frame info 1) and dcp.md 2.17 (PREPARE).
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["DURABILITY_TIMEOUT_MS_MAX", "DurabilityLevel", "majority_of"]

DURABILITY_TIMEOUT_MS_MAX = 65534
"""The longest time that a request can name; 0 and 65535 are refused."""


class DurabilityLevel(IntEnum):
    """The copies of a document that must have a durable write before it is acknowledged."""

    MAJORITY = 1
    """A majority of the copies, in memory."""
    MAJORITY_AND_PERSIST_TO_ACTIVE = 2
    """A majority in memory, and the active copy on its disk."""
    PERSIST_TO_MAJORITY = 3
    """A majority of the copies, on their disks."""

    @property
    def label(self) -> str:
        """The name in options: lower case, with hyphens."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def read(cls, text: str) -> DurabilityLevel:
        """Return the level with a name, in any case, with hyphens or underscores; ValueError for any other text."""
        try:
            return cls[text.upper().replace("-", "_")]
        except KeyError:
            raise ValueError(f"{text!r} is none of {', '.join(each.label for each in cls)}") from None


def majority_of(copies: int) -> int:
    """Return the least number of copies that is a majority of `copies`: any two majorities share a copy."""
    return copies // 2 + 1
