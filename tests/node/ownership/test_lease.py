"""The lease of a node: who gets it, who is refused, and whose connections end."""

from __future__ import annotations

import pytest

from headwater.node.ownership.lease import LEASE_SECONDS, Lease, LeaseRequest, read_asked
from headwater.node.refused import CommandRefused
from headwater.wire.status import Status


class Line:
    """A connection, which may be dropped."""

    def __init__(self) -> None:
        self.is_closed = False
        self.cause = ""

    def drop(self, cause: str, *, fault: bool) -> None:
        assert not fault
        self.is_closed, self.cause = True, cause


class World:
    """A lease, the time, how often the operator changed, and how often one was done."""

    def __init__(self) -> None:
        self.now, self.changes, self.ends = 100.0, 0, 0
        self.lease = Lease(lambda: self.now, self._changed, self._ended)

    def _changed(self) -> None:
        self.changes += 1

    def _ended(self) -> None:
        self.ends += 1

    def release(self, line: Line, *, over: bool) -> None:
        asked = LeaseRequest("rebalance", "the rebalance", "its connection", release=True, over=over)
        self.lease.ask(line, asked)  # type: ignore[arg-type]

    def ask(self, line: Line, run: str, name: str = "its connection", *, again: bool = False) -> None:
        self.lease.ask(line, LeaseRequest(run, f"the {run}", name, again))  # type: ignore[arg-type]

    def refusal(self, line: Line, run: str, *, again: bool = False) -> str:
        with pytest.raises(CommandRefused) as refused:
            self.ask(line, run, again=again)
        assert refused.value.status == Status.EBUSY
        return refused.value.context


def test_a_run_is_over_when_it_says_so_though_another_connection_of_it_is_about_to_close() -> None:
    world, line, other = World(), Line(), Line()
    world.ask(line, "rebalance")
    world.ask(other, "rebalance", "another one")
    world.release(Line(), over=True)
    assert world.ends == 0
    world.release(line, over=True)
    assert (world.ends, world.lease.is_held) == (1, True)
    world.ask(line, "rebalance")
    world.release(line, over=False)
    assert world.ends == 1


def test_one_run_has_it_by_as_many_connections_as_it_likes_and_any_other_is_told_who() -> None:
    world, line = World(), Line()
    world.ask(line, "rebalance")
    world.ask(Line(), "rebalance", "another one")
    assert world.refusal(Line(), "failover") == "the rebalance is at work on this node"
    assert world.lease.is_held and world.changes == 1


def test_it_ends_with_the_last_connection_or_when_that_is_let_go() -> None:
    world, one, two = World(), Line(), Line()
    world.ask(one, "rebalance", "one")
    world.ask(two, "rebalance", "two")
    one.drop("hung up", fault=False)
    assert world.lease.is_held
    world.lease.ask(two, LeaseRequest("rebalance", "the rebalance", "two", release=True))  # type: ignore[arg-type]
    assert not world.lease.is_held
    world.ask(Line(), "failover")
    assert world.lease.by == "the failover" and world.changes == 2


def test_who_releases_a_place_that_is_not_his_changes_nothing() -> None:
    world, line = World(), Line()
    world.ask(line, "rebalance", "one")
    world.lease.ask(Line(), LeaseRequest("failover", "the failover", "one", release=True))  # type: ignore[arg-type]
    assert world.lease.is_held


def test_a_holder_that_says_nothing_is_closed_before_another_one_begins() -> None:
    world, hung, other = World(), Line(), Line()
    world.ask(hung, "rebalance")
    world.now += LEASE_SECONDS - 1
    world.refusal(other, "failover")
    world.ask(hung, "rebalance")  # it lives
    world.now += LEASE_SECONDS - 1
    world.refusal(other, "failover")
    world.now += 1
    world.ask(other, "failover")
    assert hung.is_closed and "said nothing for 20 s" in hung.cause and world.lease.by == "the failover"


def test_a_run_that_comes_back_is_refused_if_another_one_was_there_since() -> None:
    world, first, second = World(), Line(), Line()
    world.ask(first, "rebalance")
    first.drop("cut off", fault=False)
    world.ask(first := Line(), "rebalance", again=True)
    first.drop("cut off", fault=False)
    world.ask(second, "failover")
    second.drop("done", fault=False)
    assert world.refusal(Line(), "rebalance", again=True) == "the failover has been at work on this node meanwhile"
    assert world.changes == 2


def test_a_node_that_started_anew_knows_of_nobody_and_lets_a_run_go_on() -> None:
    world = World()
    world.ask(Line(), "rebalance", again=True)
    assert world.lease.run == "rebalance"


def test_what_a_run_asked_by_its_older_connection_does_not_come_after_what_it_asks_by_the_new_one() -> None:
    world, older, newer = World(), Line(), Line()
    world.ask(older, "rebalance")
    world.ask(newer, "rebalance", again=True)
    assert older.is_closed and not newer.is_closed and world.lease.is_held


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"run": "a", "by": "b"},
        {"run": "", "by": "b", "connection": "c"},
        {"run": "a", "by": "b" * 201, "connection": "c"},
        {"run": 1, "by": "b", "connection": "c"},
        {"run": "a", "by": "b", "connection": "c", "again": 1},
        {"run": "a", "by": "b", "connection": "c", "release": "yes"},
    ],
    ids=str,
)
def test_what_is_no_request_is_refused(found: dict[str, object]) -> None:
    with pytest.raises(CommandRefused) as refused:
        read_asked(found)
    assert refused.value.status == Status.EINVAL


def test_a_request_is_read() -> None:
    found = {"run": "a", "by": "b", "connection": "c", "again": True}
    assert read_asked(found) == LeaseRequest("a", "b", "c", again=True)
