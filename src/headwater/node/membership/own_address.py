"""Connect to the address that the map has for this node: if another node answers there, this node runs on a copy of its
folder.

A copy has the map and the data of a member, and its peers have no newer map: it would serve in addition to the
original. So the fence opens only once it is known that no other node answers at the address. Either this node itself
answers (it recognizes its own connection by the client name), or no node does, as behind some address translations, or
before the original has started. The check is repeated as long as the map contains this node.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace

from headwater.node.calling import converse, keep_asking
from headwater.node.membership.peers import (
    ANSWER_SECONDS_MAX,
    ASK_AGAIN_SECONDS,
    RETRY_SECONDS_MAX,
    RETRY_SECONDS_MIN,
)
from headwater.node.users.binding import bound
from headwater.protocol.handshake import Login, greet
from headwater.tls.socket import TlsSocket
from headwater.transport.backoff import Backoff
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap

SILENCES = 3
"""After so many calls without an answer, the address counts as unreachable."""


class OwnAddress:
    """The repeated check that no other node answers at this node's address.

    Args:
        loop: returns the event loop.
        login: returns this node's login.
        call: connects to a node.
        is_heard: returns True if a client with this agent name is connected to this node.
        on_answer: called with the result of each check: the JSON map of another node that answers there, or None if no
            other node answers.
    """

    def __init__(
        self,
        loop: Callable[[], asyncio.AbstractEventLoop],
        login: Callable[[], Login],
        call: Callable[[Address], Awaitable[socket.socket | TlsSocket]],
        is_heard: Callable[[str], bool],
        on_answer: Callable[[bytes | None], None],
    ) -> None:
        self._loop, self._login, self._call = loop, login, call
        self._is_heard, self._on_answer = is_heard, on_answer
        self._address: Address | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self, address: Address | None) -> None:
        """Check this address from now on; None for no address."""
        if address == self._address:
            return
        self._address = address
        if self._task is not None:
            self._task.cancel()
        self._task = None if address is None else self._loop().create_task(self._ask_on(address))

    def stop(self) -> None:
        """Stop checking."""
        self.watch(None)

    async def _ask_on(self, address: Address) -> None:
        silent = 0

        async def ask() -> None:
            nonlocal silent
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                other = await self._ask(address)
            self._on_answer(other)
            silent = 0

        def failed(error: Exception) -> None:
            nonlocal silent
            # A refused connection shows at once that no node is there; silence may be a busy node.
            silent = silent + 1 if isinstance(error, TimeoutError) else SILENCES
            if silent >= SILENCES:  # even a busy node would have answered one of these calls
                self._on_answer(None)

        await keep_asking(ask, failed, Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX), ASK_AGAIN_SECONDS)

    async def _ask(self, address: Address) -> bytes | None:
        """Return the map of another node that answers at the address; None if this node itself answers."""
        # A random name for this call: if this node now has a client of this name, the call has reached this node.
        login = replace(self._login(), agent=f"headwater-node {secrets.token_hex(8)}")
        sock = await self._call(address)
        try:
            greeting = await converse(self._loop(), sock, greet(bound(login, sock, address)), str(address))
            return None if self._is_heard(login.agent) else greeting.config
        finally:
            sock.close()


def is_copy(cluster_map: ClusterMap | None, other: ClusterMap) -> bool:
    """Return True if the map `other`, of a node that answers at this node's address, says that it is the same member of
    the same cluster.
    """
    return (
        cluster_map is not None
        and other.uuid == cluster_map.uuid
        and cluster_map.here is not None
        and other.here == cluster_map.here
    )
