"""The battery in short, and that it tells when a bound is broken."""

from __future__ import annotations

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
    report.add(target(), Row("slow", turn_seconds=0.07))  # type: ignore[arg-type]
    report.add(target(), Row("fat", peak_bytes=101))  # type: ignore[arg-type]
    report.add(target(), Row("deaf", unserved=2))  # type: ignore[arg-type]
    report.add(target(running=False), Row("deadly"))  # type: ignore[arg-type]
    assert [each.partition(":")[0] for each in report.complaints] == ["slow", "fat", "deaf", "deadly"]
    *rows, worst = report.table()
    assert len(rows) == 6
    assert worst.startswith("the worst of each") and worst.split()[4:5] == ["70.0"]


def test_turns_are_not_judged_where_the_machine_has_other_work() -> None:
    report = Report(judges_turns=False)
    report.add(target(), Row("slow", turn_seconds=0.07, unserved=1))  # type: ignore[arg-type]
    assert report.complaints == ["slow: the bystander was not answered 1 times"]


@pytest.mark.timeout(900)  # half a minute on a machine that has nothing else to do
@pytest.mark.parametrize(("only", "least"), few_of([(FEW, 10), (MORE, 20)], (FEW, 10)), ids=["few", "more"])
def test_a_few_guests_of_each_kind_break_no_bound(only: str, least: int, tmp_path: Path) -> None:
    with two_nodes(tmp_path, documents=10_000) as (everybody, users):
        report = Battery(everybody, users, seconds=inf, scale=0.05, only=only, judges_turns=False).run()
    assert report.complaints == []
    assert len(report.rows) > least


def test_what_was_not_tried_in_time_is_a_complaint_and_the_status_says_so(tmp_path: Path) -> None:
    assert main(["--seconds", "0", "--scale", "0.01", "--only", "^NOOP", "--quiet", "--documents", "1000"]) == 1
