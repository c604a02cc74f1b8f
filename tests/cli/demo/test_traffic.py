"""Rounds of changes, and the memory of what must be left."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.demo.traffic import Traffic

DOCUMENTS = {f"k{number}".encode(): b'{"arr_delay":0}' for number in range(60)}


def test_a_round_touches_no_key_twice() -> None:
    plan = Traffic(DOCUMENTS, Random(1)).plan(0.2)
    assert len(plan.keys()) == len(plan.stored) + len(plan.deleted) + len(plan.expiring)
    assert (len(plan.stored), len(plan.deleted), len(plan.expiring)) == (12, 4, 2)


def test_nothing_is_expected_of_a_round_before_it_is_acknowledged() -> None:
    traffic = Traffic(DOCUMENTS, Random(1))
    plan = traffic.plan(0.2)
    assert traffic.expected == DOCUMENTS
    traffic.acknowledged(plan)
    assert not traffic.expected.keys() & {*plan.deleted, *plan.expiring}
    assert all(traffic.expected[key] == value for key, value in plan.stored.items())


def test_half_of_what_is_gone_comes_back_in_the_next_round() -> None:
    traffic = Traffic(DOCUMENTS, Random(1))
    gone = traffic.plan(0.2)
    traffic.acknowledged(gone)
    assert len({*gone.deleted, *gone.expiring} & traffic.plan(0.2).stored.keys()) == 3


@given(seed=st.integers(0, 2**32), shares=st.lists(st.floats(0.01, 0.9), max_size=6))
def test_the_rounds_performed_on_a_plain_dict_give_what_is_expected(seed: int, shares: list[float]) -> None:
    traffic, kept = Traffic(DOCUMENTS, Random(seed)), dict(DOCUMENTS)
    for share in shares:
        plan = traffic.plan(share)
        kept |= plan.stored
        for key in (*plan.deleted, *plan.expiring):
            del kept[key]
        traffic.acknowledged(plan)
    assert traffic.expected == kept
