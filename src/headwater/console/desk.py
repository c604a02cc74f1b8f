"""The things that all pages of a console share: its settings, its secrets, the nodes, the client, the templates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from headwater.client import aio
from headwater.client.lines import printable, text
from headwater.client.routing import Target
from headwater.cluster.members import Members
from headwater.cluster.work import USER_WORKS, WORKS
from headwater.console.guard import Secrets
from headwater.console.lookout import Lookout, TimedAnswer, all_rights
from headwater.console.rates import RateWatch
from headwater.console.tables import MirrorTables
from headwater.console.work import Foreman
from headwater.errors import HeadwaterError, KeyNotFound, NoAccess, OptionError, WorkRefused
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.datatype import Datatype

HERE = Path(__file__).parent
DASH = "\u2013"
KEY_SHOWN_CHARACTERS = 120
PAGES = (
    ("/", "Cluster"),
    ("/vbuckets", "Vbuckets"),
    ("/streams", "Streams"),
    ("/rates", "Rates"),
    ("/documents", "Documents"),
    ("/collections", "Collections"),
    ("/buckets", "Buckets"),
    ("/users", "Users"),
    ("/tail", "Tail"),
    ("/mirrors", "Mirrors"),
    ("/jobs", "Jobs"),
    ("/actions", "Actions"),
)
"""The pages of the navigation, in its order."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The bucket of a console, and the access to it.

    Args:
        target: the nodes and the bucket, without a login. user, password: the login.
        lakes: folders of mirrors' tables.
        hosts: names by which browsers may call the console, besides this machine's own.
        port: where it is served; part of its cookie's name.
        clock: Unix seconds.
    """

    target: Target
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset()
    lakes: tuple[str, ...] = ()
    port: int = 0
    timeout_seconds: float = 5.0


class Desk:
    """The shared state of one console; created in the event loop that serves it.

    Attributes:
        tails: number of open live tails.
        is_ending: True once pages that wait for events are to end.
    """

    def __init__(self, settings: ConsoleSettings, secrets: Secrets) -> None:
        self.settings: ConsoleSettings = settings
        self.secrets: Final = secrets
        self.lookout: Final = Lookout(
            settings.target, settings.user, settings.password, timeout_seconds=settings.timeout_seconds
        )
        self._client: aio.AsyncClient | None = None
        self._connecting = asyncio.Lock()
        self.rates: Final = RateWatch(self.lookout)
        self.foreman: Final = Foreman(self.members, self.lookout.dialled)
        self.tables: Final = MirrorTables(settings.lakes)
        self.tails = 0
        self.is_ending: bool = False
        self._templates = templates()

    def end_pages(self) -> None:
        """End the pages that wait for events; the server would break their connections, with a traceback, otherwise."""
        self.is_ending = True
        self.rates.stop()

    async def close(self) -> None:
        """Stop work in order, and close all connections."""
        await self.foreman.close()
        self.rates.stop()
        await self.lookout.close()
        if self._client is not None:
            await self._client.close()

    def members(self) -> Members:
        """Return separate connections for one piece of work; none is opened yet."""
        settings = self.settings
        return Members(settings.target.bucket, settings.user, settings.password, tls=settings.target.tls)

    async def client(self) -> aio.AsyncClient:
        """Return the client of the bucket, connected on first use.

        Raises:
            TransportError, StatusError: as `aio.connect`.
        """
        async with self._connecting:
            if self._client is None:
                self._client = await aio.connect(
                    self.settings.target.url,
                    self.settings.user,
                    self.settings.password,
                    connect_timeout_seconds=self.settings.timeout_seconds,
                    timeout_seconds=2 * self.settings.timeout_seconds,
                    agent="headwater-console",
                    xattrs=True,
                )
        return self._client

    async def documents(self, collection: str) -> aio.AsyncDocuments:
        """Return the documents of a collection.

        Args:
            collection: "scope.collection"; empty for the default one.

        Raises:
            OptionError: that is no name of a collection. TransportError, StatusError: as `client`.
        """
        client = await self.client()
        return client.collection(collection) if collection else client

    async def rights(self) -> frozenset[str]:
        """Return the privileges that decide which operations pages offer: all of them if no node answers."""
        rights = await self.lookout.rights()
        return all_rights() if rights is None else rights

    def render(self, request: Request, name: str, context: Mapping[str, Any], status: int = 200) -> Response:
        """Return a page made from a template."""
        common = {
            "bucket": self.settings.target.bucket,
            "user": self.settings.user,
            "pages": PAGES,
            "path": request.url.path,
            "token": self.secrets.token,
            "now": time.time(),
        }
        page: str = self._templates.get_template(name).render(common | dict(context))
        return HTMLResponse(page, status)


def status_of(error: HeadwaterError) -> int:
    """Return the HTTP status of a page that reports an error."""
    kinds = {OptionError: 400, WorkRefused: 400, NoAccess: 403, KeyNotFound: 404}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), 502)


def desk_of(request: Request) -> Desk:
    """Return the desk of the console that received a request."""
    desk: Desk = request.app.state.desk
    return desk


# --------------------------------------------------------------------------- what templates call


def templates() -> Environment:
    """Return the environment of all pages' templates, with the filters and functions that they use."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"may": may, "works": WORKS, "user_works": USER_WORKS}
    environment.filters |= {
        "count": count,
        "clock": clock,
        "datatype": datatype,
        "age": age,
        "key": key,
        "text_key": lambda name: key(name.encode()),
        "uuid": vb_uuid,
        "version": version,
        "staleness": staleness,
    }
    return environment


