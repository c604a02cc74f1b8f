"""Failed logins by address: guessing of passwords is slowed down, but right logins are not kept out.

Of the logins from an address with failed ones, one is checked every TURN_SECONDS, however many connections there are;
other addresses do not wait. The names take turns, so that a program with an outdated password does not delay other
users, and delays right logins of its own user only for a moment. Because a pool opens many connections, each right
login lets a few more logins of its name pass without a turn, until the next failed login of that name.

A failed login is answered after a further delay, which delays no other login. A right one is answered at once. That
does not help a guesser with a thousand connections, because a guess is checked in its turn in any case.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["FAILURES_FREE", "NAMES_MAX", "TURN_SECONDS", "WAITING_MAX", "Failures", "TooManyWait"]

FAILURES_FREE: Final = 5  # failed logins of one address before its answers are delayed
FAILURE_MEMORY_SECONDS: Final = 60.0
DELAY_SECONDS_MAX: Final = 2.0
ADDRESSES_MAX: Final = 4096
JUDGED_AT_ONCE: Final = 16  # simultaneous checks for an address without failed logins, such as those of a pool
TURN_SECONDS: Final = 0.2
"""The time between two checks of logins from an address with failed ones: it allows five guesses a second.

Ten programs that each try an old password again two seconds after a refusal cause half as many checks as that: half of
the turns are left for right logins."""
WAITING_MAX: Final = 16  # waiting logins of one name from such an address: three seconds, less than clients wait
NAMES_MAX: Final = 32  # names with waiting logins from one address
PASSES: Final = 2
"""The number of logins of a name that pass without a turn after a right login of it.

With two, a pool of 64 connections is logged in after six turns; a guesser at the same address and name gets at most two
more guesses for each right login."""


class TooManyWait(Exception):  # noqa: N818 - not an error of the node
    """Too many logins wait to be checked, from one address or in total, so this one is refused."""


class Failures:
    """Counts failed logins by address, and gives turns to the logins from addresses with failed ones."""

    def __init__(self) -> None:
        self._refused_logins: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._judged: Counter[str] = Counter()
        self._lines: dict[str, _Line] = {}

    def add(self, address: str, now: float) -> None:
        """Count a failed login from an address."""
        count, at = self._refused_logins.pop(address, (0, now))
        self._refused_logins[address] = (count + 1 if now - at < FAILURE_MEMORY_SECONDS else 1, now)
        if len(self._refused_logins) > ADDRESSES_MAX:
            self._refused_logins.popitem(last=False)

    def delay(self, address: str, now: float) -> float:
        """Return the delay, in seconds, of the answer to a failed login from an address; 0 without failed logins."""
        count, at = self._refused_logins.get(address, (0, now))
        if count <= FAILURES_FREE or now - at >= FAILURE_MEMORY_SECONDS:
            return 0.0
        return min(DELAY_SECONDS_MAX, 0.05 * (1 << min(count - FAILURES_FREE, 10)))

    async def judge(
        self, address: str, user: str, clock: Callable[[], float], attempt: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Check a login in its turn; a failed one is counted, and the result is delayed.

        Args:
            address: the client's address.
            user: the name to log in as.
            clock: returns the seconds of a monotonic clock.
            attempt: checks the login; returns True if it is right.

        Returns:
            True if the login is right.

        Raises:
            TooManyWait: too many logins of the address, or of this name, are waiting; the caller should close the
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
                # Without logins in progress only the failures of an address are kept, and those of at most
                # ADDRESSES_MAX addresses.
                self._lines.pop(address, None)

    async def _outcome(
        self, line: _Line, address: str, user: str, clock: Callable[[], float], attempt: Callable[[], Awaitable[bool]]
    ) -> bool:
        if not self.delay(address, clock()):
            if self._judged[address] <= JUDGED_AT_ONCE:
                return await attempt()
            async with line.lock:
                # Checked again under the lock: the login before this one may have failed.
                if not self.delay(address, clock()):
                    return await attempt()
        await line.turn(user, clock)
        line.note(user, is_right := await attempt())
        return is_right


class _Line:
    """The logins from one address that wait to be checked.

    Attributes:
        lock: held during the check of a login if the address has no failed logins, but more than JUDGED_AT_ONCE at a
            time.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._passes: Counter[str] = Counter()
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, user: str, clock: Callable[[], float]) -> None:
        """Wait for the next turn of a name, or use up one of its passes.

        Raises:
            TooManyWait: too many logins of this name, or of too many names, are waiting.
        """
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
        """Note the result of a login.

        A right one gives its name PASSES passes, which waiting logins of that name use first. A failed one removes all
        passes of its name.
        """
        if not is_right:
            # A guesser who tries this name must not use the passes that are left of a right login.
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
        """Give the turn to the name that has waited longest; skip logins whose clients have gone."""
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
