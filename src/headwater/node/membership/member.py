"""A node as a member of a cluster: it keeps the cluster map that contains this node, and changes its vbuckets
accordingly.

    an operator's map, or a peer's newer one --on disk--> passed to clients --> every vbucket with a changed entry
                                                                                takes its role (roles.py)
    start with a map of several nodes --> fence closed: the node's vbuckets are not served until it is certain that no
                                          other node owns them (fence.py)

A vbucket that a map takes away is fenced at once, before the map has any other effect. A vbucket that is being handed
over keeps its state until the handover is complete. A map never makes a vbucket active; only SET_VBUCKET and a takeover
do. A node without a map, or with a map that has no other node, needs none of this. Source: kv.md 1.4, failover.md 3 to
5; docs/decisions/0030.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import CorruptStore, RemoteProtocolError, StorageError
from headwater.invariants import node_invariant
from headwater.node.calling import ProducerAddress, call
from headwater.node.membership.fence import Fence
from headwater.node.membership.file import MapFile
from headwater.node.membership.following import Following
from headwater.node.membership.map import read_map, says_the_same, seen_from
from headwater.node.membership.own_address import OwnAddress, is_copy
from headwater.node.membership.peers import FEATURES, Peers
from headwater.node.membership.reconciler import Reconciler
from headwater.node.membership.roles import News, news, role
from headwater.node.refused import CommandRefused
from headwater.node.reporting.log_lines import event
from headwater.node.storage.text_file import WholeFile
from headwater.protocol.handshake import Login
from headwater.tls.socket import TlsSocket
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.kv.api import Services

log: Final = logging.getLogger(__name__)


class Membership:
    """The map that contains this node, and its effects; call all methods from the event loop's thread.

    Args:
        server: the node with the bucket. The map is read at once, and the active vbuckets are fenced.

    Attributes:
        map: the newest map; None if no map has ever contained this node.
        fence: the fence for the vbuckets that this node has by the map; None without a map.
        peers: the other nodes, and their answers.
        own: the check that no other node answers at this node's address.
        following: the replicas that follow other nodes by the map.
        reconciler: gives the vbuckets their roles by the map.

    Raises:
        StorageError: the map on disk is damaged or missing.
    """

    def __init__(self, server: Services) -> None:
        self.map: ClusterMap | None = None
        self.fence: Fence | None = None
        self._server = server
        self._bucket = server.bucket
        self._file = MapFile(server.bucket.store.disk, server.bucket.store.path)
        self._taking = asyncio.Lock()
        self._saving, self._is_stopped = threading.Lock(), False
        self.following: Final = Following(server.replication, self._source)
        self.reconciler: Final = Reconciler(server, self.following)
        self.peers: Final = Peers(lambda: server.loop, self._login, self.call, self._receive_map, self._doubt)
        self.own: Final = OwnAddress(
            lambda: server.loop, self._login, self.call, server.is_client_there, self._own_told
        )
        self._load()

    def _load(self) -> None:
        saved = self._file.load()
        if saved is None:
            if self._bucket.store.declarations.is_member:  # without its map this node could become a second owner
                why = "the file is missing, though this node is one of a cluster"
                raise CorruptStore(self._file.path, 0, why)
            return
        config, given_up = saved
        bucket = self._bucket
        try:
            self.map = read_map(config, bucket=bucket.name, vbuckets=bucket.vbucket_count)
        except RemoteProtocolError as error:
            raise StorageError(f"{self._file.path}: {error}; start the node with the options it had") from None
        self.fence = Fence(self.map, alone=None if self.map.peers else True)
        # Only a majority of the others can say that the map on this disk is still the newest; until then an active
        # vbucket here may have another owner.
        if self.map.peers:
            # Before the node listens, so that no client is served in between.
            bucket.fence(vb for vb, vbucket in bucket.vbuckets.items() if vbucket.state is State.ACTIVE)
        self.reconciler.known, self.reconciler.serves = self.map, self.fence.is_open
        self.reconciler.ask(range(bucket.vbucket_count))
        # The file also has the vbuckets that this map took away, because their new state may not have been written.
        self.reconciler.ask(given_up, News.OWNER)

    @property
    def file(self) -> WholeFile:
        """The file of the map."""
        return self._file.whole

    def start(self) -> None:
        """Begin to take the roles of the map, and to request the other nodes' maps, once the node listens."""
        if self.map is not None:
            with contextlib.suppress(StorageError):  # for folders of older versions; the next start tries again
                self._bucket.store.declarations.join()
            self._server.cluster.take(self.map.version, self.map.text)
            self._watch(self.map)
            self.reconciler.look()

    def _watch(self, cluster_map: ClusterMap) -> None:
        is_member = cluster_map.this is not None
        self.peers.watch(cluster_map.peers if is_member else ())
        self.own.watch(cluster_map.here if is_member and cluster_map.peers else None)

    async def stop(self) -> None:
        """Stop requesting maps and reconciling, because the bucket is dropped, or the node stops. On return no map is
        being written, and later ones are refused.
        """
        self._is_stopped = True
        self.peers.stop()
        self.own.stop()
        self.reconciler.stop()
        # Nobody who is cancelled stops the thread that writes a map.
        await self._server.loop.run_in_executor(None, self._wait_until_saved)

    def _wait_until_saved(self) -> None:
        with self._saving:
            pass

    def _check_serves(self) -> None:
        """Raise StorageError if the bucket is not served any more. By a new map its replicas would follow other nodes,
        whose bucket of this name may be the next one.
        """
        if self._is_stopped:
            raise StorageError("the bucket is being dropped, or the node stops")

    # --- maps that arrive -------------------------------------------------------------------------------------------

    def concerns(self, content: object) -> bool:
        """Return True if the member must take a map (as JSON): the map contains this node, or the member already has
        one.
        """
        entries = content.get("nodesExt", ()) if isinstance(content, dict) else ()
        is_named = isinstance(entries, list) and any(
            isinstance(entry, dict) and entry.get("thisNode") for entry in entries
        )
        return is_named or self.map is not None

    async def take(self, version: tuple[int, int], config: bytes, content: Any = None) -> None:
        """Adopt an operator's map. On return it is on disk, the fence is open, and the vbuckets have their roles,
        except those that are being handed over.

        Args:
            version: the epoch and revision that the request names.
            config: the map as JSON.
            content: the parsed JSON; None if it is not parsed yet.

        Raises:
            CommandRefused: EINVAL if it is no map or has another version than `version`; KEY_EEXISTS if the present map
                is newer, or is another one of the same version; ETMPFAIL if the map, or a role, could not be written.
        """
        # One map at a time, from operators and peers: otherwise two maps could be checked against the same older one,
        # and be kept in the wrong order.
        async with self._taking:
            map_ = self._checked(version, config, content)
            try:
                self._check_serves()
                if self.map is None or not says_the_same(map_, self.map):
                    await self._keep(map_)
            except StorageError as error:
                raise CommandRefused(Status.ETMPFAIL, str(error)) from None
            # A map takes effect only once it is on disk: otherwise a node could give up a vbucket, forget the map, and
            # serve the vbucket again after a restart.
            self._adopt(map_)
            self._open()
        while not self.reconciler.reconcile():
            if self._bucket.store.full:
                raise CommandRefused(Status.ETMPFAIL, "the map is kept, but the disk is too full to obey it")
            await self.reconciler.room()

    def _checked(self, version: tuple[int, int], config: bytes, content: Any) -> ClusterMap:
        bucket = self._bucket
        try:
            map_ = read_map(config, bucket=bucket.name, vbuckets=bucket.vbucket_count, content=content)
        except RemoteProtocolError as error:
            raise CommandRefused(Status.EINVAL, str(error)) from None
        if map_.version != version:
            raise CommandRefused(Status.EINVAL, f"the request is about map {version}, the map says {map_.version}")
        self._check_cluster(map_)
        here = self.map.here if self.map is not None else None
        if map_.this is None and here is not None and here in map_.servers:
            map_ = seen_from(map_, here)
        # "A careful one refuses a smaller (epoch, revision)" (kv.md 1.4): an older map would give back vbuckets that a
        # newer one took away.
        if version < self._floor():
            raise CommandRefused(Status.KEY_EEXISTS, f"the map here is newer: {self._server.cluster.version}")
        # Two operators created different maps of the same version. If nodes accepted both, a vbucket could have two
        # owners that both have the newest map.
        if self.map is not None and version == self.map.version and not says_the_same(map_, self.map):
            raise CommandRefused(Status.KEY_EEXISTS, f"the map here has version {version} as well, and is another")
        return map_

    def _check_cluster(self, map_: ClusterMap) -> None:
        """Refuse the map of another cluster, by which the vbuckets here would belong to strangers; but a node alone may
        join one.
        """
        cluster_map = self.map
        if (
            cluster_map is None
            or not cluster_map.uuid
            or not map_.uuid
            or set(cluster_map.servers) == {cluster_map.here}
        ):
            return
        if map_.uuid != cluster_map.uuid:
            why = f"this node is of the cluster with uuid {cluster_map.uuid}, the map of that with {map_.uuid}"
            raise CommandRefused(Status.EINVAL, why)

    def _floor(self) -> tuple[int, int]:
        """Return the lowest version that a new map may have: the version that clients may have got from this node; (0,
        0) if they have got none.
        """
        bucket = self._bucket
        if self.map is None and not self._server.cluster.is_set and not any(map(bucket.is_active, bucket.vbuckets)):
            return (0, 0)
        return self._server.cluster.version

    async def _receive_map(self, peer: Address, config: bytes, requested_after: int = 0) -> None:
        """Handle a peer's map: adopt it if it is newer; otherwise note that the peer has no newer one.

        Args:
            requested_after: how often this process had stood still when the map was requested.

        Raises:
            RemoteProtocolError: the map is invalid, or another cluster's.
        """
        map_ = self._read(config)
        async with self._taking:
            cluster_map, fence = self.map, self.fence
            if cluster_map is None or cluster_map.here is None or fence is None:
                return
            # Otherwise the map of another cluster at this address could replace this one by its higher revision.
            if map_.uuid != cluster_map.uuid:
                raise RemoteProtocolError(f"{peer} belongs to another cluster: its map has uuid {map_.uuid}")
            mine = seen_from(map_, cluster_map.here)
            # Two operators made them. Either may have promoted somebody, so neither node can vouch for the other's.
            if map_.version == cluster_map.version and not says_the_same(mine, cluster_map):
                raise RemoteProtocolError(f"{peer} has another map of version {map_.version}, and one must be newer")
            if map_.version > cluster_map.version:
                await self._keep(mine)
                log.warning(
                    "took map %s over from %s", mine.version, peer, extra=event("map.taken", version=mine.version)
                )
                self._adopt(mine)
            # `self.fence` is read again, because `_adopt` has replaced the fence; the new one has no answers yet.
            is_recent = requested_after == self.peers.standstills
            if (is_recent and self.fence is not None and self.fence.hear(peer)) or self._is_left_alone:
                self._open()
        self.reconciler.look()

    @property
    def _is_left_alone(self) -> bool:
        """True if this node is behind a fence, and a new map has no other member any more that could be asked."""
        cluster_map, fence = self.map, self.fence
        if cluster_map is None or cluster_map.here is None or fence is None or self.reconciler.serves:
            return False
        return fence.is_open and fence.alone is not False and not cluster_map.peers

    def _doubt(self, seconds: float) -> None:
        """Note that this process stood still: the others may have taken it for dead, and have gone on."""
        if self.fence is not None:
            self.fence.doubt()
        text = "this process stood still for %.1f s: the other members are asked whether they went on without it"
        log.warning(text, seconds, extra=event("member.stood_still", seconds=round(seconds, 1)))

    def _own_told(self, config: bytes | None) -> None:
        """Handle the answer at this node's address: `config` is the map of another node; None if no other node
        answers.
        """
        if self.fence is None or self.map is None:
            return
        if config is not None and self._is_copy(config):
            if self.fence.alone is not False:
                self._close(self.fence, self.map.here)
        elif self.fence.hear_own(alone=True):
            self._open()
            self.reconciler.look()

    def _is_copy(self, config: bytes) -> bool:
        with contextlib.suppress(RemoteProtocolError):
            return is_copy(self.map, self._read(config))
        return False

    def _close(self, fence: Fence, here: Address | None) -> None:
        """Stop serving the active vbuckets, because another node answers at this node's address."""
        fence.hear_own(alone=False)
        self.reconciler.serves = False
        owned = [vb for vb, vbucket in self._bucket.vbuckets.items() if vbucket.state is State.ACTIVE]
        self._bucket.fence(owned)
        log.error(
            "another node answers at %s, this node's address in the cluster map: this folder is a copy of its, and %d "
            "vbuckets are not served here; stop one of the two nodes",
            here,
            len(owned),
            extra=event("member.copied", vbuckets=len(owned)),
        )

    def _read(self, config: bytes) -> ClusterMap:
        return read_map(config, bucket=self._bucket.name, vbuckets=self._bucket.vbucket_count)

    async def _keep(self, map_: ClusterMap) -> None:
        """Write a map to disk, with the active vbuckets that it takes away. Raises StorageError if that fails, or if
        the bucket is not served any more.
        """
        given_up = [vb for vb in self._taken_away(map_) if self._bucket.state(vb) is State.ACTIVE]
        # In a thread: two syncs of a slow disk would delay all connections.
        await self._server.loop.run_in_executor(None, self._save, map_.text, sorted(given_up))
        self._check_serves()

    def _taken_away(self, map_: ClusterMap) -> list[int]:
        """Return the vbuckets that are served here and belong to another node by a new map."""
        changes = news(self.map, map_) | dict.fromkeys(self.reconciler.waiting, News.OWNER)
        served = (vb for vb in changes if self._is_served(vb))
        return [vb for vb in served if role(map_, vb, State.ACTIVE, changes[vb]).state is not None]

    def _is_served(self, vb: int) -> bool:
        """Return True if a vbucket is active here, or a takeover, from or to this node, is under way."""
        return self._bucket.state(vb) is State.ACTIVE or self.reconciler.is_moving(vb)

    def _save(self, config: bytes, given_up: list[int]) -> None:
        """Write the map, then mark the store as a member's. In this order, because a marked store without a map does
        not open.
        """
        with self._saving:
            self._check_serves()
            self._file.save(config, given_up)
            self._bucket.store.declarations.join()

    def _adopt(self, map_: ClusterMap) -> None:
        """Put a map that is on disk into force."""
        # First of all: vbuckets with another owner are no longer served, even if there is no room for their new state
        # yet. Otherwise durable writes could count majorities of the new map, without its owner.
        self._bucket.fence(self._taken_away(map_))
        if map_.here is None:  # vbuckets without an owner will soon have one: the others continue without this node
            self._bucket.fence(filter(self._is_served, range(self._bucket.vbucket_count)))
        before, self.map = self.map, map_
        older = before is not None and map_.version < before.version
        node_invariant(not older, "map {} is to follow map {}", map_.version, before and before.version)
        changes = news(before, map_)
        _tell_of_departures(before, map_, [vb for vb, change in changes.items() if change is News.OWNER])
        # The reconciler gets the map first, because it may run within the calls below.
        self.reconciler.known = map_
        for vb, change in changes.items():
            self.reconciler.ask([vb], change)
        self.following.news(changes)
        if before is not None and (before.encrypted, before.tls_ports) != (map_.encrypted, map_.tls_ports):
            self.following.redial()
        # The new map needs new answers, but an open fence stays open: the vbuckets that the map takes away were fenced
        # above.
        fence = self.fence
        self.fence = Fence(map_)
        if fence is not None:
            self.fence = Fence(map_, is_open=fence.is_open, alone=fence.alone, in_doubt=fence.in_doubt)
        self._server.cluster.take(map_.version, map_.text)
        self._watch(map_)
        # Last of all, because clients may use the map at once.
        self._server.tell_of_map()

    def _open(self) -> None:
        """Open the fence, and serve the vbuckets that this node has by the map.

        An active vbucket that belongs to another node by this map, although no map has taken it away, was taken over
        shortly before the next map. It stays fenced until that map arrives, or an operator decides.
        """
        if self.fence is not None:
            self.fence.is_open = self.fence.alone = True
            self.fence.in_doubt = False
        self.reconciler.serves = True
        self.reconciler.ask(self._bucket.fenced)

    # --- calls for operators ----------------------------------------------------------------------------------------

    def hold(self, host: str, port: int, vbuckets: Iterable[int] | None) -> bool:
        """Keep vbuckets from following a node by the map, until a map changes their entry; return True if there are
        such vbuckets.

        Args:
            host: the followed node's host.
            port: its port.
            vbuckets: the vbuckets; None for all that follow this node.
        """
        if self.map is None:
            return False
        replicas = self.following.of(host, port) if vbuckets is None else filter(self.map.is_replica, vbuckets)
        held = tuple(replicas)
        self.following.hold(held, by_run=self._server.lease.is_held)
        return bool(held)

    def run_over(self) -> None:
        """Let the vbuckets that an operator's run holds follow the map again, because the run has ended, or another one
        begins.
        """
        released = self.following.run_over()
        if self.map is not None and released:
            self.reconciler.ask(sorted(released))
            self.reconciler.look()

    def by_hand(self, vbuckets: Iterable[int]) -> None:
        """Note that an operator makes these vbuckets follow a node, until a map changes their entry."""
        self.following.by_hand(vbuckets)

    def state_set(self, vbucket: int) -> None:
        """Note that an operator has set a vbucket's state, which overrides map and fence. A replica follows a node by
        the map.
        """
        self.reconciler.overruled(vbucket)
        if self.map is not None:
            self.reconciler.ask([vbucket])
            self.reconciler.look()

    # --- connections to others --------------------------------------------------------------------------------------

    def _account(self) -> tuple[str | None, str | None]:
        return self._server.config.account if self._server.users.required else (None, None)

    def _source(self, address: Address) -> ProducerAddress:
        port = self._tls_port(address)
        return ProducerAddress(address.host, address.port, self._bucket.name, *self._account(), tls_port=port)

    def _tls_port(self, address: Address) -> int | None:
        """Return the TLS port of a node; None if the cluster does not use TLS."""
        cluster_map = self.map
        return (
            None
            if cluster_map is None or not cluster_map.encrypted
            else cluster_map.tls_ports.get(address, address.port)
        )

    async def call(self, address: Address) -> socket.socket | TlsSocket:
        """Connect to another member, with TLS if the cluster uses it."""
        return await call(self._server.loop, *address, self._tls_port(address), self._server.tls)

    def login(self) -> Login:
        """Return the login of this node at another member, without a bucket."""
        return replace(self._login(), agent="headwater-users", bucket="", wants_map=False)

    def _login(self) -> Login:
        user, password = self._account()
        nonce = secrets.token_urlsafe(18)
        return Login("headwater-node", self._bucket.name, user, password, nonce, features=FEATURES)


