"""A terminal in an empty folder: the commands of a page, typed as they stand there, in a shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.guides.blocks import Block

PATIENCE_SECONDS = 240.0
_LONG = re.compile(r"\d{6,}")  # a CAS, a map's version, a time: of that day only


class Terminal:
    """A shell's folder, environment and what runs behind it; a context manager that ends all of it.

    Args:
        folder: where commands are typed.
        instead: what is typed for an address or a word of the page; what is printed is read the other way round.
        environment: more of it.
    """

    def __init__(self, folder: Path, instead: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
        self.folder, self.instead = folder, dict(instead)
        folder.mkdir(parents=True, exist_ok=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HEADWATER_") or name == "HEADWATER_CACHE"
        }
        self.environment = {**clean, "PATH": path, "COLUMNS": "200", **(environment or {})}
        self._behind: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End what runs behind."""
        for each in self._behind:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGTERM)
            each.communicate(timeout=PATIENCE_SECONDS)
        self._behind.clear()

    def _ours(self, text: str) -> str:
        for printed, ours in self.instead.items():
            text = text.replace(printed, ours)
        return text

    def _printed(self, text: str) -> str:
        for printed, ours in self.instead.items():
            text = text.replace(ours, printed)
        return text

    def type(self, command: str, answers: str = "", *, status: int = 0) -> str:
        """Type a command, answer its questions, wait for its end; return what it printed, in the page's words."""
        script = f"set -o pipefail\n{self._ours(command)}\nstatus=$?\nexport -p > .exported\nexit $status\n"
        begin = "[ -f .exported ] && . ./.exported\n"
        done = subprocess.run(
            ["bash", "-c", begin + script],
            cwd=self.folder,
            env=self.environment,
            input=answers,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == status, f"{command}: {done.stdout}{done.stderr}"
        return self._printed(done.stdout)

    def begin(self, command: str) -> str:
        """Type a command that goes on; return its first line once it is printed."""
        with (self.folder / "behind.log").open("a") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"[ -f .exported ] && . ./.exported\nexec {self._ours(command)}"],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._behind.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{command}: {(self.folder / 'behind.log').read_text()}"
        return self._printed(line)

    def follow(self, block: Block, answers: Mapping[str, str] | None = None) -> None:
        """Type a console's commands and compare what they print with what stands behind them, but for long numbers.

        `headwater serve` goes on behind the others. `answers` are typed at commands that begin so.
        """
        for command, told in block.answers():
            if command.startswith("headwater serve"):
                self.end()
                shown = self.begin(command)
            else:
                fitting = [text for begins, text in (answers or {}).items() if command.startswith(begins)]
                shown = self.type(command, "".join(fitting))
            if told:
                assert _alike(shown) == _alike(told), f"{block}: {command}"


def _alike(text: str) -> list[str]:
    return [" ".join(_LONG.sub("N", line).split()) for line in text.splitlines() if line.strip()]
