"""The command line, put together: which commands there are, in parts and in the order of a first acquaintance.

`main()` is the console script (through headwater.__main__, which gives `serve` a faster way in). Each command's
function, help and examples stand in its own file; `failures.py` says how all of them end.
"""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import headwater
from headwater import tracing
from headwater.cli import stopping
from headwater.cli.backup import EXAMPLES as BACKUP_EXAMPLES
from headwater.cli.backup import HELP as BACKUP_HELP
from headwater.cli.backup import group as backup
from headwater.cli.bucket import EXAMPLES as BUCKET_EXAMPLES
from headwater.cli.bucket import HELP as BUCKET_HELP
from headwater.cli.bucket import group as bucket
from headwater.cli.cluster.group import EXAMPLES as CLUSTER_EXAMPLES
from headwater.cli.cluster.group import HELP as CLUSTER_HELP
from headwater.cli.cluster.group import group as cluster
from headwater.cli.collection import EXAMPLES as COLLECTION_EXAMPLES
from headwater.cli.collection import HELP as COLLECTION_HELP
from headwater.cli.collection import group as collection
from headwater.cli.commands import CommandWithForms
from headwater.cli.config import EXAMPLES as CONFIG_EXAMPLES
from headwater.cli.config import HELP as CONFIG_HELP
from headwater.cli.config import Settings
from headwater.cli.config import group as config
from headwater.cli.console import EXAMPLES as CONSOLE_EXAMPLES
from headwater.cli.console import console
from headwater.cli.delete import EXAMPLES as DELETE_EXAMPLES
from headwater.cli.delete import delete
from headwater.cli.demo.command import EXAMPLES as DEMO_EXAMPLES
from headwater.cli.demo.command import demo
from headwater.cli.export import EXAMPLES as EXPORT_EXAMPLES
from headwater.cli.export import export
from headwater.cli.failover import EXAMPLES as FAILOVER_EXAMPLES
from headwater.cli.failover import failover
from headwater.cli.failover_log import EXAMPLES as FAILOVER_LOG_EXAMPLES
from headwater.cli.failover_log import failover_log
from headwater.cli.forms import remark, remark_later
from headwater.cli.get import EXAMPLES as GET_EXAMPLES
from headwater.cli.get import get
from headwater.cli.guests import CommandsAndGuests
from headwater.cli.jobs import add_job
from headwater.cli.lake import EXAMPLES as LAKE_EXAMPLES
from headwater.cli.lake import HELP as LAKE_HELP
from headwater.cli.lake import group as lake
from headwater.cli.load import EXAMPLES as LOAD_EXAMPLES
from headwater.cli.load import load
from headwater.cli.move import EXAMPLES as MOVE_EXAMPLES
from headwater.cli.move import move
from headwater.cli.observe import live as live_rates
from headwater.cli.options import examples, paragraphs
from headwater.cli.plain_help import FIRST, FOLLOW, INSIDE, OLDER, OPERATE
from headwater.cli.profiles import VARIABLES, completed
from headwater.cli.replicate import EXAMPLES as REPLICATE_EXAMPLES
from headwater.cli.replicate import replicate
from headwater.cli.search import EXAMPLES as SEARCH_EXAMPLES
from headwater.cli.search import search
from headwater.cli.seqnos import EXAMPLES as SEQNOS_EXAMPLES
from headwater.cli.seqnos import seqnos
from headwater.cli.serve import EXAMPLES as SERVE_EXAMPLES
from headwater.cli.serve import Serve, serve
from headwater.cli.set import EXAMPLES as SET_EXAMPLES
from headwater.cli.set import set_
from headwater.cli.streams import EXAMPLES as STREAMS_EXAMPLES
from headwater.cli.streams import streams
from headwater.cli.tail import EXAMPLES as TAIL_EXAMPLES
from headwater.cli.tail import tail
from headwater.cli.tap import EXAMPLES as TAP_EXAMPLES
from headwater.cli.tap import tap
from headwater.cli.tls import EXAMPLES as TLS_EXAMPLES
from headwater.cli.tls import HELP as TLS_HELP
from headwater.cli.tls import group as tls
from headwater.cli.user import EXAMPLES as USER_EXAMPLES
from headwater.cli.user import HELP as USER_HELP
from headwater.cli.user import group as user
from headwater.errors import OptionError
from headwater.pipelines.jobs import BucketCopy, Invalidation, Mirror, Observer, TextIndex, Transition

