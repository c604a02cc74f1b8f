"""Tenants: guests who have rights in single collections, or in their scope, and none in the bucket itself.

The application writes to all of these collections, called rooms. Tenants read, write, list keys and follow changes, in
any of the rooms, with a right or without, while an operator grants and revokes rights (rights.py). Once a node has
acknowledged a change, no tenant gets an answer, a change or an event of a room there without a right in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from harness.simulation.histories import Broken
from harness.world import operators
from harness.world.programs import Program, ProgramsWorld
from harness.world.rights import APPLICATION, Guest, RightsOperator
from harness.world.workload import CONNECT_SECONDS, OPERATION_SECONDS, RETRY_SECONDS, FollowingCluster, Login
from headwater.client import aio
from headwater.client.changes import (
    CollectionCreated,
    CollectionDropped,
    Deletion,
    Expiration,
    Mutation,
    ScopeCreated,
    ScopeDropped,
)
from headwater.client.collections import CollectionId
from headwater.client.kv import Operations
from headwater.client.scans import WantedKeys, keys_page
from headwater.client.settings import settings_for
from headwater.cluster import collections
from headwater.errors import BucketNotFound, HeadwaterError, KeyNotFound, RemoteProtocolError
from headwater.transport.aio import Waiters
from headwater.wire import documents
from headwater.wire.features import Feature

if TYPE_CHECKING:
    from harness.world.plan import WorldPlan
    from harness.world.steps import Step
    from headwater.client.changes import Event
    from headwater.transport.waiting import Steps

SCOPE, NAMES = "rooms", ("red", "blue")
ROOMS = tuple(f"{SCOPE}.{name}" for name in NAMES)
TENANTS, KEYS = 2, 3
PAUSE_SECONDS, LISTENING_SECONDS = 0.15, 1.0
FOUNDING_SECONDS = 30.0
BUCKET = operators.BUCKET
RED, BLUE, ALL = (f"[{BUCKET}:{SCOPE}{name}]" for name in (":red", ":blue", ""))
ROLES = (
    (f"read{BLUE}", f"stream{RED}"),
    (f"read{RED}", f"write{RED}", f"stream{BLUE}"),
    (f"read{RED}", f"write{BLUE}"),
    (f"stream{RED}",),
    (f"stream{ALL}",),
    (f"read{ALL}", f"write{ALL}", f"stream{RED}"),
    (f"stream{RED}", f"stream{BLUE}"),
    (),
)
"""Roles that a tenant may have at a time, of which an operator chooses."""


class TenantsWorld(ProgramsWorld, Protocol):
    """The parts of a world that are needed here."""

    plan: WorldPlan

    def next_number(self) -> int:
        """Return a unique number."""

    def complete(self, name: str, work: Callable[[], object], seconds: float) -> object:
        """Run a program to its end."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that needs a right, or a change or an event of a stream; `node` is empty if its source is unknown.

    Attributes:
        right, room: the right that it needs, and the room. began, ended: the times of its request and of the answer.
    """

    tenant: Guest
    right: str
    room: str
    node: str
    began: float
    ended: float
    what: str


def check(answered: Answered, nodes: Sequence[str]) -> None:
    """Check that some node could give an answer.

    Raises:
        Broken: the tenant had no such right in the room, nor in its scope.
    """
    scope, _, name = answered.room.partition(".")
    roles = [f"{answered.right}[{BUCKET}:{place}]" for place in (scope, f"{scope}:{name}")]
    asked = [answered.node] if answered.node else nodes
    may = answered.tenant.may
    if not any(may(role, node, answered.began, answered.ended) for node in asked for role in roles):
        where = f"on {answered.node}" if answered.node else "from no node"
        raise Broken(
            f"rights: {answered.tenant.name} may {answered.right} {answered.room} {where} from {answered.began:.3f} to"
            f" {answered.ended:.3f}, and was told {answered.what}"
        )


class RoomsClient:
    """A client of rooms that records its answers; `login` is called for each new connection."""

    def __init__(self, tenants: Tenants, login: Callable[[], Login], random: Random, tenant: Guest | None) -> None:
        self._tenants, self._login, self._random, self._tenant = tenants, login, random, tenant
        self._cluster: FollowingCluster | None = None

    async def run(self) -> None:
        """Send requests for ever, with pauses."""
        waiters: Waiters | None = None
        while True:
            await asyncio.sleep(self._random.expovariate(1 / PAUSE_SECONDS))
            try:
                if self._cluster is None or waiters is None:
                    self._cluster, waiters = await self._connected()
                await self._step(self._cluster, waiters)
            except HeadwaterError:
                if self._random.random() < 0.3:
                    self._leave()

    async def _connected(self) -> tuple[FollowingCluster, Waiters]:
        settings = settings_for(
            self._tenants.url,
            *self._login(),
            connect_timeout_seconds=CONNECT_SECONDS,
            timeout_seconds=OPERATION_SECONDS,
        )
        plain = FollowingCluster(settings)
        waiters = Waiters(plain.clock)
        try:
            await waiters.run(plain.connect())
            aware = plain.twin(Feature.COLLECTIONS)
        finally:
            plain.close()
        return aware, waiters

    def _leave(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None

    async def _step(self, cluster: FollowingCluster, waiters: Waiters) -> None:
        """Send one request, in some room."""
        random, room = self._random, self._random.choice(ROOMS)
        do = Operations(cluster, CollectionId(cluster, room))
        key, began = f"chair-{random.randrange(KEYS)}", self._tenants.now
        work: Steps[object]
        if self._tenant is None or random.random() < 0.3:
            right, what = "write", f"v{self._tenants.next_number()}-"
            work = do.store(documents.Set, key, what.encode(), flags=0, expiry=0, cas=0, durability=None)
        elif random.random() < 0.3:
            right, what = "read", "keys"
            wanted = WantedKeys(random.randrange(cluster.map.vbuckets), b"", b"", 10)
            work = keys_page(cluster, do.collection, wanted)
        else:
            right, what = "read", key
            work = do.get(key)
        self._tenants.counts["requests of tenants"] += self._tenant is not None
        try:
            await waiters.run(work)
        except BucketNotFound:
            raise
        except KeyNotFound:
            what += ": there is none"
        if self._tenant is not None:
            self._tenants.note(Answered(self._tenant, right, room, cluster.node, began, self._tenants.now, what))


class RoomsReader:
    """A tenant's reader of changes: each time from the beginning, of rooms that it may choose or not."""

    def __init__(self, tenants: Tenants, tenant: Guest, random: Random) -> None:
        self._tenants, self._tenant, self._random = tenants, tenant, random

    async def run(self) -> None:
        """Read for ever."""
        while True:
            await asyncio.sleep(self._random.expovariate(1 / RETRY_SECONDS))
            try:
                login = self._tenant.name, self._tenant.password
                async with aio.connect(self._tenants.url, *login) as bucket:
                    await self._listen(bucket)
            except RemoteProtocolError as error:
                raise Broken(f"rights: the stream of {self._tenant.name} has what it may not have: {error}") from error
            except HeadwaterError:
                continue

    async def _listen(self, bucket: aio.AsyncClient) -> None:
        chosen = self._random.choice([ROOMS[:1], ROOMS[1:], ROOMS, None])
        began = self._tenants.now
        until = began + self._random.expovariate(1 / LISTENING_SECONDS)
        names = {"scope": SCOPE} if chosen is None else {"collections": chosen}
        async with bucket.changes(
            name=f"{self._tenant.name} listens",
            patience_seconds=2.0,
            max_wait_seconds=0.5,
            noop_interval_seconds=5.0,
            **names,
        ) as feed:
            while self._tenants.now < until:
                self._take(await anext(feed), began)

    def _take(self, event: Event, began: float) -> None:
        now = self._tenants.now
        if isinstance(event, Mutation | Deletion | Expiration | CollectionCreated | CollectionDropped):
            value = event.value.decode("latin-1") if isinstance(event, Mutation) else ""
            began = max(began, self._tenants.written.get(value, 0.0))
            what = f"{type(event).__name__} {event.vbucket}:{event.seqno} {value}".rstrip()
            self._tenants.note(Answered(self._tenant, "stream", event.within.path, "", began, now, what))
        elif isinstance(event, ScopeCreated | ScopeDropped) and event.scope != SCOPE:
            raise Broken(f"rights: {self._tenant.name} was shown {event}")


