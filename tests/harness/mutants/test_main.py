"""The command: what survives, what is stale and what is found without the bug are told apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.mutants import __main__ as command
from harness.mutants.judges import JUDGES
from harness.mutants.patches import Mutant, Stale, every

FEW = command.quickest(every(), command.QUICKEST)
BUG = Mutant("a-bug", Path("a-bug.patch"), "Something is lost", "nothing is lost", "machine", 7, 3.0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "every", lambda: [BUG])
    monkeypatch.setattr(command, "planted", lambda mutant, place: place / "src")


def _saying(monkeypatch: pytest.MonkeyPatch, with_bug: str, without: str) -> list[list[int]]:
    asked: list[list[int]] = []

    def judged(judge: str, seeds: list[int], source: Path) -> str:
        asked.append(list(seeds))
        return without if source == command.ROOT / "src" else with_bug

    monkeypatch.setattr(command, "judged", judged)
    return asked


@pytest.mark.usefixtures("alone")
def test_what_is_found_is_counted_and_its_known_seed_comes_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = _saying(monkeypatch, "found 7 0.5: durable: a key is lost\n", "nothing\n")
    assert command.main(["--seeds", "3"]) == 0
    assert asked == [[7, 0, 1], [7]]
    assert capsys.readouterr().out.endswith("| machine | 7 | 1 | 0 |\n\n1 of 1 found\n")


@pytest.mark.usefixtures("alone")
def test_what_survives_gives_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _saying(monkeypatch, "nothing\n", "nothing\n")
    assert command.main([]) == 1
    assert capsys.readouterr().out.endswith("\n0 of 1 found\n")


@pytest.mark.usefixtures("alone")
def test_a_judge_that_fails_without_the_bug_as_well_has_found_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _saying(monkeypatch, "found 7 0.5: lost\n", "found 7 0.4: lost\n")
    assert command.main([]) == 1
    assert "without the bug as well" in capsys.readouterr().out


@pytest.mark.usefixtures("alone")
def test_a_patch_that_does_not_apply_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stale(mutant: Mutant, place: Path) -> Path:
        raise Stale("a-bug.patch does not apply")

    monkeypatch.setattr(command, "planted", stale)
    assert command.main([]) == 1
    assert "a-bug.patch does not apply" in capsys.readouterr().out


@pytest.mark.usefixtures("alone")
def test_a_mutant_whose_judge_cannot_work_here_is_named_and_not_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = replace(BUG, name="another-bug", judge="power_cuts")
    monkeypatch.setattr(command, "every", lambda: [BUG, cut])
    monkeypatch.setattr(command, "why_not_here", lambda judge: "no disk" if judge == "power_cuts" else "")
    _saying(monkeypatch, "found 7 0.5: lost\n", "nothing\n")
    assert command.main([]) == 0
    told = capsys.readouterr().out
    assert "another-bug is not tried, for its judge power_cuts can't work here: no disk\n" in told
    assert told.endswith("\n1 of 1 found, 1 not tried\n")


def test_a_name_that_no_mutant_has_is_refused() -> None:
    with pytest.raises(SystemExit, match="there is no mutant no-such"):
        command.main(["--only", "no-such"])


def test_five_bugs_are_planted_whose_judges_work_on_every_machine_and_find_the_same_each_time() -> None:
    assert len(FEW) == 5 and not {"power_cuts", "clients"} & {mutant.judge for mutant in FEW}


@pytest.mark.parametrize("mutant", FEW, ids=[each.name for each in FEW])
def test_a_seeded_bug_is_found_by_the_seed_that_is_known_to(mutant: Mutant) -> None:
    assert mutant.seed is not None
    trial = command.tried(mutant, [mutant.seed], is_controlled=False)
    assert trial.seed == mutant.seed, trial.remark


@pytest.mark.parametrize(("judge", "seed"), sorted({(each.judge, each.seed or 0) for each in FEW}))
def test_by_the_same_seeds_nothing_is_found_without_a_bug(judge: str, seed: int) -> None:
    JUDGES[judge](seed)


_JUDGE = """
import os, signal
from harness.mutants import judges

def spin(number):
    while number == 4:
        try:
            while True:
                pass
        except BaseException:
            pass

def die(number):
    if number == 4:
        os.kill(os.getpid(), signal.SIGSEGV)

judges.PROCESSOR_SECONDS_MAX = 0.2
judges.JUDGES = {"machine": %s}
judges.main()
"""


@pytest.mark.parametrize(("judge", "why"), [("spin", "it came to no end"), ("die", "its process was ended by SIGSEGV")])
def test_a_seed_that_ends_its_process_or_comes_to_no_end_is_found(
    judge: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = command.subprocess.run

    def instead(asked: list[str], **options: object) -> object:
        return run([asked[0], "-c", _JUDGE % judge, *asked[3:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(command.subprocess, "run", instead)
    said = command.judged("machine", range(3, 6), command.ROOT / "src")
    assert said.splitlines()[:2] == ["seed 3", "seed 4"] and said.endswith(f": {why}\n") and "found 4 " in said