def may(rights: Collection[str], name: str) -> bool:
    """Return True if a user has a privilege in the bucket, or in at least one of its scopes or collections."""
    return name in rights or f"{name}_somewhere" in rights


def count(number: float | None) -> str:
    """Return 336776 as `336,776`; a dash for None."""
    return DASH if number is None else f"{number:,}"


def clock(seconds: float) -> str:
    """Return Unix seconds in the form of every page, the log and the commands: UTC, RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def datatype(number: int) -> str:
    """Return a datatype byte in words."""
    names = (
        (Datatype.JSON, "JSON"),
        (Datatype.SNAPPY, "compressed with Snappy"),
        (Datatype.XATTR, "extended attributes"),
    )
    kinds = ", ".join(name for bit, name in names if number & bit)
    return f"{number}: {kinds or 'bytes of no declared kind'}"


def age(seconds: float) -> str:
    """Return 90 as `1 min 30 s`."""
    whole_seconds = max(0, int(seconds))
    parts = (
        (whole_seconds // 86400, "d"),
        (whole_seconds // 3600 % 24, "h"),
        (whole_seconds // 60 % 60, "min"),
        (whole_seconds % 60, "s"),
    )
    parts_shown = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(parts_shown[:2]) or "0 s"


def key(data: bytes) -> str:
    """Return a key in the form for a page: control characters escaped, long keys cut."""
    text_ = printable(text(data))
    return text_ if len(text_) <= KEY_SHOWN_CHARACTERS else f"{text_[:KEY_SHOWN_CHARACTERS]}\u2026 ({len(data)} bytes)"


def vb_uuid(number: int) -> str:
    """Return a vb uuid in the usual form."""
    return f"{number:016x}"


def version(map_: ClusterMap) -> str:
    """Return the revision of a map."""
    return f"{map_.epoch}:{map_.rev}"


def staleness(answer: TimedAnswer[Any], now: float) -> str:
    """Return a sentence about the age of an answer that is not the latest; empty for the latest."""
    if answer.is_fresh:
        return ""
    if answer.answer is None:
        return f"There is no answer yet: {answer.problem or 'nobody was asked'}."
    return (
        f"No answer now: {answer.problem}. What stands here was said at {clock(answer.at)}, {age(now - answer.at)} ago."
    )
