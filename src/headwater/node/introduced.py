"""A connection from another worker for one of its clients; its first frame names that client.

Only processes of the same system user can connect: the socket is in a folder that no other user may enter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.node.connections.inbox import next_frame
from headwater.node.kv.relay import refusal
from headwater.node.kv.session import KvSession
from headwater.node.rest import pages
from headwater.node.rest.gathered import answer

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection
    from headwater.node.kv.api import Services


class IntroducedCall:
    """The session of a connection from another worker until its first frame; then a session with the client's user,
    bucket and features replaces it.

    Args:
        connection: the connection.
        server: the node with its first bucket.
        refresh_users: reads the users again, which another worker may have changed.
    """

    deadline: float | None = None
    pumps = False
    written_gate = 0
    quick = None

    def __init__(self, connection: Connection, server: Services, refresh_users: Callable[[], None]) -> None:
        self._connection, self._server, self._refresh_users = connection, server, refresh_users

    def receive(self, data: memoryview) -> int:
        """Read the first frame: it introduces a client, whose session then gets the remaining bytes, or requests a
        page, which is sent.

        If the client's bucket does not exist here (yet, or any more), the worker gets a refusal, and no request is
        executed.
        """
        frame = next_frame(data, 0)
        if frame is None:
            return 0
        who = json.loads(frame.value)
        if "page" in who:
            self._refresh_users()
            self._connection.send(answer(pages.page(self._server, who["page"], who["user"])))
            self._connection.finish()
            return len(frame)
        connection, server = self._connection, self._server.buckets.get(who["bucket"])
        if server is None:
            connection.send(refusal())
            connection.finish()
            return len(frame)
        self._refresh_users()  # the user, or the user's roles, may be new
        connection.peer = who["peer"]
        session = KvSession(connection, self._server, who["user"])
        session.features, session.named_at = frozenset(who["features"]), who["named_at"]
        session.first_opaque = who["first_opaque"]
        session.select(server)
        connection.session = session
        return len(frame)

    def pump(self) -> None:
        """Do nothing, because there is no output."""

    def tick(self, now: float) -> None:
        """Do nothing, because there is no deadline."""

    def users_changed(self) -> None:
        """Do nothing, because no user has logged in yet."""

    def closed(self) -> None:
        """Do nothing, because no work is running for this connection."""
