"""One key-value connection to ONE node, for an administrator: nothing is routed, nothing is retried behind one's back.

    async with await NodeAdmin.connect(Endpoint(Address("127.0.0.1", 11210))) as node:
        states = await node.states()
        await node.set_state(7, State.REPLICA)

A connection that broke is opened again by the next call; the call that it broke under fails. All calls but
`set_config` can be repeated without harm. Many tasks may call at the same time. Source: kv.md 3, failover.md 5.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Self, TypeVar

from headwater.client.pipeline import Pipeline
from headwater.client.routing import Address
from headwater.cluster import answers
from headwater.cluster.answers import Following, TakeoverStats
from headwater.errors import KeyNotFound, NotMyVbucket, PeerSilent, RemoteProtocolError
from headwater.protocol.handshake import Login, refused, request
from headwater.transport.aio import Waiters
from headwater.transport.waiting import Steps
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

TIMEOUT_SECONDS = 5.0
PERSISTENCE_SECONDS_MAX = 30.0
"""The node gives up waiting for its disk after so long, and may be asked again (failover 5, step 4)."""

STATS_MAX = 1_000_000
AGENT = "headwater-cluster"
_VERSION = Struct(">qq")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A bucket on one node, and as whom to log in (None: the node lets everybody in)."""

    address: Address
    bucket: str = "default"
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.address}/{self.bucket}"

    def login(self, features: tuple[int, ...] | None = None) -> Login:
        """What to say when connecting."""
        login = Login(AGENT, self.bucket, self.user, self.password)
        return login if features is None else Login(AGENT, self.bucket, self.user, self.password, features=features)


