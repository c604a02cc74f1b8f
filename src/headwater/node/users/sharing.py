"""The users of a cluster: the same at all of its members.

    an administrator's list (IOCTL_SET "users"), or another member's --merged, on disk--> the users of this node

Every second each member asks every other one for its list (IOCTL_GET "users", with the digest of its own list), and
gets the list if it differs. So a change at one member reaches all, also those that were away. Members' lists are merged
user by user (wire/users.py).

A list has the uuid of its cluster, which is that of the first bucket's map. A node that joins a cluster replaces its
own list by the cluster's, so its former users can't log in any more. An administrator creates the first list of a
cluster from those of all its nodes (cluster/users.py); until then each node has its own.

A node without users lets everybody in; it asks no member for a list, and takes only an administrator's. The same holds
for a node without the members' secret: otherwise any machine that answers at a member's address could define its users.
With the secret, the called member first proves to this node that it knows the secret too (node/users/binding.py).

The lists hold verifiers of passwords, which only administrators and the members themselves may see.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from headwater.accounts.users import accounts_of
from headwater.errors import OptionError, RemoteProtocolError
from headwater.node.calling import converse, keep_asking
from headwater.node.reporting.log_lines import event
from headwater.node.users.binding import bound
from headwater.protocol.handshake import Conversation, Login, greet, refused
from headwater.transport.backoff import Backoff
from headwater.wire.admin import IoctlGet
from headwater.wire.users import UserList, UserListRefused

if TYPE_CHECKING:
    from headwater.node.users.logins import Users
    from headwater.tls.socket import TlsSocket
    from headwater.wire.address import Address
    from headwater.wire.cluster_map import ClusterMap

__all__ = ["KEY", "Sharing", "outcome"]

KEY: Final = b"users"
ASK_SECONDS: Final = 1.0
ANSWER_SECONDS_MAX: Final = 5.0
RETRY_SECONDS_MAX: Final = 10.0
HOW_TO_ADD: Final = "two were removed at once; headwater user add --data FOLDER, at any member, makes another"
Result = TypeVar("Result")

log: Final = logging.getLogger(__name__)


class AsMember(Protocol):
    """The part of the knowledge of a member of a cluster that `Sharing` needs.

    Attributes:
        map: the map of the first bucket; None for a node without one.
    """

    map: ClusterMap | None

    def login(self) -> Login:
        """Return the login that this node uses at other members."""

    async def call(self, address: Address) -> socket.socket | TlsSocket:
        """Return a connection to another member."""


def outcome(mine: UserList | None, theirs: UserList, cluster: str) -> UserList | None:
    """Return a node's list of users after another list has arrived; None if the node ignores that list.

    Args:
        mine: the node's list; None for none.
        theirs: the list that has arrived.
        cluster: the uuid of the node's cluster; "" for none.
    """
    if mine is None or mine.cluster == theirs.cluster:
        return theirs if mine is None else mine.merged(theirs)
    # The node's list is that of its cluster already, so the list of another cluster is ignored.
    if mine.cluster == cluster and cluster:
        return None
    return theirs if theirs.cluster == cluster else None


class Sharing:
    """Requests the members' lists, and applies them; all methods must be called in the event loop's thread.

    Args:
        loop: the event loop.
        users: the users of this node.
        place: returns this node's present knowledge as a member of a cluster.
        changed: called after the file of users has changed.
        has_secret: True if the members have a secret, which they prove to each other.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        users: Users,
        place: Callable[[], AsMember],
        changed: Callable[[], None],
        *,
        has_secret: bool,
    ) -> None:
        self._loop, self._users = loop, users
        self._place, self._changed = place, changed
        self._has_secret = has_secret
        self._tasks: dict[Address, asyncio.Task[None]] = {}

    # --- this node's list ---------------------------------------------------------------------------------------------

    def text(self, digest: bytes = b"") -> bytes:
        """Return this node's list; nothing (b"") if `digest` is its digest, because the caller has the same list."""
        users = self._users.list or UserList()
        return b"" if digest and digest == users.digest().encode() else users.encode()

    async def take(self, text: bytes) -> None:
        """Merge an administrator's list into this node's; on return the result is on disk and in force.

        Raises:
            UserListRefused: it is not a list of users, belongs to another cluster, would lock the other members out, or
                leaves no user who administers all buckets.
            DiskFull, StorageError: the result could not be written.
        """
        users = _read(text)
        if not self._users.required and self._peers() and not self._has_secret:
            raise UserListRefused(
                "the members let everybody in, and could not log in to each other any more: stop them, add a user to "
                "the folder of each (headwater user add), start them with --cluster-secret-file"
            )
        await self._merge(users, strictly=True)

    # --- the other members' lists -------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Begin to request the lists of new members, and stop requesting those of former ones."""
        peers = self._peers() if self._users.required and self._has_secret else ()  # in the order of the map
        for address in [each for each in self._tasks if each not in peers]:
            self._tasks.pop(address).cancel()
        for address in [peer for peer in peers if peer not in self._tasks]:
            self._tasks[address] = self._loop.create_task(self._ask_on(address))

    def stop(self) -> None:
        """Stop all requests."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def _peers(self) -> tuple[Address, ...]:
        cluster_map = self._place().map
        return () if cluster_map is None or cluster_map.this is None else tuple(cluster_map.peers)

    @property
    def _cluster(self) -> str:
        cluster_map = self._place().map
        return cluster_map.uuid if cluster_map is not None and self._peers() else ""

    async def _ask_on(self, address: Address) -> None:
        def failed(error: Exception) -> None:
            unknown = event("users.unknown", member=str(address))
            log.debug("%s: its users are not known: %s", address, error, extra=unknown)

        backoff = Backoff(ASK_SECONDS, RETRY_SECONDS_MAX)
        await keep_asking(partial(self._talk, address, backoff.reset), failed, backoff)

    async def _talk(self, address: Address, answered: Callable[[], None]) -> None:
        """Request a member's list every ASK_SECONDS, on one connection, until the connection is lost.

        Args:
            address: the member's address.
            answered: called after each answer.
        """
        place = self._place()
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            sock = await place.call(address)
        try:
            # By this login the called member also proves that it knows the secret; nothing it sends before counts.
            await self._hear(sock, address, greet(bound(place.login(), sock, address)))
            while True:
                digest = "" if self._users.list is None else self._users.list.digest()
                if text := await self._hear(sock, address, _question(digest.encode())):
                    await self._receive_list(address, text)
                answered()
                await asyncio.sleep(ASK_SECONDS)
        finally:
            sock.close()

    async def _hear(
        self, sock: socket.socket | TlsSocket, address: Address, conversation: Conversation[Result]
    ) -> Result:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await converse(self._loop, sock, conversation, str(address))

    async def _receive_list(self, address: Address, text: bytes) -> None:
        try:
            users = _read(text)
        except UserListRefused as error:
            raise RemoteProtocolError(f"{address}: {error}") from None
        # A list that no administrator has sent must be of this cluster: a node that was moved to another cluster still
        # answers at its address.
        if users.cluster and users.cluster == self._cluster:
            await self._merge(users)

    async def _merge(self, theirs: UserList, *, strictly: bool = False) -> None:
        file, cluster = self._users.file, self._cluster

        def wanted(mine: UserList | None) -> UserList | None:
            merged = outcome(mine, theirs, cluster)
            if merged is None and strictly:
                raise UserListRefused("a list of another cluster")
            if merged is not None and self._leaves_nobody(mine, merged):
                if strictly:
                    raise UserListRefused("nobody would be left who administers all buckets: give it to another first")
                told_so = event("users.unadministered")
                log.warning("of the users nobody is left who administers all buckets: %s", HOW_TO_ADD, extra=told_so)
            return merged

        if file is not None:
            before = self._users.list
            await self._loop.run_in_executor(None, file.change, wanted)
            self._changed()
            if not strictly and self._users.list != before:
                log.info("the users are the cluster's by now", extra=event("users.shared", cluster=theirs.cluster))

    def _leaves_nobody(self, mine: UserList | None, merged: UserList) -> bool:
        """Return True if a user of the old list administers all buckets, but none does with the merged list."""
        had = mine is not None and self._users.is_administered(accounts_of(mine))
        return had and not self._users.is_administered(accounts_of(merged))


def _read(text: bytes) -> UserList:
    """Return the list of users in a text.

    Raises:
        UserListRefused: it is not a list, or this node does not know its roles or its kinds of keys.
    """
    users = UserList.decode(text)
    try:
        accounts_of(users)
    except (ValueError, OptionError) as error:
        raise UserListRefused(str(error)) from None
    return users


def _question(digest: bytes) -> Conversation[bytes]:
    answer = yield IoctlGet(key=KEY, value=digest).frame()
    if answer.status:
        raise refused("ask for the users", answer)
    return answer.value
