"""The frame of operators' work."""

import pytest

from headwater.cluster.work import WORKS, Compact, DeclaredWork, DropBucket, FailOver, Flush, SpreadVbuckets, WorkPlan
from headwater.cluster.work.declared import WorkRun


def test_two_plans_that_differ_have_other_digests() -> None:
    first, other = WorkPlan(rows=(("a", "1"),)), WorkPlan(rows=(("a", "2"),))
    assert first.digest == WorkPlan(rows=(("a", "1"),)).digest != other.digest
    assert first.digest != WorkPlan(rows=(("a", "1"),), ids={"shop.a": "8"}).digest
    assert first.digest != WorkPlan(rows=(("a", "1"),), bucket="b", uuids=frozenset("c")).digest


def test_a_plan_is_told_apart_by_what_is_shown_and_not_by_its_json() -> None:
    assert WorkPlan(("a",), {"map": "1:2"}).digest == WorkPlan(("a",), {"map": "1:3"}).digest


def test_a_step_is_noted_and_reported() -> None:
    heard = []
    run = WorkRun(report=lambda each: heard.append((each.now, each.done, each.total)))
    run.step("moving", 1, 2)
    assert heard == [(run.now, run.done, run.total)] == [("moving", 1, 2)]
    assert not run.stop()


@pytest.mark.parametrize("kind", WORKS.values(), ids=list(WORKS))
def test_each_kind_says_what_it_does_and_is_not_begun_by_chance(kind: type[DeclaredWork]) -> None:
    assert kind.about().endswith((".", ":"))
    assert kind.HEADING
    assert not kind.HARMS or kind is FailOver or kind.REMARKS


def test_what_hurts_is_confirmed_by_its_name_and_reaches_only_the_bucket_that_was_shown() -> None:
    assert (Flush().confirmation("orders"), Flush().harmed("orders")) == ("orders", "orders")
    assert (DropBucket("carts").confirmation("orders"), DropBucket("carts").harmed("orders")) == ("carts", "carts")
    assert (Compact(3, 1).confirmation("orders"), Compact(3, 1).harmed("orders")) == ("yes", "orders")
    assert (SpreadVbuckets().confirmation("orders"), SpreadVbuckets().harmed("orders")) == ("yes", "")
