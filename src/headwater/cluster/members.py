"""The nodes of a cluster, connected: Members requests their state, and sends them the map.

    async with Members("default", user, password) as members:
        survey = await members.survey([Address("10.0.0.1", 11210)])
        await members.send(survey.map.after(survey.latest_rev()))

The first nodes lead to the others: all nodes in the newest map are surveyed, too. There is one connection to each node;
a silent node is part of the survey's result, not an error of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any, Final, Self

from headwater.client.routing import Address
from headwater.cluster import answers
from headwater.cluster.admin import TIMEOUT_SECONDS, Endpoint, NodeAdmin, Operator
from headwater.cluster.alone import WAIT_SECONDS, lease_all
from headwater.cluster.survey import NodeView, Survey
from headwater.cluster.together import call_each
from headwater.errors import BucketNotFound, ClusterError, KeyExists, NoAccess, StatusError, TlsError, TransportError
from headwater.tls.settings import TlsSettings
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State

AT_ONCE = 64
"""Requests on their way to one node; the node commits many in one write."""


class NewerMap(ClusterError):  # noqa: N818 -- says what is there
    """A node has a newer map than the one that it was sent."""

    def __init__(self, node: Address, new_map: ClusterMap) -> None:
        super().__init__(
            f"{node} has a map that is newer than revision {new_map.epoch}:{new_map.rev}",
            "somebody else changes this cluster: look with headwater cluster status, then type this again",
        )
        self.node: Address = node


NO_OTHERS: Final[Mapping[Address, ClusterMap]] = MappingProxyType({})


class Members:
    """Connections to the nodes of one bucket.

    Args:
        bucket, user, password: the same for all nodes; no user if nodes have no logins.
        tls: the TLS settings; None for no TLS. With TLS addresses are given with the nodes' ports for TLS, and
            translated to those of the map (`identified`, `name_of`).
        timeout_seconds: the timeout of connecting, and of each answer.

    Attributes:
        operator: the operator who holds the leases, inside of `alone`.
    """

    def __init__(
        self,
        bucket: str = "default",
        user: str | None = None,
        password: str | None = None,
        *,
        tls: TlsSettings | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.bucket: str = bucket
        self._user, self._password = user, password
        self._tls, self._tls_ports = tls, dict[Address, int]()
        self._timeout = timeout_seconds
        self._admins: dict[Address, NodeAdmin] = {}
        self._semaphores: dict[Address, asyncio.Semaphore] = {}
        self.operator: Operator | None = None
        self._watched_only: set[Address] = set()
        self._other_buckets: dict[str, Members] = {}
        self._uuids: frozenset[str] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for admin in self._admins.values():
            admin.close()
        for other in self._other_buckets.values():
            await other.__aexit__()

    def of(self, bucket: str) -> Members:
        """Return the connections to another bucket of the same nodes, with the same login; "" for no bucket. They are
        closed together with these.
        """
        if bucket == self.bucket:
            return self
        if bucket not in self._other_buckets:
            members = Members(bucket, self._user, self._password, tls=self._tls, timeout_seconds=self._timeout)
            members._tls_ports = self._tls_ports
            self._other_buckets[bucket] = members
        return self._other_buckets[bucket]

    def endpoint(self, address: Address) -> Endpoint:
        """Return the bucket on one node, with our login."""
        port = self._tls_ports.get(address) if self._tls is not None else None
        return Endpoint(address, self.bucket, self._user, self._password, self._tls, port)

    def name_of(self, address: Address) -> Address:
        """Return a node's name in the map, if the address has its port for TLS; else the address itself."""
        names = (name for name, port in self._tls_ports.items() if (name.host, port) == address)
        return address if self._tls is None else next(names, address)

    async def identified(self, addresses: Iterable[Address]) -> list[Address]:
        """Return the names in maps of nodes that are given by their ports for TLS, from each node's map.

        A silent node keeps its address; without TLS all do.
        """
        nodes = list(dict.fromkeys(addresses))
        if self._tls is not None:
            await asyncio.gather(*(self._identify(node) for node in nodes if self.name_of(node) == node))
        return list(dict.fromkeys(map(self.name_of, nodes)))

    async def _identify(self, address: Address) -> None:
        """Read a node's map, and learn the TLS ports of the nodes in it.

        A node that was taken out is not in its map, and reports its own port.
        """
        if address in self._tls_ports:
            return
        async with NodeAdmin(
            Endpoint(address, self.bucket, self._user, self._password, self._tls), self._timeout
        ) as node:
            with suppress(TransportError, StatusError):
                if config := await node.config():
                    self.learn(ClusterMap.from_json(config, address))
                if self.name_of(address) == address and "tls_port" in (stats := await node.stats("cluster")):
                    name = Address(address.host, answers.number(stats.get("port", ""), "cluster port"))
                    self._tls_ports[name] = answers.number(stats["tls_port"], "cluster tls_port")

    def learn(self, cluster_map: ClusterMap) -> None:
        """Note the TLS port of each node of a map."""
        self._tls_ports.update(cluster_map.tls_ports)

    def admin(self, address: Address) -> NodeAdmin:
        """Return the administration of one node; it connects with its first call."""
        if address not in self._admins:
            self._admins[address] = admin = NodeAdmin(self.endpoint(address), self._timeout)
            if self._uuids is not None:
                admin.bind(self._uuids)
        return self._admins[address]

    @property
    def is_bound(self) -> bool:
        """True if requests only reach the bucket that was surveyed, and no newer one of its name."""
        return self._uuids is not None

    def bind(self, uuids: Iterable[str]) -> None:
        """Restrict all calls to a bucket that has one of these uuids (`NodeAdmin.bind`); call it before any other
        method.
        """
        self._uuids = frozenset(uuids)

    async def uuids(self, nodes: Iterable[Address]) -> frozenset[str]:
        """Return the bucket's uuids on these nodes; a node that does not answer or does not have the bucket is left
        out.

        Raises:
            StatusError: a node refused the request.
        """
        uuids = await asyncio.gather(*(self.admin(node).bucket_uuid() for node in nodes), return_exceptions=True)
        for uuid in uuids:
            if isinstance(uuid, BaseException) and not isinstance(uuid, TransportError | BucketNotFound):
                raise uuid
        return frozenset(uuid for uuid in uuids if isinstance(uuid, str))

    def waited_for(self, seconds: float) -> list[tuple[Address, float]]:
        """Return the nodes that have owed an answer for longer than `seconds`, each with its time."""
        owing = [(address, admin.waited_seconds) for address, admin in self._admins.items()]
        return sorted(entry for entry in owing if entry[1] > seconds)

    @asynccontextmanager
    async def alone(
        self, work: str, addresses: Iterable[Address], *, wait_seconds: float = WAIT_SECONDS
    ) -> AsyncIterator[None]:
        """Hold the leases of these nodes within a block, so that no other operator changes owners of vbuckets there.

        Survey the nodes again inside of it: earlier knowledge may be outdated. Nodes that do not answer are left out.

        Args:
            work: the work in words, for operators who come meanwhile.
            wait_seconds: the longest wait for another operator to end.

        Raises:
            ClusterError: another operator is at work.
        """
        # One order for all operators, whatever nodes they began with (alone.py): otherwise two could each hold what the
        # other waits for.
        admins = [self.admin(address) for address in sorted(set(addresses), key=str)]
        self.operator = Operator.of(work)
        try:
            await lease_all(admins, self.operator, wait_seconds)
            yield
        finally:
            self.operator = None
            await asyncio.gather(*(admin.release(over=True) for admin in admins))

    # ------------------------------------------------------------------ asking

    async def survey(self, seeds: Sequence[Address], *, without: Iterable[Address] = ()) -> Survey:
        """Return a survey of the seeds and of all nodes that they lead to.

        Args:
            without: nodes that are known to be dead, and are not asked; they count as silent.

        Raises:
            ClusterError: none of the seeds answered, or they have no map.
        """
        nodes: dict[Address, NodeView] = {}
        newest: ClusterMap | None = None
        addresses = await self.identified(seeds)
        while addresses:
            # Anew in each turn: the maps that were read so far tell which names belong to ports for TLS.
            left_out = set(map(self.name_of, without))
            views = await asyncio.gather(*(self._view(address, ask=address not in left_out) for address in addresses))
            nodes |= dict(zip(addresses, views, strict=True))
            newest = _newest(nodes.values())
            if newest is not None:
                self.learn(newest)
            addresses = [server for server in newest.servers if server not in nodes] if newest else []
        if newest is None:
            reasons = "; ".join(f"{node.address}: {node.error}" for node in nodes.values() if node.error)
            if reasons:
                raise ClusterError(reasons, "start it, or name a member that runs")
            raise ClusterError(
                f"{', '.join(map(str, seeds))}: in no cluster", "start with: headwater cluster init NODE ..."
            )
        return Survey.of(newest, nodes)

    async def view(self, address: Address) -> NodeView:
        """Request all facts of a survey from one node."""
        return await self._view(address)

    async def _view(self, address: Address, *, ask: bool = True) -> NodeView:
        if not ask:
            return NodeView(address, error="taken for dead")
        try:
            return await self._ask(self.admin(address))
        except TransportError as error:
            # A node that fails at TLS runs, and may serve others: a failover must not take it for dead.
            lives = isinstance(error, TlsError)
            return NodeView(address, error=str(error).removeprefix(f"{address}: "), lives=lives)
        except StatusError as error:
            # A node that runs without this bucket acknowledges nothing in it: for this bucket it is dead.
            lives = not isinstance(error, BucketNotFound)
            return NodeView(address, error=str(error), is_refusal=True, lives=lives)

    async def _ask(self, admin: NodeAdmin) -> NodeView:
        config, states, seqnos, details, cluster_stats = await asyncio.gather(
            admin.config(),
            admin.states(),
            self._seqnos(admin),
            admin.stats("vbucket-details"),
            admin.stats("cluster"),
        )
        cluster_map = ClusterMap.from_json(config, admin.address) if config else None
        # Only a map that a node made for itself names no host: with that one it is in no cluster.
        common = cluster_map if config and b"$HOST" not in config else None
        return NodeView(
            admin.address,
            map=common,
            version=cluster_map.version if cluster_map else (0, 0),
            vbuckets=cluster_map.vbuckets if cluster_map else 0,
            uuid=cluster_map.uuid if cluster_map else "",
            tls_port=_tls_port(cluster_stats, cluster_map.tls_ports.get(admin.address) if cluster_map else None),
            group=cluster_stats.get("group", ""),
            this=_own_address(config) if config and common else None,
            states=states,
            seqnos=answers.seqnos(details) if seqnos is None else seqnos,
            complete=answers.complete(details),
            items=answers.items(details),
            refused=answers.refused(details),
            damaged=answers.damaged(details),
            acknowledged=answers.acknowledged(details),
            damaged_batches=answers.number(cluster_stats.get("damaged_batches", "0"), "cluster damaged_batches"),
            fenced=_fence(cluster_stats),
            is_copy="copy_of" in cluster_stats,
            in_doubt="in_doubt" in cluster_stats,
        )

    async def _seqnos(self, admin: NodeAdmin) -> dict[int, int] | None:
        """Return the high seqnos of a node, of dead vbuckets, too; None for a user who may only read statistics.

        For such a user the request is not repeated: a node logs each attempt without the right.
        """
        if admin.address in self._watched_only:
            return None
        try:
            live_seqnos, dead_seqnos = await asyncio.gather(admin.seqnos(), admin.seqnos(State.DEAD))
        except NoAccess:
            self._watched_only.add(admin.address)
            return None
        return live_seqnos | dead_seqnos

    # ------------------------------------------------------------------ telling

    async def send(
        self,
        new_map: ClusterMap,
        *,
        first: Sequence[Address] = (),
        also: Iterable[Address] = (),
        instead: Mapping[Address, ClusterMap] = NO_OTHERS,
    ) -> None:
        """Send all members the map, each its own copy: those in `first` before the others.

        Args:
            also: nodes that are no members (any more) and get the map all the same.
            instead: the maps of nodes that get another map.

        Raises:
            NewerMap: a node has a newer map: another operator is at work.
            TransportError, StatusError: a node did not accept it; all others have it then.
        """
        maps = {**dict.fromkeys((*new_map.servers, *also), new_map), **instead}
        refusals = await self._send_to({node: map_ for node, map_ in maps.items() if node in first})
        # The others get it even if one of the first refused: as many nodes as possible must know the newest map.
        refusals += await self._send_to({node: map_ for node, map_ in maps.items() if node not in first})
        if refusals:
            raise refusals[0]

    async def _send_to(self, maps: Mapping[Address, ClusterMap]) -> list[BaseException]:
        # All are waited for, whatever fails: whoever goes on after an error must have no map on its way any more.
        results = await asyncio.gather(*(self.tell(node, map_) for node, map_ in maps.items()), return_exceptions=True)
        return [result for result in results if result is not None]

    async def tell(self, address: Address, new_map: ClusterMap) -> None:
        """Send one node the map, member or not; errors as `send`."""
        try:
            config = new_map.to_json(address if address in new_map.servers else None)
            await self.admin(address).set_config(new_map.epoch, new_map.rev, new_map.bucket, config)
        except KeyExists:
            raise NewerMap(address, new_map) from None

    async def map_of(self, address: Address) -> ClusterMap | None:
        """Return the map that a node has, or None."""
        config = await self.admin(address).config()
        return ClusterMap.from_json(config, address) if config else None

    async def set_states(
        self, address: Address, states: dict[int, State], *, forced: Container[int] = frozenset()
    ) -> None:
        """Set the states of many vbuckets of one node; for those in `forced` even if they have a flaw."""
        admin = self.admin(address)
        await self._each(address, states, lambda vb: admin.set_state(vb, states[vb], force=vb in forced))

    async def delete(self, address: Address, vbuckets: Iterable[int]) -> None:
        """Delete many vbuckets of one node."""
        await self._each(address, vbuckets, lambda vb: self.admin(address).delete(vb))

    async def logs(self, address: Address, vbuckets: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
        """Return the failover logs of many vbuckets of one node."""
        numbers = list(vbuckets)
        return dict(zip(numbers, await self._each(address, numbers, self.admin(address).failover_log), strict=True))

    async def _each(self, address: Address, vbuckets: Iterable[int], call: Any) -> list[Any]:
        # An error leaves when no call is on its way any more: the lease may be released then.
        return await call_each(call, vbuckets, self._semaphores.setdefault(address, asyncio.Semaphore(AT_ONCE)))


def _newest(nodes: Iterable[NodeView]) -> ClusterMap | None:
    maps = [node.map for node in nodes if node.map is not None]
    return max(maps, key=lambda map_: map_.version) if maps else None


def _fence(stats: Mapping[str, str]) -> str:
    """Return why a node waits for others before it serves, by its STAT cluster, in words; empty if it serves."""
    if stats.get("fence") != "closed":
        return ""
    if member := stats.get("copy_of"):
        return f"it is a copy of the member {member}"
    return f"it waits for the map of {stats.get('answers_missing', 'some')} more of its peers"


def _tls_port(stats: Mapping[str, str], by_map: int | None) -> int | None:
    """Return a node's TLS port as the node reports it; if it reports no ports, the one of its map.

    The map of a node that was taken out of the cluster does not have that node. And a node may be started with another
    port than its map has.
    """
    if "port" not in stats:
        return by_map
    return answers.number(stats["tls_port"], "cluster tls_port") if "tls_port" in stats else None


def _own_address(config: bytes) -> Address | None:
    """Return the address under which a node's map names the node itself; None if it does not."""
    for entry in json.loads(config).get("nodesExt", ()):
        if entry.get("thisNode"):
            services = entry["services"]
            return Address(str(entry.get("hostname", "")), int(services.get("kv", services.get("kvSSL"))))
    return None
