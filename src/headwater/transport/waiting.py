"""Waiting as values: steps say what they wait for, a driver does the waiting.

A step generator runs until it would block, then yields a `Ready` (some of these channels, or a moment in time) or a
`Resolve` (a name to look up). Whoever drives it waits in its own way, sends the answer in, and finally gets the
result: psycopg's idea, and the reason why the blocking and the asyncio client are the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from headwater.transport.channel import Channel

Result = TypeVar("Result")


class Signal:
    """Wakes one waiter from the code of another: "what you wait for has come, I read it"."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None

    def fire(self) -> bool:
        """Wake the waiting tasks; False if there is none."""
        if self.wake is None:
            return False
        self.wake()
        return True


@dataclass(frozen=True, slots=True)
class Ready:
    """Go on when one of `channels` has something to read (or room to write what it holds), or at `deadline`, or when
    the signal fires.

    The deadline is a moment of the monotonic clock; None waits for the others alone. Answered with None: the generator
    looks for itself, and may be woken without a reason. A signal can only come from another task, so a driver that
    runs one generator at a time need not care for it.
    """

    channels: tuple[Channel, ...] = ()
    deadline: float | None = None
    signal: Signal | None = None


@dataclass(frozen=True, slots=True)
class Resolve:
    """Look up a host. Answered with a list of SocketAddress, or with the OSError that came of it."""

    host: str
    port: int


Steps: TypeAlias = Generator[Ready | Resolve, Any, Result]
