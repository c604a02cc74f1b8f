"""Clients of a simulated cluster: each follows the map with the product's own code, and records its requests and
answers.

Keys have a purpose (a register, a counter, a lock, one that expires) and a way of writing (plain, or at a durability
level), so that all clients meet on the same documents. One client sends one request at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.linearizability.record import (
    Argument,
    Kind,
    Level,
    Outcome,
    Recorder,
    Result,
    outcome_of,
    result_of,
    text_of,
)
from harness.linearizability.requests import frame_of, result_in
from headwater.client.cluster import Cluster
from headwater.client.settings import settings_for
from headwater.errors import BucketMadeAnew, BucketNotFound, HeadwaterError, StatusError, TransportError
from headwater.transport.aio import Waiters

if TYPE_CHECKING:
    from headwater.transport.waiting import Steps
    from headwater.wire.cluster_map import ClusterMap
    from headwater.wire.header import Frame

DURABILITY_MS = (100, 700, 2500)
OPERATION_SECONDS = 3.0
CONNECT_SECONDS = 1.0
RETRY_SECONDS = 0.3
PADDING = (0, 0, 0, 40, 900, 3000)


class Purpose(Enum):
    """The use of a key: the operations on it, each with its frequency."""

    REGISTER = "register"
    COUNTER = "counter"
    LOCK = "lock"
    EXPIRING = "expiring"


KINDS: dict[Purpose, dict[Kind, int]] = {
    Purpose.REGISTER: {
        Kind.GET: 8, Kind.SET: 6, Kind.ADD: 2, Kind.REPLACE: 4, Kind.DELETE: 2, Kind.APPEND: 1,
    },
    Purpose.COUNTER: {Kind.GET: 3, Kind.INCREMENT: 8, Kind.DECREMENT: 2, Kind.DELETE: 1},
    Purpose.LOCK: {Kind.GET: 3, Kind.SET: 4, Kind.GET_AND_LOCK: 4, Kind.UNLOCK: 3, Kind.DELETE: 1},
    Purpose.EXPIRING: {Kind.GET: 6, Kind.SET: 5, Kind.TOUCH: 2, Kind.GET_AND_TOUCH: 2, Kind.DELETE: 1},
}  # fmt: skip
HAVE_CAS = frozenset({Kind.SET, Kind.REPLACE, Kind.DELETE, Kind.APPEND})
HAVE_LEVEL = frozenset({Kind.SET, Kind.ADD, Kind.REPLACE, Kind.DELETE, Kind.APPEND, Kind.INCREMENT, Kind.DECREMENT})


@dataclass(frozen=True, slots=True)
class WorldKey:
    """A key, its purpose, and whether its changes are durable writes."""

    name: bytes
    purpose: Purpose
    is_durable: bool


def keys_of(random: Random, count: int) -> list[WorldKey]:
    """Choose keys; two thirds are written durably."""
    purposes = random.choices(list(Purpose), (6, 2, 2, 2), k=count)
    return [WorldKey(b"key-%d" % at, purpose, random.random() < 0.66) for at, purpose in enumerate(purposes)]


class FollowingCluster(Cluster):
    """The product's routed requests, with the node that got the last one."""

    node = ""

    def _link_of_owner(self, planned: ClusterMap | None, vbucket: int, what: str, deadline: float) -> Steps[Any]:
        self.node = str(self.map.owner(vbucket) or "")
        return super()._link_of_owner(planned, vbucket, what, deadline)


@dataclass(slots=True)
class Seen:
    """A client's knowledge of a key: the CAS it saw last, and the token of its lock."""

    cas: int = 0
    token: int = 0


Clock: TypeAlias = Callable[[], float]
Login: TypeAlias = tuple[str | None, str | None]
"""A name and a password; None where everybody is let in."""


