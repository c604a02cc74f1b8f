"""The command line: the options before a command, and the list of commands (listed.py).

`main()` is the console script (through headwater.__main__, which gives `serve` a faster way in). Each command's
function, help and examples stand in its own file; `failures.py` ends all of them.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import headwater
from headwater import tracing
from headwater.cli import stopping
from headwater.cli.forms import remark, remark_later
from headwater.cli.guests import CommandsAndGuests
from headwater.cli.options import examples
from headwater.cli.profiles import VARIABLES, completed
from headwater.cli.settings import Settings
from headwater.errors import OptionError

app: Final = typer.Typer(
    name="headwater",
    cls=CommandsAndGuests,
    help="A durable key-value node whose every vbucket is a change log, and the ways to read it: TAP, UPR, DCP, Spark.",
    epilog=examples(
        "headwater serve --data ./store",
        "headwater set greeting 'hello world'",
        "headwater get greeting",
        "headwater tail --once",
        "headwater mirror couchbase://127.0.0.1:11210/default --to ./lake --engine local --once",
        "headwater COMMAND --help",
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

TRACED = frozenset({"move", "cluster"})
"""Commands, other than jobs, that have spans: to prepare for them costs a third of a second where the environment asks
for it."""


def _version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"headwater {headwater.__version__}")
        raise typer.Exit


def _profiles(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names that the shell completes --profile to."""
    file = context.params.get("config") or os.environ.get("HEADWATER_CONFIG")
    return completed(incomplete, Path(file) if file else None)


def _is_traced(context: Any) -> bool:
    name = context.invoked_subcommand
    job = getattr(context.command.get_command(context, name), "job", None)
    return name in TRACED if job is None else bool(job.TRACED)


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_serve(context: typer.Context, profile: str) -> None:
    """Check the options before `serve`: a node has no profile, but a file may be named before the command as well as
    after it.
    """
    if _is_typed(context, "profile"):
        raise OptionError("profile", profile, "for serve: profiles are those of commands that ask nodes")
    if not _is_typed(context, "config"):
        context.obj = Settings()


def _tell_what_comes_before(context: typer.Context, profile: str) -> None:
    """Report variables that override a profile on the command line: they may be forgotten, and name another node."""
    if not _is_typed(context, "profile"):
        return
    table = context.obj.table()
    if before := [name for name, key in VARIABLES.items() if name in os.environ and key in table]:
        remark_later(f"{' and '.join(before)} of the environment: before what profile {profile} says")


@app.callback(invoke_without_command=True)
def _begin(
    context: typer.Context,
    _: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", envvar="HEADWATER_CONFIG", help="TOML file of options; see headwater config."
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            metavar="NAME",
            envvar="HEADWATER_PROFILE",
            autocompletion=_profiles,
            help="Whom to ask, and as whom: a profile of that file, or of ~/.config/headwater/config.toml.",
        ),
    ] = "",
) -> None:
    """Show the list of commands if none is given."""
    context.obj = Settings(config, profile)
    if context.invoked_subcommand == "serve":
        _check_serve(context, profile)
    elif context.invoked_subcommand not in {"config", None}:
        context.default_map = context.obj.defaults(context.command, context.invoked_subcommand)
        _tell_what_comes_before(context, profile)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif _is_traced(context) and (problem := tracing.begin()):
        remark(problem)


def main() -> int:
    """Run the command line of this process; Ctrl-C and SIGTERM end it as `failures.py` says."""
    stopping.listen()
    app()  # exits by itself
    return 0
