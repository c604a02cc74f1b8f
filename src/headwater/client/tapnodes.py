"""TAP of a whole bucket: a stream of every node, a thread each, through moves, rebalances and failovers.

    with TapNodes("couchbase://127.0.0.1/default", take, name="index", owners_only=True) as nodes:
        ...                                          take(node, message) is called meanwhile, one message at a time

A TAP stream comes from one node. To follow a whole bucket, `TapNodes` listens to each of its nodes, reconnects, and
periodically looks up the nodes and the vbuckets that each owns. A session follows replicas too, so a change comes from
more than one node; with `owners_only` each session gets the list of vbuckets to follow (CHANGE_VB_FILTER), and after a
change of owner a vbucket comes from its new owner, from the beginning. Source: tap.md 1.2, 3.4.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Self

from headwater.client.link import Link
from headwater.client.nodes import ConnectSettings
from headwater.client.routing import Address, ClusterMap
from headwater.client.settings import settings_for
from headwater.client.tap import TapStream
from headwater.errors import HeadwaterError, OptionError
from headwater.protocol.tap.consumer import TapMessage
from headwater.protocol.tap.options import TapOptions
from headwater.transport import blocking
from headwater.transport.waiting import Steps
from headwater.wire.header import Frame
from headwater.wire.status import Status
from headwater.wire.tap import ChangeFilter

__all__ = ["TapNodes"]

RETRY_SECONDS: Final = 0.2
TICK_SECONDS: Final = 0.2
"""The longest time that closing waits for a listening thread."""
STOP_SECONDS: Final = 30.0

Take = Callable[[Address, TapMessage], None]


class TapNodes:
    """The streams of all nodes of a bucket; a context manager.

    Args:
        connection: `couchbase://host[:port][,host...]/bucket`; the nodes of a cluster are found by its map.
        take: called with a node and each of its messages, in the order in which that node sends them, and never by two
            threads at once; a message is acknowledged when it returns.
        name: the name of the sessions. A node that keeps sessions continues with the unacknowledged messages.
        missed: called when changes may be missing, because a stream was lost or a node was found; never by two threads
            at once, either.
        owners_only: follow each vbucket at its owner only; needs a name.
        poll_seconds: how often nodes and owners are looked at.
        since, keys_only, acknowledge: as of `tap.connect`.

    Attributes:
        deaf: the nodes that are not heard at the moment.
        owners: the owner of each vbucket, as far as known.
    """

    def __init__(
        self,
        connection: str,
        take: Take,
        *,
        name: str = "",
        missed: Callable[[], None] = lambda: None,
        owners_only: bool = False,
        poll_seconds: float = 1.0,
        user: str | None = None,
        password: str | None = None,
        since: int | None = None,
        keys_only: bool = False,
        acknowledge: bool = True,
    ) -> None:
        if owners_only and not name:
            raise OptionError("name", name, "a name, by which the list of a session's vbuckets is changed")
        self.options: TapOptions = TapOptions(
            name=name.encode(), since=since, keys_only=keys_only, acknowledge=acknowledge, network_byte_order=True
        ).check()
        self.settings: ConnectSettings = settings_for(connection, user, password)
        self.deaf: set[Address] = set()
        self.owners: dict[int, Address] = {}
        self._take, self._on_missed = take, missed
        self._owners_only = owners_only
        self._poll_seconds = poll_seconds
        self._listeners: dict[Address, _Listener] = {}
        self._lock = threading.Condition()
        self._stop_event = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="tap watcher", daemon=True)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def open(self) -> None:
        """Look up the nodes, and begin to listen. `wait_until_heard` returns when every node has a session.

        Raises:
            TransportError, StatusError: no node answers.
        """
        self.look()
        self._watcher.start()

    def close(self) -> None:
        """Stop listening.

        Raises:
            Exception: an error of `take` or `missed`, which has ended the listening.
        """
        self._stop_event.set()
        listeners = tuple(self._listeners.values())
        for listener in listeners:
            listener.over.set()
        for thread in (self._watcher, *listeners):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(STOP_SECONDS)
        self.check()

    def check(self) -> None:
        """Raise the error of `take` or `missed` that has ended the listening, if there is one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_until_heard(self, timeout_seconds: float = 60.0) -> None:
        """Wait until every known node has a session, so that all later writes will come.

        Raises:
            TimeoutError: some nodes have none.
        """
        with self._lock:
            all_heard = self._lock.wait_for(lambda: not self.deaf or self._error is not None, timeout_seconds)
        self.check()
        if not all_heard:
            problems = "; ".join(f"{node}: {self._listeners[node].problem}" for node in sorted(self.deaf))
            raise TimeoutError(f"not all nodes are heard after {timeout_seconds:g} s: {problems}")

    # --- nodes and owners -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look up the nodes of the bucket and the vbuckets that they own, and listen to them.

        Raises:
            TransportError, StatusError: no node answers.
        """
        maps, claims = self._survey()
        # A node goes by the name that maps give it: one that was named otherwise must not be listened to twice.
        nodes = {
            address for cluster_map in maps.values() for address in cluster_map.servers
        } | claims.keys() - maps.keys()
        for address in self._listeners.keys() - nodes:
            self._forget(address)
        if self._owners_only:
            self._settle(maps, {address: claims[address] for address in nodes & claims.keys()})
        for address in sorted(nodes):
            self._listen_to(address)

    def _watch(self) -> None:
        while not self._stop_event.wait(self._poll_seconds):
            try:
                self.look()
            except HeadwaterError:
                continue  # nobody answers: the listeners go on trying
            except BaseException as error:  # `missed` raised: `close` and `check` raise it again
                self._fail(error)

    def _survey(self) -> tuple[dict[Address, ClusterMap], dict[Address, set[int]]]:
        """Return the cluster map of each node that answers, and the vbuckets that each node reports as its own."""
        maps, claims, problem = dict[Address, ClusterMap](), dict[Address, set[int]](), None
        todo, asked_nodes = [*self.settings.target.seeds, *self._listeners], set[Address]()
        while todo:
            if (address := todo.pop()) in asked_nodes:
                continue
            asked_nodes.add(address)
            try:
                config, claims[address] = blocking.run(self._ask(address), self.settings.clock)
                if config:
                    maps[address] = self.settings.target.read_map(config, address)
                    todo += maps[address].servers
            except HeadwaterError as error:
                problem = error
        if not claims and problem is not None:
            raise problem
        return maps, claims

    def _ask(self, address: Address) -> Steps[tuple[bytes | None, set[int]]]:
        settings = self.settings
        link = Link(address, settings.clock, settings.target.tls)
        try:
            yield from link.open(settings.login, settings.connect_timeout_seconds)
            states = yield from link.statistics("vbucket", settings.clock() + settings.timeout_seconds)
            return link.greeting.config, {int(key[3:]) for key, state in states.items() if state == "active"}
        finally:
            link.close()

    def _settle(self, maps: dict[Address, ClusterMap], claims: dict[Address, set[int]]) -> None:
        """Choose the owner of each vbucket: the last owner if it still claims the vbucket, else the map's, else any
        claimant.

        Args:
            claims: the vbuckets that each node reports as its own.
        """
        newest = max(maps.values(), key=lambda cluster_map: cluster_map.version, default=None)
        owners = dict[int, Address]()
        for vb in sorted(set().union(*claims.values())):
            claimants = [address for address in sorted(claims) if vb in claims[address]]
            candidates = (self.owners.get(vb), newest.owner(vb) if newest else None)
            owners[vb] = next((address for address in candidates if address in claimants), claimants[0])
        with self._lock:  # from now on the old owner is not listened to, and the new one may begin
            self.owners.update(owners)

    def _listen_to(self, address: Address) -> None:
        vbuckets = tuple(vb for vb, owner in self.owners.items() if owner == address)
        if self._owners_only and not vbuckets:
            self._forget(address)
            return
        listener = self._listeners.get(address)
        if listener is None:
            self.note_lost_session(address)
            listener = self._listeners[address] = _Listener(self, address, vbuckets)
            listener.start()
        elif listener.vbuckets != vbuckets:
            listener.change(vbuckets)

    def _forget(self, address: Address) -> None:
        listener = self._listeners.pop(address, None)
        if listener is not None:
            listener.over.set()
            listener.join(STOP_SECONDS)
        self.deaf.discard(address)

    # --- what listeners say -----------------------------------------------------------------------------------------

    def note_lost_session(self, address: Address) -> None:
        """Note that a node's session is lost, and call `missed` if it was not lost before."""
        with self._lock:
            if address not in self.deaf:
                self.deaf.add(address)
                self._on_missed()

    def heard(self, address: Address, message: TapMessage) -> None:
        """Pass on a message of a node: its session is set up, so it will be heard from now on."""
        with self._lock:
            if address in self.deaf:
                self.deaf.discard(address)
                self._lock.notify_all()
            # Under the lock by which owners change: a late message of the old owner must not follow the first one of
            # the new.
            if not self._owners_only or self.owners.get(message.vbucket) == address:
                self._take(address, message)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            self._lock.notify_all()
        self._stop_event.set()
        for listener in tuple(self._listeners.values()):
            listener.over.set()

    def listen(self, listener: _Listener) -> None:
        """Listen to one node until it is over; the work of a listener's thread."""
        try:
            while not listener.over.is_set():
                listener.listen_once()
                if not listener.over.is_set():
                    self.note_lost_session(listener.address)
                    listener.over.wait(RETRY_SECONDS)
        except BaseException as error:  # `take` or `missed` raised: `close` and `check` raise it again
            self._fail(error)


