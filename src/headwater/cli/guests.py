"""Commands that other packages bring, by entry points.

    headwater.jobs        a job (pipelines/jobs/), of which a command is made
    headwater.commands    a function, or a typer.Typer with several of them

A package is imported when its command is called or shown, and never before. One that can't be used costs a line, and no
other command. docs/howto/own-job.md shows how to write one.
"""

from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import typer

from headwater.cli.commands import CommandWithForms
from headwater.cli.failures import CommandError, Commands
from headwater.cli.forms import remark
from headwater.cli.jobs import add_job
from headwater.cli.options import paragraphs
from headwater.cli.plain_help import plain_group
from headwater.pipelines.jobs import DeclaredJob

__all__ = ["GUESTS", "CommandsAndGuests"]

JOBS: Final = "headwater.jobs"
COMMANDS: Final = "headwater.commands"
GUESTS: Final = "Of other packages"
"""The part of the list of commands in which they stand, after all others."""


class CommandsAndGuests(Commands):
    """Our commands, and those of other packages, which are loaded when somebody wants them."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; of another package, loaded now. Raises CommandError for one that can't be used."""
        if cmd_name not in self.commands and (point := _first(cmd_name)) is not None:
            self.commands[cmd_name] = _loaded(point)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands that can be used."""
        list(self._faults())
        return super().list_commands(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the list of commands, and on stderr why others are not in it."""
        for problem in self._faults():
            remark(problem)
        super().format_help(ctx, formatter)

    def _faults(self) -> Iterator[str]:
        """Load what other packages bring; yield why some of it can't be used."""
        taken = {name for name, command in self.commands.items() if getattr(command, "rich_help_panel", "") != GUESTS}
        for name, point in _points():
            if name in taken:
                yield f"the command {name} of {_package(point)} is left out: there is one of that name"
                continue
            taken.add(name)
            try:
                self.get_command(None, name)
            except CommandError as error:
                yield str(error)


def _points() -> Iterator[tuple[str, EntryPoint]]:
    """Yield what packages bring, by name and in the order of their names."""
    found = [*entry_points(group=JOBS), *entry_points(group=COMMANDS)]
    yield from ((each.name, each) for each in sorted(found, key=lambda each: (each.name, _package(each))))


def _first(name: str) -> EntryPoint | None:
    return next((point for each, point in _points() if each == name), None)


def _package(point: EntryPoint) -> str:
    """The package that brings it; one that was removed by half has no name any more."""
    with suppress(Exception):
        if point.dist is not None and point.dist.name:
            return f"{point.dist.name} {point.dist.version}"
    return "an unknown package"


def _loaded(point: EntryPoint) -> Any:
    """Import what an entry point names and make a command of it. Raises CommandError."""
    try:
        command = _made(point.name, point.load(), is_job=point.group == JOBS)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        raise CommandError(f"the command {point.name} of {_package(point)} can't be used: {why}") from error
    plain_group(command)
    return command


def _made(name: str, brought: Any, *, is_job: bool) -> Any:
    app = typer.Typer(add_completion=False)
    app.callback()(lambda: None)  # or typer would make one command of a program with one
    if is_job:
        if not (isinstance(brought, type) and issubclass(brought, DeclaredJob)) or name != brought.NAME:
            raise TypeError(f"{brought!r} is no job of headwater.pipelines.jobs with the NAME {name!r}")
        add_job(app, brought, GUESTS)
    elif isinstance(brought, typer.Typer):
        app.add_typer(brought, name=name, rich_help_panel=GUESTS)
        for each in brought.registered_commands:
            each.cls = CommandWithForms
    else:
        help_text = paragraphs(brought.__doc__)
        app.command(name, cls=CommandWithForms, help=help_text, rich_help_panel=GUESTS)(brought)
    made: Any = typer.main.get_command(app)
    return made.commands[name]
