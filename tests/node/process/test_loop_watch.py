"""How late a loop is, in wall time and in processor time: of a loop that is told the time, and of a real node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater import testing
from headwater.node.process.loop_watch import LoopWatch
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.node.membership.support import stats
from tests.node.wire import Client

INTERVAL = 0.01


class Loop:
    """A clock and one timer."""

    def __init__(self) -> None:
        self.now = 100.0
        self.computed = 5.0
        self.stood = 7.0
        self.timer: Callable[[], None] | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Loop:
        self.timer = callback
        return self

    def cancel(self) -> None:
        self.timer = None

    def pass_by(self, seconds: float, computed: float, stood: float = 0.0) -> None:
        """One interval and so much more until the timer comes."""
        self.now += INTERVAL + seconds
        self.computed += computed
        self.stood += stood
        assert self.timer is not None
        self.timer()


def watched(interval_seconds: float = INTERVAL) -> tuple[Loop, LoopWatch]:
    loop = Loop()
    watch = LoopWatch(loop, interval_seconds, lambda: loop.computed, lambda: lambda: loop.stood)  # type: ignore[arg-type]
    watch.start()
    return loop, watch


def told(watch: LoopWatch, *arguments: str) -> dict[str, str]:
    return dict(watch.stats(arguments))


def test_the_longest_turn_is_told_and_not_the_last() -> None:
    loop, watch = watched()
    loop.pass_by(0.080, 0.070, 0.005)
    loop.pass_by(0.001, 0.001)
    assert told(watch) == {
        "ep_loop_watch_interval": "10000",
        "ep_loop_late_max": "80000",
        "ep_loop_own_max": "75000",
        "ep_loop_busy_max": "70000",
    }


def test_a_turn_that_waited_for_the_processor_is_late_and_not_busy() -> None:
    loop, watch = watched()
    loop.pass_by(0.500, 0.002, 0.400)
    assert (watch.late_seconds, watch.own_seconds, watch.busy_seconds) == (near(0.5), near(0.1), near(0.002))


def test_short_turns_between_two_looks_are_not_added_up() -> None:
    loop, watch = watched()
    loop.pass_by(0.001, 0.010)
    assert watch.busy_seconds == near(0.001)


def test_a_reset_tells_once_more_and_begins_anew() -> None:
    loop, watch = watched()
    loop.pass_by(0.3, 0.3)
    assert told(watch, "reset")["ep_loop_late_max"] == "300000"
    assert told(watch)["ep_loop_late_max"] == "0"


def test_with_no_interval_nobody_looks_and_a_stop_ends_it() -> None:
    loop, watch = watched(0.0)
    assert loop.timer is None
    watch.stop()
    loop, watch = watched()
    watch.stop()
    assert loop.timer is None


def near(seconds: float) -> object:
    return pytest.approx(seconds, abs=1e-6)


def test_a_real_node_tells_and_forgets() -> None:
    with testing.node(vbuckets=4, loop_watch_ms=2) as node:
        with Client(node.port) as client:
            client.send(Frame(0x80, Opcode.NOOP).encode() * 50_000)
            for _ in range(50_000):
                assert client.read() is not None
        before = stats(node, "loop")
        assert before["ep_loop_watch_interval"] == "2000"
        assert int(before["ep_loop_late_max"]) >= int(before["ep_loop_busy_max"]) > 0
        stats(node, "loop reset")
        assert int(stats(node, "loop")["ep_loop_busy_max"]) < int(before["ep_loop_busy_max"])
