"""Request the maps of the other nodes, again and again, as long as the map contains these nodes.

A node that does not answer gets another request soon, later ones at longer intervals; a node that has answered gets
another request after a while. So a map that an orchestrator could not send to this node arrives nevertheless. When this
process stood still, all of them get a request at once: they may have gone on without this node.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from headwater.errors import RemoteProtocolError
from headwater.node.calling import converse, keep_asking
from headwater.node.users.binding import bound
from headwater.protocol.handshake import Login, greet
from headwater.tls.socket import TlsSocket
from headwater.transport.backoff import Backoff
from headwater.wire.address import Address
from headwater.wire.features import Feature

ANSWER_SECONDS_MAX = 2.0
RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 2.0
ASK_AGAIN_SECONDS = 10.0
BEAT_SECONDS = 1.0
STOOD_STILL_SECONDS = 2.0
"""A process that comes so late to its next beat stood still: operators may have taken it for dead."""
FEATURES = (Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON)


@dataclass(slots=True)
class MapPeer:
    """The answers of another node.

    Attributes:
        heard_at: the time of its last answer, in loop.time() seconds; None if it has never answered.
        problem: the problem since then; empty if there is none.
    """

    heard_at: float | None = None
    problem: str = "not asked yet"


class Peers:
    """The other nodes of the map.

    Args:
        loop: returns the event loop.
        login: returns this node's login.
        call: connects to a node.
        on_map: called with a node, the JSON of its map, and the value of `standstills` when that was requested; an
            error that it raises is recorded as the node's problem.
        stood_still: called with the seconds for which this process stood still, before the nodes are asked.

    Attributes:
        known: each node, with its last answer and its problem.
        standstills: the number of times that this process stood still.
    """

    def __init__(
        self,
        loop: Callable[[], asyncio.AbstractEventLoop],
        login: Callable[[], Login],
        call: Callable[[Address], Awaitable[socket.socket | TlsSocket]],
        on_map: Callable[[Address, bytes, int], Awaitable[None]],
        stood_still: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.known: dict[Address, MapPeer] = {}
        self.standstills: int = 0
        self._loop = loop
        self._login = login
        self._call = call
        self._on_map = on_map
        self._stood_still = stood_still
        self._at_once = asyncio.Event()
        self._beat: asyncio.Task[None] | None = None
        self._looked_at: tuple[float, float] | None = None
        self._tasks: dict[Address, asyncio.Task[None]] = {}

    def watch(self, addresses: Iterable[Address]) -> None:
        """Request the maps of these nodes from now on, and of no others."""
        new_peers = tuple(addresses)  # in a fixed order, so that a simulated run can be repeated
        for address in [address for address in self._tasks if address not in new_peers]:
            self._tasks.pop(address).cancel()
            self.known.pop(address)
        for address in [address for address in new_peers if address not in self._tasks]:
            self.known[address] = MapPeer()
            self._tasks[address] = self._loop().create_task(self._ask_on(address, self.known[address]))
        if new_peers and self._beat is None:
            self._beat = self._loop().create_task(self._look_on())
            self.look()
        elif not new_peers and self._beat is not None:
            self._beat.cancel()
            self._beat = self._looked_at = None

    def stop(self) -> None:
        """Stop requesting maps."""
        self.watch(())

    async def _ask_on(self, address: Address, peer: MapPeer) -> None:
        async def ask() -> None:
            requested_after = -1
            # An answer from before a standstill tells nothing of the time since.
            while requested_after != self.standstills:
                requested_after = self.standstills
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    config = await self._ask(address)
                # Outside of the time limit, which must not interrupt writing a map to disk.
                await self._on_map(address, config, requested_after)
            peer.heard_at, peer.problem = self._loop().time(), ""

        def failed(error: Exception) -> None:
            peer.problem = str(error) or f"no answer within {ANSWER_SECONDS_MAX:g} s"

        backoff = Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX)
        await keep_asking(ask, failed, backoff, ASK_AGAIN_SECONDS, pausing=self._pause)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._at_once.wait()

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.look()

    def look(self) -> None:
        """Find out whether this process stood still since the last look; nothing without other nodes."""
        if self._beat is None:
            return
        # A machine that was suspended may tell by its wall clock alone.
        wall, steady = time.time(), self._loop().time()
        earlier, self._looked_at = self._looked_at, (wall, steady)
        late = 0.0 if earlier is None else max(wall - earlier[0], steady - earlier[1]) - BEAT_SECONDS
        if late > STOOD_STILL_SECONDS:
            self.standstills += 1
            self._stood_still(late)
            self._at_once.set()
            self._at_once.clear()

    async def _ask(self, address: Address) -> bytes:
        """Return the map of a node, as JSON."""
        loop = self._loop()
        sock = await self._call(address)
        try:
            greeting = await converse(loop, sock, greet(bound(self._login(), sock, address)), str(address))
        finally:
            sock.close()
        if greeting.config is None:
            raise RemoteProtocolError(f"{address}: it has no map of this bucket")
        return greeting.config