class NodeAdmin:
    """Administration of one node; made by `connect`.

    Every call raises TransportError when there is no connection or no answer in time, and StatusError when the node
    says no. A vbucket is its number.

    Args:
        timeout_seconds: for connecting, and for each answer.
    """

    def __init__(
        self, endpoint: Endpoint, timeout_seconds: float = TIMEOUT_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.endpoint = endpoint
        self._timeout, self._clock = timeout_seconds, clock
        self._link = Pipeline(endpoint.address, clock)
        self._opening = asyncio.Lock()
        self._waiters = Waiters(clock)

    @classmethod
    async def connect(
        cls,
        address: Address | Endpoint,
        bucket: str = "default",
        user: str | None = None,
        password: str | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> NodeAdmin:
        """Connect and log in.

        Raises:
            TransportError: the node can't be reached. StatusError: it refused us.
        """
        endpoint = address if isinstance(address, Endpoint) else Endpoint(address, bucket, user, password)
        made = cls(endpoint, timeout_seconds)
        await made._open()
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    @property
    def address(self) -> Address:
        """The node."""
        return self.endpoint.address

    def close(self) -> None:
        """Close the connection; whoever waits for an answer gets to know."""
        self._link.close()
        self._waiters.sweep()

    # --- vbuckets -----------------------------------------------------------------------------------------------------

    async def state(self, vb: int) -> State | None:
        """The state of a vbucket; None if it is not on this node."""
        try:
            return answers.state(await self._ask(Opcode.GET_VBUCKET, f"ask for the state of vbucket {vb}", vb=vb))
        except NotMyVbucket:
            return None

    async def states(self) -> dict[int, State]:
        """The state of every vbucket that is on this node."""
        return answers.states(await self.stats("vbucket"))

    async def set_state(self, vb: int, state: State) -> None:
        """Set a vbucket's state, making the vbucket if it is not here; returns when that is durable."""
        what = f"make vbucket {vb} {state.name.lower()}"
        await self._ask(Opcode.SET_VBUCKET, what, vb=vb, extras=int(state).to_bytes(1))

    async def delete(self, vb: int) -> bool:
        """Delete a vbucket and all that is in it; False if it was not here."""
        try:
            await self._ask(Opcode.DEL_VBUCKET, f"delete vbucket {vb}", vb=vb)
        except NotMyVbucket:
            return False
        return True

    async def seqnos(self, state: State | None = None) -> dict[int, int]:
        """High seqno of every vbucket in a state; without one, of every vbucket that is active, replica or pending."""
        extras = int(state or 0).to_bytes(4)
        return answers.seqnos(await self._ask(Opcode.GET_ALL_VB_SEQNOS, "ask for the seqnos", extras=extras))

    async def failover_log(self, vb: int) -> list[tuple[int, int]]:
        """A vbucket's failover log, newest history first, as (vb uuid, seqno)."""
        return answers.failover_log(
            await self._ask(Opcode.GET_FAILOVER_LOG, f"ask for the failover log of vbucket {vb}", vb=vb)
        )

    async def wait_persisted(self, vb: int, seqno: int, timeout_seconds: float = 2 * PERSISTENCE_SECONDS_MAX) -> None:
        """Return when the vbucket has `seqno` on disk.

        Raises:
            PeerSilent: not within the timeout.
        """
        # The node answers nothing else on a connection that waits for its disk: so this is one of its own.
        began = self._clock()
        link = Pipeline(self.address, self._clock)
        try:
            await self._run(link.open(self.endpoint.login(), self._timeout))
            while (left := began + timeout_seconds - self._clock()) > 0:
                asked = request(Opcode.SEQNO_PERSISTENCE, extras=seqno.to_bytes(8), vbucket=vb)
                limit = min(left, PERSISTENCE_SECONDS_MAX + self._timeout)
                answer = await self._run(link.call(asked, self._clock() + limit))
                if answer.status != Status.ETMPFAIL:
                    _check(f"wait until {self.address} has seqno {seqno} of vbucket {vb} on disk", answer)
                    return
        finally:
            link.close()
            self._waiters.sweep()
        raise PeerSilent(str(self.address), timeout_seconds)

    async def items(self) -> dict[int, int]:
        """How many documents each vbucket of this node holds."""
        return answers.items(await self.stats("vbucket-details"))

    # --- following another node ---------------------------------------------------------------------------------------

    async def replicate(self, source: Endpoint, vbuckets: Iterable[int], *, takeover: bool = False) -> None:
        """Tell the node to follow `source` by calls of its own; vbuckets that are not here are made, as replicas.

        Raises:
            InvalidArguments: one of them is active here, or there is no such vbucket; nothing happened.
        """
        asked: dict[str, Any] = {"from": str(source), "vbuckets": vbucket_list(vbuckets), "takeover": takeover}
        if source.user is not None:
            asked |= {"user": source.user, "password": source.password or ""}
        await self._control("replicate", asked, f"let it follow {source}")

    async def stop_replicating(self, source: Endpoint, vbuckets: Iterable[int] | None = None) -> bool:
        """Tell the node to follow `source` no more, in all vbuckets or some; False if it did not follow it at all."""
        asked: dict[str, Any] = {"from": str(source)}
        if vbuckets is not None:
            asked["vbuckets"] = vbucket_list(vbuckets)
        try:
            await self._control("replicate.stop", asked, f"let it follow {source} no more")
        except KeyNotFound:
            return False
        return True

    async def replication(self) -> dict[str, Following]:
        """Whom the node follows by calls of its own, and how far that is; by host:port/bucket of the producer."""
        return answers.following(await self.stats("replication"))

    async def takeover_stats(self, vb: int, name: str) -> TakeoverStats:
        """How far this node's stream of a vbucket to the connection called `name` is."""
        return TakeoverStats.of(await self.stats(f"dcp-vbtakeover {vb} {name}"))

    async def _control(self, key: str, value: dict[str, Any], what: str) -> None:
        await self._ask(Opcode.IOCTL_SET, what, key=key.encode(), value=json.dumps(value).encode())

    # --- the map, and the rest ----------------------------------------------------------------------------------------

    async def config(self) -> bytes | None:
        """The cluster map as the node hands it out; None if it has none."""
        try:
            return (await self._ask(Opcode.GET_CLUSTER_CONFIG, "ask for the cluster map")).value or None
        except KeyNotFound:
            return None

    async def set_config(self, epoch: int, rev: int, bucket: str, config: bytes) -> None:
        """Give the node a cluster map.

        Raises:
            KeyExists: it has a newer one.
        """
        await self._ask(
            Opcode.SET_CLUSTER_CONFIG,
            f"give it map {epoch}:{rev}",
            key=bucket.encode(),
            extras=_VERSION.pack(epoch, rev),
            value=config,
        )

    async def stats(self, group: str = "") -> dict[str, str]:
        """A group of statistics."""
        link = await self._open()
        frames = await self._run(
            link.call_until(request(Opcode.STAT, group.encode()), _ends_stats, self._clock() + self._timeout)
        )
        _check(f'{self.address}: ask for the statistics "{group}"', frames[-1])
        if len(frames) > STATS_MAX:
            raise RemoteProtocolError(f"STAT (opcode 0x10): more than {STATS_MAX} statistics")
        return {frame.key.decode(errors="replace"): frame.value.decode(errors="replace") for frame in frames[:-1]}

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _ask(
        self, opcode: int, what: str, *, vb: int = 0, key: bytes = b"", extras: bytes = b"", value: bytes = b""
    ) -> Frame:
        link = await self._open()
        answer = await self._run(link.call(request(opcode, key, value, extras, vb), self._clock() + self._timeout))
        return _check(f"{self.address}: {what}", answer)

    async def _open(self) -> Pipeline:
        """The connection, opened now if there is none."""
        async with self._opening:
            if not self._link.is_open or self._link.is_stale:
                self._link.close()
                self._link = Pipeline(self.address, self._clock)
                await self._run(self._link.open(self.endpoint.login(), self._timeout))
        return self._link

    async def _run(self, steps: Steps[Result]) -> Result:
        return await self._waiters.run(steps)


def vbucket_list(vbuckets: Iterable[int]) -> str:
    """The numbers as a list of ranges such as 0-3,7."""
    parts: list[list[int]] = []
    for vb in sorted(set(vbuckets)):
        if parts and parts[-1][1] == vb - 1:
            parts[-1][1] = vb
        else:
            parts.append([vb, vb])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _check(what: str, answer: Frame) -> Frame:
    if answer.status:
        raise refused(what, answer)
    return answer


def _ends_stats(frame: Frame) -> bool:
    """STAT answers end with one that has neither key nor value, or with a failure (kv.md 1.7)."""
    return bool(frame.status) or not (frame.key or frame.value)
