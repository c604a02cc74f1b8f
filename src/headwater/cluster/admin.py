"""One key-value connection to ONE node, for an administrator: it routes no request, and retries none silently.

    async with await NodeAdmin.connect(Endpoint(Address("127.0.0.1", 11210))) as node:
        states = await node.states()
        await node.set_state(7, State.REPLICA)

When a connection breaks, the current call fails, and the next call opens it again; after `close` all calls fail. All
calls but `set_config` can be repeated without harm. Many tasks may call at the same time. Source: kv.md 3,
failover.md 5.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from headwater.client.kv import STATS_MAX
from headwater.client.pipeline import Pipeline
from headwater.client.routing import Address, parse
from headwater.cluster import answers
from headwater.cluster.answers import CopyReport, FollowingReport, TakeoverStats
from headwater.errors import (
    AuthError,
    ClusterError,
    ConnectionLost,
    InvalidArguments,
    KeyNotFound,
    NoAccess,
    NotMyVbucket,
    NotSupported,
    PeerSilent,
    RemoteProtocolError,
    StatusError,
    TransportError,
    UnknownCommand,
)
from headwater.protocol.handshake import KV_FEATURES, NO_MAP, Login, refused
from headwater.tls.settings import TlsSettings
from headwater.transport.aio import Waiters
from headwater.transport.waiting import Steps
from headwater.wire import admin as wire
from headwater.wire import documents
from headwater.wire.bootstrap import CreateBucket, DeleteBucket, GetClusterConfig, ListBuckets, SetClusterConfig, Stat
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.json_text import context_of
from headwater.wire.layout import Request
from headwater.wire.manifest import CollectionsManifest, ManifestRefused
from headwater.wire.status import Status
from headwater.wire.users import UserList, UserListRefused
from headwater.wire.vbucket import State

TIMEOUT_SECONDS = 5.0
REFUSED_SECONDS = 60.0
"""The time for which a refused login is not tried again: a caller that asks every second would fill the node's log."""
NO_SUCH_GROUP = (KeyNotFound, NotSupported, InvalidArguments, UnknownCommand)
"""The errors of a node that does not know a group of statistics, such as a server of another make."""
NO_LEASES = (*NO_SUCH_GROUP, NoAccess)
"""The errors of a node that has no leases."""

COPIES_AT_ONCE = 32
"""The most vbuckets that one request for statistics names: its key has at most 250 bytes."""

COPY_ATTEMPTS = 5
"""The number of looks at an older server's vbucket while its state changes between two answers."""

PERSISTENCE_SECONDS_MAX = 30.0
"""The time after which a node stops waiting for its disk; the request may be repeated (failover 5, step 4)."""

LEASE_SECONDS = 20.0
"""A node gives a lease to others when its holder was silent for so long (node/ownership/lease.py)."""
RENEW_SECONDS = 4.0
"""The interval of renewals."""

LONG_SECONDS_MAX = 600.0
"""The timeout of slow requests: a compaction of a large log, or the deletion of all documents, may take minutes."""

