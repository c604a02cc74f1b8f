"""A node that streams vbuckets which the map gives to another is left some time, then dropped.

Time and nodes are the test's.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.client.mapwatch import watch
from headwater.errors import ConnectionLost, HeadwaterError, NotMyVbucket
from headwater.testing.clock import FakeClock
from headwater.transport.waiting import Steps

OLD, NEW = ("127.0.0.1", 1), ("127.0.0.1", 2)
POLL_SECONDS = 5.0


class Cluster:
    """Two nodes, a map that a test changes, and a note of who was asked for it."""

    def __init__(self, *nodes: tuple[str, int]) -> None:
        self.clock = FakeClock()
        self.owners = {0: OLD, 1: OLD}
        self.asked: list[tuple[str, int]] = []
        self.is_silent = False
        self.map = SimpleNamespace(servers=nodes or (OLD, NEW), owner=self.owners.get)

    def ask_map_of(self, address: tuple[str, int]) -> Steps[None]:
        self.asked.append(address)
        if self.is_silent:
            raise ConnectionLost("peer", "gone")
        yield from ()

    def misplaced(self, vbucket: int, what: str, address: tuple[str, int]) -> NotMyVbucket:
        return NotMyVbucket(f"{what}: vbucket {vbucket}")


class Watched:
    def __init__(self, cluster: Cluster, poll_seconds: float | None = POLL_SECONDS) -> None:
        self.cluster = cluster
        self.dropped: list[tuple[tuple[str, int], str]] = []
        self.workers: dict[Any, Any] = {OLD: SimpleNamespace(vbuckets={0: None, 1: None})}
        self.steps = watch(cluster, poll_seconds, self.workers, self.drop)  # type: ignore[arg-type]
        self.asked = next(self.steps)

    def drop(self, address: Any, error: HeadwaterError) -> None:
        self.dropped.append((address, str(error.args[0])))

    def poll(self) -> None:
        """Let one interval pass."""
        self.cluster.clock.advance(POLL_SECONDS)
        next(self.steps)


@pytest.fixture
def watched() -> Watched:
    return Watched(Cluster())


def test_the_nodes_are_asked_in_turn_once_an_interval(watched: Watched) -> None:
    for _ in range(3):
        watched.poll()
    assert watched.cluster.asked == [NEW, OLD, NEW]
    next(watched.steps)  # woken before its time
    assert len(watched.cluster.asked) == 3


def test_a_node_that_goes_on_streaming_what_is_anothers_is_dropped_at_the_second_look(watched: Watched) -> None:
    watched.cluster.owners[1] = NEW
    watched.poll()
    assert watched.dropped == []
    watched.poll()
    assert watched.dropped == [(OLD, "stream: vbucket 1")]


def test_a_stream_that_ended_by_itself_meanwhile_is_nobodys_fault(watched: Watched) -> None:
    watched.cluster.owners[1] = NEW
    watched.poll()
    del watched.workers[OLD].vbuckets[1]
    watched.poll()
    assert watched.dropped == []


def test_a_vbucket_without_an_owner_is_left_where_it_is(watched: Watched) -> None:
    del watched.cluster.owners[0]
    for _ in range(3):
        watched.poll()
    assert watched.dropped == []


def test_a_node_that_does_not_answer_is_passed_over(watched: Watched) -> None:
    watched.cluster.is_silent = True
    watched.poll()
    watched.cluster.is_silent = False
    watched.poll()
    assert watched.cluster.asked == [NEW, OLD]


def test_one_node_alone_is_not_asked() -> None:
    watched = Watched(Cluster(OLD))
    watched.cluster.owners[0] = NEW
    for _ in range(3):
        watched.poll()
    assert (watched.cluster.asked, watched.dropped) == ([], [])


def test_without_an_interval_nobody_is_ever_asked() -> None:
    watched = Watched(Cluster(), None)
    watched.poll()
    assert (watched.asked.deadline, watched.cluster.asked) == (None, [])
