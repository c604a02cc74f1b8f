"""Guides, followed as a new user would: each command that stands in a page, in an empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
_BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """Return the commands of a page, in order, each on one line."""
    text = (HOWTO / page).read_text("utf-8")
    blocks = "".join(_BLOCK.findall(text)).replace("\\\n", " ")
    return [line for line in blocks.splitlines() if line.startswith("headwater ")]


def follow(command: str, folder: Path, instead: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Type a command of a page, with the addresses of this test."""
    for told, ours in instead.items():
        command = command.replace(told, ours)
    line = [sys.executable, "-m", *shlex.split(command)]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
