"""The rules of one document: each is kept once, and broken once."""

from __future__ import annotations

import pytest

from harness.linearizability.judge import judge
from harness.linearizability.model import Model
from harness.linearizability.record import Fault, Kind, Level, Operation, Outcome
from tests.harness.linearizability.histories import did, failover, history, restart

STRICT, PLAIN = Model(clock_error_seconds=0.0), Model(plain_may_be_lost=True, clock_error_seconds=0.0)
EVENTS = dict[str, tuple[Operation | Fault, ...]]

EXPLAINED: EVENTS = {
    "nothing": (),
    "a set is read": (did(0, 1, Kind.SET, "a", shows_cas=7), did(2, 3, Kind.GET, shows="a", shows_cas=7)),
    "what is there": (
        did(0, 1, Kind.ADD, "a"),
        did(2, 3, Kind.ADD, "b", outcome=Outcome.EXISTS),
        did(4, 5, Kind.REPLACE, "c"),
        did(6, 7, Kind.DELETE),
        did(8, 9, Kind.REPLACE, "d", outcome=Outcome.MISSING),
        did(10, 11, Kind.APPEND, "d", outcome=Outcome.NOT_STORED),
    ),
    "a set with the document's CAS": (
        did(0, 1, Kind.SET, "a", shows_cas=7),
        did(2, 3, Kind.SET, "b", cas=7, shows_cas=8),
        did(4, 5, Kind.SET, "c", cas=7, outcome=Outcome.EXISTS),
        did(6, 7, Kind.DELETE, cas=8),
        did(8, 9, Kind.SET, "c", cas=8, outcome=Outcome.MISSING),
    ),
    "a counter": (
        did(0, 1, Kind.INCREMENT, delta=2, outcome=Outcome.MISSING),
        did(2, 3, Kind.INCREMENT, delta=2, initial=5, shows="5"),
        did(4, 5, Kind.INCREMENT, delta=2, shows="7"),
        did(6, 7, Kind.DECREMENT, delta=9, shows="0"),
        did(8, 9, Kind.APPEND, "x"),
        did(10, 11, Kind.INCREMENT, delta=2, outcome=Outcome.NOT_A_NUMBER),
    ),
    "a counter that wraps": (
        did(0, 1, Kind.SET, str(2**64 - 1)),
        did(2, 3, Kind.INCREMENT, delta=2, shows="1"),
    ),
    "a lock": (
        did(0, 1, Kind.SET, "a", shows_cas=7),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=30),
        did(4, 5, Kind.SET, "b", outcome=Outcome.LOCKED),
        did(4, 5, Kind.GET, shows="a", is_locked=True),
        did(6, 7, Kind.UNLOCK, cas=8, outcome=Outcome.LOCKED),
        did(8, 9, Kind.SET, "b", cas=9, shows_cas=10),
        did(10, 11, Kind.UNLOCK, cas=9, outcome=Outcome.NOT_LOCKED),
    ),
    "a lock gives the CAS back": (
        did(0, 1, Kind.SET, "a", shows_cas=7),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=30),
        did(4, 5, Kind.UNLOCK, cas=9),
        did(6, 7, Kind.GET, shows="a", shows_cas=7),
    ),
    "a lock that is over": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=5),
        did(6, 6.5, Kind.SET, "b", outcome=Outcome.LOCKED),
        did(7.5, 8.5, Kind.SET, "b"),
    ),
    "a lock that a restart forgot": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=30),
        restart(3.5, 4),
        did(5, 6, Kind.SET, "b"),
    ),
    "a durable write that was accepted while a lock stood": (
        did(0, 1, Kind.SET, "a", shows_cas=7),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=5),
        did(7, 12, Kind.SET, "b", cas=9, level=Level.MAJORITY, client=2),
        did(9, 10, Kind.GET, shows="a", shows_cas=7),
        did(13, 14, Kind.GET, shows="b"),
    ),
    "a durable write that was accepted before a restart": (
        did(0, 1, Kind.SET, "a", shows_cas=7),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=30),
        did(4, None, Kind.SET, "b", cas=9, level=Level.MAJORITY, client=2),
        restart(5, 6),
        did(7, 8, Kind.GET, shows="a", shows_cas=7),
        did(9, 10, Kind.GET, shows="b"),
    ),
    "an expiry": (
        did(0, 1, Kind.SET, "a", expiry=1_800_000_005),
        did(4, 5.5, Kind.GET, shows="a"),
        did(4.5, 6, Kind.GET, outcome=Outcome.MISSING),
    ),
    "a touch": (
        did(0, 1, Kind.SET, "a", expiry=1_800_000_005, shows_cas=7),
        did(1, 2, Kind.TOUCH, expiry=1_800_000_020, shows_cas=8),
        did(10, 11, Kind.GET_AND_TOUCH, expiry=1_800_000_020, shows="a", shows_cas=8),
        did(21, 22, Kind.GET, outcome=Outcome.MISSING),
    ),
    "two at the same time, either way": (
        did(0, 5, Kind.SET, "a"),
        did(1, 6, Kind.SET, "b", client=2),
        did(7, 8, Kind.GET, shows="a"),
    ),
    "a maybe that happened late": (
        did(0, None, Kind.SET, "a"),
        did(1, 2, Kind.SET, "b"),
        did(3, 4, Kind.GET, shows="b"),
        did(5, 6, Kind.GET, shows="a"),
    ),
    "a maybe that never happened": (
        did(0, None, Kind.DELETE),
        did(1, 2, Kind.SET, "b"),
        did(3, 4, Kind.GET, shows="b"),
    ),
    "a maybe whose CAS is read": (
        did(0, None, Kind.SET, "a"),
        did(1, 2, Kind.GET, shows="a", shows_cas=4),
        did(3, 4, Kind.SET, "b", cas=4),
    ),
    "what was refused did not happen": (
        did(0, 1, Kind.SET, "a", outcome=Outcome.REFUSED),
        did(2, 3, Kind.GET, outcome=Outcome.MISSING),
    ),
}