def _tell_of_departures(before: ClusterMap | None, after: ClusterMap, vbuckets: Sequence[int]) -> None:
    """Log the nodes that left the map, and the number of vbuckets without an owner that this node gets. On a surviving
    node these are the only signs of a failover: its first map removes the dead node, its second names the new owners
    (cluster/failover.py).

    Args:
        before: the former map; None if there was none.
        after: the new map.
        vbuckets: the vbuckets with another owner than before.
    """
    if before is None:
        return
    if departed := [server for server in before.servers if server not in after.servers]:
        ownerless = sum(before.owner(vb) in departed and after.owner(vb) is None for vb in vbuckets)
        names = " and ".join(f"{each.host}:{each.port}" for each in departed)
        is_gone = "is no member any more" if len(departed) == 1 else "are no members any more"
        fields = event("map.departed", gone=names, vbuckets=ownerless)
        log.warning(
            "map %d:%d: %s %s, %d vbuckets have no owner", *after.version, names, is_gone, ownerless, extra=fields
        )
    ours = sum(before.owner(vb) is None and after.is_owner(vb) for vb in vbuckets)
    if ours:
        fields = event("map.promoted", vbuckets=ours)
        log.warning("map %d:%d: %d vbuckets without an owner become active here", *after.version, ours, extra=fields)
