"""A judge of seeds: the first that fails ends it, and its own mistakes are no findings."""

from __future__ import annotations

import pytest

from harness.linearizability.record import Argument, Kind, Outcome, Recorder, Result
from harness.mutants import judges


def _fails_by(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(number: int) -> None:
        if number == 5:
            raise error

    monkeypatch.setattr(judges, "JUDGES", {"machine": judge})


def test_the_first_seed_that_fails_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _fails_by(AssertionError("durable: a key is lost\nand more"), monkeypatch)
    assert judges.main(["machine", "--seeds", "3-9"]) == 1
    assert capsys.readouterr().out == "seed 3\nseed 4\nseed 5\nfound 5 0.0: durable: a key is lost\n"


def test_seeds_that_all_hold_say_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _fails_by(AssertionError("lost"), monkeypatch)
    assert judges.main(["machine", "--seeds", "0-1"]) == 0
    assert capsys.readouterr().out == "seed 0\nseed 1\nnothing\n"


def test_a_mistake_of_the_judge_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    _fails_by(KeyError("a"), monkeypatch)
    with pytest.raises(KeyError):
        judges.main(["machine", "--seeds", "5"])


def test_a_judge_that_cannot_work_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "why_not", lambda: "there is no /dev/fuse")
    assert judges.why_not_here("power_cuts") == "there is no /dev/fuse"
    assert judges.why_not_here("clients") == ""


def test_what_clients_of_a_node_see_is_explained_though_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "LIFE_SECONDS", 0.3)
    judges.clients(1)


def test_what_nothing_explains_is_a_finding_of_the_clients_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    number = recorder.asked(1, "k", Kind.GET, Argument(), called=1.0)
    recorder.answered(number, Result(Outcome.DONE, "made up"), at=1.1)
    monkeypatch.setattr(judges, "_history", lambda *_: recorder.history())
    with pytest.raises(AssertionError, match="key k: no order"):
        judges.clients(1)
