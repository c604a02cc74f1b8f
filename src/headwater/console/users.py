"""The page of users: their names and roles, on all nodes of the cluster.

Its forms take effect at once and without a plan, for a plan would carry a password through a page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headwater.cluster import users as known_users
from headwater.console.actions import check_rights
from headwater.console.desk import desk_of, status_of
from headwater.console.guard import form_of
from headwater.console.lookout import plain
from headwater.errors import HeadwaterError, NoAccess, OptionError
from headwater.node.users.file import Account, accounts_of, check_name, check_password, edited, has_administrator
from headwater.node.users.roles import read_grants

if TYPE_CHECKING:
    from headwater.wire.users import UserList

__all__ = ["add", "password", "remove", "roles", "users"]

DONE = {
    "add": "{} may log in.",
    "roles": "{} has the roles that were given, and no others.",
    "password": "{} has another password.",
    "remove": "{} is removed; its connections are closed.",
}
"""Messages about a finished operation, by the word in the address."""
Accounts: TypeAlias = dict[str, Account]
Fields: TypeAlias = dict[str, str]


async def users(request: Request) -> Response:
    """Show the users and their roles, and the forms that change them."""
    fields = request.query_params
    message = DONE.get(fields.get("done", ""), "").format(fields.get("name", "")[:128])
    if message and fields.get("away"):
        message += f" {fields['away'][:400]} is away, and asks the others when it is back."
    return await _page(request, done=message)


async def _page(
    request: Request, *, done: str = "", problem: str = "", status: int = 200, typed: Fields | None = None
) -> Response:
    desk = desk_of(request)
    grants: dict[str, list[str]] | None = None
    revision = 0
    try:
        async with desk.members() as members:
            known = await known_users.current(members, desk.lookout.dialled())
        accounts, revision = accounts_of(known), known.revision
        grants = {name: [str(each) for each in account.grants] for name, account in sorted(accounts.items())}
    except NoAccess:
        pass  # the page says so
    except HeadwaterError as error:
        problem, status = problem or plain(error), status_of(error) if status == 200 else status
    kept = {name: (typed or {}).get(name, "") for name in ("name", "roles")}
    context = {"title": "Users", "users": grants, "revision": revision, "done": done, "problem": problem, "typed": kept}
    return desk.render(request, "users.html", context, status)


def _changing(name: str, edit: Callable[[Accounts, Fields], None]) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a form that changes the users by `edit`; if that refuses, nothing changes."""

    async def change(request: Request) -> Response:
        desk = desk_of(request)
        fields = await form_of(request, desk.secrets.token)

        def edit_list(users: UserList) -> UserList:
            _check_shown(users, fields)
            before = accounts_of(users)
            accounts = dict(before)
            edit(accounts, fields)
            _check_left(before, accounts)
            return edited(users, before, accounts)

        try:
            await check_rights(desk, f"user {name}")
            async with desk.members() as members:
                spread = await known_users.change(members, desk.lookout.dialled(), edit_list)
        except HeadwaterError as error:
            return await _page(request, problem=plain(error), status=status_of(error), typed=fields)
        params = {"done": name, "name": fields["name"]} | (
            {"away": ", ".join(map(str, spread.away))} if spread.away else {}
        )
        return RedirectResponse("/users?" + urlencode(params), 303)

    return change


def _add(accounts: Accounts, fields: Fields) -> None:
    name = check_name(fields.get("name", ""))
    if name in accounts:
        raise OptionError("name", name, "another one: there is a user of this name")
    accounts[name] = Account.made(_password_in(fields), read_grants(fields.get("roles", "")))


def _give_roles(accounts: Accounts, fields: Fields) -> None:
    name = _known(accounts, fields)
    accounts[name] = replace(accounts[name], grants=read_grants(fields.get("roles", "")))


def _give_password(accounts: Accounts, fields: Fields) -> None:
    name = _known(accounts, fields)
    accounts[name] = Account.made(_password_in(fields), accounts[name].grants)


def _remove(accounts: Accounts, fields: Fields) -> None:
    name = _known(accounts, fields)
    if fields.get("words", "") != name:
        raise OptionError("words", fields.get("words", "")[:128], f"{name}, typed again; nobody was removed")
    del accounts[name]


def _check_shown(users: UserList, fields: Fields) -> None:
    """Refuse to change a user whom somebody else changed, or removed and added anew, after the page was made."""
    entry, shown = users.entries.get(fields.get("name", "")), fields.get("revision", "")
    if entry is not None and shown.isascii() and shown.isdecimal() and entry.revision > int(shown[:20]):
        raise OptionError("user", fields["name"][:128], "as the page showed; it was changed since: look at it again")


def _check_left(before: Accounts, after: Accounts) -> None:
    """Refuse to remove the last user with all rights."""
    if has_administrator(before) and not has_administrator(after):
        raise OptionError("roles", "...", "such that a user with the role administer is left; give it to another first")


def _known(accounts: Accounts, fields: Fields) -> str:
    if (name := fields.get("name", "")) not in accounts:
        raise OptionError("user", name[:128], "one that is there")
    return name


def _password_in(fields: Fields) -> str:
    """Return the new password, which was typed twice; no message has it."""
    if fields.get("password", "") != fields.get("again", ""):
        raise OptionError("password", "...", "the same both times")
    return check_password(fields.get("password", ""))


add = _changing("add", _add)
roles = _changing("roles", _give_roles)
password = _changing("password", _give_password)
remove = _changing("remove", _remove)
