"""The places of a node's connections: common ones, and a few reserved for members and administrators.

Clients that use up `--connections-max` must not block replication, moves and failovers: durable writes would wait for
replicas that can't connect, and no operator could intervene. So there are reserved places beyond that limit. Only the
login shows that a connection may use a reserved place; until then a connection beyond the limit is on trial, for a
short time.
"""

from __future__ import annotations

import resource
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection

DESCRIPTORS_RESERVED = 64
PAGES_RESERVED = 16
"""Places for connections to --http-port beyond all others: a supervisor that gets no answer there ends the node."""
TRUSTED_PLACES_MIN = 16
TRUSTED_PART = 16
"""The node reserves one place for members and administrators per so many common places."""
TRIAL_SECONDS = 3.0
"""The time for a login beyond the limit: a member's login takes three round trips and two derivations of a key."""


class PlaceKind(Enum):
    """The purpose of a connection's place."""

    COMMON = "common"
    PAGES = "pages"
    TRUSTED = "trusted"


class ConnectionPlaces:
    """Counts the places in use, and assigns one to each new connection.

    Args:
        most: the number of common places.
        has_pages: True if a separate listener serves the HTTP pages.
        workers: number of processes that share an address. A worker may open a connection to each other worker for each
            of its clients; such a connection takes a descriptor at both ends, and none of these places.
    """

    def __init__(self, most: int, *, has_pages: bool, workers: int = 1) -> None:
        self._most, self._workers = most, workers
        self._inner: set[Connection] = set()
        self._pages_room = PAGES_RESERVED if has_pages else 0
        self._pages: set[Connection] = set()
        self._trusted: set[Connection] = set()
        self._trials: dict[Connection, None] = {}  # oldest first

    def find(self, open_count: int, *, has_pages_only: bool, has_users: bool) -> PlaceKind | None:
        """Return the kind of place for one more connection besides `open_count` others; None if there is no place.

        A node without users reserves no places for members, because no connection can prove that it is a member's.
        """
        common, trusted = self._room(has_users=has_users)
        if self._common(open_count) < common:
            return PlaceKind.COMMON
        if has_pages_only:
            return PlaceKind.PAGES if len(self._pages) < self._pages_room else None
        return PlaceKind.TRUSTED if len(self._trusted) < trusted else None

    def has_inner_room(self, *, has_users: bool) -> bool:
        """Return True if there is room for one more connection from another worker. Each other worker may open as many
        connections as it has places for clients and page readers.
        """
        places = sum(self._room(has_users=has_users)) + self._pages_room
        return len(self._inner) < (self._workers - 1) * places

    def take_inner(self, connection: Connection) -> None:
        """Count a connection that another worker opened for one of its clients."""
        self._inner.add(connection)

    def take(self, connection: Connection, kind: PlaceKind) -> Connection | None:
        """Assign a place to a connection. Return the connection on trial that must be dropped for it, if any: the
        oldest one, which had the most time to log in.
        """
        if kind is PlaceKind.PAGES:
            self._pages.add(connection)
        elif kind is PlaceKind.TRUSTED:
            connection.is_on_trial = True
            self._trials[connection] = None
            place_count = len(self._trials) + len(self._trusted)
            if len(self._trials) > 1 and place_count > self._room(has_users=True)[1]:
                return next(iter(self._trials))
        return None

    def end_trial(self, connection: Connection, open_count: int, *, is_trusted: bool) -> bool:
        """End the trial of a connection whose user is known now; return False if it must be dropped, for lack of a
        common place.
        """
        del self._trials[connection]
        connection.is_on_trial = False
        if is_trusted:
            self._trusted.add(connection)
            return True
        return self._common(open_count) <= self._room(has_users=True)[0]  # `open_count` includes this connection

    def leave(self, connection: Connection) -> None:
        """Free the place of a connection that has closed."""
        self._pages.discard(connection)
        self._inner.discard(connection)
        self._trusted.discard(connection)
        self._trials.pop(connection, None)

    def _common(self, open_count: int) -> int:
        return open_count - len(self._inner) - len(self._pages) - len(self._trusted) - len(self._trials)

    def _room(self, *, has_users: bool) -> tuple[int, int]:
        """Return the number of common places, and of places for members and administrators.

        The system's limit of descriptors bounds both: with N workers, each needs N descriptors for each of its own
        clients, and one for each client of the others.
        """
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        trusted = max(TRUSTED_PLACES_MIN, self._most // TRUSTED_PART) if has_users else 0
        if soft == resource.RLIM_INFINITY:
            return self._most, trusted
        room = max(0, max(0, soft - DESCRIPTORS_RESERVED) // (3 * self._workers - 2) - self._pages_room)
        trusted = min(trusted, max(TRUSTED_PLACES_MIN, room // TRUSTED_PART)) if has_users else 0
        return max(1, min(self._most, room - trusted)), trusted
