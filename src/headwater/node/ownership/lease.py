"""The lease of a node: one operator at a time changes the owners of its vbuckets.

    IOCTL_SET   key "lease"   value {"run": "6f1c…", "by": "rebalance, process 71 on db7", "connection": "9a02…",
                                     "again": false, "release": false, "over": false}

Several connections of one run may hold the lease, each under its own name. The lease ends with the last of these
connections, and only then, so every request on one of them comes from the only operator. A run that is silent for
LEASE_SECONDS may hang, or be cut off: if another run requests the lease then, the connections of the first are closed,
and their unread requests are lost. "again" means that the run held the lease before: it is refused if another run has
held it since, because the run's knowledge of the vbuckets is outdated. "over", with "release", means that the run has
ended: the vbuckets that it held follow the map again, as they do when another run begins.

When a new run begins, connections on which a mover hands vbuckets over are closed: no work of an older run continues.
Source: failover 4, "never two active owners", for more than one mover.
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
    """A request for the lease: the operator's run, its description, and the name of the requesting connection."""

    run: str
    by: str
    connection: str
    again: bool = False
    release: bool = False
    over: bool = False


def read_asked(content: dict[str, Any]) -> LeaseRequest:
    """Read a request from its JSON properties.

    Raises:
        CommandRefused: a text is missing or too long, or a flag is neither true nor false.
    """
    run, by, connection = (content.get(name) for name in ("run", "by", "connection"))
    if not all(isinstance(each, str) and 0 < len(each) <= TEXT_MAX for each in (run, by, connection)):
        raise CommandRefused(Status.EINVAL, f"run, by and connection are texts of 1 to {TEXT_MAX} characters")
    again, release, over = flags = [content.get(name, False) for name in ("again", "release", "over")]
    if not all(isinstance(each, bool) for each in flags):
        raise CommandRefused(Status.EINVAL, "again, release and over are true or false")
    return LeaseRequest(str(run), str(by), str(connection), again, release, over)


class Lease:
    """The lease of a node, and its holder.

    Args:
        clock: seconds of a monotonic clock.
        on_new: called when another run gets the lease.
        on_over: called when a run releases the lease because it has ended.

    Attributes:
        run, by: the last holder; empty if there was none since the node started.
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
        return any(not each.is_closed for each in self._holders.values())

    def ask(self, connection: Connection, request: LeaseRequest) -> None:
        """Take, keep or release the lease.

        Raises:
            CommandRefused: EBUSY if another run has the lease, or, with `again`, has held it since.
        """
        if request.release:
            # A release from an older connection of the same name must not end what the newer one holds.
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
            # What the run had asked on it is not to happen after what it asks and hears on the new one.
            older.drop("its operator goes on by another connection", fault=False)

    def _change_hands(self, request: LeaseRequest) -> None:
        silent = self._clock() - self._heard_at
        if self.is_held and silent < LEASE_SECONDS:
            raise CommandRefused(Status.EBUSY, f"{self.by} is at work on this node")
        # What the run knows of the vbuckets is from before the other run; going on by it could hand over what has been
        # moved since.
        if request.again and self.run:
            raise CommandRefused(Status.EBUSY, f"{self.by} has been at work on this node meanwhile")
        # A run that says nothing is not necessarily dead: its connections are closed first, so that nothing it asked
        # can still be obeyed.
        for connection in self._holders.values():
            connection.drop(f"its operator said nothing for {silent:.0f} s, and another one begins", fault=False)
        self._holders.clear()
        self.run, self.by = request.run, request.by
        self._on_new()
