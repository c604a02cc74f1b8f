"""kill -9 in a loop, while writing and compacting: every acknowledged write is there, no seqno means two things, and
no client was shown a change that vanishes."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from random import Random
from threading import Thread

import pytest

from harness.checker import Ledger
from harness.workload import Follower, Writer, everything, read_back
from headwater import testing
from tests.battery import few_of
from tests.node.wire import Client

VBUCKETS = 8
PLACE_SECONDS_MAX = 30.0
ACKNOWLEDGED_MAX = 1000
POINTS = {  # where the node kills itself, and at which pass at the latest
    "log.append": 40,
    "log.before_sync": 40,
    "log.after_sync": 40,
    "segment.created": 2,
    "segment.before_manifest": 2,
    "segment.after_manifest": 2,
    "compact.planned": 2,
    "compact.copied": 2,
    "compact.before_rename": 2,
    "compact.after_rename": 2,
    "compact.before_unlink": 2,
    "recover.indexed": 1,
}
EVERY_PLACE_TWICE = [*POINTS, *POINTS]
KEEP_TOMBSTONES = bytes(7) + b"\1" + bytes(16)  # compact_db: purge what was deleted before 1970


class Compacting(Thread):
    """Compacts again and again, until the connection ends."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.done = 0
        self._port = port

    def run(self) -> None:
        with contextlib.suppress(OSError, AssertionError), Client(self._port) as client:
            while client.ask(0xB3, extras=KEEP_TOMBSTONES).status == 0:
                self.done += 1


class Loop:
    """One folder, one ledger, one follower; a round is a life of the node."""

    def __init__(self, node: testing.Node, seed: int) -> None:
        self.node, self.random, self.ledger = node, Random(seed), Ledger()
        self.killed_at: Counter[str] = Counter()
        self.compactions = 0
        self.follower = Follower(self.ledger, node.url)
        self.follower.start()

    def round(self, point: str) -> None:
        """Start, look at what the life before left, write, compact, die. `point`: "" to be killed at any instant."""
        if point:
            self.node.environment["HEADWATER_FAILPOINTS"] = f"{point}=kill@{self.random.randint(1, POINTS[point])}"
        try:
            self.node.start()
        except testing.NodeError:  # it may die while it starts, where it is told to
            if not point:
                raise
            self.killed_at[point] += 1
            point = ""
            self.node.environment.clear()
            self.node.start()
        self.node.environment.clear()
        self.ledger.settle(everything(self.node.url))
        self.change_followers()
        self.write_until_it_dies(point)

    def change_followers(self) -> None:
        """Mostly the follower dies as well, another goes on where its positions were saved; else it comes back by
        itself, which takes its time. (Away for 25 crashes it would have to start over: so long is a failover log.)"""
        if self.random.random() < 0.8:
            self.follower.stop()
            self.follower = Follower(self.ledger, self.node.url, self.follower.saved, self.follower.held)
            self.follower.start()

    def write_until_it_dies(self, point: str) -> None:
        writers = [
            Writer(self.ledger, number, self.node.port, vbuckets=VBUCKETS, random=Random(self.random.random()))
            for number in range(2)
        ]
        compacting = Compacting(self.node.port)
        for thread in (*writers, compacting):
            thread.start()
        # At a named place it dies by itself; when that place is not reached, it dies all the same.
        enough = self.ledger.acknowledged + self.random.randint(0, ACKNOWLEDGED_MAX)
        give_up = time.monotonic() + PLACE_SECONDS_MAX
        while writers[0].is_alive() and time.monotonic() < give_up and (point or self.ledger.acknowledged < enough):
            writers[0].join(0.002)
        died = not writers[0].is_alive() and point != ""
        self.killed_at[point if died else ""] += 1
        self.node.kill()
        for writer in writers:
            writer.end()
        compacting.join()
        self.compactions += compacting.done


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute; each of the fifty starts pays for a busy machine
@pytest.mark.parametrize("rounds", few_of([16, 50], 16))
def test_kills_in_a_row_lose_nothing_and_take_nothing_back(rounds: int) -> None:
    with testing.node(vbuckets=VBUCKETS, segment_mib=48) as node:
        loop = Loop(node, seed=20)
        points = [*EVERY_PLACE_TWICE[: rounds - 4], *[""] * max(4, rounds - len(EVERY_PLACE_TWICE))]
        loop.random.shuffle(points)
        node.kill()
        for point in points:
            loop.round(point)
        node.start()
        loop.ledger.settle(everything(node.url))
        loop.follower.stop()
        loop.follower.catch_up()
        there = {(change.vbucket, change.key): change for change in everything(node.url)}
        assert loop.follower.held == there
        read_back(node.url, there)
        # A test that kills nothing proves nothing: count.
        told, segments = loop.ledger, [int(path.stem.rpartition("-")[2], 16) for path in node.data.glob("*.log")]
        print(dict(loop.killed_at), loop.compactions, max(segments), told.acknowledged, told.observations)
        print(told.recovered, told.lost_unknown)
        assert loop.killed_at.total() >= rounds and loop.killed_at.total() - loop.killed_at[""] >= rounds // 3
        assert told.acknowledged > 100 * rounds
        assert loop.compactions > rounds // 5 and max(segments) > rounds
        assert told.recovered > 0 or rounds < 50
