"""The place of the users: the folder of a node's store, or a running node and its cluster."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias

import typer

from headwater.cli.cluster.running import StopRequest, addresses, run
from headwater.cli.commands import CommandWithForms, Parameter, parameter_of
from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, remark, report
from headwater.cli.passwords import OF_FILE, new_password, origin_rank, password_of, typed_password
from headwater.cluster.work import WorkOutcome, WorkRun
from headwater.errors import WorkRefused

if TYPE_CHECKING:
    from headwater.accounts.users import Account
    from headwater.cluster.members import Members
    from headwater.cluster.work import WorkOnUser
    from headwater.wire.users import UserList

__all__ = ["Accounts", "PlacedCommand", "UserCommand", "UsersPlace"]

Accounts: TypeAlias = "dict[str, Account]"


@dataclass(slots=True)
class UsersPlace:
    """The folder of a node's store; or a running node with its login, if `node` is not None."""

    data: Path
    node: str | None = None
    by: str | None = None
    password: str | None = None

    def __str__(self) -> str:
        return self.node or str(self.data)

    def accounts(self) -> "Accounts | None":
        """Return the users; None if there never were any."""
        from headwater.accounts.users import accounts_of
        from headwater.node.users.file import UsersFile

        if self.node is None:
            return UsersFile(self.data).load()
        from headwater.cluster.users import current

        seeds, _ = addresses([self.node])

        async def work(members: "Members", _: StopRequest) -> "UserList":
            return await current(members, seeds)

        users = self._run(work)
        return accounts_of(users) if users.entries else None

    def change(self, work: "WorkOnUser") -> "WorkOutcome":
        """Do work on a user; if it is refused, all users stay as they were."""
        from headwater.node.users.file import UsersFile

        if self.node is None:
            with UsersFile(self.data).editing() as accounts:
                work.edit(accounts)
            return work.outcome(len(accounts))
        seeds, _ = addresses([self.node])

        async def do(members: "Members", _: StopRequest) -> "WorkOutcome":
            return await work.run(members, seeds, WorkRun())

        outcome: WorkOutcome = self._run(do)
        return outcome

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
_OPTIONS: Final[list[Parameter]] = [
    ("data", Data, Path("headwater-data")),
    ("node", Node, None),
    ("by", By, None),
    ("by_password_file", ByPasswordFile, None),
]
NEW_PASSWORD: Final[Parameter] = (
    "password_file",
    Annotated[
        str | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="The password is its first line; - is standard input. Without it you are asked.",
        ),
    ],
    None,
)


class PlacedCommand(CommandWithForms):
    """A command about the users of a place, which its last options name."""

    def declared(self) -> list[Parameter]:
        """Return the options that name the place."""
        return _OPTIONS

    def perform(self, ctx: Any) -> None:
        """Do the work at the place, and begin a refusal with its name."""
        place = _place_of(ctx)
        try:
            self.perform_at(place, ctx.params)
        except WorkRefused as error:
            raise WorkRefused(f"{place}: {error.problem}", error.advice) from None

    def perform_at(self, place: UsersPlace, values: Mapping[str, Any]) -> None:
        """Print the users and their roles."""
        accounts = place.accounts()
        if accounts is None:
            raise CommandError(f"{place}: no users were added here; a node without any listens to its own machine only")
        users = {name: list(map(str, account.grants)) for name, account in sorted(accounts.items())}
        answer("\n".join(f"{name}: {', '.join(roles)}" for name, roles in users.items()), users=users)


class UserCommand(PlacedCommand):
    """The command of one kind of work on users."""

    work: ClassVar[type["WorkOnUser"]]

    def declared(self) -> list[Parameter]:
        """Return the work's options, the file of a new password in place of the password, and those of the place."""
        parameters = [NEW_PASSWORD if option.secret else parameter_of(option) for option in self.work.options()]
        return [*parameters, *_OPTIONS]

    def perform_at(self, place: UsersPlace, values: Mapping[str, Any]) -> None:
        """Change the users; a password is asked for once the rest is known to be right."""
        fields = {option.field: values[option.field] for option in self.work.options() if not option.secret}
        work = self.work(**fields)
        if self.work.needs_password():
            work.check(place.accounts() or {})
            work = self.work(**fields | {"password": new_password(values["password_file"], work.name)})
        outcome = place.change(work)
        for line in outcome.details:
            remark(line)
        report(outcome.line, **outcome.facts)


def _place_of(ctx: Any) -> UsersPlace:
    """Return the place that the options of a command name."""
    from headwater.node.config import store_folder

    data, node, by, file = (ctx.params[name] for name, *_ in _OPTIONS)
    if origin_rank(ctx, "data") < origin_rank(ctx, "node"):  # a folder is named, and a profile has a node
        node = None
    if origin_rank(ctx, "by_password_file") >= OF_FILE and (node is None or "HEADWATER_PASSWORD" in os.environ):
        file = None
    if node is None and file is not None and "HEADWATER_PASSWORD_FILE" not in os.environ:
        raise CommandError("--by-password-file is for --node; a folder is changed without a login")
    return UsersPlace(store_folder(str(data)), node, by, None if node is None else _password(by, file))


def _password(by: str | None, file: str | None) -> str | None:
    if file is not None:
        return password_of(file)
    return os.environ.get("HEADWATER_PASSWORD") or typed_password(by, "--by-password-file", "HEADWATER_PASSWORD")
