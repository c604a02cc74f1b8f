"""How long a drain gathers: changes that keep coming as fast as they are read must not keep those that are there."""

from typing import Any, cast

from headwater.client.drainer import BULK, LINGER_BYTES_MIN, LIVE, Drainer
from headwater.client.options import DrainOptions
from headwater.client.routing import Address
from headwater.client.worker import AGAIN, Task
from headwater.kernels.columns import StreamTable
from headwater.protocol.dcp.position import Position
from headwater.testing.clock import FakeClock
from headwater.transport import blocking
from headwater.wire import dcp

STEP_SECONDS = 0.0003
CHANGE = dcp.Mutation(key=b"k", by_seqno=1, rev_seqno=1).encode()
LARGE_CHANGE = dcp.Mutation(key=b"k", by_seqno=1, rev_seqno=1, value=bytes(LINGER_BYTES_MIN)).encode()


class NoCluster:
    """As much of a cluster as a drain needs that is connected already."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def close(self) -> None:
        pass


class Source(Task):
    """A worker whose every step brings one change, as often as it is asked."""

    idle, drain, vbuckets, todo = False, None, (), ()

    def __init__(self, drainer: Drainer, clock: FakeClock, changes: int, change: bytes) -> None:
        self.wait = AGAIN
        self.left, self.change = changes, change
        self._drainer, self._clock = drainer, clock
        self._streams = StreamTable(checked=False)

    def step(self):
        self._clock.advance(STEP_SECONDS)
        if self.left:
            self.left -= 1
            self._drainer.arena.decode(self.change, self._streams)
        if not self.left:
            self._drainer.progress[0].done = True
        return bool(self.left)
        yield

    def take_events(self):
        return ()

    def processed(self, now: float, keep_bytes: int = 0) -> None:
        pass

    def close(self) -> None:
        pass


def drain_of(changes: int, change: bytes = CHANGE, *, ends: bool = False) -> tuple[Drainer, FakeClock]:
    clock = FakeClock()
    end = {0: changes} if ends else {}
    drainer = Drainer(cast(Any, NoCluster(clock)), {0: Position(0)}, end, DrainOptions())
    drainer._unassigned.clear()
    drainer._workers[Address("127.0.0.1", 1)] = cast(Any, Source(drainer, clock, changes, change))
    return drainer, clock


def test_changes_that_never_pause_are_handed_out_all_the_same():
    drainer, clock = drain_of(changes=1_000_000)
    begun = clock()
    for _ in range(3):
        assert blocking.run(drainer.advance(), clock).records.num_rows
    assert clock() - begun <= 3 * (LIVE.spell_seconds + LIVE.linger_seconds + STEP_SECONDS)


def test_what_comes_within_a_moment_is_one_batch():
    drainer, clock = drain_of(changes=4)
    assert blocking.run(drainer.advance(), clock).records.num_rows == 4


def test_a_drain_with_an_end_takes_its_time_to_fill_a_batch():
    drainer, clock = drain_of(changes=1_000_000, ends=True)
    begun = clock()
    rows = blocking.run(drainer.advance(), clock).records.num_rows
    assert rows * STEP_SECONDS > 5 * LIVE.spell_seconds
    assert clock() - begun <= BULK.spell_seconds + BULK.linger_seconds + STEP_SECONDS


def test_what_comes_last_waits_for_nothing():
    drainer, clock = drain_of(changes=2, change=LARGE_CHANGE, ends=True)
    begun = clock()
    assert blocking.run(drainer.advance(), clock).records.num_rows == 2
    assert clock() - begun < 3 * STEP_SECONDS
