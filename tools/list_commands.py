"""Write src/headwater/cli/commands.tsv, the list of commands, from the declaration in each command's own file.

`make man` and `make docs` run this; tests/cli/test_listed.py fails when the list is stale. A module of headwater.cli
with a PART has a command of its name: its function, the class of its job, or its `group` of commands. A job or work
that needs no module there has a PART itself.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from headwater import cli
from headwater.cli.listed import LIST, PARTS, ListedCommand
from headwater.cli.options import unescaped

Entry = tuple[str, int, ListedCommand]


def page() -> str:
    """Return the whole list."""
    entries = sorted([*_modules(), *_classes()], key=lambda entry: (list(PARTS).index(entry[0]), entry[1]))
    return "".join(f"{listed.name}\t{listed.place}\t{part}\t{_line(listed)}\n" for part, _, listed in entries)


def _line(listed: ListedCommand) -> str:
    """Return the first paragraph of a command's help."""
    return unescaped(listed.command().help.partition("\n\n")[0])


def _modules() -> Iterator[Entry]:
    """Yield the commands that modules of the command line declare."""
    for info in pkgutil.walk_packages(cli.__path__, "headwater.cli."):
        module: Any = import_module(info.name)
        if hasattr(module, "PART"):
            *_, package, last = info.name.split(".")
            name = package if last in ("group", "command") else last
            yield _entry(*module.PART, name.replace("_", "-"), info.name, _object(module, name))


def _object(module: Any, name: str) -> str:
    named = (key for key, each in vars(module).items() if name in (key.strip("_"), getattr(each, "NAME", None)))
    return "group" if hasattr(module, "group") else next(named)


def _classes() -> Iterator[Entry]:
    """Yield the commands that jobs and works declare."""
    for package in ("headwater.pipelines.jobs", "headwater.cluster.work"):
        for key, brought in vars(import_module(package)).items():
            if isinstance(brought, type) and "PART" in vars(brought):
                name = getattr(brought, "NAME", "") or brought.KIND.rpartition("-")[2]  # type: ignore[attr-defined]
                yield _entry(*brought.PART, name, package, key)


def _entry(part: str, place: int, name: str, module: str, key: str) -> Entry:
    return part, place, ListedCommand(name, f"{module.removeprefix('headwater.')}:{key}", "", PARTS[part])


if __name__ == "__main__":
    LIST.write_text(page(), "utf-8")
