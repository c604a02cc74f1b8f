"""Wrong logins slow their address down, and keep no right one out. Time stands still but where all wait for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from headwater.node.users.failures import (
    FAILURES_FREE,
    NAMES_MAX,
    PASSES,
    TURN_SECONDS,
    WAITING_MAX,
    Failures,
    TooManyWait,
)

HERE = "10.0.0.7"


class Ahead(selectors.DefaultSelector):
    """Waits for nothing: what was to be waited for has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the time pass that nobody has anything to do in."""
        self.now += max(0.0, timeout or 0.0)
        return super().select(0)


def played(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Play a story on a loop whose time is its own."""
    ahead = Ahead()
    loop = asyncio.SelectorEventLoop(ahead)
    monotonic, loop.time = loop.time, lambda: ahead.now  # type: ignore[method-assign]
    assert monotonic() > 0
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()


async def right() -> bool:
    return True


async def wrong() -> bool:
    return False


def now() -> float:
    return asyncio.get_running_loop().time()


async def judged(failures: Failures, user: str, attempt: Callable[[], Awaitable[bool]]) -> float:
    """How long it takes until an attempt is answered."""
    begun = now()
    await failures.judge(HERE, user, now, attempt)
    return now() - begun


def known(failures: Failures) -> Failures:
    """The same, of an address that is known for wrong logins."""
    for _ in range(FAILURES_FREE + 1):
        failures.add(HERE, now())
    return failures


def test_delays_grow_with_wrong_logins_of_an_address_and_are_forgotten_in_time() -> None:
    failures = Failures()
    for _ in range(FAILURES_FREE):
        failures.add("a", 100.0)
    assert failures.delay("a", 100.0) == 0.0
    delays = []
    for _ in range(8):
        failures.add("a", 100.0)
        delays.append(failures.delay("a", 100.0))
    assert delays == sorted(delays) and delays[0] > 0 and delays[-1] == 2.0
    assert failures.delay("b", 100.0) == 0.0 and failures.delay("a", 160.0) == 0.0


def test_programs_with_an_old_password_keep_no_right_login_of_their_address_out() -> None:
    """Ten of them every two seconds, as Prometheus and consoles after a change of the password, for a minute."""

    async def story() -> None:
        failures = Failures()

        async def stale() -> None:
            while True:
                await judged(failures, "ann", wrong)
                await asyncio.sleep(2.0)

        pollers = [asyncio.ensure_future(stale()) for _ in range(10)]
        waited = []
        for user in ("ann", "bob") * 12:
            await asyncio.sleep(2.5)
            waited.append(await judged(failures, user, right))
        for poller in pollers:
            poller.cancel()
        assert max(waited) <= 2.0, waited

    played(story)


def test_a_pool_of_64_connections_is_in_within_two_seconds_though_its_address_is_known() -> None:
    """A connection that is hung up on comes again a moment later."""

    async def story() -> None:
        failures, begun = known(Failures()), now()

        async def connection() -> None:
            while True:
                try:
                    await judged(failures, "ann", right)
                except TooManyWait:
                    await asyncio.sleep(0.1)
                else:
                    return

        await asyncio.gather(*(connection() for _ in range(64)))
        assert now() - begun <= 2.0

    played(story)


def test_who_guesses_beside_a_pool_has_two_guesses_more_for_each_right_login() -> None:
    async def story() -> None:
        failures, guesses, logins = known(Failures()), 0, 0

        async def guess() -> bool:
            nonlocal guesses
            guesses += 1
            return False

        async def guesser() -> None:
            while True:
                await judged(failures, "ann", guess)

        async def pool() -> None:
            nonlocal logins
            while True:
                await judged(failures, "ann", right)
                logins += 1
                await asyncio.sleep(1.0)

        at_work = [asyncio.ensure_future(each()) for each in (guesser,) * 8 + (pool,) * 4]
        await asyncio.sleep(10.0)
        assert logins and guesses <= 10.0 / TURN_SECONDS + 1 + PASSES * logins
        for each in at_work:
            each.cancel()

    played(story)


def test_a_user_waits_for_no_other_whatever_that_one_tries() -> None:
    async def story() -> None:
        failures = known(Failures())
        flood = [asyncio.ensure_future(judged(failures, "ann", wrong)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        assert await judged(failures, "bob", right) <= 3 * TURN_SECONDS
        more = await asyncio.gather(*(judged(failures, "ann", right) for _ in range(40)), return_exceptions=True)
        refused = [each for each in more if isinstance(each, TooManyWait)]
        assert refused and "of that name and address wait" in str(refused[0])
        assert [each for each in more if isinstance(each, float)]
        for each in flood:
            each.cancel()

    played(story)


def test_an_address_that_is_known_guesses_five_times_a_second_by_however_many_connections() -> None:
    async def story() -> None:
        failures, guesses = known(Failures()), 0

        async def guess() -> bool:
            nonlocal guesses
            guesses += 1
            return False

        async def guesser(name: str) -> None:
            while True:
                await judged(failures, name, guess)

        names = [f"user {number % NAMES_MAX}" for number in range(40 * 3)]
        at_work = [asyncio.ensure_future(guesser(name)) for name in names]
        await asyncio.sleep(10.0)
        assert guesses <= 10.0 / TURN_SECONDS + 1
        for each in at_work:
            each.cancel()

    played(story)


def test_names_that_are_tried_at_a_time_are_limited() -> None:
    async def story() -> None:
        failures = known(Failures())
        flood = [asyncio.ensure_future(judged(failures, f"user {number}", wrong)) for number in range(NAMES_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyWait, match=f"logins of {NAMES_MAX} names from its address"):
            await judged(failures, "one more", wrong)
        for each in flood:
            each.cancel()

    played(story)


def test_who_is_not_known_is_judged_at_once_and_a_large_pool_one_after_the_other() -> None:
    async def story() -> None:
        failures, at_once, most = Failures(), 0, 0

        async def attempt() -> bool:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.01)
            at_once -= 1
            return True

        await asyncio.gather(*(judged(failures, "ann", attempt) for _ in range(10)))
        assert most == 10 and now() <= 0.1
        most = 0
        await asyncio.gather(*(judged(failures, "ann", attempt) for _ in range(100)))
        assert most <= 17 and now() <= 1.5

    played(story)


def test_a_burst_of_guesses_from_an_unknown_address_becomes_slow_while_it_is_judged() -> None:
    async def story() -> None:
        failures, guesses = Failures(), 0

        async def guess() -> bool:
            nonlocal guesses
            guesses += 1
            await asyncio.sleep(0)
            return False

        burst = [asyncio.ensure_future(judged(failures, f"user {number % 8}", guess)) for number in range(200)]
        await asyncio.sleep(1.0)
        assert guesses <= 16 + FAILURES_FREE + 1 + 1.0 / TURN_SECONDS
        for each in burst:
            each.cancel()

    played(story)


def test_who_gives_up_waiting_leaves_the_line() -> None:
    async def story() -> None:
        failures = known(Failures())

        async def never() -> bool:
            await asyncio.sleep(60)
            return True

        first = asyncio.ensure_future(judged(failures, "ann", never))
        waiting = [asyncio.ensure_future(judged(failures, "ann", wrong)) for _ in range(5)]
        second = asyncio.ensure_future(judged(failures, "ann", right))
        await asyncio.sleep(0)
        for each in (first, *waiting):
            each.cancel()
        assert await second <= 2 * TURN_SECONDS

    played(story)
