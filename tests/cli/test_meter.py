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


def test_of_how_much_nobody_knows_the_line_has_the_rate_alone() -> None:
    clock = Clock()
    meter = Meter("standard input", "documents", clock=clock)
    clock.now += 10
    assert meter.text(500, None) == "standard input: 500 documents, 50 documents/s"


def test_where_the_total_is_of_something_else_the_line_has_the_part_of_it() -> None:
    clock = Clock()
    meter = Meter("rows.csv", "documents", clock=clock)
    clock.now += 10
    told = meter.text(1 << 20, 4 << 20, this_run=500, note="3 behind")
    assert told == "rows.csv: 500 documents, 25 %, 50 documents/s, 30 s left, 3 behind"


def test_nobody_is_told_the_same_twice() -> None:
    clock, lines = Clock(), list[str]()
    meter = Meter("move", "changes", clock=clock, line=lines.append)
    for done in (7, 7, 8):
        clock.now += 10
        meter.show(done, 8)
    assert [line.partition(",")[0] for line in lines] == ["move: 7 of 8 changes", "move: 8 of 8 changes"]


def test_as_long_as_nothing_is_done_nobody_knows_what_is_left() -> None:
    assert Meter("verify", "bytes", clock=Clock()).text(0, 10) == "verify: 0 of 10 bytes, - bytes/s"


def test_whoever_wants_quiet_gets_it() -> None:
    clock, lines = Clock(), list[str]()
    with Meter("backup", "changes", quiet=True, clock=clock, line=lines.append) as meter:
        clock.now += 60
        meter.show(1, 2)
    assert lines == []
