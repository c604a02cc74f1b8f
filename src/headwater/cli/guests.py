"""Commands of other packages, by entry points.

    headwater.jobs        a job (pipelines/jobs/), which gets a command
    headwater.commands    a function, or a typer.Typer with several of them

A package is imported only when its command is called or shown. A broken one costs a line, and no other command.
docs/howto/own-job.md shows how to write one.
"""

from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from headwater.cli.failures import CommandError, Commands
from headwater.cli.forms import remark
from headwater.cli.listed import ListedCommands

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GUESTS", "CommandsAndGuests"]

JOBS: Final = "headwater.jobs"
COMMANDS: Final = "headwater.commands"
GUESTS: Final = "Of other packages"
"""The last part of the list of commands, which has those of other packages."""


class CommandsAndGuests(Commands):
    """Our commands, and those of other packages, which are loaded on demand."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._group = ListedCommands()
        self.commands: Any = self._group
        self._own_names = frozenset(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, loaded now if another package has it. Raises CommandError for a broken one."""
        if cmd_name not in self.commands and (point := _first(cmd_name)) is not None:
            self.commands[cmd_name] = _load_command(point)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all usable commands."""
        list(self._faults())
        return super().list_commands(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the list of commands, and on stderr the reasons why others are missing."""
        for problem in self._faults():
            remark(problem)
        Commands.format_help(self._shown_group(), ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the shell's completions of a word: only the names in the list for a command."""
        ctx.command = self._shown_group()  # where typer looks for the names
        return Commands.shell_complete(ctx.command, ctx, incomplete)

    def _shown_group(self) -> Any:
        """Return the group with a stand-in for each of our commands, for a list."""
        group: Any = copy(self)
        group.commands = self._group.stand_ins()
        return group

    def _faults(self) -> Iterator[str]:
        """Load the commands of other packages; yield the reasons why some are unusable."""
        names = set(self._own_names)
        for name, point in _points():
            if name in names:
                yield f"the command {name} of {_package(point)} is left out: there is one of that name"
                continue
            names.add(name)
            try:
                self.get_command(None, name)
            except CommandError as error:
                yield str(error)


def _points() -> Iterator[tuple[str, "EntryPoint"]]:
    """Yield the entry points of packages, by name and in the order of their names."""
    from importlib.metadata import entry_points  # a hundredth of a second, for names that are none of ours

    points = [*entry_points(group=JOBS), *entry_points(group=COMMANDS)]
    yield from ((each.name, each) for each in sorted(points, key=lambda each: (each.name, _package(each))))


def _first(name: str) -> "EntryPoint | None":
    return next((point for each, point in _points() if each == name), None)


def _package(point: "EntryPoint") -> str:
    """Return the package of an entry point; one that is half removed has no name any more."""
    with suppress(Exception):
        if point.dist is not None and point.dist.name:
            return f"{point.dist.name} {point.dist.version}"
    return "an unknown package"


def _load_command(point: "EntryPoint") -> Any:
    """Import the object of an entry point and make a command of it. Raises CommandError."""
    from headwater.cli.making import command_of

    try:
        brought, is_job = point.load(), point.group == JOBS
        if is_job:
            _check_job(brought, point.name)
        return command_of(point.name, brought, GUESTS, is_job=is_job)
    except (Exception, SystemExit) as error:  # another package's code, which may raise anything, or end the program
        reason = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        raise CommandError(f"the command {point.name} of {_package(point)} can't be used: {reason}") from error


def _check_job(brought: Any, name: str) -> None:
    """Raise TypeError if the object is no job of this name."""
    from headwater.pipelines.jobs import DeclaredJob

    if not (isinstance(brought, type) and issubclass(brought, DeclaredJob)) or name != brought.NAME:
        raise TypeError(f"{brought!r} is no job of headwater.pipelines.jobs with the NAME {name!r}")
