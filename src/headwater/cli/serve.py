"""`headwater serve`: run a node in the foreground. Its flags are the node's own table of options."""

import inspect
from typing import Any

import typer

from headwater.cli.options import examples
from headwater.node.config import OPTIONS

EXAMPLES = examples(
    "headwater serve --data ./store",
    "headwater serve --port 0 --vbuckets 64 --data /tmp/scratch",
    "headwater serve --vbucket-state none --data ./replica",
)


def serve(**options: Any) -> None:
    """Run a node until Ctrl-C or SIGTERM.

    Once it listens it prints one line that begins with `ready` and names its address. What it has acknowledged is on
    the disk: it may be killed at any moment and goes on from there.
    """
    from headwater.node import run
    from headwater.node.config import config_from

    raise typer.Exit(run.serve(config_from(options)))


def _sentence(about: str) -> str:
    return f"{about[:1].upper()}{about[1:]}."


# typer reads a command's flags from its signature; this one is written by the table.
serve.__annotations__ = {option.field: option.kind for option in OPTIONS}
serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # none until it is given one
    [
        inspect.Parameter(
            option.field,
            inspect.Parameter.KEYWORD_ONLY,
            default=typer.Option(option.default, f"--{option.name}", help=_sentence(option.about)),
            annotation=option.kind,
        )
        for option in OPTIONS
    ]
)
