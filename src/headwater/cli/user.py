"""`headwater user`: who may log in to a node, kept in the folder of its store."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, report
from headwater.cli.options import examples, paragraphs
from headwater.cli.passwords import new_password

if TYPE_CHECKING:
    from headwater.node.users.file import Account, UsersFile

HELP = """Who may log in to a node, and what each may do: users, kept in the folder of its store.

A node that runs takes changes up within a second: who was removed is cut off, who lost a right has lost it. As soon as
there is a user, nobody else comes in. Passwords come from a prompt, a file or standard input and are not kept: only
what proves that somebody knows them."""
EXAMPLES = examples(
    "headwater user add ann --roles administer --data ./store",
    "headwater user add app --roles 'read,write[orders]' --password-file ./app.password --data ./store",
    "headwater user list --data ./store",
)
ORDINARY = "read,write,stream,monitor"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.")]
Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", envvar="HEADWATER_DATA", help="The folder of the node's store.")
]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="The password is its first line; - is standard input. Without it you are asked.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Also if nobody is left who may do everything.")]
DATA = Path("headwater-data")


def add(
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
    data: Data = DATA,
) -> None:
    """Add a user.

    The roles say what it may do: read and write documents, stream changes, replicate (be the other node of a
    replication, write documents with revisions of elsewhere), monitor (statistics), or administer: everything. Each is
    for all buckets or, in brackets, for one: read[orders]. Read, write and stream can be for a scope or a collection of
    it as well: read[orders:shop], stream[orders:shop:carts].
    """
    from headwater.node.users.file import Account, check_name, check_password
    from headwater.node.users.roles import read_grants

    grants = read_grants(roles)
    file = _file(data)
    if check_name(name) in (file.load() or {}):
        raise _is_there(name)
    password = check_password(new_password(password_file, name))
    with file.editing() as accounts:
        if name in accounts:
            raise _is_there(name)
        accounts[name] = Account.made(password, grants)
    report(f"{name}: {_told(accounts[name])}", user=name, roles=_grants(accounts[name]))


def password(name: Name, password_file: PasswordFile = None, data: Data = DATA) -> None:
    """Give a user another password. Who is logged in stays so."""
    from headwater.node.users.file import Account, check_password

    file = _file(data)
    _existing(file.load(), name, data)
    given = check_password(new_password(password_file, name))
    with file.editing() as accounts:
        accounts[name] = Account.made(given, _existing(accounts, name, data).grants)
    report(f"{name} has another password", user=name)


def roles(
    name: Name,
    given: Annotated[str, typer.Argument(metavar="ROLES", help="All its roles from now on, by commas.")],
    force: Force = False,
    data: Data = DATA,
) -> None:
    """Give a user other roles, in place of those it has."""
    from dataclasses import replace

    from headwater.node.users.roles import read_grants

    grants = read_grants(given)
    with _file(data).editing() as accounts:
        before = dict(accounts)
        accounts[name] = replace(_existing(accounts, name, data), grants=grants)
        _check_left(before, accounts, force)
    report(f"{name}: {_told(accounts[name])}", user=name, roles=_grants(accounts[name]))


def remove(name: Name, force: Force = False, data: Data = DATA) -> None:
    """Remove a user. Its connections are closed."""
    with _file(data).editing() as accounts:
        before = dict(accounts)
        _existing(accounts, name, data)
        del accounts[name]
        _check_left(before, accounts, force)
    report(
        f"{name} is removed" + ("" if accounts else "; nobody is left, and nobody comes in"),
        user=name,
        left=len(accounts),
    )


def show(data: Data = DATA) -> None:
    """Print the users and their roles."""
    found = _file(data).load()
    if found is None:
        raise CommandError(f"{data}: no users were added here; a node without any listens to its own machine only")
    told = {name: _grants(account) for name, account in sorted(found.items())}
    answer("\n".join(f"{name}: {', '.join(roles)}" for name, roles in told.items()), users=told)


def _file(data: Path) -> "UsersFile":
    from headwater.node.users.file import UsersFile

    return UsersFile(data)


def _told(account: "Account") -> str:
    return ", ".join(_grants(account))


def _grants(account: "Account") -> list[str]:
    return [str(each) for each in account.grants]


def _is_there(name: str) -> CommandError:
    return CommandError(f"there is a user {name!r}; change it: headwater user password, headwater user roles")


def _existing(accounts: "dict[str, Account] | None", name: str, data: Path) -> "Account":
    if name not in (accounts or {}):
        raise CommandError(f"{data}: there is no user {name!r}; see: headwater user list")
    return (accounts or {})[name]


def _check_left(before: "dict[str, Account]", after: "dict[str, Account]", force: bool) -> None:
    """Raise CommandError, which leaves all as it was, when the last user goes who may do everything."""
    if not force and _has_administrator(before) and not _has_administrator(after):
        raise CommandError("no user would be left with the role administer; give it to another first, or --force")


def _has_administrator(accounts: "dict[str, Account]") -> bool:
    return any(each.role == "administer" for account in accounts.values() for each in account.grants)


group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for _name, _command, _examples in (
    ("add", add, examples("headwater user add ann --roles administer", "pass show app | headwater user add app")),
    ("list", show, examples("headwater user list --data ./store")),
    ("roles", roles, examples("headwater user roles app 'read,write[orders],stream[orders:shop]'")),
    ("password", password, examples("headwater user password ann --password-file ./new.password")),
    ("remove", remove, examples("headwater user remove app")),
):
    group.command(_name, help=paragraphs(_command.__doc__), epilog=_examples)(_command)
