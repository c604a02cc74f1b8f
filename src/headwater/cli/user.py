"""`headwater user`: who may log in to a node or to a cluster, kept in the folder of each node's store."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, report
from headwater.cli.options import examples, paragraphs
from headwater.cli.passwords import new_password
from headwater.cli.users_place import Accounts, UsersPlace, placed

if TYPE_CHECKING:
    from headwater.node.users.roles import Grant

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
EXITS_OF = {
    "add": {1: "there is such a user, or no node took the change"},
    "list": {1: "no users were added here"},
    "roles": {1: "there is no such user, or nobody would be left who may do everything"},
    "password": {1: "there is no such user"},
    "remove": {1: "there is no such user, or nobody would be left who may do everything"},
}
ORDINARY = "read,write,stream,monitor"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.")]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="The password is its first line; - is standard input. Without it you are asked.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Also if nobody is left who may do everything.")]


def add(
    place: UsersPlace,
    name: Name,
    roles: Annotated[
        str,
        typer.Option(
            "--roles",
            metavar="LIST",
            help="Of read, write, stream, replicate, monitor, administer; read[BUCKET:SCOPE:COLLECTION] for less.",
        ),
    ] = ORDINARY,
    password_file: PasswordFile = None,
) -> None:
    """Add a user.

    The roles say what it may do: read and write documents, stream changes, replicate (be the other node of a
    replication, write documents with revisions of elsewhere), monitor (statistics), or administer: everything. Each is
    for all buckets or, in brackets, for one: read[orders]. Read, write and stream can be for a scope or a collection of
    it as well: read[orders:shop], stream[orders:shop:carts].
    """
    from headwater.node.users.file import Account, add_account, check_new, check_password
    from headwater.node.users.roles import read_grants

    grants = read_grants(roles)
    check_new(place.accounts() or {}, name)
    account = Account.create(check_password(new_password(password_file, name)), grants)
    where = place.change(partial(add_account, name=name, account=account))
    report(f"{name}: {_listed(grants)}{where.line}", user=name, roles=list(map(str, grants)), **where.facts)


def password(place: UsersPlace, name: Name, password_file: PasswordFile = None) -> None:
    """Give a user another password. Who is logged in stays so."""
    from headwater.node.users.file import Account, account_of, change_account, check_password

    account_of(place.accounts() or {}, name)
    keys = Account.create(check_password(new_password(password_file, name)), ()).keys
    where = place.change(partial(change_account, name=name, keys=keys))
    report(f"{name} has another password{where.line}", user=name, **where.facts)


def roles(
    place: UsersPlace,
    name: Name,
    given: Annotated[str, typer.Argument(metavar="ROLES", help="All its roles from now on, by commas.")],
    force: Force = False,
) -> None:
    """Give a user other roles, in place of those it has."""
    from headwater.node.users.file import change_account
    from headwater.node.users.roles import read_grants

    grants = read_grants(given)
    where = place.change(partial(change_account, name=name, grants=grants, force=force))
    report(f"{name}: {_listed(grants)}{where.line}", user=name, roles=list(map(str, grants)), **where.facts)


def remove(place: UsersPlace, name: Name, force: Force = False) -> None:
    """Remove a user. Its connections are closed."""
    from headwater.node.users.file import remove_account

    left = 0

    def change(accounts: Accounts) -> None:
        nonlocal left
        remove_account(accounts, name, force=force)
        left = len(accounts)

    where = place.change(change)
    nobody = "" if left else "; nobody is left, and nobody comes in"
    report(f"{name} is removed{where.line}{nobody}", user=name, left=left, **where.facts)


def show(place: UsersPlace) -> None:
    """Print the users and their roles."""
    accounts = place.accounts()
    if accounts is None:
        raise CommandError(f"{place}: no users were added here; a node without any listens to its own machine only")
    users = {name: list(map(str, account.grants)) for name, account in sorted(accounts.items())}
    answer("\n".join(f"{name}: {', '.join(roles)}" for name, roles in users.items()), users=users)


def _listed(grants: "tuple[Grant, ...]") -> str:
    return ", ".join(map(str, grants))


group: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for _name, _command, _examples in (
    ("add", add, examples("headwater user add ann --roles administer", "pass show app | headwater user add app")),
    ("list", show, examples("headwater user list --data ./store", "headwater user list --node db1:11210 --by ann")),
    ("roles", roles, examples("headwater user roles app 'read,write[orders],stream[orders:shop]'")),
    ("password", password, examples("headwater user password ann --password-file ./new.password")),
    ("remove", remove, examples("headwater user remove app")),
):
    group.command(_name, help=paragraphs(_command.__doc__), epilog=_examples)(placed(_command))
