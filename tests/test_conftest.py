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


DIES_ONCE = """
import os
from pathlib import Path


def test_that_dies_once():
    died = Path(__file__).with_suffix(".died")
    if not died.exists():
        died.touch()
        os._exit(1)


def test_behind_it():
    pass
"""


def test_the_run_comes_to_its_end_where_a_worker_dies(tmp_path: Path) -> None:
    for number in range(12):
        text = DIES_ONCE if number == 7 else "def test_one():\n    pass\n\n\ndef test_two():\n    pass\n"
        (tmp_path / f"test_file_{number:02}.py").write_text(text)
    settings = ["-c", ROOT / "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *settings, tmp_path]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert "test_file_07.py::test_that_dies_once" in ended.stdout and "1 failed, 24 passed" in ended.stdout
