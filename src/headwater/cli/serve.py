"""`headwater serve`: run a node in the foreground. Its flags are the node's own table of options."""

import inspect
from typing import Any

import typer

from headwater.cli.config import Settings
from headwater.cli.options import examples
from headwater.node.config import CONFIG, OPTIONS
from headwater.options import Option

EXAMPLES = examples(
    "headwater serve --data ./store",
    "headwater serve --port 0 --vbuckets 64 --data /tmp/scratch",
    "headwater serve --vbucket-state none --data ./replica",
    "HEADWATER_VBUCKETS=64 headwater serve --config ./node.toml",
)


def serve(context: typer.Context, **options: Any) -> None:
    """Run a node until Ctrl-C or SIGTERM.

    Once it listens it prints one line that begins with `ready` and names its address. What it has acknowledged is on
    the disk: it may be killed at any moment and goes on from there. What the command line does not say is looked for in
    the environment (HEADWATER_PORT=0), then in the file of --config (port = 0), and has its default after that.
    """
    from headwater.node import run
    from headwater.node.config import config_from

    # A default must not hide what environment and file say, so only what was typed is passed on.
    sources = {name: context.get_parameter_source(name) for name in options}
    given = {name: options[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    named = context.find_object(Settings)
    if named is not None and named.file is not None:  # headwater --config FILE serve
        given.setdefault(CONFIG.field, str(named.file))
    raise typer.Exit(run.serve(config_from(given)))


def _sentence(about: str) -> str:
    return f"{about[:1].upper()}{about[1:]}."


def _flag(option: Option) -> Any:
    metavar = None if option.unit is None else option.unit.metavar
    text = _sentence(option.about)
    default = option.default if option.unit is None else str(option.default)
    return typer.Option(default, f"--{option.name}", metavar=metavar, envvar=option.variable, help=text)


def _kind(option: Option) -> type:
    """Return the type that typer reads; durations and sizes stay texts, which the node's table reads."""
    return option.kind if option.unit is None else str


# typer reads a command's flags from its signature; this one is written by the table.
serve.__annotations__ = {"context": typer.Context} | {option.field: _kind(option) for option in OPTIONS}
serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # none until it is given one
    [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(
            inspect.Parameter(
                option.field, inspect.Parameter.KEYWORD_ONLY, default=_flag(option), annotation=_kind(option)
            )
            for option in OPTIONS
        ),
    ]
)
