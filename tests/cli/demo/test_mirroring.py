"""The mirror as a process, in place of which a few lines of Python speak."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.cli.demo import mirroring
from headwater.cli.demo.mirroring import MirrorProcess
from headwater.cli.failures import CommandError


@pytest.fixture
def speaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], MirrorProcess]:
    """Start a mirror that runs this code instead."""
    popen = subprocess.Popen

    def start(code: str) -> MirrorProcess:
        command = [sys.executable, "-c", code]
        monkeypatch.setattr(mirroring.subprocess, "Popen", lambda _, **rest: popen(command, **rest))
        return MirrorProcess("couchbase://127.0.0.1:1/b", tmp_path / "table", tmp_path / "log")

    return start


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_its_progress_is_followed_and_other_lines_are_passed_over(speaks: Callable[[str], MirrorProcess]) -> None:
    lines = ['{"changes": 3}', "hello", '{"changes": 8}']
    code = f"import time\nfor line in {lines}: print(line, flush=True)\ntime.sleep(600)"
    with speaks(code) as mirror:
        wait_for(lambda: mirror.changes == 8)
        assert mirror.batches == 2
        mirror.check()
    assert mirror._process.returncode is not None


def test_a_mirror_that_ended_is_told_with_the_last_line_it_wrote(speaks: Callable[[str], MirrorProcess]) -> None:
    with speaks("import sys; print('first', file=sys.stderr); sys.exit('no such table')") as mirror:
        mirror._process.wait(120)
        with pytest.raises(CommandError, match=r"ended with status 1 \(log: .*\): no such table"):
            mirror.check()
