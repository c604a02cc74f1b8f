"""The nodes of one bucket: the map, and a key-value connection to each node that is needed.

The first node of the connection string that answers gives the map. Later maps come from any node that is asked, or with
a NOT_MY_VBUCKET answer, and replace ours if they are newer. A server without maps is a cluster of one.

A single node may be wrong about the map: it may not know yet that it lost a vbucket. So a search for a newer map asks
nodes until one has it, and all nodes if none has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self

from headwater.client import durability
from headwater.client.pipeline import Pipeline
from headwater.client.routing import Address, ClusterMap, Target, map_of_one
from headwater.errors import (
    BucketMadeAnew,
    BucketNotFound,
    ConnectionLost,
    LocalProtocolError,
    OptionError,
    StatusError,
    TransportError,
)
from headwater.protocol.handshake import Login, refused
from headwater.transport.waiting import Ready, Steps
from headwater.wire.admin import GetAllVbSeqnos, GetAllVbSeqnosResponse
from headwater.wire.bootstrap import GetClusterConfig
from headwater.wire.status import Status
from headwater.wire.vbucket import State

OTHER_TASK_SECONDS = 0.01
MISSING_SECONDS = 5.0
"""The time for which the finding counts that no node has the bucket: asking may take as long if a node is silent."""
_NO_MAP = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED, Status.KEY_ENOENT})


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """The arguments of `connect`.

    Args:
        vbuckets: how many the bucket has, for servers without maps; None asks the server.
        connect_timeout_seconds: for a connection and its handshake.
        timeout_seconds: for one operation, retries included.
        clock: seconds, monotonic.
    """

    target: Target
    login: Login
    vbuckets: int | None = None
    connect_timeout_seconds: float = 5.0
    timeout_seconds: float = 10.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)


class Nodes:
    """Connections and the map; all methods with `yield` are step generators."""

    def __init__(self, settings: ConnectSettings) -> None:
        self.settings: ConnectSettings = settings
        self.clock: Callable[[], float] = settings.clock
        self._map: ClusterMap | None = None
        self._links: dict[Address, Pipeline] = {}
        self._opening: dict[Address, Pipeline] = {}
        self._durable: Self | None = None
        self._is_closed = False
        self._refreshing, self._refreshed_at = False, float("-inf")
        self._all_refreshed_at = self._missing_until = float("-inf")

    def twin(self, *features: int) -> Self:
        """Return a cluster with the same settings and map, and connections of its own, which ask for more features."""
        login = self.settings.login
        login_ = replace(login, features=(*login.features, *features))
        twin = type(self)(replace(self.settings, login=login_) if features else self.settings)
        twin._map = self._map
        return twin

    def for_durable_writes(self) -> Self:
        """Return the nodes with separate connections for durable writes, which delay all requests after them.

        Raises:
            OptionError: the client sends no HELLO, and so can't negotiate the features of durable writes.
        """
        self.check_open()
        if not self.settings.login.features:
            raise OptionError("durability", "given", "left out by a client that was connected with hello=False")
        if self._durable is None:
            self._durable = self.twin(*durability.FEATURES)
        self._durable.catch_up(self)
        self.catch_up(self._durable)
        return self._durable

    def catch_up(self, other: Self) -> None:
        """Take over the map of another client if it is newer; an old map names nodes that have lost their vbuckets."""
        if self._map is None or (other._map is not None and other._map.version > self._map.version):
            self._map = other._map

    @property
    def map(self) -> ClusterMap:
        """The newest map seen.

        Raises:
            ConnectionLost: not connected yet.
        """
        if self._map is None:
            raise ConnectionLost(str(self.settings.target.seeds[0]), "not connected yet")
        return self._map

    def __str__(self) -> str:
        """Return the bucket with its numbers of vbuckets and nodes, or that the client is closed; without the
        password.
        """
        if self._is_closed or self._map is None:
            return f"{self.settings.target.url}, {'closed' if self._is_closed else 'not connected'}"
        nodes = len(self._map.servers)
        return f"{self.settings.target.url}, {nodes} node{'s' * (nodes > 1)}, {self._map.vbuckets} vbuckets"

    def close(self) -> None:
        """Close all connections, those being made too, for good."""
        self._is_closed = True
        for link in (*self._links.values(), *self._opening.values()):
            link.close()
        self._links.clear()
        if self._durable is not None:
            self._durable.close()

    def deadline(self) -> float:
        """Return the deadline of an operation that begins now."""
        return self.clock() + self.settings.timeout_seconds

    def _connect_deadline(self, until: float | None) -> float:
        """Return the deadline of a connection that is opened now."""
        deadline = self.clock() + self.settings.connect_timeout_seconds
        return deadline if until is None else min(deadline, until)

    def link(self, address: Address, until: float | None = None) -> Steps[Pipeline]:
        """Return an open connection to a node; open it now if there is none.

        Args:
            until: the deadline for opening it; None for `connect_timeout_seconds`, which limits it anyway.

        Raises:
            LocalProtocolError: the client was closed.
            TransportError, StatusError, RemoteProtocolError: as `Link.open`.
        """
        self.check_open()
        deadline = self._connect_deadline(until)
        # Two tasks must not open two connections to one node: the second would replace the first, with its requests in
        # flight.
        while address in self._opening and self.clock() < deadline:  # another task is at it
            yield Ready((), min(deadline, self.clock() + OTHER_TASK_SECONDS))
        link = self._links.get(address)
        if link is not None:
            if link.is_open and not link.is_stale:
                return link
            link.close()
        link = self._opening[address] = Pipeline(address, self.clock, self.settings.target.tls)
        try:
            yield from link.open(self.settings.login, self._connect_deadline(until) - self.clock())
            # `close` may have come while this was waiting; nobody would close the connection later.
            self.check_open()
        except BaseException:
            link.close()
            raise
        finally:
            self._opening.pop(address, None)
        self._links[address] = link
        if link.greeting.config:
            link.map = self.learn(link.greeting.config, address)
        return link

    def leads_to(self, link: Pipeline, planned: ClusterMap) -> bool:
        """Return True if a connection leads to the bucket of this map, or its node has reported no map yet.

        Otherwise close the connection and return False; over a new one the node reports its map again.
        """
        if link.map is None or link.map.is_same_bucket(planned):
            return True
        link.close()
        return False

    def made_anew(self, planned: ClusterMap) -> BucketMadeAnew:
        """Return the error for a request that was planned by the map of a bucket that was dropped and created again."""
        now = self.map
        return BucketMadeAnew(self.settings.target.url, (planned.uuid, planned.vbuckets), (now.uuid, now.vbuckets))

    def check_open(self) -> None:
        """Raise LocalProtocolError if this was closed."""
        if self._is_closed:
            raise LocalProtocolError("this client was closed; connect again")

    def learn(self, config: bytes, source: Address) -> ClusterMap:
        """Take a map over if it is newer than ours; return the map that was read, newer or not."""
        newer = self.settings.target.read_map(config, source)
        # A node that was cut off gives out an old map, which would send us back to former owners.
        if self._map is None or newer.version > self._map.version:
            self._map = newer
        return newer

    def connect(self) -> Steps[None]:
        """Connect to the first node that answers, and learn the map from it.

        Raises:
            TransportError: no node of the connection string could be reached; the error is that of the last.
            BucketNotFound: no node that could be reached has the bucket. A node that was emptied, and waits to join
                again, does not count if another one has the bucket.
            StatusError: a node refused us.
        """
        last_error: TransportError | None = None
        no_bucket: BucketNotFound | None = None
        for seed in self.settings.target.seeds:
            try:
                link = yield from self.link(seed)
                if self._map is None:
                    self._map = map_of_one(seed, (yield from self._count_vbuckets(link)))
            except TransportError as error:
                last_error = error
            except BucketNotFound as error:
                no_bucket = error
            else:
                return
        raise no_bucket or last_error or OptionError("connection", "", "a list of nodes")

    def _count_vbuckets(self, link: Pipeline) -> Steps[int]:
        if self.settings.vbuckets is not None:
            return self.settings.vbuckets
        seqnos = yield from self.seqnos_of(link)
        if not seqnos:
            raise OptionError(
                "vbuckets", None, f"known: {link.address} has neither a map nor an active vbucket; give it"
            )
        return 1 << max(seqnos).bit_length()  # numbers of vbuckets are powers of two (kv.md 1.4)

    def refresh(self, without: Address | None = None, until: float | None = None) -> Steps[None]:
        """Ask the nodes, except for `without`, until one has a newer map than ours.

        Many tasks that find the map wrong at the same time ask once.

        Args:
            until: the deadline of the operation that needs the map. Silent nodes share the time that is left.

        Raises:
            TransportError, StatusError: no node answered; the error is that of the last, or of the last that may answer
                later.
        """
        asked_at = self.clock()
        while self._refreshing:
            if until is not None and self.clock() >= until:
                return
            yield Ready((), self.clock() + OTHER_TASK_SECONDS)
        # The node that another task left out may be the only one that knows.
        if (self._all_refreshed_at if without is None else self._refreshed_at) > asked_at:
            return
        self._refreshing = True
        try:
            yield from self._ask_for_map(without, until)
        finally:
            self._refreshing, self._refreshed_at = False, self.clock()
            if without is None:
                self._all_refreshed_at = self._refreshed_at

    def look_around(self, without: Address | None = None, until: float | None = None) -> Steps[None]:
        """Refresh the map; if no node answers, keep the one at hand."""
        with suppress(TransportError, StatusError):
            yield from self.refresh(without, until)

    def was_emptied(self, error: TransportError | StatusError, until: float) -> Steps[bool]:
        """Return True if a node lacks the bucket because the node was emptied, as by a new disk, and other nodes have
        it.

        The vbuckets of such a node have gone to others by the newest map, or will, as those of a node that is down. The
        bucket does not exist only if every node reports so, since a silent node may have it; that finding counts for
        MISSING_SECONDS.

        Args:
            error: the node's error. until: the deadline of the operation; silent nodes share the time that is left.
        """
        if not isinstance(error, BucketNotFound):
            return False
        if self.clock() >= self._missing_until:
            yield from self.look_around(until=until)
        return self.clock() >= self._missing_until

    def _ask_for_map(self, without: Address | None, until: float | None) -> Steps[None]:
        before, answered = self._map, False
        errors: list[TransportError | StatusError] = []
        todo = [address for address in self.known_nodes if address != without]
        for number, address in enumerate(todo):
            try:
                yield from self.ask_map_of(address, self._share(until, len(todo) - number))
                answered, self._missing_until = True, float("-inf")
            except (TransportError, StatusError) as error:
                errors.append(error)
            if self._map is not before:
                return
        if not answered:
            # A silent node may have the bucket, and so may the one that was left out: no conclusion from either.
            if without is None and all(isinstance(error, BucketNotFound) for error in errors):
                self._missing_until = self.clock() + MISSING_SECONDS
            # The error that may pass goes to the caller, who then tries again.
            errors.sort(key=lambda error: error.retriable)
            raise errors[-1] if errors else ConnectionLost(str(self.settings.target.seeds[0]), "no other node is known")

    def _share(self, until: float | None, node_count: int) -> float | None:
        """Return the deadline for the next of `node_count` nodes: an equal share of the time until `until`; None for no
        deadline.
        """
        if until is None:
            return None
        now = self.clock()
        return now + max(0.0, until - now) / node_count

    @property
    def known_nodes(self) -> list[Address]:
        """The nodes of the map and the seeds; those that we are connected to come first."""
        addresses = dict.fromkeys((*self.map.servers, *self.settings.target.seeds))
        return sorted(addresses, key=lambda address: address not in self._links)

    def ask_map_of(self, address: Address, until: float | None = None) -> Steps[None]:
        """Request the map of one node and take it over if it is newer; a node without maps is no error.

        Args:
            until: the deadline for opening a connection; None for the usual one.

        Raises:
            TransportError, StatusError: the node did not answer, or refused.
        """
        link = yield from self.link(address, until)
        answer = yield from link.call(GetClusterConfig().frame(), self._connect_deadline(until))
        if answer.status == Status.SUCCESS and answer.value:
            self.learn(answer.value, address)
        elif answer.status and answer.status not in _NO_MAP:
            raise refused(f"fetch the cluster map of {address}", answer)

    def seqnos_of(self, link: Pipeline, collection: int | None = None) -> Steps[dict[int, int]]:
        """Return the high seqno of each active vbucket of a node.

        Args:
            collection: the id of the only collection that counts; None for all that the connection covers (kv.md 3).
        """
        request = GetAllVbSeqnos(vb_state=State.ACTIVE, collection_id=collection)
        answer = yield from link.call(request.frame(), self.deadline())
        if answer.status == Status.EINVAL and collection is None:  # old servers take no state
            answer = yield from link.call(GetAllVbSeqnos().frame(), self.deadline())
        if answer.status:
            raise refused(f"fetch the seqnos of {link.address}", answer)
        return dict(GetAllVbSeqnosResponse.decode(answer).seqnos)
