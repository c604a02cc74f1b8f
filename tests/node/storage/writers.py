"""Writers (writer.py), forked from a process that has loaded all they need: to start one costs no second of imports.

    python -m tests.node.storage.writers

reads lines of JSON, forks a writer for each, and answers with two lines: its pid, and its exit status when it has one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

from headwater import failpoints
from tests.node.storage import writer

SECONDS_MAX = 400.0
BATCHES_TO_LOAD_ALL = 60


class Writers:
    """The process that forks, from the side of the tests."""

    def __enter__(self) -> Writers:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.node.storage.writers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # no line may wait in a buffer while we look for one in the pipe
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads would not be in a fork
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=SECONDS_MAX)

    def run(self, folder: Path, seed: int, points: str, told: Path, deadline_seconds: float | None) -> int:
        """Run a writer to its end, or kill it after so many seconds; return its exit status, negative for a signal.

        Args:
            points: its failpoints.
            told: the file that takes its lines.
        """
        pipes = self._process
        assert pipes.stdin is not None and pipes.stdout is not None
        pipes.stdin.write(json.dumps([str(folder), seed, points, str(told)]).encode() + b"\n")
        pid = int(pipes.stdout.readline())
        if not select.select([pipes.stdout], [], [], deadline_seconds or SECONDS_MAX)[0]:
            os.kill(pid, signal.SIGKILL)  # it is reaped when its status is told, so the pid is its own until then
        return int(pipes.stdout.readline())


def be_a_writer(folder: str, seed: int, points: str, told: str) -> NoReturn:
    """In a fork: write, and end as a process of its own would."""
    status = 1
    try:
        os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        failpoints.arm(points)
        writer.main(folder, seed)
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def main() -> None:
    """Load everything by writing a little, then fork a writer for each line."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    with tempfile.TemporaryDirectory(prefix="headwater-writers-") as folder:
        writer.main(folder, 0, BATCHES_TO_LOAD_ALL)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            be_a_writer(*json.loads(line))
        print(pid, file=answers)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers)


if __name__ == "__main__":
    main()
