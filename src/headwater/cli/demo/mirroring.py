"""The demo's mirror: `headwater mirror` in a process of its own, as a user would start it."""

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, Self

from headwater.cli.failures import CommandError

STOP_SECONDS = 30.0


class MirrorProcess:
    """A running mirror; its progress lines are read in a thread as they come.

    Attributes:
        changes: the number of the node's changes in the table, by the mirror's own account.
        batches: the number of committed micro-batches.
        rollbacks: the number of vbuckets whose lost changes it has taken back.

    Args:
        url: the url of the bucket.
        table: the place of the table.
        log: a file for its output.
        options: further words of the command.
    """

    def __init__(self, url: str, table: Path, log: Path, *options: str) -> None:
        self.changes: int = 0
        self.batches: int = 0
        self.rollbacks: int = 0
        self._log_path = log
        self._log: IO[bytes] = log.open("wb")
        command = [sys.executable, "-m", "headwater", "mirror", url, "--to", str(table), "--progress", "json", *options]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
            command, stdout=subprocess.PIPE, stderr=self._log, stdin=subprocess.DEVNULL
        )
        reading = (self._process.stdout,)
        self._reader = threading.Thread(target=self._read, args=reading, name="mirror-progress", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def check(self) -> None:
        """Raise CommandError when the mirror has ended, with the last line it wrote."""
        status = self._process.poll()
        if status is not None:
            lines = self._log_path.read_text(errors="replace").strip().splitlines() or ["it wrote nothing"]
            raise CommandError(f"the mirror ended with status {status} (log: {self._log_path}): {lines[-1]}")

    def stop(self) -> None:
        """End the mirror by SIGTERM; kill it if that takes too long."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._log.close()

    def _read(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # not one of its progress lines
                    self._note(json.loads(line))

    def _note(self, progress: dict[str, Any]) -> None:
        self.changes = progress["changes"]
        self.rollbacks = progress.get("rollbacks", 0)
        self.batches += 1
