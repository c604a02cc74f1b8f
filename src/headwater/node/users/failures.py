"""Failed logins by address: guessing of passwords is slowed down, but right logins are not kept out.

From an address with failed logins only a limited number is checked in a second, however many connections there are. The
tried names take turns, so that a program with an outdated password does not delay other users, and delays right logins
of its own user only for a moment. Each right login lets a few more of its name in at once, because a pool opens many
connections; this ends with the next failed login of that name. A failed login is answered after a further delay, which
delays no other login. (The immediate answer to a right login reveals nothing: a guess on each of a thousand connections
is checked no sooner for it.) Other addresses do not wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["FAILURES_FREE", "NAMES_MAX", "TURN_SECONDS", "WAITING_MAX", "Failures", "TooManyWait"]

FAILURES_FREE: Final = 5  # wrong logins of one address before its answers are delayed
FAILURE_MEMORY_SECONDS: Final = 60.0
DELAY_SECONDS_MAX: Final = 2.0
ADDRESSES_MAX: Final = 4096
JUDGED_AT_ONCE: Final = 16  # logins of an address that is not known for wrong ones, as of a pool of connections
TURN_SECONDS: Final = 0.2
"""From one login that is judged to the next, of an address that is known for wrong ones: five guesses a second. Ten
programs that try an old password two seconds after they were told that it is wrong are half of that."""
WAITING_MAX: Final = 16  # logins of one name from such an address: three seconds' worth, less than clients wait
NAMES_MAX: Final = 32  # that are tried from one address at a time
PASSES: Final = 2
"""Logins of a name that need no turn after a right one of it: a pool of 64 is in after six, and a guesser beside it has
two guesses more for each right login."""


class TooManyWait(Exception):  # noqa: N818 - no error of ours
    """Too many logins wait to be checked, from one address or in total, so this one is refused."""


class Failures:
    """Failed logins by address, and the turns of logins from addresses with failed ones."""

    def __init__(self) -> None:
        self._refused_logins: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._judged: Counter[str] = Counter()
        self._lines: dict[str, _Line] = {}

    def add(self, address: str, now: float) -> None:
        """Count a failed login."""
        count, at = self._refused_logins.pop(address, (0, now))
        self._refused_logins[address] = (count + 1 if now - at < FAILURE_MEMORY_SECONDS else 1, now)
        if len(self._refused_logins) > ADDRESSES_MAX:
            self._refused_logins.popitem(last=False)

    def delay(self, address: str, now: float) -> float:
        """Return the delay in seconds of the next answer to this address."""
        count, at = self._refused_logins.get(address, (0, now))
        if count <= FAILURES_FREE or now - at >= FAILURE_MEMORY_SECONDS:
            return 0.0
        return min(DELAY_SECONDS_MAX, 0.05 * (1 << min(count - FAILURES_FREE, 10)))

    async def judge(
        self, address: str, user: str, clock: Callable[[], float], attempt: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Check a login in its turn; return True if it is right. A failed one is counted, and its answer delayed.

        Raises TooManyWait if too many logins of the address and the name wait already; the caller should close the
        connection.
        """
        self._judged[address] += 1
        line = self._lines.setdefault(address, _Line())
        try:
            is_right = await self._outcome(line, address, user, clock, attempt)
            if not is_right:
                self.add(address, clock())
                await asyncio.sleep(self.delay(address, clock()))
            return is_right
        finally:
            self._judged[address] -= 1
            if not self._judged[address]:
                del self._judged[address]
                # An address without a login under way leaves no trace but its failures, of which there are so many at
                # most.
                self._lines.pop(address, None)

    async def _outcome(
        self, line: _Line, address: str, user: str, clock: Callable[[], float], attempt: Callable[[], Awaitable[bool]]
    ) -> bool:
        if not self.delay(address, clock()):
            if self._judged[address] <= JUDGED_AT_ONCE:
                return await attempt()
            async with line.lock:
                # Looked at again with the lock: the login before this one may have been wrong.
                if not self.delay(address, clock()):
                    return await attempt()
        await line.turn(user, clock)
        line.note(user, is_right := await attempt())
        return is_right


class _Line:
    """The logins from one address that wait to be checked.

    Attributes:
        lock: held while a login is checked, if many are under way and the address has no failed ones.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._passes: Counter[str] = Counter()
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, user: str, clock: Callable[[], float]) -> None:
        """Wait for the next turn of this name, unless it has a pass. Raises TooManyWait."""
        if self._passes[user]:
            self._passes[user] -= 1
            return
        mine = self._waiting.get(user)
        if mine is not None and len(mine) >= WAITING_MAX:
            raise TooManyWait(f"{len(mine)} logins of that name and address wait to be judged")
        if mine is None and len(self._waiting) >= NAMES_MAX:
            raise TooManyWait(f"logins of {len(self._waiting)} names from its address wait to be judged")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        self._wake_later(clock)
        await turn

    def note(self, user: str, is_right: bool) -> None:
        """Give passes after a right login, first to the logins that wait; remove all passes of the name after a failed
        one.
        """
        if not is_right:
            # A guesser who shares the name must not use the passes that a right login has left.
            self._passes.pop(user, None)
            return
        self._passes[user] = min(self._passes[user] + PASSES, WAITING_MAX)
        mine = self._waiting.get(user)
        while mine and self._passes[user]:
            if not (first := mine.popleft()).done():
                self._passes[user] -= 1
                first.set_result(None)
        if mine is not None and not mine:
            del self._waiting[user]

    def _wake_later(self, clock: Callable[[], float]) -> None:
        if self._timer is None and self._waiting:
            wait = max(0.0, self._free_at - clock())
            self._timer = asyncio.get_running_loop().call_later(wait, self._next, clock)

    def _next(self, clock: Callable[[], float]) -> None:
        """Give the turn to the name that has waited longest; skip logins that were abandoned meanwhile."""
        self._timer = None
        while self._waiting:
            user, mine = self._waiting.popitem(last=False)
            while mine and mine[0].done():
                mine.popleft()
            if not mine:
                continue
            self._free_at = clock() + TURN_SECONDS
            mine.popleft().set_result(None)
            if mine:
                self._waiting[user] = mine
            break
        self._wake_later(clock)
