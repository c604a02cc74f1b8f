"""A new connection, whose first bytes determine its protocol: frames, lines of text, or HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from headwater.node.kv.session import KvSession
from headwater.node.kv.text import TextSession
from headwater.node.rest.request import looks_like_http, may_become_http
from headwater.node.rest.session import HttpSession

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection
    from headwater.node.kv.api import Services
    from headwater.wire.address import Address

_TLS_HANDSHAKE = 0x16
"""The first byte of TLS, which is no magic byte of a frame."""
_TEXT_COMMANDS = range(ord("a"), ord("z") + 1)
"""The first bytes of text commands: small letters. HTTP's methods have capitals, and no magic byte is a letter."""


class FirstBytes:
    """The session of a connection until its first bytes arrive; then the session of their protocol replaces it."""

    deadline: float | None = None
    pumps = False
    written_gate = 0
    quick = None

    def __init__(
        self, connection: Connection, server: Services, relays: Mapping[Address, str] = MappingProxyType({})
    ) -> None:
        self._relays = relays
        self.connection = connection
        self.server = server
        # During the TLS handshake, which takes time and memory, a peer is a stranger even on a node without users.
        connection.know(is_known=not server.users.required and connection.tls is None)

    def receive(self, data: memoryview) -> int:
        """Replace this session by the session of the bytes' protocol, once they show it; consume no bytes."""
        connection = self.connection
        if looks_like_http(data):
            connection.session = HttpSession(connection, self.server, self._certified_user(), self._relays)
        elif data[0] == _TLS_HANDSHAKE:
            connection.drop(self._where_tls_is_spoken())
        elif data[0] in _TEXT_COMMANDS:
            connection.session = TextSession(connection, self.server, self._certified_user(), self._relays)
        elif not may_become_http(data):
            connection.session = KvSession(connection, self.server, self._certified_user(), self._relays)
        return 0

    def _certified_user(self) -> str | None:
        """Return the user that the peer's certificate names; None if there is no certificate, or no such user here."""
        tls, server = self.connection.tls, self.server
        user = server.tls.user(tls) if server.tls is not None and tls is not None else None
        if user is None or not server.users.required:
            return None
        # Names that begin with @ are not for people: members log in as @cluster, with their secret.
        if server.users.knows(user) and not user.startswith("@"):
            return user
        server.warn(self.connection.peer, f"its certificate is for {user!r}, who is no user here")
        return None

    def _where_tls_is_spoken(self) -> str:
        port = self.server.tls_port
        where = "this node speaks none" if port is None else f"that is on port {port}"
        return f"it speaks TLS on the port without it: {where}"

    def pump(self) -> None:
        """Do nothing, because there is no output."""

    def tick(self, now: float) -> None:
        """Do nothing, because the server limits the time for a login."""

    def users_changed(self) -> None:
        """Treat the peer as a stranger once the node has users."""
        self.connection.know(is_known=not self.server.users.required and self.connection.tls is None)

    def closed(self) -> None:
        """Do nothing, because no work is running for this connection."""
