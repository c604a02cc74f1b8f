"""Decides who may use the console: it acts with an operator's credentials, and every page in a browser can send to it.

| what                                   | against                                                               |
|----------------------------------------|-----------------------------------------------------------------------|
| a key, printed at the start, then a cookie | other users of this machine, who can reach the port as well       |
| the Host header is one of ours         | a foreign name that suddenly resolves to this machine (DNS rebinding) |
| Origin and Sec-Fetch-Site              | forms and scripts of other pages                                      |
| a token in every form                  | the same, in browsers that send neither                               |
| Content-Security-Policy                | whatever a document's key or value would like to run                  |

The credentials of the bucket never leave the process: no page, header or log has them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.protocol.browser import LOOPBACK, READING, is_own, name_of

BODY_BYTES_MAX = 8 << 20
"""The largest form: the largest editable document fits, with six bytes for each line end, and at most three for any
other byte.
"""
FIELDS_MAX = 4096
FORM = "application/x-www-form-urlencoded"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def _secret() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Secrets:
    """The secrets of one process; new at each start.

    Attributes:
        key: opens the console, once for each browser. session: content of its cookie. token: sent with each form.
    """

    key: str = field(default_factory=_secret, repr=False)
    session: str = field(default_factory=_secret, repr=False)
    token: str = field(default_factory=_secret, repr=False)


def same(text: str, secret: str) -> bool:
    """Return True if two texts are equal, in a time that does not depend on the place of the first difference."""
    return secrets.compare_digest(text.encode(), secret.encode())


class Guard:
    """The outermost layer: refuses requests of other browsers and pages, and adds the security headers to every answer.

    Args:
        hosts: names by which browsers may call the console, besides this machine's own.
        open_paths: paths that need no cookie: the login and the style of its page.
        cookie: name of the cookie; one for each port, since cookies know no ports.
    """

    def __init__(
        self, app: ASGIApp, secrets: Secrets, hosts: frozenset[str], open_paths: tuple[str, ...], cookie: str
    ) -> None:
        self._app, self._secrets, self._open, self._cookie = app, secrets, open_paths, cookie
        self._hosts = LOOPBACK | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(Request(scope))
        await (self._app if refusal is None else refusal)(scope, receive, sealed)

    def _refusal(self, request: Request) -> PlainTextResponse | None:
        host = request.headers.get("host", "")
        if name_of(host) not in self._hosts:
            return PlainTextResponse("This console is called by another name; see --host.\n", 421)
        origin, site = (request.headers.get(name) for name in ("origin", "sec-fetch-site"))
        if request.method not in READING and not is_own(host, origin, site):
            return PlainTextResponse("Another page sent this; nothing was done.\n", 403)
        if not request.url.path.startswith(self._open) and not same(
            request.cookies.get(self._cookie, ""), self._secrets.session
        ):
            return PlainTextResponse("Open the address that headwater console printed when it began.\n", 401)
        return None


async def form_of(request: Request, token: str) -> dict[str, str]:
    """Read a form that a page of this console sent; of a repeated name the last value counts.

    Raises:
        HTTPException: 413, it is too large; 415, it is not a form; 400, it can't be read; 403, it lacks our token.
    """
    if request.headers.get("content-type", "").partition(";")[0] != FORM:
        raise HTTPException(415, f"a form is {FORM}")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        # Counted as it comes: a request may name no length, or a wrong one.
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(413, f"a form has at most {BODY_BYTES_MAX} bytes; headwater set takes larger documents")
    try:
        text = body.decode("ascii")
        fields = dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX))
    except ValueError as error:
        raise HTTPException(400, f"the form can't be read: {error}") from None
    if not same(fields.pop("token", ""), token):
        raise HTTPException(403, "the form is older than this console: load its page again")
    return fields