AGENT = "headwater-cluster"
TEXT_MAX = 200
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A bucket on one node, and the user to log in as.

    Attributes:
        address: the node's name in maps.
        user: None for a node without logins.
        tls: the settings of TLS; None to connect without.
        tls_port: the port for TLS on the same host; None if `address` has it.
    """

    address: Address
    bucket: str = "default"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsSettings | None = None
    tls_port: int | None = None

    @classmethod
    def of(cls, node: str, user: str | None = None, password: str | None = None) -> Endpoint:
        """Return a bucket on one node, from `host:port`, `host:port/bucket` or a whole connection string."""
        target = parse(node)
        return cls(target.seeds[0], target.bucket, *target.login(user, password), tls=target.tls)

    @property
    def dialled(self) -> Address:
        """The address to which connections are opened."""
        return Address(self.address.host, self.address.port if self.tls_port is None else self.tls_port)

    def __str__(self) -> str:
        return f"{self.address}/{self.bucket}"

    def login(self, features: tuple[int, ...] | None = None) -> Login:
        """Return the login to connect with."""
        features_wanted = (*KV_FEATURES, Feature.COLLECTIONS) if features is None else features
        return Login(AGENT, self.bucket, self.user, self.password, features=features_wanted, wants_map=False)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator who must be alone at work on nodes: one run, with a unique id, and its description in words.

    A node that starts again does not know its leases any more. So a run itself notes when any node last confirmed that
    it is alone: after a longer silence, another operator may have been at work.
    """

    run: str
    by: str
    _confirmed: list[tuple[float, float]] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, work: str) -> Operator:
        """Return a new run of this process; `work` says what it does, in words."""
        return cls(uuid.uuid4().hex, f"{work} (process {os.getpid()} on {socket.gethostname()})"[:TEXT_MAX])

    def confirm(self, steady: float) -> None:
        """Note that a node has confirmed the lease, at this time of a steady clock."""
        self._confirmed[:] = [(steady, time.time())]

    def silent_seconds(self, steady: float) -> float:
        """Return the seconds since a node last confirmed the lease, by the clock that went on further."""
        # The steady clock of some systems stands still while the machine is suspended.
        return max((max(steady - then, time.time() - wall) for then, wall in self._confirmed), default=0.0)


