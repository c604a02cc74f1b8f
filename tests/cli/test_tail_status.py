"""`tail --status`: until when everything is printed, and what holds that up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from headwater import testing
from headwater.cli.tail_status import TailStatus
from headwater.errors import ConnectionLost
from headwater.protocol.dcp.complete import ClocksHeld
from headwater.protocol.dcp.position import Position

from .support import Run

Told = Callable[[], list[str]]
NOON = 1_700_000_000_123_000_000


class Bucket:
    """A client and its drain: two vbuckets with one change each, of which none is printed yet."""

    def __init__(self) -> None:
        self.map = SimpleNamespace(vbuckets=2)
        self.seconds, self.highs = 0.0, {0: 1, 1: 1}
        self.positions = {vb: Position.beginning(vb) for vb in range(2)}
        self.away: ConnectionLost | None = None
        self.looks = 0
        self.highest: dict[int, int] = {}

    def hold_clocks(self, cas: int = 0) -> ClocksHeld:
        self.looks += 1
        if self.highest:
            return ClocksHeld(1 << 63, exceptions=self.highest, is_promised=False)
        return ClocksHeld(min(cas, NOON), NOON)

    def seqnos(self, which: str | None = None) -> dict[int, int]:
        if self.away is not None:
            raise self.away
        return self.highs

    def print_all(self) -> None:
        self.positions = {vb: Position(vb, 1, 1, 1, 1) for vb in range(2)}


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def told(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> Told:
    status = TailStatus(bucket, bucket, None, chooses=True, clock=lambda: bucket.seconds)  # type: ignore[arg-type]

    def lines() -> list[str]:
        status.tell()
        return [line.removeprefix("headwater: ") for line in capsys.readouterr().err.splitlines()]

    return lines


def test_the_time_is_known_when_what_there_was_is_printed(bucket: Bucket, told: Told) -> None:
    assert told() == ["it is not known until when everything is printed"]
    bucket.print_all()
    bucket.seconds += 1
    assert told() == ["everything is printed until 2023-11-14 22:13:20.123 UTC"]


def test_it_is_said_once_a_second(bucket: Bucket, told: Told) -> None:
    assert len(told()) == 1
    bucket.seconds += 0.9
    assert told() == []


def test_a_vbucket_without_an_owner_is_named(bucket: Bucket, told: Told) -> None:
    bucket.print_all()
    told()
    bucket.seconds += 1
    bucket.highs = {0: 1}
    (line,) = told()
    assert line == "everything is printed until 2023-11-14 22:13:20.123 UTC; it stands there: vbucket 1 has no owner"


def test_nodes_that_do_not_answer_do_not_end_the_command(bucket: Bucket, told: Told) -> None:
    bucket.away = ConnectionLost("n1", "refused")
    (line,) = told()
    assert line.startswith("it is not known until when everything is printed; it stands there: n1")


def test_servers_that_promise_nothing_are_looked_at_every_ten_seconds(bucket: Bucket, told: Told) -> None:
    """Each look reads the statistics of all vbuckets."""
    bucket.highest = {0: NOON, 1: NOON}
    bucket.print_all()
    for _ in range(10):
        told()
        bucket.seconds += 1
    assert bucket.looks == 1
    told()
    assert bucket.looks == 2


def test_tap_has_no_status(run: Run) -> None:
    status, _, problem = run("tail", "--protocol", "tap", "--status")
    assert status == 2 and "no --status" in problem


def test_tail_says_its_status_of_a_node(run: Run) -> None:
    with testing.node(vbuckets=4) as node, node.client() as client:
        client.set("k", "v")
        status, printed, said = run("tail", "--once", "--status", "--node", node.url)
    assert status == 0 and " k " in printed
    assert "until when everything is printed" in said or "everything is printed until" in said
