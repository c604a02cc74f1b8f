"""The list of commands: in parts, in the order of a first acquaintance, each with the first paragraph of its help.

A command's own file declares its part and its place there, as `PART = ("first", 20)`; `make docs` gathers the list of
these in commands.tsv, for `headwater --help` and the completion of the shell. A command itself is made when it is run
or its own help is shown: only then are the imports of its module worth their time.
"""

from collections.abc import Iterable, Iterator, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from typer.core import TyperCommand

from headwater.cli.options import escaped
from headwater.cli.plain_help import PARTS

__all__ = ["LIST", "LISTED", "PARTS", "ListedCommand", "ListedCommands"]


class ListedCommand(NamedTuple):
    """A command in the list.

    Attributes:
        name: the name on the command line.
        place: `module:name` of its function, of the class of its job or work, or of the typer.Typer of its group.
        line: the first paragraph of its help.
        part: its part of the list (plain_help.py).
    """

    name: str
    place: str
    line: str
    part: str

    def stand_in(self) -> Any:
        """Return a command that a list can show."""
        return TyperCommand(self.name, help=escaped(self.line), rich_help_panel=self.part)

    def command(self) -> Any:
        """Import and make the command."""
        from headwater.cli.making import CommandWithForms, command_of

        place, _, name = self.place.partition(":")
        module = import_module(f"headwater.{place}")
        brought = getattr(module, name)
        return command_of(
            self.name,
            brought,
            self.part,
            is_job=isinstance(brought, type),
            text=getattr(module, "HELP", None),
            examples=getattr(module, "EXAMPLES", None),
            kind=getattr(module, "COMMAND", CommandWithForms),
            live=getattr(module, "live", None),
        )


LIST: Final = Path(__file__).with_name("commands.tsv")


def _listed_command(row: str) -> ListedCommand:
    name, place, part, line = row.split("\t")
    return ListedCommand(name, place, line, PARTS[part])


LISTED: Final = tuple(map(_listed_command, LIST.read_text("utf-8").splitlines()))


class ListedCommands(MutableMapping[str, Any]):
    """The commands by name; each of ours is made when it is looked up, and not when only the names are needed."""

    def __init__(self, commands: Iterable[ListedCommand] = LISTED) -> None:
        self._entries: dict[str, Any] = {command.name: command for command in commands}

    def __getitem__(self, name: str) -> Any:
        entry = self._entries[name]
        if isinstance(entry, ListedCommand):
            entry = self._entries[name] = entry.command()
        return entry

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command; a KeyError within an import does not count as a missing command."""
        return self[name] if name in self else default  # noqa: SIM401 - it is this very method

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __setitem__(self, name: str, command: Any) -> None:
        self._entries[name] = command

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def stand_ins(self) -> dict[str, Any]:
        """Return each command in its form for a list: a stand-in if it was not made yet."""
        return {
            name: entry.stand_in() if isinstance(entry, ListedCommand) else entry
            for name, entry in self._entries.items()
        }
