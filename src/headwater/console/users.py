"""The page of users: their names and roles, on all nodes of the cluster.

Its forms take effect at once and without a plan, for a plan would carry a password through a page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headwater.cluster import users as known_users
from headwater.console.actions import check_rights
from headwater.console.desk import desk_of, status_of
from headwater.console.guard import form_of
from headwater.console.lookout import plain
from headwater.errors import HeadwaterError, NoAccess, OptionError
from headwater.node.users.file import (
    Account,
    accounts_of,
    add_account,
    change_account,
    check_password,
    on_list,
    remove_account,
)
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
Fields: TypeAlias = dict[str, str]
Change: TypeAlias = Callable[[dict[str, Account]], None]


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


def _changing(name: str, change_of: Callable[[Fields], Change]) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a form that changes the users; if the change is refused, nothing changes."""

    async def change(request: Request) -> Response:
        desk = desk_of(request)
        fields = await form_of(request, desk.secrets.token)

        def edit(users: UserList) -> UserList:
            _check_shown(users, fields)
            return on_list(change_of(fields))(users)

        try:
            await check_rights(desk, f"user {name}")
            async with desk.members() as members:
                spread = await known_users.change(members, desk.lookout.dialled(), edit)
        except HeadwaterError as error:
            return await _page(request, problem=plain(error), status=status_of(error), typed=fields)
        away = {"away": ", ".join(map(str, spread.away))} if spread.away else {}
        return RedirectResponse("/users?" + urlencode({"done": name, "name": fields["name"]} | away), 303)

    return change


def _addition(fields: Fields) -> Change:
    account = Account.create(_password_in(fields), read_grants(fields.get("roles", "")))
    return partial(add_account, name=fields.get("name", ""), account=account)


def _other_roles(fields: Fields) -> Change:
    return partial(change_account, name=fields.get("name", ""), grants=read_grants(fields.get("roles", "")))


def _other_password(fields: Fields) -> Change:
    return partial(change_account, name=fields.get("name", ""), keys=Account.create(_password_in(fields), ()).keys)


def _removal(fields: Fields) -> Change:
    name, words = fields.get("name", ""), fields.get("words", "")
    if words != name:
        raise OptionError("words", words[:128], f"{name}, typed again; nobody was removed")
    return partial(remove_account, name=name)


def _check_shown(users: UserList, fields: Fields) -> None:
    """Refuse to change a user whom somebody else changed, or removed and added anew, after the page was made."""
    entry, shown = users.entries.get(fields.get("name", "")), fields.get("revision", "")
    if entry is not None and shown.isascii() and shown.isdecimal() and entry.revision > int(shown[:20]):
        raise OptionError("user", fields["name"][:128], "as the page showed; it was changed since: look at it again")


def _password_in(fields: Fields) -> str:
    """Return the new password, which was typed twice; no message has it."""
    if fields.get("password", "") != fields.get("again", ""):
        raise OptionError("password", "...", "the same both times")
    return check_password(fields.get("password", ""))


add: Final = _changing("add", _addition)
roles: Final = _changing("roles", _other_roles)
password: Final = _changing("password", _other_password)
remove: Final = _changing("remove", _removal)
