"""How far a command is, where there is no terminal."""

from __future__ import annotations

from headwater.cli.meter import Meter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_a_line_comes_every_ten_seconds() -> None:
    clock, lines = Clock(), list[str]()
    with Meter("backup", "changes", clock=clock, line=lines.append) as meter:
        meter.show(0, 4800)
        clock.now += 3
        meter.show(900, 4800)
        clock.now += 7
        meter.show(1200, 4800)
        clock.now += 1
        meter.show(4800, 4800)
        assert meter.seconds == 11
    assert lines == ["backup: 1,200 of 4,800 changes, 120 changes/s, 30 s left"]


def test_as_long_as_nothing_is_done_nobody_knows_what_is_left() -> None:
    assert Meter("verify", "bytes", clock=Clock()).text(0, 10) == "verify: 0 of 10 bytes, - bytes/s"


def test_whoever_wants_quiet_gets_it() -> None:
    clock, lines = Clock(), list[str]()
    with Meter("backup", "changes", quiet=True, clock=clock, line=lines.append) as meter:
        clock.now += 60
        meter.show(1, 2)
    assert lines == []
