"""A connection that speaks HTTP: it asks for pages, or watches the cluster map.

Pages are small and made at once. A watcher gets the map as a chunk, and each later map when `notices` has one; what it
says itself is no longer read for meaning. Wrong logins are slowed down as in SASL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.node.rest import pages, request

if TYPE_CHECKING:
    from headwater.node.connection import Connection
    from headwater.node.rest.request import Request
    from headwater.node.server import Server

_REASONS = {200: "OK", 401: "Unauthorized", 404: "Not Found"}
_ENDS_MAP = b"\n\n\n\n"  # clients cut the stream there


class HttpSession:
    """What such a connection knows: whether it watches, and which map it has seen."""

    deadline: float | None = None
    written_gate = 0

    def __init__(self, connection: Connection, server: Server) -> None:
        self.connection = connection
        self.server = server
        self.watches = False
        self._seen = (-1, -1)

    def receive(self, data: memoryview) -> int:
        """Answer every whole request in `data`."""
        offset = 0
        while offset < len(data) and not self.connection.is_paused and not self.connection.is_closed:
            if self.watches:
                return len(data)
            asked = request.read(data[offset:])
            if asked is None:
                break
            offset += asked.size
            self._answer(asked)
        return offset

    def pump(self) -> None:
        """Nothing is pulled."""

    def tick(self, now: float) -> None:
        """No deadlines either."""

    def closed(self) -> None:
        """Nothing waits for this connection."""

    def map_changed(self) -> None:
        """Send a watcher the map it has not seen."""
        cluster = self.server.cluster
        if self.watches and self._seen < cluster.version:
            self._seen = cluster.version
            chunk = cluster.config() + _ENDS_MAP
            self.connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def _answer(self, asked: Request) -> None:
        user, password = asked.login or ("", "")
        if not self.server.users.is_right(user, password):
            self._refuse()
            return
        if asked.method == "GET" and pages.is_stream(self.server, asked.path):
            self.watches = True
            self.connection.send(_head(200, "Transfer-Encoding: chunked"))
            self.map_changed()
            return
        found = pages.page(self.server, asked.path, user) if asked.method in ("GET", "HEAD") else None
        self._send(200 if found is not None else 404, found or b"Requested resource not found.\r\n", asked)

    def _send(self, status: int, body: bytes, asked: Request) -> None:
        ends = "Connection: close" if asked.closes else "Connection: keep-alive"
        head = _head(status, f"Content-Length: {len(body)}", ends)
        self.connection.send(head if asked.method == "HEAD" else head + body)
        if asked.closes:
            self.connection.finish()

    def _refuse(self) -> None:
        """401, after a while for whoever guesses; then the connection closes."""
        connection, failures, now = self.connection, self.server.failures, self.server.loop.time()
        address = connection.peer.rpartition(":")[0]
        failures.add(address, now)
        self.server.warn(connection.peer, "login refused: wrong name or password (HTTP)")
        connection.pause("login")
        self.server.loop.call_later(failures.delay(address, now), self._send_refusal)

    def _send_refusal(self) -> None:
        self.connection.send(_head(401, 'WWW-Authenticate: Basic realm="headwater"', "Content-Length: 0"))
        self.connection.finish()


def _head(status: int, *fields: str) -> bytes:
    lines = (f"HTTP/1.1 {status} {_REASONS[status]}", "Server: headwater", "Content-Type: application/json", *fields)
    return "\r\n".join((*lines, "", "")).encode()
