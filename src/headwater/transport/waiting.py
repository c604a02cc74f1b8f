"""Waiting as values: steps yield what they wait for, and a driver waits.

A step generator runs until it would block, then yields a `Ready` (some of these channels, or a time) or a `Resolve` (a
name to look up). Its driver waits in its own way, sends the answer in, and finally gets the result: psycopg's idea, and
the reason why the blocking and the asyncio client share their code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from headwater.transport.channel import Channel

Result = TypeVar("Result")


class Signal:
    """Wakes one waiter from another task: "the bytes that you wait for have come, and I have read them"."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None

    def fire(self) -> bool:
        """Wake the waiting task; return False if there is none."""
        if self.wake is None:
            return False
        self.wake()
        return True


@dataclass(frozen=True, slots=True)
class Ready:
    """Continue when one of `channels` has something to read (or room to write its kept bytes), or at `deadline`, or
    when the signal fires.

    The deadline is a time of the monotonic clock; None waits for the others alone. The answer is None: the generator
    checks for itself, and may be woken without a reason. A signal can only come from another task, so a driver that
    runs one generator at a time need not support it.
    """

    channels: tuple[Channel, ...] = ()
    deadline: float | None = None
    signal: Signal | None = None


@dataclass(frozen=True, slots=True)
class Resolve:
    """Look up a host. The answer is a list of SocketAddress, or the OSError."""

    host: str
    port: int


Steps: TypeAlias = Generator[Ready | Resolve, Any, Result]