UNEXPLAINED: EVENTS = {
    "a read of what nobody wrote": (did(0, 1, Kind.GET, shows="a"),),
    "a write that is gone": (did(0, 1, Kind.SET, "a"), did(2, 3, Kind.GET, outcome=Outcome.MISSING)),
    "a stale read": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.SET, "b"),
        did(4, 5, Kind.GET, shows="a"),
    ),
    "two readers who see two orders": (
        did(0, 1, Kind.SET, "o"),
        did(2, 9, Kind.SET, "a"),
        did(3, 4, Kind.GET, shows="a", client=2),
        did(5, 6, Kind.GET, shows="o", client=3),
    ),
    "a lost update": (
        did(0, 1, Kind.SET, "a", shows_cas=7),
        did(2, 3, Kind.SET, "b", cas=7, shows_cas=8),
        did(2, 3, Kind.SET, "c", cas=7, shows_cas=9, client=2),
    ),
    "two who add": (did(0, 9, Kind.ADD, "a"), did(0, 9, Kind.ADD, "b", client=2)),
    "a counter that counts once for two": (
        did(0, 1, Kind.INCREMENT, delta=1, initial=0, shows="0"),
        did(2, 3, Kind.INCREMENT, delta=1, shows="1"),
        did(2, 3, Kind.INCREMENT, delta=1, shows="1", client=2),
    ),
    "a CAS that is another document's": (
        did(0, 1, Kind.SET, "a", shows_cas=7),
        did(2, 3, Kind.GET, shows="a", shows_cas=8),
    ),
    "two who hold a lock": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=30),
        did(4, 5, Kind.GET_AND_LOCK, shows="a", shows_cas=10, seconds=30, client=2),
    ),
    "a lock that keeps nobody out": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=5),
        did(4, 5, Kind.SET, "b"),
    ),
    "a plain write with the token of a lock that is over": (
        did(0, 1, Kind.SET, "a", shows_cas=7),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=5),
        did(9, 10, Kind.SET, "b", cas=9, client=2),
    ),
    "a durable write that was asked when the lock was over": (
        did(0, 1, Kind.SET, "a", shows_cas=7),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=5),
        did(9, 10, Kind.SET, "b", cas=9, level=Level.MAJORITY, client=2),
    ),
    "a lock that is never over": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=5),
        did(9, 10, Kind.SET, "b", outcome=Outcome.LOCKED),
    ),
    "an unlock that locks the CAS away": (
        did(0, 1, Kind.SET, "a", shows_cas=7),
        did(2, 3, Kind.GET_AND_LOCK, shows="a", shows_cas=9, seconds=30),
        did(4, 5, Kind.UNLOCK, cas=9),
        did(6, 7, Kind.GET, shows="a", shows_cas=9),
    ),
    "a document that expires early": (
        did(0, 1, Kind.SET, "a", expiry=1_800_000_005),
        did(3, 4, Kind.GET, outcome=Outcome.MISSING),
    ),
    "a document that does not expire": (
        did(0, 1, Kind.SET, "a", expiry=1_800_000_005),
        did(6, 7, Kind.GET, shows="a"),
    ),
    "an expired document that comes back": (
        did(0, 1, Kind.SET, "a", expiry=1_800_000_005),
        did(4, 6, Kind.GET, outcome=Outcome.MISSING),
        did(6.5, 7, Kind.GET, shows="a"),
    ),
    "a document that expires for the sake of who had no answer": (
        did(0, 1, Kind.SET, "a", expiry=1_800_000_020, shows_cas=7),
        did(2, None, Kind.SET, "b", cas=5, client=2),
        did(3, 4, Kind.ADD, "c"),
    ),
    "a touch that keeps the old time": (
        did(0, 1, Kind.SET, "a", expiry=1_800_000_005),
        did(1, 2, Kind.TOUCH, expiry=1_800_000_020),
        did(6, 7, Kind.GET, outcome=Outcome.MISSING),
    ),
    "a maybe that happened twice": (
        did(0, None, Kind.SET, "a"),
        did(1, 2, Kind.GET, shows="a"),
        did(3, 4, Kind.SET, "b"),
        did(5, 6, Kind.GET, shows="a"),
    ),
    "a maybe before it was asked": (
        did(0, 1, Kind.GET, shows="a"),
        did(2, None, Kind.SET, "a"),
    ),
    "what was refused and happened": (
        did(0, 1, Kind.SET, "a", outcome=Outcome.REFUSED),
        did(2, 3, Kind.GET, shows="a"),
    ),
}

