"""A mirror of the second bucket: its table follows a bucket that is made anew, and a wrong row in it is found."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from harness.lake_faults import judge
from harness.lake_faults.judge import Document, Key
from harness.world.plan import WorldPlan, plan_of
from harness.world.run import run
from harness.world.steps import Fault, Step

ANEW = Step(2.0, Fault.ANEW, 0, 0, 0.0, 0.5)
STARTED = Step(0.2, Fault.MIRROR, 0, 2, 0.0, 0.5)
KILLED = Step(1.9, Fault.MIRROR, 0, 2, 0.5, 0.5)


def plan_with(*steps: Step) -> WorldPlan:
    return replace(plan_of(4, 150), steps=steps, has_orders=True)


def test_the_table_loses_what_the_life_before_held() -> None:
    outcome = run(plan_with(STARTED, KILLED, ANEW))
    assert not outcome.broken, outcome.broken
    assert outcome.counts["tables of the second bucket judged"] == 1
    assert outcome.counts["mirrors of the second bucket started"] == 2
    assert outcome.counts["rollbacks of the mirror of the second bucket"] > 0


def test_a_document_of_the_life_before_in_the_table_is_found() -> None:
    of_table = judge.of_table

    def with_a_row_too_many(*args: object) -> dict[Key, Document]:
        rows = of_table(*args)  # type: ignore[arg-type]
        return rows | {(0, b"stale"): Document(b"v", 1, 1, 1, 0, 0, 0, 1)}

    with mock.patch.object(judge, "of_table", with_a_row_too_many):
        outcome = run(plan_with(STARTED, ANEW))
    assert outcome.broken.startswith("lake: the table of orders: of ")
    assert "1 are only in the table (0:b'stale')" in outcome.broken
