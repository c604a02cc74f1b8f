"""`headwater user`: who may log in to a node or to a cluster, kept in the folder of each node's store."""

from typing import Final

import typer

from headwater.cli.options import examples, paragraphs
from headwater.cli.users_place import PlacedCommand, UserCommand
from headwater.cluster.work import AddUser, ChangePassword, ChangeRoles, RemoveUser, WorkOnUser

PART = ("operate", 50)
HELP = """Who may log in to a node or to a cluster, and what each may do.

With --data they are changed in the folder of a node's store, with --node by a node that runs, where --by may do
everything. A change at one node of a cluster is one at all of them: at once with --node, within some seconds with
--data, and at one that is away as soon as it is back. Who was removed is cut off, who lost a right has lost it. As soon
as there is a user, nobody else comes in. Passwords come from a prompt, a file or standard input and are not kept: only
what proves that somebody knows them."""
EXAMPLES = examples(
    "headwater user add ann --roles administer --data ./store",
    "headwater user add app --roles 'read,write[orders]' --password-file ./app.password --node db1:11210 --by ann",
    "headwater user list --data ./store",
)
EXITS_OF = {"list": {1: "no users were added here"}}

group: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


def list_() -> None:
    """Print the users and their roles."""


def _add(kind: type[WorkOnUser]) -> None:
    """Add the command of one kind of work on users."""

    def command() -> None:
        """Do nothing: `perform_at` does the work."""

    group.command(
        kind.KIND.rpartition("-")[2],
        cls=type(f"{kind.__name__}Command", (UserCommand,), {"work": kind}),
        help=paragraphs(kind.__doc__),
        epilog=examples(*kind.EXAMPLES),
    )(command)


_add(AddUser)
group.command(
    "list",
    cls=PlacedCommand,
    help=paragraphs(list_.__doc__),
    epilog=examples("headwater user list --data ./store", "headwater user list --node db1:11210 --by ann"),
)(list_)
_add(ChangeRoles)
_add(ChangePassword)
_add(RemoveUser)