class WorkloadClient:
    """One client.

    Args:
        number: of the client. seeds: nodes to begin with. now: Unix seconds.
        next_value: returns a unique number for a value. login: where the nodes have users.

    Attributes:
        asked: the number of operations it has begun.
    """

    def __init__(
        self,
        number: int,
        seeds: Sequence[str],
        keys: Sequence[WorldKey],
        *,
        recorder: Recorder,
        random: Random,
        now: Clock,
        next_value: Callable[[], int],
        login: Login = (None, None),
        bucket: str = "default",
    ) -> None:
        self.number, self.asked = number, 0
        self._login, self._bucket = login, bucket
        self._seeds, self._keys, self._recorder, self._random = seeds, keys, recorder, random
        self._now, self._next_value = now, next_value
        self._seen: dict[bytes, Seen] = {}
        self._cluster: FollowingCluster | None = None
        self._waiters: Waiters | None = None

    @property
    def login(self) -> Login:
        """Return the login of the client."""
        return self._login

    def leave(self) -> None:
        """Close the connections: the next operation logs in anew."""
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None

    async def run(self, operations: int, pause_seconds: float) -> None:
        """Send so many requests, with pauses of `pause_seconds` on average."""
        while self.asked < operations:
            await self.step()
            if self._random.random() < 0.5:
                await asyncio.sleep(self._random.expovariate(1 / (2 * pause_seconds)))

    async def step(self) -> None:
        """Send one request for some key."""
        key = self._random.choice(self._keys)
        kinds = KINDS[key.purpose]
        kind = self._random.choices(list(kinds), list(kinds.values()))[0]
        await self.do(key, kind, self._argument(key, kind))

    async def read_all(self) -> None:
        """Read each key once."""
        for key in self._keys:
            await self.do(key, Kind.GET, Argument())

    async def do(self, key: WorldKey, kind: Kind, argument: Argument) -> Result:
        """Send one request, and record it with its outcome."""
        cluster, waiters = await self._connected()
        self.asked += 1
        number = self._recorder.asked(self.number, text_of(key.name), kind, argument, called=self._now())
        try:
            frame = await waiters.run(self._request(cluster, key.name, kind, argument))
        except BucketNotFound as error:  # its status is that of a document that is not there
            result = Result(Outcome.REFUSED, node=cluster.node, text=str(error))
        except StatusError as error:
            result = result_of(error.status, node=cluster.node)
            if outcome_of(error.status) is Outcome.DONE:
                raise
        except (TransportError, BucketMadeAnew) as error:
            result = Result(Outcome.MAYBE, node=cluster.node, text=str(error))
        else:
            result = result_in(kind, frame, cluster.node)
        self._recorder.answered(number, result, at=self._now())
        self._learn(key, kind, result)
        return result

    async def _connected(self) -> tuple[FollowingCluster, Waiters]:
        while self._cluster is None or self._waiters is None:
            settings = settings_for(
                f"couchbase://{','.join(self._seeds)}/{self._bucket}",
                *self.login,
                connect_timeout_seconds=CONNECT_SECONDS,
                timeout_seconds=OPERATION_SECONDS,
            )
            cluster = FollowingCluster(settings)
            waiters = Waiters(cluster.clock)
            try:
                await waiters.run(cluster.connect())
            except HeadwaterError:
                cluster.close()
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._cluster, self._waiters = cluster, waiters
        return self._cluster, self._waiters

    def _argument(self, key: WorldKey, kind: Kind) -> Argument:
        random, seen = self._random, self._seen.get(key.name, Seen())
        level = Level(random.randrange(1, 4)) if key.is_durable and kind in HAVE_LEVEL else Level.NONE
        cas = 0
        if kind in HAVE_CAS and key.purpose is Purpose.LOCK:
            cas = seen.token
        elif kind in HAVE_CAS and random.random() < 0.4:
            cas = seen.cas
        argument = Argument(cas=cas, level=level)
        if kind in {Kind.SET, Kind.ADD, Kind.REPLACE, Kind.APPEND}:
            value = f"v{self._next_value()}-" + "x" * random.choice(PADDING)
            argument = replace(argument, value=value)
        if kind in {Kind.INCREMENT, Kind.DECREMENT}:
            initial = random.choice([None, 0, 100])
            argument = replace(argument, delta=random.randrange(1, 9), initial=initial)
        if kind is Kind.GET_AND_LOCK:
            argument = replace(argument, seconds=random.choice([1, 2, 5]))
        if kind is Kind.UNLOCK:
            argument = replace(argument, cas=seen.token or seen.cas)
        is_timed = key.purpose is Purpose.EXPIRING and kind in {Kind.SET, Kind.TOUCH, Kind.GET_AND_TOUCH}
        if is_timed and random.random() < 0.8:
            argument = replace(argument, expiry=int(self._now()) + random.choice([2, 4, 10]))
        return argument

    def _learn(self, key: WorldKey, kind: Kind, result: Result) -> None:
        if result.outcome is not Outcome.DONE:
            return
        seen = self._seen.setdefault(key.name, Seen())
        if kind is Kind.GET_AND_LOCK:
            seen.token = result.cas
        elif kind is Kind.UNLOCK or kind in HAVE_CAS:
            seen.token = 0
        if kind is not Kind.GET_AND_LOCK and result.cas:
            seen.cas = result.cas

    def _request(self, cluster: Cluster, key: bytes, kind: Kind, argument: Argument) -> Steps[Frame]:
        vbucket = cluster.map.vbucket_of(key)
        timeout = self._random.choice(DURABILITY_MS) if argument.level else 0
        frame = frame_of(kind, key, argument, vbucket, durable_ms=timeout)
        asked = cluster.for_durable_writes() if argument.level else cluster
        return asked.call(vbucket, frame, f"{kind} {key!r}", reads=kind is Kind.GET)
