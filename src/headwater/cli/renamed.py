"""Options that had another name before: the old one goes on working, on the command line and in files of settings, and
is shown nowhere."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["RENAMED", "accept_old_names", "names_of"]

RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "cluster rebalance": {"--patience": "--patience-seconds", "--concurrency": "--at-once"},
}
"""By command: the name of an option, and the one that it had before."""


def accept_old_names(command: Any, name: str) -> None:
    """Let a command, and the commands of a group, be called with options' old names."""
    for each, below in getattr(command, "commands", {}).items():
        accept_old_names(below, f"{name} {each}")
    renamed = RENAMED.get(name, {})
    for option in command.params:
        option.old_names = [renamed[each] for each in option.opts if each in renamed]
        if option.old_names:
            option.add_to_parser = _Adding(option)


def names_of(option: Any) -> Iterator[str]:
    """All names by which an option may be called."""
    yield from option.opts
    yield from getattr(option, "old_names", ())


class _Adding:
    """Tells the parser of an option, which has its old names in this moment only: help is made from its names, too."""

    def __init__(self, option: Any) -> None:
        self._option, self._add = option, option.add_to_parser

    def __call__(self, parser: Any, context: Any) -> None:
        shown = self._option.opts
        self._option.opts = list(names_of(self._option))
        try:
            self._add(parser, context)
        finally:
            self._option.opts = shown
