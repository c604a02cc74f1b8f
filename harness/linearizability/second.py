"""The second judge: Porcupine, a third-party checker in Go, with the rules of the model written a second time.

    for key, verdict in verdicts(history, plain_may_be_lost=True).items(): ...
    for found in verdicts_of(histories, plain_may_be_lost=True): ...            # many in one process

Its program is in `harness/linearizability/porcupine`; it is built once, into the environment, at its first use.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from harness.linearizability.record import History, to_lines

__all__ = ["NotBuilt", "Word", "program", "verdicts", "verdicts_of"]

SOURCES = Path(__file__).with_name("porcupine")
BUILD_SECONDS = 300.0
KEY_SECONDS = 20.0


class NotBuilt(Exception):  # noqa: N818 - says what happened
    """Porcupine can't be built: no Go, or no module proxy."""


class Word(StrEnum):
    """A verdict about a key."""

    OK = "ok"
    ILLEGAL = "illegal"
    UNKNOWN = "unknown"  # the time was over


def program(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the program; build it if these sources were not built yet.

    Raises:
        NotBuilt: with the missing program, or Go's message.
    """
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in {".go", ".mod", ".sum"})
    digest = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    found = Path(sys.prefix) / "porcupine" / f"judge-{digest}"
    if found.exists():
        return found
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        raise NotBuilt("Porcupine is not there: it needs Go (https://go.dev/dl), and `go` is not in PATH")
    found.parent.mkdir(exist_ok=True)
    made = found.with_suffix(f".{os.getpid()}")
    command = [go, "build", "-o", str(made), "."]
    try:
        done = subprocess.run(
            command, cwd=SOURCES, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise NotBuilt(f"Porcupine is not there: go build took longer than {BUILD_SECONDS:g} s") from late
    if done.returncode:
        raise NotBuilt(f"Porcupine is not there: go build said {done.stderr[-500:].strip()}")
    made.replace(found)
    return found


def verdicts(history: History, *, plain_may_be_lost: bool, key_seconds: float = KEY_SECONDS) -> dict[str, Word]:
    """Return Porcupine's verdict about each key.

    Raises:
        NotBuilt, ValueError: as `verdicts_of`.
    """
    return verdicts_of([history], plain_may_be_lost=plain_may_be_lost, key_seconds=key_seconds)[0]


def verdicts_of(
    histories: Sequence[History], *, plain_may_be_lost: bool, key_seconds: float = KEY_SECONDS
) -> list[dict[str, Word]]:
    """Return Porcupine's verdicts about the keys of each history, all of them in one process.

    Raises:
        NotBuilt: as `program`.
        ValueError: it could not read a history; with its message.
    """
    command = [str(program()), "-model", "plain" if plain_may_be_lost else "strict", "-seconds", f"{key_seconds:g}"]
    lines = "\n".join(line for history in histories for line in to_lines(history))
    done = subprocess.run(command, input=lines, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        raise ValueError(f"Porcupine ended with status {done.returncode}: {done.stderr[-500:].strip()}")
    found: list[dict[str, Word]] = [{} for _ in histories]
    for each in map(json.loads, done.stdout.splitlines()):
        found[each["history"]][each["key"]] = Word(each["verdict"])
    return found
