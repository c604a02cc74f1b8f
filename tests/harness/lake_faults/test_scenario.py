"""A seed of each kind: whatever happens to nodes, mirrors and files, the table is what the bucket is."""

from __future__ import annotations

import pytest

from harness.lake_faults.scenario import PROFILES, PROFILES_OF_ICEBERG, profile_of, run
from harness.lake_faults.world import BOTH, ICEBERG
from tests.battery import few_of

NAMES = [each.name for each in PROFILES]
SHORT = (
    "mirrors that die",
    "replicas promoted, mirrors that die, purges",
    "two nodes: all",
    "everything",
)


@pytest.mark.parametrize("seed", few_of(range(len(PROFILES)), *map(NAMES.index, SHORT)), ids=NAMES)
def test_after_all_that_happened_the_table_is_what_the_bucket_is(seed: int) -> None:
    result = run(seed)
    assert result.problem == "", "\n".join([*result.lines, result.trace])
    assert result.steps >= 8 and result.lines


CASES = [(seed, form) for form in (ICEBERG, BOTH) for seed in range(len(PROFILES_OF_ICEBERG))]


@pytest.mark.parametrize(
    ("seed", "form"),
    few_of(CASES, (1, BOTH), (18, ICEBERG)),
    ids=lambda case: case if isinstance(case, str) else PROFILES_OF_ICEBERG[case].name,
)
def test_after_all_that_happened_readers_of_iceberg_see_what_the_bucket_is(seed: int, form: str) -> None:
    result = run(seed, form=form)
    assert result.problem == "", "\n".join([*result.lines, result.trace])


def test_kinds_take_turns() -> None:
    assert [profile_of(seed) for seed in range(2 * len(PROFILES))] == [*PROFILES, *PROFILES]
    assert [profile_of(seed, BOTH) for seed in range(len(PROFILES_OF_ICEBERG))] == [*PROFILES_OF_ICEBERG]


def test_what_goes_wrong_is_a_line_of_the_result_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.lake_faults.world.World.check", lambda self: 1 / 0)
    result = run(0)
    assert result.problem == "ZeroDivisionError: division by zero" and "check" in result.trace
