"""The session of an HTTP connection: its client requests pages, or watches the cluster map.

Pages are small and sent at once. A client that watches gets the map as a chunk of an answer that does not end, and each
later map as another chunk (`notices` calls `map_changed`); whatever it sends after its request is ignored. Answers to
wrong logins are delayed, as in SASL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from headwater.errors import RemoteProtocolError
from headwater.node.reporting.log_lines import event
from headwater.node.rest import pages, request
from headwater.node.rest.callers import unwelcome
from headwater.node.rest.gathered import GATHERED, question, with_others
from headwater.node.rest.made import Made
from headwater.node.users.failures import TooManyWait
from headwater.wire.privilege import NONE, in_words

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection
    from headwater.node.kv.api import Services
    from headwater.node.rest.request import HttpRequest
    from headwater.wire.address import Address

_REASONS = {200: "OK", 202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found"}
_REASONS |= {421: "Misdirected Request", 500: "Internal Server Error", 503: "Service Unavailable"}
_JSON = "application/json"
_ENDS_MAP = b"\n\n\n\n"  # by which clients tell one map from the next

log: Final = logging.getLogger(__name__)


class HttpSession:
    """The session of one HTTP connection.

    Attributes:
        connection: the connection.
        server: the server of the first bucket; of the watched bucket once the client watches one.
        user: the user of the last request that was answered; None before the first.
        watches: True once the client watches the cluster map.
    """

    deadline: float | None = None
    pumps = False
    written_gate = 0
    quick = None

    def __init__(
        self,
        connection: Connection,
        server: Services,
        user: str | None = None,
        relays: Mapping[Address, str] = MappingProxyType({}),
    ) -> None:
        self.connection = connection
        self.server: Services = server
        self.user: str | None = None
        self._certified = user
        self._relays = relays
        self.watches: bool = False
        self._judging: asyncio.Task[None] | None = None
        self._changing: asyncio.Task[None] | None = None
        self._map_version = (-1, -1)
        connection.measures(request.wanted)

    def receive(self, data: memoryview) -> int:
        """Answer every complete request in `data`; return the number of bytes consumed."""
        offset = 0
        while offset < len(data) and not self.connection.is_paused and not self.connection.is_closed:
            if self.watches:
                return len(data)
            request_ = self._next(data[offset:])
            if request_ is None:
                break
            # The origin of a request is checked before its login: a browser adds a login that its user once entered,
            # whichever site the request comes from.
            if self._is_turned_away(request_) or not self._is_welcome(request_):
                break
            # Consumed only now: a request whose password is still being checked stays in the inbox, and is parsed
            # again.
            offset += request_.size
            self._answer(request_)
            if self.connection.gives_way():
                break
        return offset

    def pump(self) -> None:
        """Do nothing: an HTTP session sends its answers itself."""

    def tick(self, now: float) -> None:
        """Do nothing: an HTTP connection has no deadlines."""

    def users_changed(self) -> None:
        """Close the connection if its user was removed, or watches a bucket without a right in it.

        Otherwise nothing is to be done: rights are checked with each request.
        """
        users = self.server.users
        if self.user is not None and not users.knows(self.user):
            self.connection.drop(f"user {self.user!r} is none any more", fault=False)
        elif self.watches and not users.may_enter(self.user, self.server.bucket.name):
            self.connection.drop(f"user {self.user!r} has no right in the bucket any more", fault=False)

    def closed(self) -> None:
        """Cancel the check of a password: the connection is closed, so nobody needs its result."""
        if self._judging is not None:
            self._judging.cancel()

    def map_changed(self) -> None:
        """Send the cluster map to a client that watches it, unless the client has this map already."""
        cluster = self.server.cluster
        if self.watches and self._map_version < cluster.version:
            self._map_version = cluster.version
            chunk = cluster.config() + _ENDS_MAP
            self.connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def _next(self, data: memoryview) -> HttpRequest | None:
        """Return the first request in `data`; None if there is no valid one.

        An incomplete request is left for later. A malformed one is answered with 400, and the connection is closed.
        """
        try:
            request_ = request.read(data)
        except RemoteProtocolError as bad:
            self.server.warn(self.connection.peer, str(bad))
            self.connection.send(_head(400, "Content-Length: 0", "Connection: close"))
            self.connection.finish()
            return None
        # A client with a certificate may send an empty name and password, as gocbcore does: they count as no login.
        names_nobody = request_ is not None and request_.login == ("", "") and self._certified is not None
        return request_._replace(login=None) if request_ is not None and names_nobody else request_

    def _is_welcome(self, request_: HttpRequest) -> bool:
        """Return True if the page needs no login, or if the request's login is known to be correct.

        Otherwise the request is refused; or it stays in the inbox, and the connection is paused until its password has
        been checked.
        """
        users, connection = self.server.users, self.connection
        if pages.needed(self.server, request_.method, request_.path) == NONE:
            return True
        # Refused even if it is correct: whoever read it on the network must not be able to use it.
        if users.required and request_.login and not self.server.hears_passwords(connection):
            why = "a password without TLS from another machine; --plain anywhere takes it (HTTP)"
            self._refuse(why, request_.login[0])
            return False
        if request_.login is None and self._certified is not None and users.knows(self._certified):
            return True
        user, password = request_.login or ("", "")
        if users.remembers(user, password):
            return True
        if request_.login is None:
            self._refuse("no name and password (HTTP)")
        elif users.was_refused(user, password):
            self._send_refusal(user)
        else:
            # Later requests wait until the check is done, so answers keep their order.
            connection.pause("judging")
            self._judging = self.server.loop.create_task(self._judge(user, password))
        return False

    def _is_turned_away(self, request_: HttpRequest) -> bool:
        """Refuse a request from another site's page, or to a name that is not this node's (callers.py).

        Returns:
            True if the request was refused, with which its connection ends; False if it is allowed.
        """
        refused = unwelcome(self.server, request_, by_tls=self.connection.tls is not None)
        if refused is None or pages.needed(self.server, request_.method, request_.path) == NONE:
            return False
        self.server.warn(self.connection.peer, f"{refused} (HTTP)")
        body = f"{refused}.\n".encode()
        ends = ("Connection: close", f"Content-Length: {len(body)}")
        self.connection.send(_head(refused.status, *ends, content_type="text/plain") + body)
        self.connection.finish()
        return True

    async def _judge(self, user: str, password: str) -> None:
        server, address = self.server, self.connection.peer.rpartition(":")[0]
        try:
            is_right = await server.failures.judge(
                address, user, server.loop.time, lambda: server.users.is_right(user, password)
            )
        except TooManyWait as why:
            server.login_refused(self.connection.peer, user, f"{why} (HTTP)")
            self.connection.drop(f"login refused: {why} (HTTP)", fault=False)
            return
        except Exception:  # in a task nobody else handles it, and the client waits for an answer
            self._tell_of_fault()
            self.connection.drop("internal error", fault=False)
            return
        if not is_right:
            self._send_refusal(user)
        self.connection.resume("judging")

    def _answer(self, request_: HttpRequest) -> None:
        user, _ = request_.login or (self._certified or "", "")
        self.user = user
        if pages.needed(self.server, request_.method, request_.path) != NONE:
            self.connection.know(is_known=True, is_trusted=self.server.users.is_trusted(user))
            if self.connection.is_closed:
                return
        if missing := self._missing(request_, user):
            tried = f"may not {request_.method} {request_.path}: it needs {in_words(missing)}"
            self.server.audit(self, tried)
            self._send(403, pages.forbidden(missing), request_)
            return
        if request_.method == "GET" and (watched := pages.streamed(self.server, request_.path, user)) is not None:
            self.server, self.watches = watched, True
            self.connection.send(_head(200, "Transfer-Encoding: chunked"))
            self.map_changed()
            return
        changing = pages.change(self.server, request_.method, request_.path, request_.body, user)
        if changing is not None:
            self.connection.pause("changing")
            self._changing = self.server.loop.create_task(self._finish(request_, changing))
            return
        content = pages.page(self.server, request_.path, user) if request_.method in ("GET", "HEAD") else None
        if content is not None and self._relays and request_.path in GATHERED:
            self.connection.pause("changing")
            self._changing = self.server.loop.create_task(self._gather(request_, user, content))
        elif content is not None:
            self._send(content.status, content.body, request_, content.content_type)
        elif (why := pages.refusal(self.server, request_.method, request_.path, user)) is not None:
            self._send(400, why, request_)
        else:
            self._send(404, b"Requested resource not found.\r\n", request_)

    async def _finish(self, request_: HttpRequest, changing: Awaitable[Made]) -> None:
        """Wait for a change, then send its result.

        The change is carried out to its end even if the client disconnects, because parts of it may be visible already.
        """
        try:
            result = await changing
        except Exception:  # as above
            self._tell_of_fault()
            result = Made(b'{"errors": {"_": "internal error"}}', 500)
        if result.status < 300:
            self.server.record(self, f"did {request_.method} {request_.path}")
        if not self.connection.is_closed:
            self._send(result.status, result.body, request_, result.content_type)
            self.connection.resume("changing")

    async def _gather(self, request_: HttpRequest, user: str, own: Made) -> None:
        """Send the page that combines this worker's (`own`) with those of the other workers."""
        connection, call = self.connection, question(request_.path, user, self.connection.peer)
        try:
            page = await with_others(self.server.loop, request_.path, call, own, self._relays)
        except Exception:  # as above
            self._tell_of_fault()
            page = Made(b'{"errors": {"_": "internal error"}}', 500)
        if not connection.is_closed:
            self._send(page.status, page.body, request_, page.content_type)
            connection.resume("changing")

    def _tell_of_fault(self) -> None:
        peer = self.connection.peer
        log.exception("%s: a request by HTTP failed", peer, extra=event("node.failed", peer=peer))

    def _missing(self, request_: HttpRequest, user: str) -> int:
        """Return the privileges that the request needs and the user lacks, as bits."""
        return pages.missing(self.server, request_.method, request_.path, user)

    def _send(self, status: int, body: bytes, request_: HttpRequest, content_type: str = _JSON) -> None:
        ends = "Connection: close" if request_.closes else "Connection: keep-alive"
        head = _head(status, f"Content-Length: {len(body)}", ends, content_type=content_type)
        self.connection.send(head if request_.method == "HEAD" else head + body)
        if request_.closes:
            self.connection.finish()

    def _refuse(self, why: str, user: str = "") -> None:
        """Count a failed login, answer 401 after a delay that grows with their number, and close the connection."""
        connection, failures, now = self.connection, self.server.failures, self.server.loop.time()
        address = connection.peer.rpartition(":")[0]
        failures.add(address, now)
        self.server.login_refused(connection.peer, user, why)
        connection.pause("login")
        self.server.loop.call_later(failures.delay(address, now), self._send_401)

    def _send_refusal(self, user: str) -> None:
        self.server.login_refused(self.connection.peer, user, "wrong name or password (HTTP)")
        self._send_401()

    def _send_401(self) -> None:
        self.connection.send(_head(401, 'WWW-Authenticate: Basic realm="headwater"', "Content-Length: 0"))
        self.connection.finish()


def _head(status: int, *fields: str, content_type: str = _JSON) -> bytes:
    lines = (f"HTTP/1.1 {status} {_REASONS[status]}", "Server: headwater", f"Content-Type: {content_type}", *fields)
    return "\r\n".join((*lines, "", "")).encode()