class Tenants:
    """All tenants of a world, the rooms and their writers.

    Attributes:
        tenants: the history of the rights of each. answered: the answers that needed a right.
        written: the time of each value's request. url: of the bucket.
    """

    def __init__(self, world: TenantsWorld, random: Random) -> None:
        self.tenants = [Guest(f"tenant-{at}", "none yet") for at in range(TENANTS)]
        self.answered: list[Answered] = []
        self.written: dict[str, float] = {}
        self.url = f"couchbase://{','.join(map(str, world.addresses))}/{BUCKET}"
        self.counts = world.counts
        self._world, self._random = world, random
        self._operator = RightsOperator(world.addresses, self.tenants, lambda: world.schedule.now, ROLES)
        self._programs: list[Program] = []

    @property
    def now(self) -> float:
        """Return seconds since the beginning."""
        return self._world.schedule.now

    def next_number(self) -> int:
        """Return a unique number, and note the time: a value with it is requested now."""
        number = self._world.next_number()
        self.written[f"v{number}-"] = self.now
        return number

    def note(self, answered: Answered) -> None:
        """Record an answer that needed a right."""
        self.answered.append(answered)

    def found(self) -> None:
        """Create the rooms."""
        self._world.complete("rooms-maker", self._make, FOUNDING_SECONDS)

    async def _make(self) -> None:
        for name in NAMES:
            async with operators.members() as connected:
                path = collections.CollectionPath(SCOPE, name)
                await collections.change(connected, self._world.addresses, collections.creation(path))

    def begin(self) -> None:
        """Start all clients and readers."""
        self._run("rooms", RoomsClient(self, lambda: APPLICATION, self._chance(), None).run)
        for tenant in self.tenants:
            login = partial(_login_of, tenant)
            self._run(tenant.name, RoomsClient(self, login, self._chance(), tenant).run)
            self._run(f"{tenant.name}-reader", RoomsReader(self, tenant, self._chance()).run)

    def _run(self, name: str, work: Callable[[], object]) -> None:
        self._programs.append(self._world.run(name, work))

    def change(self, step: Step) -> Callable[[], None] | None:
        """Let an operator change the rights of a tenant; return the function that kills the operator, None for one that
        is to live.
        """
        world = self._world
        work = partial(self._operator.change, world.addresses[step.node], self._chance())
        started = world.run(f"rights-{world.next_number()}", work)

        def kill() -> None:
            world.counts["operators killed"] += not started.is_over
            started.kill()

        return kill if step.lasts else None

    def end(self) -> None:
        """End all clients and readers; an error of one fails the run."""
        for program in self._programs:
            if program.error is not None:
                raise program.error
            program.kill()

    def judge(self) -> None:
        """Judge all answers that tenants got."""
        nodes = [str(address) for address in self._world.addresses]
        for each in self.answered:
            check(each, nodes)
            self.counts[f"told to tenants: {each.right}"] += 1

    def _chance(self) -> Random:
        return Random(self._random.getrandbits(64))  # noqa: S311 - must be repeatable


def _login_of(tenant: Guest) -> Login:
    return tenant.name, tenant.password
