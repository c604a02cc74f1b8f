"""The pages that change the cluster, each operation with its plan and a confirmation; and the page about mirrors."""

from __future__ import annotations

import secrets

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headwater.cluster.work import DeclaredWork, WorkPlan
from headwater.console import figures
from headwater.console.chores import OF_TABLES, requested_work
from headwater.console.desk import PAGES, Desk, desk_of, status_of
from headwater.console.guard import form_of
from headwater.console.lookout import SURVEY_SECONDS, plain
from headwater.console.tables import heads_of
from headwater.errors import HeadwaterError, NoAccess

CHANGED = "The nodes are not as they were: this is the plan now."
ENDED = "The work that this page showed has ended, and nothing was stopped. This is the work of now."
HOMES = {
    "bucket-create": "/buckets",
    "bucket-quota": "/buckets",
    "bucket-history": "/buckets",
    "bucket-drop": "/buckets",
    "collection-create": "/collections",
    "collection-alter": "/collections",
    "collection-drop": "/collections",
    "fold": "/mirrors",
    "vacuum": "/mirrors",
}
"""The pages with the forms of some work; /actions has the forms of all other work."""


async def actions(request: Request) -> Response:
    """Show the running work, the outcome of earlier work, and the forms for more."""
    return await _actions(request)


async def _actions(request: Request, problem: str = "", status: int = 200) -> Response:
    desk = desk_of(request)
    context = {
        "title": "Actions",
        "said": await desk.lookout.look(),
        "rights": await desk.rights(),
        "jobs": desk.foreman.jobs,
        "running": desk.foreman.running,
        "problem": problem,
    }
    return desk.render(request, "actions.html", context, status)


async def plan(request: Request) -> Response:
    """Show the plan of some work, and the words to type before it begins. It changes nothing, so a browser may repeat
    the request.
    """
    desk, kind = desk_of(request), request.path_params["kind"]
    fields = dict(request.query_params)
    try:
        work, plan_ = await _planned_work(desk, kind, fields)
    except HeadwaterError as error:
        return _refusal_page(request, kind, error)
    return _confirm(request, fields, work, plan_)


async def begin(request: Request) -> Response:
    """Begin planned work, if the plan is still the one that was shown and the words were typed."""
    desk, kind = desk_of(request), request.path_params["kind"]
    fields = await form_of(request, desk.secrets.token)
    ticket = fields.get("ticket", "")
    if desk.foreman.has_begun(ticket):  # sent twice, by a double click or by the browser: its work is done once
        return RedirectResponse("/actions", 303)
    try:
        work, plan_ = await _planned_work(desk, kind, fields)
        words = work.confirmation(desk.settings.target.bucket)
        if desk.foreman.has_begun(ticket):  # by the other one, while this one was planned
            return RedirectResponse("/actions", 303)
        if fields.get("digest") != plan_.digest:
            return _confirm(request, fields, work, plan_, problem=CHANGED, status=409)
        if " ".join(fields.get("words", "").split()) != words:
            problem = f"Nothing was begun: type {words} to begin."
            return _confirm(request, fields, work, plan_, problem=problem, status=400)
        desk.foreman.begin(work, ticket, plan_)
    except HeadwaterError as error:
        return _refusal_page(request, kind, error)
    return RedirectResponse("/actions", 303)


async def stop(request: Request) -> Response:
    """Stop in order the work that the page showed, but no work that was begun since."""
    desk = desk_of(request)
    fields = await form_of(request, desk.secrets.token)
    if not desk.foreman.stop(fields.get("job", "")):
        return await _actions(request, ENDED, 409)
    return RedirectResponse("/actions", 303)


def _home(kind: str) -> tuple[str, str]:
    """Return address and name of the page with the form for a kind of work."""
    page = HOMES.get(kind, "/actions")
    return page, dict(PAGES)[page]


def _refusal_page(request: Request, kind: str, error: HeadwaterError) -> Response:
    context = {"title": "Not planned", "shown": None, "problem": plain(error), "home": _home(kind)}
    return desk_of(request).render(request, "plan.html", context, status_of(error))


def _confirm(
    request: Request,
    fields: dict[str, str],
    work: DeclaredWork,
    plan_: WorkPlan,
    *,
    problem: str = "",
    status: int = 200,
) -> Response:
    desk = desk_of(request)
    repeated_fields = {
        name: value for name, value in fields.items() if name not in ("words", "digest", "ticket", "token")
    }
    context = {
        "title": work.title,
        "kind": work.KIND,
        "fields": repeated_fields,
        "shown": plan_,
        "remarks": work.REMARKS,
        "ticket": secrets.token_hex(8),
        "words": work.confirmation(desk.settings.target.bucket),
        "problem": problem,
        "home": _home(work.KIND),
    }
    return desk.render(request, "plan.html", context, status)


async def _planned_work(desk: Desk, kind: str, fields: dict[str, str]) -> tuple[DeclaredWork, WorkPlan]:
    """Return the work that a form describes, if the user may do it, and its present plan."""
    if kind not in OF_TABLES:
        await check_rights(desk, kind)
    work = requested_work(kind, fields, desk.settings)
    return work, await desk.foreman.plan(work)


async def check_rights(desk: Desk, kind: str) -> None:
    """Check that the user may do a kind of work; the nodes would refuse it as well, but half-way through.

    Args:
        kind: the work in words, for the error.

    Raises:
        NoAccess: the user lacks the role `administer`.
    """
    if "administer" not in await desk.rights():
        raise NoAccess(f"{kind} needs the role administer, which user {desk.settings.user!r} has not")


async def mirrors(request: Request) -> Response:
    """Show the tables in the console's folders."""
    desk = desk_of(request)
    latest = await desk.lookout.look()
    rows = figures.vbucket_rows(latest.answer.survey) if latest.answer is not None else []
    failovers = await desk.lookout.stats_by_node("failovers", SURVEY_SECONDS) if latest.is_fresh else {}
    tables = await desk.tables.look(desk.settings.target.bucket, heads_of(rows, failovers))
    return desk.render(request, "mirrors.html", {"title": "Mirrors", "said": latest, "tables": tables})
