"""The console as an ASGI application: which page is where, behind the guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headwater.console import actions, contents, live, pages, users
from headwater.console.desk import HERE, ConsoleSettings, Desk, desk_of
from headwater.console.guard import Guard, Secrets, same
from headwater.console.lookout import plain
from headwater.errors import HeadwaterError

OPEN_PATHS = ("/login", "/static/")
NEVER_ENDS_SECONDS = 7 * 86400
ROUTES = (
    Route("/", pages.overview),
    Route("/vbuckets", pages.vbuckets),
    Route("/vbuckets/{number:int}", pages.vbucket),
    Route("/streams", live.streams),
    Route("/rates", live.rates),
    Route("/rates/events", live.rate_events),
    Route("/tail", live.tail),
    Route("/tail/events", live.tail_events),
    Route("/mirrors", actions.mirrors),
    Route("/actions", actions.actions),
    Route("/actions/stop", actions.stop, methods=["POST"]),
    Route("/actions/{kind}/plan", actions.plan),
    Route("/actions/{kind}/begin", actions.begin, methods=["POST"]),
    Route("/collections", contents.collections),
    Route("/buckets", contents.buckets),
    Route("/users", users.users),
    Route("/users/add", users.add, methods=["POST"]),
    Route("/users/roles", users.roles, methods=["POST"]),
    Route("/users/password", users.password, methods=["POST"]),
    Route("/users/remove", users.remove, methods=["POST"]),
    Route("/documents", pages.documents),
    Route("/documents/value", pages.value),
    Route("/documents/store", pages.store, methods=["POST"]),
    Route("/documents/delete", pages.delete, methods=["POST"]),
)


def make_app(settings: ConsoleSettings, kept: Secrets | None = None) -> Starlette:
    """Return the application of one console; it connects when it is first asked."""
    known = kept if kept is not None else Secrets()
    cookie = f"headwater-console-{settings.port}"

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        app.state.desk = Desk(settings, known)
        app.state.desk.rates.start()
        try:
            yield
        finally:
            await app.state.desk.close()

    async def login(request: Request) -> Response:
        """Let in who has the key: from now on the cookie does."""
        if not same(request.query_params.get("key", ""), known.key):
            return PlainTextResponse("This is not the key that headwater console printed when it began.\n", 403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(cookie, known.session, httponly=True, samesite="strict", path="/", max_age=NEVER_ENDS_SECONDS)
        return answer

    static = Mount("/static", StaticFiles(directory=HERE / "static"))
    guard = Middleware(Guard, kept=known, hosts=settings.hosts, open_paths=OPEN_PATHS, cookie=cookie)
    handlers = {HTTPException: _refused, HeadwaterError: _failed}
    return Starlette(
        routes=[*ROUTES, Route("/login", login), static],
        middleware=[guard],
        exception_handlers=handlers,  # type: ignore[arg-type]  # handlers take the exception they are given
        lifespan=life,
    )


async def _refused(request: Request, error: HTTPException) -> Response:
    context = {"title": f"{error.status_code}", "problem": error.detail}
    return desk_of(request).render(request, "problem.html", context, error.status_code)


async def _failed(request: Request, error: HeadwaterError) -> Response:
    context = {"title": "Not done", "problem": plain(error)}
    return desk_of(request).render(request, "problem.html", context, 502)
