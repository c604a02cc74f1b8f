"""The command that runs the machine for long: it counts, and says which seeds it took."""

from __future__ import annotations

import pytest

from harness.simulation import __main__ as command


def test_a_run_ends_with_what_it_did(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "ROUND_EXAMPLES", 3)
    assert command.main(["--minutes", "0.0001", "--seed", "5", "--steps", "5"]) == 0
    assert "seeds 5 to 5: nothing found: " in capsys.readouterr().out
