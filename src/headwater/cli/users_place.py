"""The place of the users: the folder of a node's store, or a running node and its cluster."""

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer

from headwater.cli.cluster.running import StopRequest, addresses, run
from headwater.cli.failures import CommandError
from headwater.cli.forms import remark
from headwater.cli.passwords import OF_FILE, came_from, password_of, typed_password
from headwater.cli.screen import several
from headwater.errors import WorkRefused

if TYPE_CHECKING:
    from headwater.cluster.members import Members
    from headwater.cluster.users import Spread
    from headwater.node.users.file import Account
    from headwater.wire.users import UserList

__all__ = ["Accounts", "UsersPlace", "Where", "placed"]

Accounts: TypeAlias = "dict[str, Account]"


@dataclass(frozen=True, slots=True)
class Where:
    """The addition to a report with the place of a change."""

    line: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class UsersPlace:
    """A folder, or (`node`) the node to ask, with its login."""

    data: Path
    node: str | None = None
    by: str | None = None
    password: str | None = None

    def __str__(self) -> str:
        return self.node or str(self.data)

    def accounts(self) -> "Accounts | None":
        """Return the users; None if there never were any."""
        from headwater.node.users.file import UsersFile, accounts_of

        if self.node is None:
            return UsersFile(self.data).load()
        from headwater.cluster.users import current

        seeds, _ = addresses([self.node])

        async def work(members: "Members", _: StopRequest) -> "UserList":
            return await current(members, seeds)

        users = self._run(work)
        return accounts_of(users) if users.entries else None

    def change(self, edit: "Callable[[Accounts], None]") -> Where:
        """Change the users by a function; if it refuses, they stay as they were."""
        from headwater.node.users.file import UsersFile

        if self.node is None:
            with UsersFile(self.data).editing() as accounts:
                edit(accounts)
            return Where()
        spread = self._spread(edit)
        for node, why in spread.away.items():
            remark(f"{node} is away and asks the others when it is back ({why})")
        nodes = [str(each) for each in spread.nodes]
        line = "" if len(nodes) == 1 and not spread.away else f" (on {several(len(nodes), 'node')})"
        return Where(line, {"nodes": nodes, "away": [str(each) for each in spread.away]})

    def _spread(self, edit: "Callable[[Accounts], None]") -> "Spread":
        from headwater.cluster.users import change
        from headwater.node.users.file import on_list

        seeds, _ = addresses([self.node or ""])

        async def work(members: "Members", _: StopRequest) -> "Spread":
            return await change(members, seeds, on_list(edit))

        spread: Spread = self._run(work)
        return spread

    def _run(self, work: Any) -> Any:
        _, place = addresses([self.node or ""])
        return run(work, place, self.by, self.password)


Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", envvar="HEADWATER_DATA", help="The folder of the node's store.")
]
Node = Annotated[
    str | None,
    typer.Option("--node", "-n", metavar="URL", help="A node that runs, in place of a folder: all of its cluster."),
]
By = Annotated[
    str | None,
    typer.Option("--by", metavar="NAME", envvar="HEADWATER_USER", help="Who asks the node: an administrator."),
]
ByPasswordFile = Annotated[
    str | None,
    typer.Option(
        "--by-password-file",
        metavar="FILE",
        envvar="HEADWATER_PASSWORD_FILE",
        help="The password of --by: the first line of a private file; - is standard input. Else it is asked for.",
    ),
]
_OPTIONS = {
    "data": (Data, Path("headwater-data")),
    "node": (Node, None),
    "by": (By, None),
    "by_password_file": (ByPasswordFile, None),
}


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose first parameter is a place, the options for it."""
    known = dict(inspect.signature(command).parameters)
    hints = get_type_hints(command, include_extras=True)
    known.pop("place")

    @functools.wraps(command)
    def run_there(context: typer.Context, **given: Any) -> None:
        from headwater.node.config import store_folder

        data, node, by, file = (given.pop(name) for name in _OPTIONS)
        if came_from(context, "data") < came_from(context, "node"):  # a folder is named, and a profile has a node
            node = None
        if came_from(context, "by_password_file") >= OF_FILE and (node is None or "HEADWATER_PASSWORD" in os.environ):
            file = None
        if node is None and file is not None and "HEADWATER_PASSWORD_FILE" not in os.environ:
            raise CommandError("--by-password-file is for --node; a folder is changed without a login")
        place = UsersPlace(store_folder(str(data)), node, by, None if node is None else _password(by, file))
        try:
            command(place, **given)
        except WorkRefused as error:
            raise WorkRefused(f"{place}: {error.problem}", error.advice) from None

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _OPTIONS.items()
    ]
    hints.pop("place")
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    run_there.__annotations__ = (
        {"context": typer.Context} | hints | {name: kind for name, (kind, _) in _OPTIONS.items()}
    )
    run_there.__signature__ = inspect.Signature([context, *known.values(), *parameters])  # type: ignore[attr-defined]
    return run_there


def _password(by: str | None, file: str | None) -> str | None:
    if file is not None:
        return password_of(file)
    return os.environ.get("HEADWATER_PASSWORD") or typed_password(by, "--by-password-file", "HEADWATER_PASSWORD")
