"""Write docs/reference/exit-codes.md from headwater.cli.exits. `make docs` runs this; tests/test_docs.py holds it."""

from pathlib import Path

from headwater.cli.exits import EXITS, GENERAL

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "exit-codes.md"
HEAD = """# Exit statuses

Written by `make docs` from `src/headwater/cli/exits.py`.

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


def page() -> str:
    """The whole page."""
    general = "".join(f"| {status} | {told} |\n" for status, told in GENERAL.items())
    own = "".join(
        f"| {name} | {status} | {told} |\n" for name, statuses in EXITS.items() for status, told in statuses.items()
    )
    return HEAD + general + FORMS + own


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
