"""The command: what was lost is said with its seed, and where no such disk can be had a line says why."""

from __future__ import annotations

import pytest

from harness.power_cuts import __main__ as command
from headwater import testing


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
