"""Exit statuses and their meanings for all commands; a command's own are in its file. The reference and the man pages
print them.
"""

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["GENERAL", "UNTIL_ENDED", "exits_of", "own_exits"]

GENERAL: Mapping[int, str] = {
    0: "all went well",
    1: "it failed, or the answer is no; one line on stderr says what and why",
    2: "an option, an argument or a setting is wrong; nothing was begun",
    129: "the terminal was closed (SIGHUP) before the work was done",
    130: "Ctrl-C came before the work was done",
    143: "SIGTERM came before the work was done",
}
UNTIL_ENDED = frozenset({"serve", "console"})
"""Commands whose work has no end of its own: a signal ends them successfully, so they have no exit status for one."""


def own_exits(command: Any) -> Mapping[int, str]:
    """Return the meanings of a command's own statuses: of its job, its work, or by its module: EXITS, and EXITS_OF of
    the commands of a group.
    """
    task = getattr(command, "job", None) or getattr(command, "work", None)
    if task is not None:
        return dict(task.EXITS)
    module = sys.modules[command.callback.__module__]
    return dict(getattr(module, "EXITS_OF", {}).get(command.name) or getattr(module, "EXITS", {}))


def exits_of(name: str, command: Any) -> dict[int, str]:
    """Return all statuses of a command, by its whole name. A command that runs until it is ended has none for
    a signal.
    """
    general = {status: text for status, text in GENERAL.items() if status < 128 or name not in UNTIL_ENDED}
    return dict(sorted({**general, **own_exits(command)}.items()))
