"""HOLD_CLOCK to all nodes of a map: what counts as a promise of all of them, with nodes that are a dictionary."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

from headwater.client.clocks import CONNECT_SECONDS, hold_clocks
from headwater.errors import ConnectionLost
from headwater.protocol.dcp.complete import ClocksHeld
from headwater.wire.admin import HoldClock, HoldClockResponse
from headwater.wire.header import Frame, response
from headwater.wire.status import Status

NOON = 1_700_000_000_000_000_000
Answer = HoldClockResponse | Status | ConnectionLost


def promise(cas: int = NOON, now: int = NOON, rev: int = 7, exceptions: list[tuple[int, int]] | None = None) -> Answer:
    return HoldClockResponse(held_cas=cas, now=now, epoch=1, revision=rev, exceptions=exceptions or [])


class Nodes:
    """The nodes of a map, with their answers; a newer map is found by looking around."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.map = SimpleNamespace(servers=tuple(answers), version=(1, 7))
        self.newer: SimpleNamespace | None = None
        self.greets = ""
        """The node whose connection brings the newer map."""
        self.wanted: list[int] = []
        self.details: dict[int, dict[str, str]] = {}
        self.cluster = self

    def deadline(self) -> float:
        return 1.0

    def clock(self) -> float:
        return 0.0

    def link(self, address: str, until: float) -> Generator[None, None, SimpleNamespace]:
        assert until == CONNECT_SECONDS
        yield
        if address == self.greets:
            self.map = self.newer or self.map
        answer = self.answers[address]
        if isinstance(answer, ConnectionLost):
            raise answer

        def call(request: Frame, deadline: float) -> Generator[None, None, Frame]:
            yield
            self.wanted.append(HoldClock.decode(request).wanted_cas)
            return answer.frame() if isinstance(answer, HoldClockResponse) else response(request, answer)

        return SimpleNamespace(call=call)

    def look_around(self) -> Generator[None, None, None]:
        yield
        self.map = self.newer or self.map

    def vbucket_stats(self, group: str) -> Generator[None, None, dict[int, dict[str, str]]]:
        yield
        return self.details


def held(nodes: Nodes, cas: int = NOON) -> ClocksHeld:
    steps: Generator[Any, Any, ClocksHeld] = hold_clocks(nodes, cas)  # type: ignore[arg-type, assignment]
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def test_the_promise_of_all_nodes_is_the_lowest_of_them() -> None:
    nodes = Nodes(a=promise(NOON, NOON + 9), b=promise(NOON - 5, NOON + 2))
    assert held(nodes) == ClocksHeld(NOON - 5, NOON + 2)
    assert nodes.wanted == [NOON, NOON]


def test_a_vbucket_that_is_excepted_is_complete_until_just_below_its_cas() -> None:
    nodes = Nodes(a=promise(exceptions=[(3, NOON - 7), (4, 0)]))
    assert held(nodes).exceptions == {3: NOON - 8, 4: 0}


def test_a_silent_node_is_a_problem_and_no_error() -> None:
    answer = held(Nodes(a=promise(), b=ConnectionLost("b", "refused")))
    assert (answer.cas, answer.now) == (0, 0) and answer.problem.startswith("b holds no clock: ")


def test_a_node_that_can_not_write_its_promise_is_a_problem_as_well() -> None:
    assert held(Nodes(a=Status.ETMPFAIL)).problem.startswith("a holds no clock: ")


def test_a_newer_map_with_another_node_makes_the_promises_none() -> None:
    """The node that joined was not asked, and may be an owner by now."""
    nodes = Nodes(a=promise(rev=8), b=promise())
    nodes.newer = SimpleNamespace(servers=("a", "b", "c"), version=(1, 8))
    answer = held(nodes)
    assert answer.cas == 0 and answer.now == NOON and "1.8 is new" in answer.problem


def test_a_node_of_a_map_that_a_connection_brought_meanwhile_was_not_asked_either() -> None:
    """The newer map is in force before the answers are compared with it, so it looks like the one that was gone by."""
    nodes = Nodes(a=promise(rev=8), b=promise(rev=8))
    nodes.newer, nodes.greets = SimpleNamespace(servers=("a", "b", "c"), version=(1, 8)), "b"
    answer = held(nodes)
    assert answer.cas == 0 and "1.8 is new" in answer.problem and len(nodes.wanted) == 2


def test_an_odd_statistic_is_a_problem_and_no_error() -> None:
    nodes = Nodes(a=Status.UNKNOWN_COMMAND)
    nodes.details = {0: {"max_cas": "much"}}
    assert "has an odd max_cas" in held(nodes).problem


def test_a_newer_map_of_the_same_nodes_leaves_the_promises_as_they_are() -> None:
    nodes = Nodes(a=promise(rev=8), b=promise())
    nodes.newer = SimpleNamespace(servers=("a", "b"), version=(1, 8))
    assert held(nodes) == ClocksHeld(NOON, NOON)


def test_servers_that_do_not_know_the_request_say_their_highest_cas() -> None:
    nodes = Nodes(a=promise(), b=Status.UNKNOWN_COMMAND)
    nodes.details = {0: {"max_cas": "5"}, 1: {"max_cas": "9", "num_items": "1"}}
    answer = held(nodes)
    assert (answer.exceptions, answer.is_promised, answer.problem) == ({0: 5, 1: 9}, False, "")


def test_servers_that_say_neither_leave_nothing_to_go_by() -> None:
    answer = held(Nodes(a=Status.UNKNOWN_COMMAND))
    assert answer.cas == 0 and answer.problem == "the servers promise no time, and do not say their highest CAS"
