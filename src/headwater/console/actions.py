"""The pages that change the cluster, each thing with its plan and a confirmation; and the page about mirrors."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headwater.console import figures
from headwater.console.desk import Desk, desk_of, status_of
from headwater.console.guard import form_of
from headwater.console.lookout import plain
from headwater.console.work import AskedWork, Shown
from headwater.errors import HeadwaterError, NoAccess

CHANGED = "The nodes are not as they were: this is the plan now."


async def actions(request: Request) -> Response:
    """The work under way and what came of the last, and the forms for more."""
    return await _page(request)


async def _page(request: Request, problem: str = "", status: int = 200) -> Response:
    desk = desk_of(request)
    said = await desk.lookout.look()
    context = {
        "title": "Actions",
        "said": said,
        "rights": await desk.rights(),
        "jobs": desk.foreman.jobs,
        "running": desk.foreman.running,
        "problem": problem,
    }
    return desk.render(request, "actions.html", context, status)


async def plan(request: Request) -> Response:
    """The plan of some work, and what must be typed to begin it."""
    desk = desk_of(request)
    fields = await form_of(request, desk.secrets.token)
    try:
        asked, shown = await _planned(desk, request.path_params["kind"], fields)
    except HeadwaterError as error:
        return await _page(request, plain(error), status_of(error))
    return _confirm(request, fields, asked, shown)


async def begin(request: Request) -> Response:
    """Begin what was planned, if the plan is still the one that was shown and the words were typed."""
    desk = desk_of(request)
    fields = await form_of(request, desk.secrets.token)
    try:
        asked, shown = await _planned(desk, request.path_params["kind"], fields)
        words = asked.confirmation(desk.settings.target.bucket)
        if fields.get("digest") != shown.digest:
            return _confirm(request, fields, asked, shown, problem=CHANGED, status=409)
        if " ".join(fields.get("words", "").split()) != words:
            missing = f"Nothing was begun: type {words} to begin."
            return _confirm(request, fields, asked, shown, problem=missing, status=400)
        desk.foreman.begin(asked)
    except HeadwaterError as error:
        return await _page(request, plain(error), status_of(error))
    return RedirectResponse("/actions", 303)


async def stop(request: Request) -> Response:
    """Let the work under way come to an end."""
    desk = desk_of(request)
    await form_of(request, desk.secrets.token)
    desk.foreman.stop()
    return RedirectResponse("/actions", 303)


def _confirm(
    request: Request, fields: dict[str, str], asked: AskedWork, shown: Shown, *, problem: str = "", status: int = 200
) -> Response:
    desk = desk_of(request)
    kept = {name: value for name, value in fields.items() if name not in ("words", "digest")}
    context = {
        "title": asked.title,
        "kind": asked.kind,
        "fields": kept,
        "shown": shown,
        "words": asked.confirmation(desk.settings.target.bucket),
        "problem": problem,
    }
    return desk.render(request, "plan.html", context, status)


async def _planned(desk: Desk, kind: str, fields: dict[str, str]) -> tuple[AskedWork, Shown]:
    """The work that a form asks for, if the user may do it, and its plan as it is now."""
    await _check_rights(desk, kind)
    asked = AskedWork.of(kind, fields, desk.settings.target)
    return asked, await desk.foreman.plan(asked)


async def _check_rights(desk: Desk, kind: str) -> None:
    """Refuse by name what the user may not do; the nodes would as well, in the middle of it."""
    if "administer" not in await desk.rights():
        raise NoAccess(f"{kind} needs the role administer, which user {desk.settings.user!r} has not")


async def mirrors(request: Request) -> Response:
    """The tables of the folders that the console was given."""
    desk = desk_of(request)
    said = await desk.lookout.look()
    rows = figures.vbucket_rows(said.answer.survey) if said.answer is not None else []
    seqnos = {row.vbucket: row.seqno if said.is_fresh else None for row in rows}
    tables = await desk.tables.look(desk.settings.target.bucket, seqnos)
    return desk.render(request, "mirrors.html", {"title": "Mirrors", "said": said, "tables": tables})
