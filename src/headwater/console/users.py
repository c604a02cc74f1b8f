"""The page of users: their names and roles, on all nodes of the cluster.

Its forms take effect at once and without a plan, since a plan would carry a password through a page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias, cast
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headwater.accounts.users import accounts_of
from headwater.cluster import users as known_users
from headwater.cluster.work import USER_WORKS, WorkOnUser, WorkRun
from headwater.cluster.work.users import shown_plan
from headwater.console.actions import check_rights
from headwater.console.desk import desk_of, status_of
from headwater.console.forms import work_of
from headwater.console.guard import form_of
from headwater.console.lookout import plain
from headwater.errors import HeadwaterError, NoAccess, OptionError
from headwater.wire.users import REVISION_MAX

if TYPE_CHECKING:
    from headwater.client.routing import Target

__all__ = ["FORMS", "users"]

Fields: TypeAlias = dict[str, str]


async def users(request: Request) -> Response:
    """Show the users and their roles, and the forms that change them."""
    fields = request.query_params
    kind = USER_WORKS.get(fields.get("done", ""))
    message = kind.DONE.format(fields.get("name", "")[:128]) if kind is not None else ""
    if message and fields.get("away"):
        message += f" {fields['away'][:400]} is away, and asks the others when it is back."
    return await _page(request, outcome=message)


async def _page(
    request: Request, *, outcome: str = "", problem: str = "", status: int = 200, typed: Fields | None = None
) -> Response:
    desk = desk_of(request)
    grants: dict[str, list[str]] | None = None
    revision = 0
    try:
        async with desk.members() as members:
            user_list = await known_users.current(members, desk.lookout.dialled())
        accounts, revision = accounts_of(user_list), user_list.revision
        grants = {name: [str(grant) for grant in account.grants] for name, account in sorted(accounts.items())}
    except NoAccess:
        pass  # the page says so
    except HeadwaterError as error:
        problem, status = problem or plain(error), status_of(error) if status == 200 else status
    typed_fields = {name: (typed or {}).get(name, "") for name in ("name", "roles")}
    context = {
        "title": "Users",
        "users": grants,
        "revision": revision,
        "done": outcome,
        "problem": problem,
        "typed": typed_fields,
    }
    return desk.render(request, "users.html", context, status)


def changing(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of the form of one kind of work on users; a refused form changes nothing."""
    kind = USER_WORKS[name]

    async def change(request: Request) -> Response:
        desk = desk_of(request)
        fields = await form_of(request, desk.secrets.token)
        try:
            await check_rights(desk, f"user {name}")
            work = _confirmed(kind, fields, desk.settings.target)
            async with desk.members() as members:
                run = WorkRun(plan=shown_plan(_revision_in(fields)))
                outcome = await work.run(members, desk.lookout.dialled(), run)
        except HeadwaterError as error:
            return await _page(request, problem=plain(error), status=status_of(error), typed=fields)
        away = {"away": ", ".join(outcome.facts["away"])} if outcome.facts["away"] else {}
        return RedirectResponse("/users?" + urlencode({"done": name, "name": work.name} | away), 303)

    return change


def _confirmed(kind: type[WorkOnUser], fields: Fields, target: Target) -> WorkOnUser:
    """Return the work of a form. Raises OptionError if the words that confirm it were not typed."""
    work = cast("WorkOnUser", work_of(kind, fields, target))
    confirmation, words = work.confirmation(target.bucket), fields.get("words", "")
    if confirmation and words != confirmation:
        raise OptionError("words", words[:128], f"{confirmation}, typed again; nobody was removed")
    return work


def _revision_in(fields: Fields) -> int:
    """Return the revision of the list of users that the page showed; REVISION_MAX for a form that changes no user of
    the list.
    """
    digits = fields.get("revision", "")
    return int(digits[:20]) if digits.isascii() and digits.isdecimal() else REVISION_MAX


FORMS: Final = {name: changing(name) for name in USER_WORKS}
"""The handlers of the page's forms, by the last part of their addresses."""