LOST: EVENTS = {
    "the newest": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.SET, "b"),
        failover(4, 5),
        did(6, 7, Kind.GET, shows="a"),
    ),
    "all of it": (
        did(0, 1, Kind.SET, "a"),
        failover(2, 3),
        did(4, 5, Kind.GET, outcome=Outcome.MISSING),
    ),
    "a deletion": (
        did(0, 1, Kind.SET, "a", level=Level.MAJORITY),
        did(2, 3, Kind.DELETE),
        failover(4, 5),
        did(6, 7, Kind.GET, shows="a"),
    ),
    "an unanswered one that was overwritten": (
        did(0, None, Kind.SET, "a"),
        did(2, 3, Kind.SET, "b"),
        failover(4, 5),
        did(6, 7, Kind.GET, shows="a"),
    ),
}

NOT_LOST: EVENTS = {
    "a durable one": (
        did(0, 1, Kind.SET, "a", level=Level.MAJORITY),
        failover(2, 3),
        did(4, 5, Kind.GET, outcome=Outcome.MISSING),
    ),
    "a plain one before a durable one": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.SET, "b", level=Level.PERSIST_TO_MAJORITY),
        failover(4, 5),
        did(6, 7, Kind.GET, shows="a"),
    ),
    "without a failover": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.SET, "b"),
        restart(4, 5),
        did(6, 7, Kind.GET, shows="a"),
    ),
    "before the failover": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.SET, "b"),
        did(4, 5, Kind.GET, shows="a"),
        failover(6, 7),
    ),
    "and then back": (
        did(0, 1, Kind.SET, "a"),
        did(2, 3, Kind.SET, "b"),
        failover(4, 5),
        did(6, 7, Kind.GET, shows="a"),
        failover(8, 9),
        did(10, 11, Kind.GET, shows="b"),
    ),
}


@pytest.mark.parametrize("model", [STRICT, PLAIN], ids=["strict", "plain"])
@pytest.mark.parametrize("events", EXPLAINED.values(), ids=EXPLAINED)
def test_what_a_node_may_answer_is_explained(events: tuple[Operation | Fault, ...], model: Model) -> None:
    assert not any(verdict.is_violation for verdict in judge(history(*events), model))


@pytest.mark.parametrize("model", [STRICT, PLAIN], ids=["strict", "plain"])
@pytest.mark.parametrize("events", UNEXPLAINED.values(), ids=UNEXPLAINED)
def test_what_no_node_may_answer_is_not(events: tuple[Operation | Fault, ...], model: Model) -> None:
    assert [verdict.is_violation for verdict in judge(history(*events), model)] == [True]


@pytest.mark.parametrize("events", LOST.values(), ids=LOST)
def test_a_failover_may_lose_plain_writes(events: tuple[Operation | Fault, ...]) -> None:
    assert [verdict.is_violation for verdict in judge(history(*events), PLAIN)] == [False]
    assert [verdict.is_violation for verdict in judge(history(*events), STRICT)] == [
        events is not LOST["an unanswered one that was overwritten"]
    ]


@pytest.mark.parametrize("events", NOT_LOST.values(), ids=NOT_LOST)
def test_a_failover_loses_nothing_else(events: tuple[Operation | Fault, ...]) -> None:
    assert [verdict.is_violation for verdict in judge(history(*events), PLAIN)] == [True]


def test_clocks_that_differ_leave_open_whether_a_document_has_expired() -> None:
    written = did(0, 1, Kind.SET, "a", expiry=1_800_000_005)
    early = history(written, did(3, 4, Kind.GET, outcome=Outcome.MISSING))
    late = history(written, did(6, 7, Kind.GET, shows="a"))
    for part in (early, late):
        assert [each.is_violation for each in judge(part, Model(clock_error_seconds=2.0))] == [False]
        assert [each.is_violation for each in judge(part, Model(clock_error_seconds=0.5))] == [True]
