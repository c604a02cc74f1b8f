"""Write docs/reference/exit-codes.md from headwater.cli.exits. `make docs` runs this; tests/test_docs.py checks the
page.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from headwater.cli.app import app
from headwater.cli.exits import GENERAL, own_exits

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "exit-codes.md"
HEAD = """# Exit statuses

Written by `make docs` from the commands, `src/headwater/cli`.

Each command ends with one of these. Of what a command says, errors are one line on stderr that begins with
`headwater: `; a mistake of the user is never a traceback.

| status | meaning |
|---|---|
"""
FORMS = """
Whether it is needed by a program or by people, a command is asked in the same way:

| option | what it does |
|---|---|
| `--json` | the result is one JSON object on stdout, or one a line; where it would ask, `--yes` is needed |
| `--quiet`, `-q` | nothing but what was asked for, and errors: no progress, no remarks, no report of what was done |
| `--verbose`, `-v` | on stderr, whom it talks to and how long it took; `-vv`: errors with their traceback |

`serve` has `--log-format json` and `--log-level` for them; `mirror` has `--progress json`: its `--json`
is what `--unfold` was called before, and goes on to mean that.

With `--json`, nothing but JSON comes to stdout, also when the command fails: the error is the line on stderr, as
always, and progress goes there too.

| command | status | meaning |
|---|---|---|
"""


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command with its whole name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def page() -> str:
    """Return the whole page."""
    general = "".join(f"| {status} | {told} |\n" for status, told in GENERAL.items())
    own = "".join(
        f"| {name} | {status} | {text} |\n"
        for name, command in commands(typer.main.get_command(app))
        for status, text in own_exits(command).items()
    )
    return HEAD + general + FORMS + own


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
