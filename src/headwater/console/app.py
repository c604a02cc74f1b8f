"""The console as an ASGI application: its pages and their paths, behind the guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headwater.console import actions, contents, jobs, live, pages, users
from headwater.console.desk import HERE, ConsoleSettings, Desk, desk_of
from headwater.console.guard import Guard, Secrets, same
from headwater.console.lookout import plain
from headwater.errors import HeadwaterError
from headwater.wire.privilege import ADMINISTER, LOGIN, MONITOR, NONE, READ, STREAM, WRITE, Privilege

OPEN_PATHS = ("/login", "/static/")
NEVER_ENDS_SECONDS = 7 * 86400


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A page or a form: its method and path, its handler, and the privilege that the user needs.

    `needs` is NONE for pages that send no request to nodes, or leave out what a node refused. Nodes check each request
    anyway.
    """

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    needs: Privilege


SERVED = (
    ConsolePage("GET", "/", pages.overview, MONITOR),
    ConsolePage("GET", "/vbuckets", pages.vbuckets, MONITOR),
    ConsolePage("GET", "/vbuckets/{number:int}", pages.vbucket, MONITOR),
    ConsolePage("GET", "/streams", live.streams, MONITOR),
    ConsolePage("GET", "/rates", live.rates, NONE),
    ConsolePage("GET", "/rates/events", live.rate_events, MONITOR),
    ConsolePage("GET", "/tail", live.tail, NONE),
    ConsolePage("GET", "/tail/events", live.tail_events, STREAM),
    ConsolePage("GET", "/mirrors", actions.mirrors, NONE),
    ConsolePage("GET", "/jobs", jobs.jobs, NONE),
    ConsolePage("GET", "/jobs/{name}", jobs.job, NONE),
    ConsolePage("GET", "/actions", actions.actions, NONE),
    ConsolePage("POST", "/actions/stop", actions.stop, NONE),
    ConsolePage("GET", "/actions/{kind}/plan", actions.plan, ADMINISTER),
    ConsolePage("POST", "/actions/{kind}/begin", actions.begin, ADMINISTER),
    ConsolePage("GET", "/collections", contents.collections, LOGIN),
    ConsolePage("GET", "/buckets", contents.buckets, LOGIN),
    ConsolePage("GET", "/users", users.users, ADMINISTER),
    *(ConsolePage("POST", f"/users/{name}", form, ADMINISTER) for name, form in users.FORMS.items()),
    ConsolePage("GET", "/documents", pages.documents, READ),
    ConsolePage("GET", "/documents/value", pages.value, READ),
    ConsolePage("POST", "/documents/store", pages.store, WRITE),
    ConsolePage("POST", "/documents/delete", pages.delete, WRITE),
)
"""All pages and forms; each wants the cookie."""
ROUTES = tuple(Route(each.path, each.handler, methods=[each.method]) for each in SERVED)


def make_app(settings: ConsoleSettings, secrets: Secrets | None = None) -> Starlette:
    """Return the application of one console; it connects on its first request."""
    all_secrets = secrets if secrets is not None else Secrets()
    cookie = f"headwater-console-{settings.port}"

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        app.state.desk = Desk(settings, all_secrets)
        app.state.desk.rates.start()
        try:
            yield
        finally:
            await app.state.desk.close()

    async def login(request: Request) -> Response:
        """Set the cookie for a browser that sends the key; from then on the cookie opens the console."""
        if not same(request.query_params.get("key", ""), all_secrets.key):
            return PlainTextResponse("This is not the key that headwater console printed when it began.\n", 403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            cookie, all_secrets.session, httponly=True, samesite="strict", path="/", max_age=NEVER_ENDS_SECONDS
        )
        return answer

    static = Mount("/static", StaticFiles(directory=HERE / "static"))
    guard = Middleware(Guard, secrets=all_secrets, hosts=settings.hosts, open_paths=OPEN_PATHS, cookie=cookie)
    handlers = {HTTPException: _http_error_page, HeadwaterError: _error_page}
    return Starlette(
        routes=[*ROUTES, Route("/login", login), static],
        middleware=[guard],
        exception_handlers=handlers,  # type: ignore[arg-type]  # handlers take the exception they are given
        lifespan=life,
    )


async def _http_error_page(request: Request, error: HTTPException) -> Response:
    context = {"title": f"{error.status_code}", "problem": error.detail}
    return desk_of(request).render(request, "problem.html", context, error.status_code)


async def _error_page(request: Request, error: HeadwaterError) -> Response:
    context = {"title": "Not done", "problem": plain(error)}
    return desk_of(request).render(request, "problem.html", context, 502)
