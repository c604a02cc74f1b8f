"""Tracebacks of one place come once in a minute, with a count of those that did not."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable

from headwater.node.reporting.fault_log import AGAIN_SECONDS, RareTracebacks


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logger() -> tuple[logging.Logger, Kept, list[float]]:
    now = [1000.0]
    kept = Kept()
    kept.addFilter(RareTracebacks(lambda: now[0]))
    made = logging.Logger("faults")
    made.addHandler(kept)
    return made, kept, now


def divides() -> None:
    _ = 1 // 0


def looks_up() -> None:
    _ = {}["nothing"]  # type: ignore[var-annotated]


def failed(log: logging.Logger, work: Callable[[], None], peer: str) -> None:
    try:
        work()
    except Exception:
        log.exception("%s failed", peer)


def test_one_place_is_told_once_a_minute_and_another_place_at_once() -> None:
    log, kept, now = logger()
    for number in range(1000):
        failed(log, divides, f"peer {number}")
    failed(log, looks_up, "another")
    assert kept.lines == ["peer 0 failed", "another failed"]
    now[0] += AGAIN_SECONDS
    failed(log, divides, "later")
    assert kept.lines[2:] == ["later failed (999 of the same place left out)"]


def test_lines_without_a_traceback_are_none_of_its_business() -> None:
    log, kept, _ = logger()
    for _ in range(100):
        log.warning("a line")
    assert len(kept.lines) == 100


def test_the_log_of_a_node_has_it() -> None:
    script = """if True:
        import logging
        from headwater.node.reporting import log_lines
        log_lines.begin("warning", "text")
        for _ in range(1000):
            try:
                1 // 0
            except ZeroDivisionError:
                logging.getLogger("headwater.node").exception("failed")
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert done.stderr.count("Traceback") == 1
