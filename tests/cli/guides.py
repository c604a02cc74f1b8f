"""Guides, followed as a new user would: each command that stands in a page, in an empty folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from typer.testing import CliRunner

from headwater.cli.app import app

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
_BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """Return the commands of a page, in order, each on one line."""
    text = (HOWTO / page).read_text("utf-8")
    blocks = "".join(_BLOCK.findall(text)).replace("\\\n", " ")
    return [line for line in blocks.splitlines() if line.startswith("headwater ")]


def follow(command: str, instead: Mapping[str, str]) -> str:
    """Type a command of a page in the present folder, with the addresses of this test; return what it prints."""
    for told, ours in instead.items():
        command = command.replace(told, ours)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert (done.exit_code, done.stderr) == (0, ""), f"{command}: {done.output}"
    return done.stdout
