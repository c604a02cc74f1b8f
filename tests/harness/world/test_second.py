"""Both judges of what the clients of many worlds saw."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.linearizability.record import History, Kind
from harness.linearizability.second import NotBuilt, Word, program
from harness.world.plan import plan_of
from harness.world.run import WorldOutcome
from harness.world.second import AT_ONCE, BothJudges
from harness.world.shrinking import run_seed
from tests.harness.linearizability.histories import KEY, did, history

SEEN = history(did(0, 1, Kind.SET, "a"), did(2, 3, Kind.GET, shows="a"))


def outcome(seed: int, word: Word) -> WorldOutcome:
    return WorldOutcome(plan_of(seed, 30), judged=SEEN, verdicts={KEY: word})


def says(word: Word, heard: list[int] | None = None) -> BothJudges:
    def hear(histories: Sequence[History]) -> list[dict[str, Word]]:
        if heard is not None:
            heard.append(len(histories))
        return [{KEY: word}] * len(histories)

    return BothJudges(hear)


def test_a_key_about_which_the_judges_disagree_is_told_with_its_seed() -> None:
    judges = says(Word.ILLEGAL)
    judges.add(outcome(7, Word.OK))
    judges.finish()
    assert judges.disagreements == [f"seed 7, key {KEY}: our search says ok, Porcupine says illegal"]
    assert str(judges).endswith("1 disagreements")


def test_where_one_of_them_gave_up_nobody_disagrees() -> None:
    judges = says(Word.UNKNOWN)
    judges.add(outcome(7, Word.OK))
    judges.finish()
    assert not judges.disagreements
    assert judges.counts == {"histories": 1, "undecided": 1}


def test_a_world_that_broke_before_its_history_was_judged_is_no_matter_of_theirs() -> None:
    judges = says(Word.ILLEGAL)
    judges.add(WorldOutcome(plan_of(7, 30), "owners: two"))
    judges.finish()
    assert not judges.counts


def test_histories_are_judged_many_at_once() -> None:
    heard: list[int] = []
    judges = says(Word.OK, heard)
    for seed in range(AT_ONCE + 3):
        judges.add(outcome(seed, Word.OK))
    judges.finish()
    assert heard == [AT_ONCE, 3]
    assert judges.counts == {"histories": AT_ONCE + 3, "keys": AT_ONCE + 3}


def test_without_go_one_judge_speaks_and_the_line_says_so() -> None:
    def hear(_: Sequence[History]) -> list[dict[str, Word]]:
        raise NotBuilt("it needs Go")

    judges = BothJudges(hear)
    judges.add(outcome(7, Word.ILLEGAL))
    judges.finish()
    assert str(judges) == "one judge only: it needs Go"
    assert not judges.disagreements


def test_both_judges_say_the_same_about_what_the_clients_of_a_world_saw() -> None:
    try:
        program()
    except NotBuilt as missing:
        pytest.skip(str(missing))
    judges = BothJudges()
    judges.add(run_seed(3, 100))
    judges.finish()
    assert judges.counts["keys"] and not judges.disagreements
