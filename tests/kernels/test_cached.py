"""The lines that tell of compiling. That kernels are compiled once: tests/kernels/test_jit.py."""

from __future__ import annotations

from headwater.kernels.cached import Compiling


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_kernel_tells_why_nothing_happens_and_every_five_seconds_how_far_it_is() -> None:
    clock, lines = Clock(), list[str]()
    told = Compiling(lines.append, clock)
    for now in (10.0, 12.0, 15.0, 16.0, 21.0):
        clock.now = now
        told.begin("/cache")
    assert lines == [
        "headwater: compiling kernels for this machine, once; it takes half a minute or so. They are kept in /cache",
        "headwater: 2 kernels compiled in 5 s",
        "headwater: 4 kernels compiled in 11 s",
    ]


def test_where_nothing_can_be_kept_the_reason_is_told() -> None:
    lines = list[str]()
    told = Compiling(lines.append)
    told.remark = " (/proc/nope: Not a directory)"
    told.begin("")
    assert lines[0].endswith("They can't be kept, so each start takes as long (/proc/nope: Not a directory)")


def test_a_closed_stderr_is_no_matter() -> None:
    def closed(line: str) -> None:
        raise ValueError("I/O operation on closed file")

    Compiling(closed).begin("/cache")
