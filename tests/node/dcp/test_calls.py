"""The calls of one client's connection: the slowest worker holds it back, and no call outlives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headwater.node.dcp.calls import REQUESTS_BYTES_MAX, DcpCalls
from headwater.wire.status import Status
from tests.node.support import FakeConnection


class PlayedCall:
    """A call whose worker reads when that is wanted."""

    def __init__(self, *streams: int) -> None:
        self.streams, self.waiting_bytes, self.flushes, self.is_closed = streams, 0, 0, False

    def flush(self) -> None:
        self.flushes += 1

    def close(self) -> None:
        self.is_closed = True


class Calls(DcpCalls[int, Any]):
    HELD_UP_BY = "the test"


def calls_of(*calls: PlayedCall) -> tuple[Calls, FakeConnection]:
    connection = FakeConnection()
    made = Calls(SimpleNamespace(connection=connection))  # type: ignore[arg-type]
    made._calls = dict(enumerate(calls))
    return made, connection


def test_no_more_is_read_of_the_client_while_one_worker_does_not_read() -> None:
    slow, quick = PlayedCall(), PlayedCall()
    calls, connection = calls_of(slow, quick)
    calls.flush()
    assert not connection.is_paused and (slow.flushes, quick.flushes) == (1, 1)
    slow.waiting_bytes = REQUESTS_BYTES_MAX + 1
    calls.flush()
    assert connection.is_paused
    calls.read_on()
    assert connection.is_paused
    slow.waiting_bytes = REQUESTS_BYTES_MAX
    calls.read_on()
    assert not connection.is_paused


def test_streams_of_all_workers_count_until_a_call_is_forgotten() -> None:
    here, there = PlayedCall(1, 2), PlayedCall(3)
    calls, _ = calls_of(here, there)
    assert calls.stream_count == 3
    calls._forget(here)
    assert (calls.stream_count, list(calls._calls.values())) == (1, [there])


def test_a_client_whom_one_worker_refuses_is_dropped_and_all_calls_are_hung_up_with_it() -> None:
    first, second = PlayedCall(), PlayedCall()
    calls, connection = calls_of(first, second)
    calls.refused(Status.EACCESS)
    assert connection.is_closed
    calls.close()
    assert first.is_closed and second.is_closed and calls.stream_count == 0
