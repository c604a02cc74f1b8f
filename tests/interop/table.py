"""The table of `make interop`: a row for each program and what it did, from the tests that let it do that.

A test names its row by `@pytest.mark.program(NAME, VERSION, WHAT)` and says by the fixture `compared` how many
documents were held against each other. A row is as good as its worst test.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from _pytest.capture import CaptureManager
from _pytest.terminal import TerminalReporter
from rich.console import Console
from rich.table import Table as Drawn

Key = tuple[str, str, str]


@dataclass
class Row:
    """One program, and one thing that it did."""

    documents: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    passed: int = 0

    @property
    def verdict(self) -> str:
        """The outcome in a few words."""
        if self.failed:
            return "FAILED: " + ", ".join(self.failed)
        if self.passed:
            return "passed"
        return "skipped: " + "; ".join(dict.fromkeys(self.skipped))


class Table:
    """Gathers reports of tests while they come."""

    def __init__(self, reporter: TerminalReporter, capture: CaptureManager) -> None:
        self.rows: dict[Key, Row] = {}
        self._reporter = reporter
        self._capture = capture
        self._keys: dict[str, Key] = {}
        self._began = time.monotonic()

    def take(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Make the rows of these tests; returns those that are of no program."""
        others = []
        for item in items:
            marker = item.get_closest_marker("program")
            if marker is None:
                others.append(item)
                continue
            name, version, what = marker.args
            self._keys[item.nodeid] = name, version, what
            self.rows.setdefault(self._keys[item.nodeid], Row())
        return others

    def say(self, line: str) -> None:
        """Write a line of progress, also while a test's output is kept."""
        with self._capture.global_and_fixture_disabled():
            self._reporter.write_line(f"{time.monotonic() - self._began:6.0f} s  {line}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which program's turn it is, once a row."""
        key = self._keys[nodeid]
        if not any(self._ran(key)):
            self.say(f"{key[0]} {key[1]}: {key[2]}")

    def _ran(self, key: Key) -> tuple[object, ...]:
        row = self.rows[key]
        return row.passed, row.failed, row.skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a test has to say to its row."""
        row = self.rows[self._keys[report.nodeid]]
        row.seconds += report.duration
        if report.failed:
            row.failed.append(report.nodeid.rpartition("::")[2])
        elif report.skipped:
            row.skipped.append(report.longrepr[2].removeprefix("Skipped: "))  # type: ignore[index]
        elif report.when == "call":
            row.passed += 1
        if report.when == "call":
            row.documents += sum(n for name, n in report.user_properties if name == "compared")  # type: ignore[misc]

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Draw it."""
        drawn = Drawn("program", "version", "what it did", title="Programs of others against a node")
        drawn.add_column("documents", justify="right")
        drawn.add_column("seconds", justify="right")
        drawn.add_column("verdict")
        for (name, version, what), row in sorted(self.rows.items()):
            counted = f"{row.documents:,}" if row.documents else "-"
            drawn.add_row(name, version, what, counted, f"{row.seconds:.1f}", row.verdict)
        width = None if terminalreporter.isatty else 180
        console = Console(width=width, highlight=False, no_color=not terminalreporter.isatty)
        with console.capture() as text:
            console.print(drawn)
        terminalreporter.write_line("")
        terminalreporter.write(text.get())
