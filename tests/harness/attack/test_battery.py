"""The battery in short, and that it tells when a bound is broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.attack.__main__ import main
from harness.attack.battery import TURN_SECONDS_MAX, Battery, Report, two_nodes
from harness.attack.witness import Row
from tests.battery import few_of

FEW = r"^(SET|STAT|DCP_OPEN|/pools)( |$)|busy|of many$|filters|tls garb|text lines"
MORE = FEW + r"|^(HELLO|TAP_CONNECT)( |$)|dcp open storm|grow|tls rec|strange"


def target(*, running: bool = True, bound: int = 100) -> SimpleNamespace:
    return SimpleNamespace(node=SimpleNamespace(is_running=running), bound_bytes=bound)


def test_each_bound_that_is_broken_is_a_complaint() -> None:
    report = Report()
    report.add(target(), Row("good", turn_seconds=TURN_SECONDS_MAX, peak_bytes=100))  # type: ignore[arg-type]
    assert report.complaints == []
    slow = Row("slow", turn_seconds=0.07)
    report.add(target(), slow)  # type: ignore[arg-type]
    report.judge_turns(slow, [])
    report.add(target(), Row("fat", peak_bytes=101))  # type: ignore[arg-type]
    report.add(target(), Row("deaf", unserved=2))  # type: ignore[arg-type]
    report.add(target(running=False), Row("deadly"))  # type: ignore[arg-type]
    assert [complaint.partition(":")[0] for complaint in report.complaints] == ["slow", "fat", "deaf", "deadly"]
    *rows, worst = report.table()
    assert len(rows) == 6
    assert worst.startswith("the worst of each") and worst.split()[4:5] == ["70.0"]


def test_turns_are_not_judged_where_the_machine_has_other_work() -> None:
    report = Report(judges_turns=False)
    slow = Row("slow", turn_seconds=0.07, unserved=1)
    report.add(target(), slow)  # type: ignore[arg-type]
    assert not report.is_long(slow)
    assert report.complaints == ["slow: the bystander was not answered 1 times"]


def turns_of(*seconds: float) -> tuple[Battery, list[str]]:
    """A battery, each measurement of whose attack has the next of these turns; and what it told."""
    rows, told = iter(seconds), list[str]()

    @contextmanager
    def measure(name: str) -> Iterator[Row]:
        yield Row(name, turn_seconds=next(rows))

    watched = SimpleNamespace(
        node=SimpleNamespace(is_running=True, log=""), bound_bytes=1, witness=SimpleNamespace(measure=measure)
    )
    battery = Battery(watched, watched, seconds=inf, tell=told.append)  # type: ignore[arg-type]
    battery.measured(watched, "attack", lambda: None)  # type: ignore[arg-type]
    return battery, told


def test_an_attack_whose_long_turn_does_not_come_again_is_remarked() -> None:
    battery, told = turns_of(0.072, 0.017, 0.018, 0.019)
    assert (battery.report.complaints, battery.report.remarks) == (
        [],
        ["attack: a turn of 72 ms, then 17, then 18, then 19"],
    )
    assert len(told) == 4
    assert battery.report.rows["attack"].turn_seconds == 0.072


def test_an_attack_whose_long_turn_comes_again_once_is_a_complaint() -> None:
    battery, _ = turns_of(0.072, 0.017, 0.051, 0.019)
    assert battery.report.complaints == ["attack: a turn of 72 ms, then 17, then 51, then 19"]


def test_an_attack_without_a_long_turn_is_run_once() -> None:
    battery, told = turns_of(0.050)
    assert len(told) == 1
    assert battery.report.complaints == []


@pytest.mark.timeout(900)  # half a minute on a machine that has nothing else to do
@pytest.mark.parametrize(("only", "least"), few_of([(FEW, 10), (MORE, 20)], (FEW, 10)), ids=["few", "more"])
def test_a_few_guests_of_each_kind_break_no_bound(only: str, least: int, tmp_path: Path) -> None:
    with two_nodes(tmp_path, documents=10_000) as (everybody, users):
        report = Battery(everybody, users, seconds=inf, scale=0.05, only=only, judges_turns=False).run()
    assert report.complaints == []
    assert len(report.rows) > least


def test_what_was_not_tried_in_time_is_a_complaint_and_the_status_says_so(tmp_path: Path) -> None:
    assert main(["--seconds", "0", "--scale", "0.01", "--only", "^NOOP", "--quiet", "--documents", "1000"]) == 1
