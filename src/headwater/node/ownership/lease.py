"""The lease of a node, with which one operator at a time changes the owners of its vbuckets.

    IOCTL_SET   key "lease"   value {"run": "6f1c…", "by": "rebalance, process 71 on db7", "connection": "9a02…",
                                     "again": false, "release": false, "over": false}

Several connections of one run may hold the lease, each under its own name. The lease ends with the last of these
connections, and not before, so all requests on them come from the only operator. A run that is silent for LEASE_SECONDS
may hang, or be cut off: if another run then requests the lease, the connections of the first run are closed, and their
unread requests are lost.

"again" means that the run has held the lease before. Such a request is refused if another run has held the lease since,
because the first run's knowledge of the vbuckets is outdated. "over", with "release", means that the run has ended: the
vbuckets that it held follow the map again, as they do when another run begins.

When a new run begins, connections on which a mover hands vbuckets over are closed, so that no work of an older run
continues. Source: failover 4, "never two active owners", for more than one mover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.node.refused import CommandRefused
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection

KEY = b"lease"
LEASE_SECONDS = 20.0
PROPERTIES = {"run", "by", "connection", "again", "release", "over"}
TEXT_MAX = 200


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A request for the lease; see the module.

    Attributes:
        run: the id of the operator's run.
        by: its description, for people.
        connection: the name of the requesting connection.
        again: True if the run has held the lease before.
        release: True to release the lease for this connection.
        over: True if the run has ended, with `release`.
    """

    run: str
    by: str
    connection: str
    again: bool = False
    release: bool = False
    over: bool = False


def read_asked(content: dict[str, Any]) -> LeaseRequest:
    """Return the request in its JSON properties.

    Raises:
        CommandRefused: a text is missing or too long, or a flag is neither true nor false.
    """
    run, by, connection = (content.get(name) for name in ("run", "by", "connection"))
    if not all(isinstance(each, str) and 0 < len(each) <= TEXT_MAX for each in (run, by, connection)):
        raise CommandRefused(Status.EINVAL, f"run, by and connection are texts of 1 to {TEXT_MAX} characters")
    again, release, over = flags = [content.get(name, False) for name in ("again", "release", "over")]
    if not all(isinstance(flag, bool) for flag in flags):
        raise CommandRefused(Status.EINVAL, "again, release and over are true or false")
    return LeaseRequest(str(run), str(by), str(connection), again, release, over)


class Lease:
    """The lease of a node, and its holder.

    Args:
        clock: returns seconds of a monotonic clock.
        on_new: called when another run gets the lease.
        on_over: called when a run releases the lease because it has ended.

    Attributes:
        run: the run that holds the lease, or held it last; empty if there was none since the node started.
        by: the description of that run.
    """

    def __init__(self, clock: Callable[[], float], on_new: Callable[[], None], on_over: Callable[[], None]) -> None:
        self.run: str = ""
        self.by: str = ""
        self._clock, self._on_new, self._on_over = clock, on_new, on_over
        self._holders: dict[str, Connection] = {}
        self._heard_at = 0.0

    @property
    def is_held(self) -> bool:
        """True if an operator has the lease now."""
        return any(not holder.is_closed for holder in self._holders.values())

    def ask(self, connection: Connection, request: LeaseRequest) -> None:
        """Take, keep or release the lease.

        Raises:
            CommandRefused: EBUSY if another run has the lease, or, with `again`, has held it since.
        """
        if request.release:
            # A release on an older connection of the same name must not end the lease of the newer connection.
            if self._holders.get(request.connection) is connection:
                del self._holders[request.connection]
                if request.over:
                    self._on_over()
            return
        if request.run != self.run:
            self._change_hands(request)
        older = self._holders.get(request.connection)
        self._holders[request.connection] = connection
        self._heard_at = self._clock()
        if older is not None and older is not connection:
            # The older connection is dropped, so that its unread requests are not executed after requests on the new
            # one.
            older.drop("its operator goes on by another connection", fault=False)

    def _change_hands(self, request: LeaseRequest) -> None:
        silent = self._clock() - self._heard_at
        if self.is_held and silent < LEASE_SECONDS:
            raise CommandRefused(Status.EBUSY, f"{self.by} is at work on this node")
        # The run's knowledge of the vbuckets is from before the other run, which may have moved some of them.
        if request.again and self.run:
            raise CommandRefused(Status.EBUSY, f"{self.by} has been at work on this node meanwhile")
        # A silent run may still be alive: its connections are closed first, so that its requests can't be executed any
        # more.
        for connection in self._holders.values():
            connection.drop(f"its operator said nothing for {silent:.0f} s, and another one begins", fault=False)
        self._holders.clear()
        self.run, self.by = request.run, request.by
        self._on_new()