class _Listener(threading.Thread):
    """The thread that reads one node's stream, and opens it again whenever it is lost.

    Attributes:
        vbuckets: the vbuckets of the session; empty for all.
        over: an event that ends the thread.
        problem: the last problem, for messages.
    """

    def __init__(self, nodes: TapNodes, address: Address, vbuckets: tuple[int, ...]) -> None:
        super().__init__(name=f"tap of {address}", daemon=True)
        self.address: Address = address
        self.vbuckets: tuple[int, ...] = vbuckets
        self.over: threading.Event = threading.Event()
        self.problem: str = "nothing came yet"
        self._nodes = nodes

    def run(self) -> None:
        """Listen until `over` is set."""
        self._nodes.listen(self)

    def listen_once(self) -> None:
        """Connect, and pass messages to `take` until the connection is lost."""
        nodes = self._nodes
        settings = _settings_of_one(nodes.settings, self.address)
        options = replace(nodes.options, vbuckets=self.vbuckets)
        with TapStream(settings, options, patience_seconds=0) as stream:
            while not self.over.is_set():
                try:
                    message = stream.next(timeout_seconds=TICK_SECONDS)
                except HeadwaterError as problem:
                    self.problem = str(problem)  # tried again
                    return
                if message is not None:
                    nodes.heard(self.address, message)

    def change(self, vbuckets: tuple[int, ...]) -> None:
        """Let the session follow other vbuckets.

        If there is no session at the moment, or the node is away, the next look tries again; a session that begins
        meanwhile has the new list already.
        """
        # The new list goes in first: a session that is made again meanwhile is asked for with it.
        before, self.vbuckets = self.vbuckets, vbuckets
        nodes = self._nodes
        try:
            answer = blocking.run(self._ask_for(vbuckets), nodes.settings.clock)
        except HeadwaterError:
            self.vbuckets = before
        else:
            if answer.status != Status.SUCCESS:
                self.vbuckets = before

    def _ask_for(self, vbuckets: Iterable[int]) -> Steps[Frame]:
        settings = self._nodes.settings
        request = ChangeFilter(key=self._nodes.options.name, checkpoints=[(vb, 0) for vb in vbuckets])
        link = Link(self.address, settings.clock, settings.target.tls)
        try:
            yield from link.open(settings.login, settings.connect_timeout_seconds)
            return (yield from link.ask(Frame.decode(request.encode()), settings.clock() + settings.timeout_seconds))
        finally:
            link.close()


def _settings_of_one(settings: ConnectSettings, address: Address) -> ConnectSettings:
    return replace(settings, target=replace(settings.target, seeds=(address,)))
