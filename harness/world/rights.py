"""Guests: clients whose rights an operator grants and revokes, whose passwords change, who are removed and come back.

The list of users is the product's own: an operator changes it by `headwater.cluster.users`, members share it
(node/users/sharing.py), each node keeps it in its folder. The judge uses the answers that the operator got: once a node
has acknowledged a change, a guest without a right gets nothing by that right there. A change without an end, or one
that reached some nodes alone, may be in force anywhere until a later one that knew of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from harness.linearizability.record import Kind, Operation, Outcome
from harness.simulation.histories import Broken
from harness.world.operators import members
from headwater.accounts.keys import HASHES, derive
from headwater.accounts.roles import CLUSTER_USER, read_grants
from headwater.accounts.users import Account, accounts_of, edited
from headwater.client.routing import Address
from headwater.cluster import users
from headwater.errors import HeadwaterError
from headwater.wire.users import UserList

ADMINISTRATOR, APPLICATION = ("admin", "a-secret"), ("app", "another")
KNOWN = {ADMINISTRATOR[0]: ADMINISTRATOR[1], APPLICATION[0]: APPLICATION[1], CLUSTER_USER: "members"}
"""The users that every node is started with: the operators', the clients', and its fellow members."""
AGAIN_SECONDS = 2.0
ATTEMPTS = 4
ITERATIONS = 4096
"""The fewest iterations that RFC 5802 allows: with a node's own number, a world would spend a tenth of its time on
them.
"""
LATE_SECONDS = 60.0
"""The time after which no request of a killed or disconnected operator can arrive any more."""
ROLES = (("read",), ("write",), ("read", "write"), ("read", "write"), ("stream",), ("read", "stream"), ())
READS = frozenset({Kind.GET})
WRITES = frozenset({Kind.SET, Kind.ADD, Kind.DELETE})


@dataclass(slots=True)
class Change:
    """A change of a guest's rights.

    Attributes:
        roles: those that the guest has by it; None for a removed guest.
        began, ended: when it was requested, and when its operator got the result; None for not yet, or never.
        nodes: host:port of the nodes that have it on disk and in force since `ended`. is_everywhere: True for all
            machines.
    """

    roles: tuple[str, ...] | None
    began: float
    ended: float | None = None
    nodes: frozenset[str] = frozenset()
    is_everywhere: bool = False

    def supersedes(self, other: Change) -> bool:
        """Return True if this change was made with knowledge of the other: it is newer wherever the two meet."""
        if other.ended is not None:
            return other.ended <= self.began and bool(other.nodes & self.nodes or self.is_everywhere)
        return self.is_everywhere and other.began + LATE_SECONDS < self.began


@dataclass(slots=True)
class Guest:
    """A guest, and all changes of its rights, in the order of their requests."""

    name: str
    password: str
    changes: list[Change] = field(default_factory=list)

    def may(self, right: str, node: str, began: float, ended: float) -> bool:
        """Return True if by the state of a node the guest could have a right at some time in between."""
        return any(right in (each.roles or ()) for each in self.possible(node, began, ended))

    def possible(self, node: str, began: float, ended: float) -> list[Change]:
        """Return the changes that may have been in force on a node at some time in between."""
        known = [
            change
            for change in self.changes
            if node in change.nodes and change.ended is not None and change.ended < began
        ]
        begun = [change for change in self.changes if change.began <= ended]
        return [each for each in begun if not any(newer.supersedes(each) for newer in known)]


class RightsOperator:
    """An operator who changes the rights of guests.

    Args:
        nodes: all machines. now: seconds since the beginning. roles: the sets of roles that a guest may have.
    """

    def __init__(
        self,
        nodes: Sequence[Address],
        guests: Sequence[Guest],
        now: Callable[[], float],
        roles: Sequence[tuple[str, ...]] = ROLES,
    ) -> None:
        self.guests = guests
        self._nodes, self._now, self._roles = nodes, now, roles

    async def change(self, node: Address, random: Random) -> bool:
        """Give a guest other roles or another password, or remove it; return True if that succeeded."""
        guest = random.choice(self.guests)
        roles = None if random.random() < 0.15 else random.choice(self._roles)
        password = f"p{random.randrange(1 << 30)}" if random.random() < 0.3 else guest.password
        salt = random.randbytes(16)
        seeds = [each for each in self._nodes if each != node] or [node]
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(AGAIN_SECONDS)
            if await self._once(seeds, guest, roles, password, salt):
                return True
        return False

    async def _once(
        self, seeds: list[Address], guest: Guest, roles: tuple[str, ...] | None, password: str, salt: bytes
    ) -> bool:
        change = Change(roles, self._now())
        guest.changes.append(change)
        try:
            async with members() as connected:
                spread = await users.change(
                    connected, seeds, lambda known: _edited(known, guest, roles, password, salt)
                )
        except HeadwaterError:
            return False
        change.nodes = frozenset(map(str, spread.nodes))
        change.is_everywhere = set(spread.nodes) == set(self._nodes)
        change.ended, guest.password = self._now(), password
        return True


def _edited(known: UserList, guest: Guest, roles: tuple[str, ...] | None, password: str, salt: bytes) -> UserList:
    before = accounts_of(known)
    after = {name: account for name, account in before.items() if name != guest.name}
    if roles is not None:
        keys = {name: derive(name, password, salt, ITERATIONS) for name in HASHES}
        after[guest.name] = Account(read_grants(",".join(roles)) if roles else (), keys)
    return edited(known, before, after)


# --- the judge --------------------------------------------------------------------------------------------------------


def check_operations(
    guests: Sequence[Guest],
    operations: Iterable[tuple[Guest, Operation]],
    nodes: Sequence[str],
    *,
    noon: float,
    is_stored: Callable[[str, str], bool],
) -> int:
    """Check that guests got no answer, and stored nothing, without a right to it; return the number of checked answers.

    Args:
        nodes: host:port of all machines. noon: Unix seconds at the beginning.
        is_stored: returns True if any owner has stored a value under a key.
    """
    looked_at = 0
    for guest, operation in operations:
        right = "read" if operation.kind in READS else "write"
        began, result = operation.called - noon, operation.result
        ended = began if operation.answered is None else operation.answered - noon
        if operation.outcome not in {Outcome.REFUSED, Outcome.MAYBE}:
            looked_at += 1
            if not guest.may(right, result.node, began, ended):
                raise Broken(f"rights: {guest.name} may not {right} on {result.node}, which answered {operation}")
        elif operation.kind in WRITES and operation.argument.value:
            may = operation.outcome is Outcome.MAYBE and any(
                guest.may(right, node, began, ended + LATE_SECONDS) for node in nodes
            )
            if not may and is_stored(operation.key, operation.argument.value):
                raise Broken(f"rights: {guest.name} was refused, and its write took effect: {operation}")
    return looked_at


def check_shown(guest: Guest, nodes: Sequence[str], written: float, shown: float, what: object) -> None:
    """Check that a guest had the right to a change of its stream: on some node, at some time from the change's write
    until the stream showed it.
    """
    if not any(guest.may("stream", node, written, shown) for node in nodes):
        raise Broken(
            f"rights: {guest.name} may stream from no node since {written:.3f}, and was shown {what} at {shown:.3f}"
        )
