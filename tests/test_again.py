"""A test that fails is run once more, alone: one that passes then is named as flaky, one that fails stays a failure."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = """
from pathlib import Path

def test_right(): pass

def test_that_fails_at_its_first_run():
    seen = Path("seen").exists()
    Path("seen").touch()
    assert seen

def test_that_fails_always(): assert not Path("broken").exists()
"""


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, and keep what it prints."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


def run_twice(folder: Path, file: str = TESTS) -> subprocess.CompletedProcess[str]:
    """Run the tests of one file as `make test` does, then the failed ones again."""
    (folder / "test_few.py").write_text(file, "utf-8")
    (folder / "pytest.ini").touch()
    (folder / "log").write_text(python(folder, "-m", "pytest", "-q").stdout, "utf-8")
    return python(folder, str(ROOT / "tools" / "again.py"), "log")


def test_a_test_that_passes_alone_is_named_as_flaky_and_the_run_passes(tmp_path: Path) -> None:
    again = run_twice(tmp_path)
    assert again.returncode == 0
    assert again.stdout.splitlines()[-1] == (
        "3 passed, 0 failed, 0 skipped; flaky: test_few.py::test_that_fails_at_its_first_run"
    )


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    again = run_twice(tmp_path)
    assert again.returncode == 1
    assert again.stdout.splitlines()[-1] == (
        "2 passed, 1 failed, 0 skipped; flaky: test_few.py::test_that_fails_at_its_first_run"
    )


@pytest.mark.parametrize("file", ["import nowhere", "def broken(:"])
def test_a_file_that_can_not_be_collected_fails_both_times(tmp_path: Path, file: str) -> None:
    assert run_twice(tmp_path, file).returncode == 1


def test_a_run_that_was_cut_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("....F..\nmake: *** [test] Terminated\n", "utf-8")
    again = python(tmp_path, str(ROOT / "tools" / "again.py"), "log")
    assert again.returncode == 1 and "was cut" in again.stdout


def test_more_failures_than_pytest_noted_are_no_flaky_tests(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("=== 2 failed, 7 passed in 3.10s ===\n", "utf-8")
    again = python(tmp_path, str(ROOT / "tools" / "again.py"), "log")
    assert again.returncode == 1 and "2 failed, 0 errors, and noted 0" in again.stdout


def test_a_run_takes_signals_that_whoever_began_it_ignores() -> None:
    ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
    started = subprocess.run(
        [sys.executable, "-c", "import signal; from tests.conftest import take_signals; take_signals();"
         "print([signal.getsignal(each) is not signal.SIG_IGN for each in (1, 2, 3, 15)])"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=True,
        preexec_fn=lambda: [signal.signal(each, signal.SIG_IGN) for each in ignored] and None,
    )  # fmt: skip
    assert started.stdout == "[True, True, True, True]\n"
