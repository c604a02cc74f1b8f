"""Options with older names, which still work on the command line and in files of settings, but are shown nowhere."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["RENAMED", "accept_old_names", "names_of"]

RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "cluster rebalance": {"--patience": "--patience-seconds", "--concurrency": "--at-once"},
}
"""By command: the name of an option, and the one that it had before."""


def accept_old_names(command: Any, name: str) -> None:
    """Let a command, and the commands of a group, accept options' old names."""
    for each, below in getattr(command, "commands", {}).items():
        accept_old_names(below, f"{name} {each}")
    renamed = RENAMED.get(name, {})
    for option in command.params:
        option.old_names = [renamed[opt] for opt in option.opts if opt in renamed]
        if option.old_names:
            option.add_to_parser = _Adding(option)


def names_of(option: Any) -> Iterator[str]:
    """Yield all names of an option."""
    yield from option.opts
    yield from getattr(option, "old_names", ())


class _Adding:
    """Adds the old names to an option only while the parser reads it: help is made from its names, too."""

    def __init__(self, option: Any) -> None:
        self._option, self._add = option, option.add_to_parser

    def __call__(self, parser: Any, context: Any) -> None:
        option_names = self._option.opts
        self._option.opts = list(names_of(self._option))
        try:
            self._add(parser, context)
        finally:
            self._option.opts = option_names
