"""Waiting as values: step generators yield what they wait for, and a driver waits.

A step generator runs until it would block, then yields a `Ready` (some of these channels, or a time) or a `Resolve` (a
name to look up). Its driver waits in its own way, sends the answer into the generator, and finally gets the result. So
the blocking and the asyncio client share their code (the design is psycopg's).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from headwater.transport.channel import Channel

Result = TypeVar("Result")


class Signal:
    """Wakes one waiting task from another task that has read the bytes for which the first one waits."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None

    def fire(self) -> bool:
        """Wake the waiting task; return False if no task waits."""
        if self.wake is None:
            return False
        self.wake()
        return True


@dataclass(frozen=True, slots=True)
class Ready:
    """A wait that ends when one of `channels` has something to read (or room to write its kept bytes), at `deadline`,
    or when the signal fires.

    The deadline is a time of the monotonic clock, None for no deadline. The answer is None: the generator must check
    what happened, and may be woken without a reason. Only another task fires a signal, so a driver that runs one
    generator at a time need not support it.
    """

    channels: tuple[Channel, ...] = ()
    deadline: float | None = None
    signal: Signal | None = None


@dataclass(frozen=True, slots=True)
class Resolve:
    """A host to look up. The answer is a list of SocketAddress, or the OSError."""

    host: str
    port: int


Steps: TypeAlias = Generator[Ready | Resolve, Any, Result]