app = typer.Typer(
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
for _part, _name, _command, _examples in (
    (FIRST, "serve", serve, SERVE_EXAMPLES),
    (FIRST, "set", set_, SET_EXAMPLES),
    (FIRST, "get", get, GET_EXAMPLES),
    (FIRST, "delete", delete, DELETE_EXAMPLES),
    (FIRST, "tail", tail, TAIL_EXAMPLES),
    (FIRST, "load", load, LOAD_EXAMPLES),
    (FIRST, "export", export, EXPORT_EXAMPLES),
    (FIRST, "console", console, CONSOLE_EXAMPLES),
    (FIRST, "demo", demo, DEMO_EXAMPLES),
    (FOLLOW, "mirror", Mirror, ""),
    (FOLLOW, "index", TextIndex, ""),
    (FOLLOW, "search", search, SEARCH_EXAMPLES),
    (FOLLOW, "observe", Observer, ""),
    (FOLLOW, "copy", BucketCopy, ""),
    (FOLLOW, "invalidate", Invalidation, ""),
    (INSIDE, "seqnos", seqnos, SEQNOS_EXAMPLES),
    (INSIDE, "failover-log", failover_log, FAILOVER_LOG_EXAMPLES),
    (INSIDE, "streams", streams, STREAMS_EXAMPLES),
    (OLDER, "tap", tap, TAP_EXAMPLES),
    (OLDER, "replicate", replicate, REPLICATE_EXAMPLES),
    (OLDER, "move", move, MOVE_EXAMPLES),
    (OLDER, "transition", Transition, ""),
    (OLDER, "failover", failover, FAILOVER_EXAMPLES),
):
    if isinstance(_command, type):
        add_job(app, _command, _part, live_rates if _command is Observer else None)
        continue
    app.command(
        _name,
        cls=Serve if _command is serve else CommandWithForms,
        help=paragraphs(_command.__doc__),
        epilog=_examples,
        rich_help_panel=_part,
    )(_command)
for _part, _name, _group, _help, _examples in (
    (FOLLOW, "lake", lake, LAKE_HELP, LAKE_EXAMPLES),
    (OPERATE, "cluster", cluster, CLUSTER_HELP, CLUSTER_EXAMPLES),
    (OPERATE, "backup", backup, BACKUP_HELP, BACKUP_EXAMPLES),
    (OPERATE, "bucket", bucket, BUCKET_HELP, BUCKET_EXAMPLES),
    (OPERATE, "collection", collection, COLLECTION_HELP, COLLECTION_EXAMPLES),
    (OPERATE, "user", user, USER_HELP, USER_EXAMPLES),
    (OPERATE, "tls", tls, TLS_HELP, TLS_EXAMPLES),
    (OPERATE, "config", config, CONFIG_HELP, CONFIG_EXAMPLES),
):
    app.add_typer(_group, name=_name, help=paragraphs(_help), epilog=_examples, rich_help_panel=_part)
    for _info in _group.registered_commands:
        _info.cls = _info.cls if issubclass(_info.cls or TyperCommand, CommandWithForms) else CommandWithForms


TRACED = frozenset({"move", "cluster"})
"""Commands, other than jobs, that have spans: to prepare for them costs a third of a second where the environment asks
for it."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headwater {headwater.__version__}")
        raise typer.Exit


def _profiles(context: typer.Context, incomplete: str) -> list[str]:
    """The names that the shell completes --profile to."""
    named = context.params.get("config") or os.environ.get("HEADWATER_CONFIG")
    return completed(incomplete, Path(named) if named else None)


def _is_traced(context: Any) -> bool:
    name = context.invoked_subcommand
    job = getattr(context.command.get_command(context, name), "job", None)
    return name in TRACED if job is None else bool(job.TRACED)


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_serve(context: typer.Context, profile: str) -> None:
    """A node has no profile; a file that is named before the command is as good as one that is named behind it."""
    if _is_typed(context, "profile"):
        raise OptionError("profile", profile, "for serve: profiles are those of commands that ask nodes")
    if not _is_typed(context, "config"):
        context.obj = Settings()


def _tell_what_comes_before(context: typer.Context, profile: str) -> None:
    """Tell of variables that come before a profile which was typed: they may be forgotten, and name another node."""
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
    """Without a command, show which there are."""
    context.obj = Settings(config, profile)
    if context.invoked_subcommand == "serve":
        _check_serve(context, profile)
    elif context.invoked_subcommand not in {"config", None}:
        context.default_map = context.obj.defaults(context.command)
        _tell_what_comes_before(context, profile)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif _is_traced(context) and (told := tracing.begin()):
        remark(told)


def main() -> int:
    """Run the command line of this process; Ctrl-C and SIGTERM end it as `failures.py` says."""
    stopping.listen()
    app()  # exits by itself
    return 0
