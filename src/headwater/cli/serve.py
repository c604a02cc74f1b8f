"""`headwater serve`: run a node in the foreground. Its flags are the node's own table of options."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import typer

from headwater.cli.commands import CommandWithForms, Parameter
from headwater.cli.options import examples
from headwater.cli.settings import Settings
from headwater.node.config import CONFIG, OPTIONS
from headwater.options import Option

PART = ("first", 10)
EXAMPLES = examples(
    "headwater serve --data ./store",
    "headwater serve --port 0 --vbuckets 64 --data /tmp/scratch",
    "headwater serve --vbucket-state none --data ./replica",
    "HEADWATER_VBUCKETS=64 headwater serve --config ./node.toml",
)
EXITS = {0: "Ctrl-C or SIGTERM ended it, and all is on disk", 1: "the store can't be opened, or the disk is full"}


def serve() -> None:
    """Run a node until Ctrl-C or SIGTERM.

    Once it listens it prints one line that begins with `ready` and names its address. What it has acknowledged is on
    the disk: it may be killed at any moment and goes on from there. What the command line does not say is looked for in
    the environment (HEADWATER_PORT=0), then in the file of --config (port = 0), and has its default after that.
    """


class Serve(CommandWithForms):
    """The command, whose options are a node's."""

    forms: ClassVar[Mapping[str, Any]] = {}  # --log-format and --log-level are what the forms are elsewhere

    def declared(self) -> list[Parameter]:
        """Return the node's table."""
        return [_parameter(option) for option in OPTIONS]

    def perform(self, ctx: Any) -> Any:
        """Run a node with the options on the command line only: a default must not hide the environment and
        the file.
        """
        from headwater.node.config import config_from, one_thread_for

        sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
        options = {
            name: ctx.params[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"
        }
        settings = ctx.find_object(Settings)
        if settings is not None and settings.file is not None:  # headwater --config FILE serve
            options.setdefault(CONFIG.field, str(settings.file))
        config = config_from(options)
        one_thread_for(config)
        from headwater.node import run

        raise typer.Exit(run.serve(config))


COMMAND: Final = Serve
"""Its class, in place of the one that commands have."""


def _parameter(option: Option) -> Parameter:
    """Return an option of the table in typer's form; durations and sizes stay texts, which the table reads."""
    text = f"{option.about[:1].upper()}{option.about[1:]}."
    metavar, kind = (None, option.kind) if option.unit is None else (option.unit.metavar, str)
    flag = typer.Option(f"--{option.name}", metavar=metavar, envvar=option.variable, help=text)
    return option.field, Annotated[kind, flag], kind(option.default)
