"""The settings of all tests: a test that nothing ends takes its process down, which tells where it was."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

IN_A_TEST = """
import time

import pytest


@pytest.mark.timeout(0.2)
def test_that_waits_while_it_cleans_up():
    try:
        time.sleep(600)
    finally:
        time.sleep(600)
"""

BEHIND_A_FAILURE = """
import time

import pytest


@pytest.fixture
def that_waits():
    yield
    time.sleep(600)


@pytest.mark.timeout(0.5)
def test_that_fails(that_waits):
    assert False
"""

AT_THE_END = """
import threading


def test_that_leaves_a_thread():
    threading.Thread(target=threading.Event().wait).start()
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (IN_A_TEST, "in test_that_waits_while_it_cleans_up"),
        (BEHIND_A_FAILURE, "in that_waits"),
        (AT_THE_END, "in wait"),
    ],
    ids=["in a test", "behind a failure", "at the end"],
)
def test_a_process_that_a_test_holds_up_tells_where_and_ends(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "test_of_this.py").write_text(text)
    settings = ["-c", ROOT / "pyproject.toml", "-o", "timeout=1", "-o", "grace=0.5", "-p", "tests.conftest"]
    command = [sys.executable, "-m", "pytest", *settings, "-p", "no:xdist", tmp_path / "test_of_this.py"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "Timeout (0:00:0" in ended.stderr and line in ended.stderr
