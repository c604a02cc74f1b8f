"""A few power cuts under a node and under a table; `make power-cuts` has a thousand."""

from __future__ import annotations

import pytest

from harness.power_cuts import __main__ as command
from harness.power_cuts.mounted import why_not
from headwater import testing

needs_fuse = pytest.mark.skipif(bool(why_not()), reason=f"no power cuts: {why_not()}")


@needs_fuse
def test_some_cuts_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--cuts", "5", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "nothing lost, nothing made up" in said and "the table was the bucket" in said


def test_what_is_broken_is_said_with_its_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise testing.NodeError("a start was refused")

    monkeypatch.setattr(command, "why_not", str)
    monkeypatch.setattr(command, "_node", broken)
    assert command.main(["--only", "node", "--seed", "9"]) == 1
    assert capsys.readouterr().out == "node: BROKEN by seed 9: a start was refused\n"


def test_where_no_such_disk_can_be_mounted_a_line_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "why_not", lambda: "there is no /dev/fuse")
    assert command.main([]) == 2
    assert capsys.readouterr().out == "no power cuts: there is no /dev/fuse\n"
