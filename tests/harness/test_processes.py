"""Processes and theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from harness.processes import descendants, end_with_all_its_own, is_stopped, lives

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_ends_with_all_that_it_started() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT]) as parent:
        wait_until(lambda: descendants(parent.pid))
        (child,) = descendants(parent.pid)
        assert child in descendants(os.getpid()) and lives(child) and not is_stopped(child)
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: is_stopped(child))
        end_with_all_its_own(parent.pid)
    wait_until(lambda: not lives(child))
    assert not lives(parent.pid) and descendants(parent.pid) == []
