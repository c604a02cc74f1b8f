"""The recipe: rounds are told in a line, what nothing explains is kept and can be judged again."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.linearizability import __main__ as command
from harness.linearizability.record import History, Kind, to_lines
from harness.linearizability.rounds import Broken
from tests.harness.linearizability.histories import did, history

GOOD = history(did(0, 1, Kind.SET, "a"), did(2, 3, Kind.GET, shows="a"))
BAD = history(did(0, 1, Kind.SET, "a"), did(2, 3, Kind.GET, shows="b"))


class Played:
    """In the place of a round: a history as it stands here."""

    found, problem = GOOD, ""

    def __init__(self, seed: int, _: Path) -> None:
        self.did = [f"seed {seed} was played"]

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self) -> None:
        if self.problem:
            raise Broken(self.problem)

    def history(self) -> History:
        return self.found


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "Round", Played)


def test_rounds_are_told_one_by_one_and_in_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["run", "--rounds", "2", "--seed", "5"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert (first[:7], second[:7]) == ("seed 5:", "seed 6:")
    assert last.startswith("2 rounds, seeds 5 to 6: 4 operations")


def test_a_violation_is_kept_and_judged_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Played, "found", BAD)
    assert command.main(["run", "--rounds", "2", "--seed", "5"]) == 1
    told = capsys.readouterr().out
    assert "seed 5 was played" in told and "nothing explains this answer" in told
    *_, path = told.splitlines()[-1].split()
    assert command.main(["judge", path]) == 1
    assert "nothing explains this answer" in capsys.readouterr().out


def test_a_cluster_that_does_not_become_well_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Played, "problem", "not well after 90 s")
    assert command.main(["run", "--rounds", "1"]) == 1
    assert "not well after 90 s" in capsys.readouterr().out


def test_a_good_history_is_judged_good(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(to_lines(GOOD)))
    assert command.main(["judge", str(path)]) == 0