class NodeAdmin:
    """Administration of one node; made by `connect`. A server older than 5.5 gets requests in older forms.

    Every call raises TransportError when there is no connection or no answer in time, and StatusError when the node
    refuses. A vbucket is given by its number.

    Args:
        timeout_seconds: the timeout of connecting, and of each answer.
    """

    def __init__(
        self, endpoint: Endpoint, timeout_seconds: float = TIMEOUT_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.endpoint = endpoint
        self._timeout, self._clock = timeout_seconds, clock
        self._link = Pipeline(endpoint.dialled, clock, endpoint.tls)
        self._opening = asyncio.Lock()
        self._begun_at: list[float] = []
        self._waiters = Waiters(clock)
        self._states_are_old = self._logs_are_statistics = self._copies_are_old = False
        self._operator: Operator | None = None
        self._had_lease = False
        self._uuids: frozenset[str] | None = None
        self._name = uuid.uuid4().hex  # of our place among the holders of a lease
        self._renewing: asyncio.Task[None] | None = None
        self._refusal: AuthError | None = None
        self._refused_at = 0.0
        self._is_closed = False

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
        admin = cls(endpoint, timeout_seconds)
        await admin._open()
        return admin

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    @property
    def address(self) -> Address:
        """The address of the node."""
        return self.endpoint.address

    @property
    def waited_seconds(self) -> float:
        """The seconds for which the node has owed an answer, or a connection; 0 if it owes none."""
        return self._clock() - min(self._begun_at) if self._begun_at else 0.0

    def close(self) -> None:
        """Close the connection for good; pending and later requests fail, and the lease ends."""
        self._is_closed = True
        self._stop_renewing()
        self._link.close()
        self._waiters.sweep()

    # --- being alone at work ------------------------------------------------------------------------------------------

    def bind(self, uuids: frozenset[str]) -> None:
        """Restrict all calls to a bucket that has one of these uuids; call it before any other method.

        The uuid is checked when a connection is opened. That is enough, since a node closes the connections of a
        dropped bucket: later requests on one can't reach a newer bucket of that name. Calls to another bucket raise
        ClusterError.
        """
        self._uuids = uuids

    async def bucket_uuid(self) -> str:
        """Return the uuid of our bucket; empty if the server reports none. A bucket that is dropped and created again
        has another uuid.
        """
        return _uuid_in(await self.config())

    async def lease(self, operator: Operator, *, is_renewal: bool = False) -> None:
        """Take the node's lease: until `release` or `close`, only this operator's run may change owners on the node.

        From then on each request is sent under the lease, or fails: a connection that is opened again takes the lease
        again first, and is refused if another operator was at work meanwhile. On a node without leases the requests are
        sent without.

        Args:
            is_renewal: True if the run had the lease before, through this connection or another, and relies on what it
                read then.

        Raises:
            ClusterError: another operator is at work, or, with `is_renewal`, has been since.
        """
        if self._operator is None:
            # Noted before it is requested: a node that does not answer now gets the lease with the next connection,
            # before any other request on it.
            self._operator, self._had_lease = operator, is_renewal
            self._renewing = asyncio.create_task(self._renew())
            if self._link.is_open:
                await self._lease_on(self._link, operator)
        await self._open()

    async def release(self, *, over: bool = False) -> None:
        """Release the lease, so that other operators may work on the node; do nothing without a lease.

        Args:
            over: True if the run is complete: vbuckets whose replication it stopped follow the map again.
        """
        # First, or a call that opens the connection meanwhile would take the lease again.
        operator, self._operator = self._operator, None
        self._stop_renewing()
        if operator is not None and self._link.is_open:
            try:
                await self._ask_lease(self._link, operator, release=True, **{"over": True} if over else {})
            except (TransportError, StatusError):
                self._link.close()  # which ends it, too

    async def _lease_on(self, link: Pipeline, operator: Operator) -> None:
        """Take the lease on a connection; close the connection if the lease is refused, so that no request is sent
        without it.

        Raises:
            ClusterError: another operator is at work, or has been since; or that may be, and the node may not know it.
        """
        try:
            if self._had_lease and (silent := operator.silent_seconds(self._clock())) >= LEASE_SECONDS:
                raise ClusterError(
                    f"{self.address}: no node has answered {operator.by} for {silent:.0f} s; another operator may have"
                    " been at work",
                    "type the same again",
                )
            await self._ask_lease(link, operator, again=self._had_lease)
        except NO_LEASES:
            self._operator = None
            self._stop_renewing()
        # Also for a cancellation: whether the node gave the lease on this connection is not known then.
        except BaseException:
            link.close()
            raise
        else:
            self._had_lease = True

    async def _ask_lease(self, link: Pipeline, operator: Operator, **how: bool) -> None:
        claim = {"run": operator.run, "by": operator.by, "connection": self._name, **how}
        request = wire.IoctlSet(key=b"lease", value=json.dumps(claim).encode())
        action = "ask to be alone at work"
        with _telling(action):
            answer = await self._run(link.call(request.frame(), self._clock() + self._timeout))
        if answer.status == Status.EBUSY:
            who = f"{self.address}: {context_of(answer.value)}"
            raise ClusterError(who, "wait until that ends, then type this again")
        _check(f"{self.address}: {action}", answer)
        operator.confirm(self._clock())

    async def _renew(self) -> None:
        while self._operator is not None:
            await asyncio.sleep(RENEW_SECONDS)
            with suppress(TransportError, StatusError, ClusterError):  # whoever asks next is told
                await self._ask_lease(await self._open(), self._operator, again=True)

    def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    # --- buckets ------------------------------------------------------------------------------------------------------

    async def buckets(self) -> list[str]:
        """Return the buckets in which our user has any right, the node's first one first."""
        answer = await self._ask(ListBuckets(), "ask for the buckets")
        return answer.value.decode("utf-8", "replace").split()

    async def create_bucket(
        self, name: str, vbuckets: int | None = None, quota_mib: int = 0, *, is_empty: bool = False
    ) -> None:
        """Create a bucket; on return it is durable and served.

        Args:
            vbuckets: the number of vbuckets; None for the node's default.
            quota_mib: the most MiB of its files; 0 for no limit.
            is_empty: True to create it without any vbucket.

        Raises:
            KeyExists: it exists already.
        """
        options = f"quota_mib={quota_mib}" + (f";vbuckets={vbuckets}" if vbuckets else "") + ";state=none" * is_empty
        request = CreateBucket(key=name.encode(), value=b"\0" + options.encode())
        await self._ask(request, f'make bucket "{name}"', LONG_SECONDS_MAX)

    async def drop_bucket(self, name: str) -> None:
        """Drop a bucket with all of its documents.

        Raises:
            KeyNotFound: there is no such bucket.
        """
        await self._ask(DeleteBucket(key=name.encode()), f'drop bucket "{name}"', LONG_SECONDS_MAX)

    async def set_quota(self, quota_mib: int) -> None:
        """Limit the files of our bucket to `quota_mib`, 0 for no limit; on return that is durable and in force.

        Raises:
            InvalidArguments: the files take more already, or the quota is too small.
        """
        value = str(quota_mib << 20).encode()
        action = f'give bucket "{self.endpoint.bucket}" a quota of {quota_mib} MiB'
        await self._ask(wire.SetParam(param_type=1, key=b"max_size", value=value), action)

    async def quota_mib(self) -> int:
        """Return the room that the files of our bucket may take, MiB; 0 for no limit."""
        return int((await self.stats()).get("ep_max_size", "0")) >> 20

    async def keep_history(self, seconds: int | None = None, size: int | None = None) -> None:
        """Set how far back our bucket keeps superseded versions; on return that is durable and in force.

        Args:
            seconds: the age of the oldest version. size: the bytes of all versions. 0 for no such limit, None to keep
                the present one.

        Raises:
            InvalidArguments: the node does not allow such a limit.
        """
        limits = [(unit, number) for unit, number in (("seconds", seconds), ("bytes", size)) if number is not None]
        # What sets a limit goes before what takes one away: a bucket without either keeps no history, and a compaction
        # would remove it between the two requests. With both, the shorter history counts.
        for unit, number in sorted(limits, key=lambda each: each[1] == 0):
            request = wire.SetParam(param_type=1, key=f"history_retention_{unit}".encode(), value=b"%d" % number)
            await self._ask(request, f'have bucket "{self.endpoint.bucket}" keep {number} {unit} of history')

    async def history(self) -> tuple[int, int]:
        """Return how far back our bucket keeps superseded versions: seconds and bytes, 0 for no such limit."""
        stats = await self.stats()
        seconds, size = (int(stats.get(f"ep_history_retention_{unit}", "0")) for unit in ("seconds", "bytes"))
        return seconds, size

    async def give_collections_history(self, *, history: bool) -> None:
        """Set whether new collections of our bucket have a history; on return that is durable and in force."""
        request = wire.SetParam(
            param_type=1, key=b"history_retention_collection_default", value=b"1" if history else b"0"
        )
        await self._ask(request, f'set the history of new collections in bucket "{self.endpoint.bucket}"')

    async def collections_have_history(self) -> bool | None:
        """Return True if new collections of our bucket have a history; None from a node of an older release, where all
        collections have a history.
        """
        default = (await self.stats()).get("ep_history_retention_collection_default")
        return None if default is None else default == "true"

    # --- users --------------------------------------------------------------------------------------------------------

    async def users(self) -> UserList:
        """Return the users that the node keeps, with their verifiers; for administrators of all buckets."""
        answer = await self._ask(wire.IoctlGet(key=b"users"), "ask for the users")
        try:
            return UserList.decode(answer.value)
        except UserListRefused as error:
            raise RemoteProtocolError(f"{self.address}: {error}") from None

    async def set_users(self, users: UserList) -> None:
        """Send the node a list of users, which it merges with its own; the result is durable on return."""
        await self._ask(wire.IoctlSet(key=b"users", value=users.encode()), "give it the users")

    # --- vbuckets -----------------------------------------------------------------------------------------------------

    async def state(self, vbucket: int) -> State | None:
        """Return the state of a vbucket; None if it is not on this node."""
        try:
            answer = await self._ask(wire.GetVbucket(vbucket=vbucket), f"ask for the state of vbucket {vbucket}")
        except NotMyVbucket:
            return None
        return State(wire.GetVbucketResponse.decode(answer).state)

    async def states(self) -> dict[int, State]:
        """Return the state of every vbucket on this node."""
        return answers.states(await self.stats("vbucket"))

    async def set_state(self, vbucket: int, state: State, *, force: bool = False) -> None:
        """Set a vbucket's state, and create the vbucket if it is missing; on return that is durable.

        Args:
            force: True to set it even if the vbucket lacks refused changes or has damaged ones, on nodes that report
                such flaws.

        Raises:
            KeyExists: it lacks changes, or has damaged ones.
        """
        action = f"make vbucket {vbucket} {state.name.lower()}"
        if force:
            options = json.dumps({"force": True}).encode()
            await self._ask(
                wire.SetVbucket(vbucket=vbucket, state=state, value=options, datatype=Datatype.JSON), action
            )
            return
        if not self._states_are_old:
            with suppress(InvalidArguments):
                await self._ask(wire.SetVbucket(vbucket=vbucket, state=state), action)
                return
        await self._ask(wire.SetVbucketOld(vbucket=vbucket, state=state), action)
        # Only when the old form was taken is the server an old one: EINVAL may also mean the state itself.
        self._states_are_old = True

    async def delete(self, vbucket: int) -> bool:
        """Delete a vbucket with all of its documents; return False if it was not on this node."""
        try:
            await self._ask(wire.DelVbucket(vbucket=vbucket), f"delete vbucket {vbucket}")
        except NotMyVbucket:
            return False
        return True

    async def seqnos(self, state: State | None = None) -> dict[int, int]:
        """Return the high seqno of each vbucket.

        Args:
            state: the state of the wanted vbuckets; None for active, replica and pending ones.
        """
        # 4.6 refuses the 0 that newer servers take for "all".
        answer = await self._ask(wire.GetAllVbSeqnos(vb_state=state), "ask for the seqnos")
        return dict(wire.GetAllVbSeqnosResponse.decode(answer).seqnos)

    async def complete(self, vbucket: int | None = None) -> dict[int, int]:
        """Return the seqno up to which each vbucket's copy is complete on disk; a failover to the copy takes back no
        change up to that seqno.

        A server without such statistics is assumed to be complete up to its high seqnos.

        Args:
            vbucket: the only wanted vbucket; None for all.
        """
        try:
            group = "vbucket-details" if vbucket is None else f"vbucket-details {vbucket}"
            return answers.complete(await self.stats(group))
        except NotMyVbucket:
            return {}
        except NO_SUCH_GROUP:
            return await self.seqnos()

    async def copies(self, vbuckets: Iterable[int]) -> dict[int, CopyReport]:
        """Return this node's copies of these vbuckets: state, history and seqnos.

        Each copy is reported as of one moment. From a server without such statistics the state is requested first, then
        the history, then the seqnos: a seqno read before a rollback would be too high.
        """
        numbers = sorted(vbuckets)
        if not self._copies_are_old:
            try:
                starts = range(0, len(numbers), COPIES_AT_ONCE)
                lists = (vbucket_list(numbers[start : start + COPIES_AT_ONCE]) for start in starts)
                parts = await asyncio.gather(*(self.stats(f"vbucket-copies {vbuckets_}") for vbuckets_ in lists))
                return answers.copies({name: value for part in parts for name, value in part.items()})
            except NO_SUCH_GROUP:
                self._copies_are_old = True
        reports = await asyncio.gather(*map(self._copy, numbers))
        return {vb: report for vb, report in zip(numbers, reports, strict=True) if report is not None}

    async def _copy(self, vbucket: int) -> CopyReport | None:
        for _ in range(COPY_ATTEMPTS):
            state = await self.state(vbucket)
            if state is None:
                return None
            log = await self.failover_log(vbucket)
            seqnos, details = await self.seqnos(state), await self._details(vbucket)
            if vbucket in seqnos:  # else it has another state by now
                seqno = seqnos[vbucket]
                complete = answers.complete(details).get(vbucket, seqno)
                refusals, damaged = answers.refused(details), answers.damaged(details)
                return CopyReport(state, seqno, complete, log, refusals.get(vbucket, 0), damaged.get(vbucket, 0))
        raise ClusterError(f"vbucket {vbucket} of {self.address} changes its state all the time", "type this again")

    async def _details(self, vbucket: int) -> dict[str, str]:
        """Return STAT vbucket-details of a vbucket; empty if it is not here, or the server has no such
        statistics.
        """
        try:
            return await self.stats(f"vbucket-details {vbucket}")
        except (NotMyVbucket, *NO_SUCH_GROUP):
            return {}

    async def failover_log(self, vbucket: int) -> list[tuple[int, int]]:
        """Return a vbucket's failover log, newest history first, as (vb uuid, seqno).

        A server older than 5.5, which does not grant JSON, closes the connection after GET_FAILOVER_LOG outside of DCP,
        with all requests under way; it reports the log as statistics.
        """
        if Feature.JSON in (await self._open()).greeting.features and not self._logs_are_statistics:
            try:
                answer = await self._ask(
                    wire.GetFailoverLog(vbucket=vbucket), f"ask for the failover log of vbucket {vbucket}"
                )
                return wire.GetFailoverLogResponse.decode(answer).failover_log
            except ConnectionLost:
                self._logs_are_statistics = True  # it may be just this that it hung up on: next time in the other form
                raise
            except (NotSupported, UnknownCommand, NoAccess):
                self._logs_are_statistics = True
        return answers.failover_statistics(vbucket, await self.stats(f"failovers {vbucket}"))

    async def wait_persisted(
        self, vbucket: int, seqno: int, timeout_seconds: float = 2 * PERSISTENCE_SECONDS_MAX
    ) -> None:
        """Return when the vbucket has `seqno` on disk.

        Raises:
            PeerSilent: the node did not have it within the timeout.
        """
        # The node answers nothing else on a connection that waits for its disk: so this is one of its own.
        began = self._clock()
        link = Pipeline(self.endpoint.dialled, self._clock, self.endpoint.tls)
        try:
            await self._run(link.open(self.endpoint.login(), self._timeout))
            while (remaining_seconds := began + timeout_seconds - self._clock()) > 0:
                request = wire.SeqnoPersistence(seqno=seqno, vbucket=vbucket).frame()
                limit = min(remaining_seconds, PERSISTENCE_SECONDS_MAX + self._timeout)
                answer = await self._run(link.call(request, self._clock() + limit))
                # ETMPFAIL says that the node waited for 30 s (kv 3), not that the change is lost: it is asked again.
                if answer.status != Status.ETMPFAIL:
                    _check(f"wait until {self.address} has seqno {seqno} of vbucket {vbucket} on disk", answer)
                    return
        finally:
            link.close()
            self._waiters.sweep()
        raise PeerSilent(str(self.address), timeout_seconds)

    async def items(self) -> dict[int, int]:
        """Return the number of documents of each vbucket of this node."""
        return answers.items(await self.stats("vbucket-details"))

    async def purge(self, vbucket: int, before_seconds: int) -> None:
        """Compact the log, and drop the tombstones of one vbucket that are older than a Unix time.

        Returns when the compaction is complete, which may take minutes.
        """
        request = wire.CompactDb(vbucket=vbucket, purge_before_ts=before_seconds)
        await self._ask(request, f"purge vbucket {vbucket}", LONG_SECONDS_MAX)

    async def flush(self) -> None:
        """Delete every document of the vbuckets that this node owns."""
        await self._ask(documents.Flush(), "empty it", LONG_SECONDS_MAX)

    # --- following another node ---------------------------------------------------------------------------------------

    async def replicate(self, source: Endpoint, vbuckets: Iterable[int], *, takeover: bool = False) -> None:
        """Let the node follow `source` by its own connection; missing vbuckets are created as replicas.

        Args:
            takeover: True if the node shall take the vbuckets over at the end.

        Raises:
            InvalidArguments: one of the vbuckets is active here, or there is no such vbucket; nothing happened.
        """
        options: dict[str, Any] = {"from": str(source), "vbuckets": vbucket_list(vbuckets), "takeover": takeover}
        if source.tls is not None:
            options["tls"] = source.dialled.port
        if source.user is not None:
            options |= {"user": source.user, "password": source.password or ""}
        await self._control("replicate", options, f"let it follow {source}")

    async def stop_replicating(self, source: Endpoint, vbuckets: Iterable[int] | None = None) -> bool:
        """Let the node stop following `source`, in some vbuckets or (None) all; return False if it did not follow it at
        all.
        """
        options: dict[str, Any] = {"from": str(source)}
        if vbuckets is not None:
            options["vbuckets"] = vbucket_list(vbuckets)
        try:
            await self._control("replicate.stop", options, f"let it follow {source} no more")
        except KeyNotFound:
            return False
        return True

    async def replication(self, vbucket: int | None = None) -> dict[str, FollowingReport]:
        """Return the producers that the node follows by its own connections, with their progress, by host:port/bucket.

        Args:
            vbucket: the only wanted vbucket; None for all.
        """
        return answers.following(await self.stats("replication" if vbucket is None else f"replication {vbucket}"))

    async def refused(self) -> dict[int, int]:
        """Return the number of changes that each vbucket refused from its producer and lacks, for vbuckets that refused
        some.
        """
        return answers.refused(await self.stats("vbucket-details"))

    async def flaw(self, vbucket: int) -> str:
        """Return the flaw of a copy, for people: refused changes, or damage; empty for a sound copy, or if the server
        reports no flaws.
        """
        try:
            return answers.flaw(vbucket, await self.stats(f"vbucket-details {vbucket}"))
        except NO_SUCH_GROUP:
            return ""

    async def takeover_stats(self, vbucket: int, name: str) -> TakeoverStats:
        """Return the progress of this node's stream of a vbucket to the connection called `name`."""
        return TakeoverStats.of(await self.stats(f"dcp-vbtakeover {vbucket} {name}"))

    async def clock_held(self) -> int | None:
        """Return the CAS that all later changes of the node exceed, as it has promised; 0 for no promise, None if the
        server makes no promises.
        """
        try:
            answer = await self._ask(wire.HoldClock(wanted_cas=0), "ask what its clock has promised")
        except NO_SUCH_GROUP:
            return None
        return wire.HoldClockResponse.decode(answer).held_cas

    async def hold_clock(self, cas: int) -> None:
        """Make the node promise that all later changes get a CAS above `cas`, even if its clock is behind; another
        member has promised the same.
        """
        await self._control("clock", {"cas": cas}, "hold its clock")

    async def _control(self, key: str, value: dict[str, Any], action: str) -> None:
        await self._ask(wire.IoctlSet(key=key.encode(), value=json.dumps(value).encode()), action)

    # --- collections --------------------------------------------------------------------------------------------------

    async def manifest(self) -> CollectionsManifest:
        """Return the scopes and collections that the node knows."""
        answer = await self._ask(wire.GetManifest(), "ask for the collections manifest")
        try:
            return CollectionsManifest.decode(answer.value)
        except ManifestRefused as error:
            raise RemoteProtocolError(f"{self.address}: {error}") from None

    async def next_ids(self) -> tuple[int, int]:
        """Return the lowest ids, of a collection and of a scope, that the node has never used."""
        stats = await self.stats("scopes")
        return int(stats.get("next_collection", "8"), 16), int(stats.get("next_scope", "8"), 16)

    async def set_manifest(self, manifest: CollectionsManifest) -> None:
        """Send the node a newer manifest; on return it is durable in every vbucket that is active there."""
        await self._ask(wire.SetManifest(value=manifest.encode()), f"give it manifest {manifest.uid:x}")

    # --- the map, and the rest ----------------------------------------------------------------------------------------

    async def config(self) -> bytes | None:
        """Return the cluster map as the node hands it out; None if it has none, or supports none."""
        try:
            return (await self._ask(GetClusterConfig(), "ask for the cluster map")).value or None
        except StatusError as error:
            if error.status not in NO_MAP:
                raise
            return None

    async def set_config(self, epoch: int, rev: int, bucket: str, config: bytes) -> None:
        """Send the node a cluster map.

        Raises:
            KeyExists: it has a newer map.
        """
        request = SetClusterConfig(epoch=epoch, revision=rev, key=bucket.encode(), value=config)
        await self._ask(request, f"give it map {epoch}:{rev}")

    async def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics."""
        link, action = await self._open(), f'ask for the statistics "{group}"'
        request = Stat(key=group.encode()).frame()
        with _telling(action):
            frames = await self._run(link.call_until(request, _ends_stats, self._clock() + self._timeout))
        _check(f"{self.address}: {action}", frames[-1])
        if len(frames) > STATS_MAX:
            raise RemoteProtocolError(f"STAT (opcode 0x10): more than {STATS_MAX} statistics")
        return {frame.key.decode(errors="replace"): frame.value.decode(errors="replace") for frame in frames[:-1]}

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request, action: str, seconds: float | None = None) -> Frame:
        link = await self._open()
        with _telling(action):
            answer = await self._run(link.call(request.frame(), self._clock() + (seconds or self._timeout)))
        return _check(f"{self.address}: {action}", answer)

    async def _open(self) -> Pipeline:
        """Return the connection, opened now if there is none."""
        # Of many calls at once one connects and takes the lease; the others wait, and use that connection.
        async with self._opening:
            # A request that comes late must not open a connection without the lease that it was decided under.
            if self._is_closed:
                raise ConnectionLost(str(self.endpoint.dialled), "the connection was closed here")
            if not self._link.is_open or self._link.is_stale:
                self._link.close()
                await self._log_in()
                # The bucket is checked before the lease is taken: a newer bucket of this name may be another
                # operator's.
                if self._uuids is not None:
                    await self._check_bucket(self._link, self._uuids)
                if self._operator is not None:
                    await self._lease_on(self._link, self._operator)
        return self._link

    async def _check_bucket(self, link: Pipeline, uuids: frozenset[str]) -> None:
        """Close a connection to another bucket than the allowed one.

        Raises:
            ClusterError: it was closed.
        """
        try:
            answer = await self._run(link.call(GetClusterConfig().frame(), self._clock() + self._timeout))
            if answer.status not in NO_MAP:
                _check(f"{self.address}: ask for the cluster map", answer)
            # A server without maps has no uuid, which is "" here as it was when `bind` was called.
            if _uuid_in(None if answer.status in NO_MAP else answer.value) not in uuids:
                problem_ = (
                    f'{self.address}: bucket "{self.endpoint.bucket}" is not the one that was looked at: it was made'
                )
                raise ClusterError(f"{problem_} anew", "nothing was done there; look again")
        except BaseException:
            link.close()
            raise

    async def _log_in(self) -> None:
        if self._refusal is not None and self._clock() < self._refused_at + REFUSED_SECONDS:
            raise self._refusal
        self._refusal, self._link = None, Pipeline(self.endpoint.dialled, self._clock, self.endpoint.tls)
        try:
            await self._run(self._link.open(self.endpoint.login(), self._timeout))
        except AuthError as error:
            self._refusal, self._refused_at = error, self._clock()
            raise

    async def _run(self, steps: Steps[Result]) -> Result:
        began = self._clock()
        self._begun_at.append(began)
        try:
            return await self._waiters.run(steps)
        finally:
            self._begun_at.remove(began)


def _uuid_in(config: bytes | None) -> str:
    return str(json.loads(config).get("uuid", "")) if config else ""


def vbucket_list(vbuckets: Iterable[int]) -> str:
    """Return the numbers as a list of ranges such as 0-3,7."""
    parts: list[list[int]] = []
    for vb in sorted(set(vbuckets)):
        if parts and parts[-1][1] == vb - 1:
            parts[-1][1] = vb
        else:
            parts.append([vb, vb])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


@contextmanager
def _telling(action: str) -> Iterator[None]:
    """Add the name of the request to a ConnectionLost, since the request may be the reason why the node hung up."""
    try:
        yield
    except ConnectionLost as error:
        raise ConnectionLost(error.peer, f"{action}: {error.reason}") from None


def _check(action: str, answer: Frame) -> Frame:
    if answer.status:
        raise refused(action, answer)
    return answer


def _ends_stats(frame: Frame) -> bool:
    """Return True for the last answer to STAT: one without key and value, or a failure (kv.md 1.7)."""
    return bool(frame.status) or not (frame.key or frame.value)
