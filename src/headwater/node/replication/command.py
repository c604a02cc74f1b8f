"""IOCTL_SET: a request to a node to make vbuckets follow another node.

    key "replicate"        value {"from": "host:port/bucket", "vbuckets": "0-3,7", "takeover": false,
                                  "user": "...", "password": "...", "tls": 11207}
    key "replicate.stop"   value {"from": "host:port/bucket", "vbuckets": "0-3,7"}
    key "lease"            see node/ownership/lease.py
    key "clock"            value {"cas": N}: give no change a CAS at or below N, as another member has promised
    key "users"            see node/kv/users.py

"tls" is the producer's port for TLS; if it is missing, the node connects to "from", without TLS. If "vbuckets" is
missing, the request is for all vbuckets of the node (or, to stop, for all that follow the producer). A missing vbucket
is created as a replica; if one of the vbuckets is active, the whole request fails with EINVAL. The answer only
acknowledges the request; STAT replication shows the progress. This is a private use of an opcode that the specification
leaves to each server; see docs/replication.md.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from headwater.errors import OptionError, StorageError
from headwater.node.calling import FollowProgress, ProducerAddress
from headwater.node.kv.command import handles
from headwater.node.kv.users import set_users
from headwater.node.ownership import lease
from headwater.node.refused import CommandRefused
from headwater.node.replication.dialer import Caller, Dialer
from headwater.node.users.sharing import KEY as USERS
from headwater.wire.admin import IoctlSet
from headwater.wire.dcp import StreamFlag
from headwater.wire.json_text import read_json
from headwater.wire.layout import Done
from headwater.wire.numbers import HELD_MAX
from headwater.wire.status import Status
from headwater.wire.users import LIST_BYTES_MAX
from headwater.wire.vbucket import State, vbucket_set

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.kv.api import Session

START, STOP, CLOCK = b"replicate", b"replicate.stop", b"clock"
_KEYS = {
    START: {"from", "vbuckets", "takeover", "user", "password", "tls"},
    STOP: {"from", "vbuckets"},
    lease.KEY: lease.PROPERTIES,
    CLOCK: {"cas"},
}
_SOURCE = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\s]+):(?P<port>[0-9]{1,5})(?:/(?P<bucket>[^/\s]+))?")


class Replication:
    """The producers to which this node connects.

    Attributes:
        dialers: the dialer of each producer, by host, port and bucket.
    """

    def __init__(self, server: Caller) -> None:
        self.dialers: dict[tuple[str, int, str], Dialer] = {}
        self._server = server
        server.bucket.stat_groups["replication"] = self.stats
        server.bucket.on_owned.append(self._owned)

    def start(self, source: ProducerAddress, vbuckets: list[int], *, takeover: bool) -> None:
        """Make vbuckets follow a producer; they leave any other producer that this node has connected to."""
        key = (source.host, source.port, source.bucket)
        for other, dialer in tuple(self.dialers.items()):
            if not dialer.wanted and other != key:
                del self.dialers[other]  # no vbucket follows this producer any more
            elif other != key:
                # First the vbuckets leave the other producer, because a vbucket has one inbound stream (dcp 2.2).
                dialer.leave(vb for vb in vbuckets if vb in dialer.wanted)
        if key not in self.dialers or self.dialers[key].source != source:
            if (before := self.dialers.get(key)) is not None:
                # The login or the TLS port has changed; the vbuckets of the old dialer follow with the new one.
                vbuckets = sorted({*vbuckets, *before.wanted})
                before.stop()
            self.dialers[key] = Dialer(self._server, source)
        self.dialers[key].follow(vbuckets, StreamFlag.TAKEOVER if takeover else StreamFlag(0))

    def leave(self, source: ProducerAddress, vbuckets: list[int] | None) -> bool:
        """Make vbuckets (None: all) stop following a producer; they keep their documents. Return False if this node has
        no dialer for the producer.
        """
        dialer = self.dialers.get((source.host, source.port, source.bucket))
        if dialer is not None:
            dialer.leave(tuple(dialer.wanted) if vbuckets is None else vbuckets)
        return dialer is not None

    def _owned(self, vb: int) -> None:
        for dialer in self.dialers.values():
            dialer.forget(vb)

    def wants(self, vbucket: int) -> bool:
        """Return True if a vbucket follows a producer, or is going to."""
        return any(vbucket in dialer.wanted for dialer in self.dialers.values())

    def following(self) -> Iterable[tuple[str, FollowProgress]]:
        """Return each producer (host:port/bucket), and the progress of the vbuckets that follow it."""
        return [(str(dialer.source), dialer.following()) for dialer in self.dialers.values() if dialer.wanted]

    def stop(self) -> None:
        """Stop following all producers, because the node stops."""
        for dialer in self.dialers.values():
            dialer.stop()

    def stats(self, arguments: list[str]) -> Iterable[tuple[str, str]]:
        """Return STAT replication: each producer, and the vbuckets that follow it; only one vbucket if `arguments`
        names it.
        """
        vbucket = _vbucket(arguments)
        for dialer in tuple(self.dialers.values()):
            for name, value in tuple(dialer.stats(vbucket)):
                yield f"{dialer.source}:{name}", value


@handles(IoctlSet, writes=True, frees=True, lasts=True, value_bytes_max=LIST_BYTES_MAX)
def ioctl_set(session: Session, request: IoctlSet) -> Done | Awaitable[Done]:
    """Answer IOCTL_SET, by its key: start or stop following a producer; take, keep or release the lease; take a list of
    users.
    """
    if request.key == USERS:
        return set_users(session, request.value)
    if request.key not in _KEYS:
        keys = b", ".join((*_KEYS, USERS)).decode()
        raise CommandRefused(Status.EINVAL, f"the keys are {keys}")
    properties, bucket, replication = _properties(request), session.store_bucket, session.server.replication
    if request.key == lease.KEY:
        session.server.lease.ask(session.connection, lease.read_asked(properties))
        return Done()
    if request.key == CLOCK:
        return _hold_clock(session, properties.get("cas"))
    source = _source(properties, bucket.name)
    if request.key == STOP:
        vbuckets = _vbuckets(properties["vbuckets"], bucket.vbucket_count) if "vbuckets" in properties else None
        held = session.server.membership.hold(source.host, source.port, vbuckets)
        if not replication.leave(source, vbuckets) and not held:
            raise CommandRefused(Status.KEY_ENOENT, f"nothing follows {source}")
        session.server.record(session, f"had vbuckets follow {source} no more", moves=True)
        return Done()
    numbers = (
        _vbuckets(properties["vbuckets"], bucket.vbucket_count) if "vbuckets" in properties else sorted(bucket.vbuckets)
    )
    _make_replicas(bucket, numbers)
    # The answer waits for the records of the new replicas: after a crash without them, nothing would follow the
    # producer.
    session.wrote()
    session.server.membership.by_hand(numbers)
    replication.start(source, numbers, takeover=bool(properties.get("takeover", False)))
    session.server.record(session, f"had {len(numbers)} vbuckets follow {source}", moves=True)
    return Done()


async def _hold_clock(session: Session, cas: object) -> Done:
    if isinstance(cas, bool) or not isinstance(cas, int) or not 0 <= cas < HELD_MAX:
        raise CommandRefused(Status.EINVAL, "cas is a number below the highest CAS of all")
    try:
        await session.store_bucket.clock_floor.promise(cas)
    except StorageError as error:
        raise CommandRefused(Status.ETMPFAIL, str(error)) from None
    session.server.record(session, f"had the clock hold {cas}", moves=True)
    return Done()


def _make_replicas(bucket: Bucket, numbers: list[int]) -> None:
    # All are checked before any is created, because a refused request must change nothing.
    active = [vb for vb in numbers if bucket.state(vb) is State.ACTIVE]
    if active:
        raise CommandRefused(Status.EINVAL, f"vbucket {active[0]} is active here: make it a replica first")
    for vb in numbers:
        if vb not in bucket.vbuckets:
            bucket.create_vbucket(vb, State.REPLICA)


def _properties(request: IoctlSet) -> dict[str, Any]:
    try:
        content = read_json(request.value)
    except ValueError as error:
        raise CommandRefused(Status.EINVAL, f"the value is not JSON: {error}") from None
    if not isinstance(content, dict) or not set(content) <= _KEYS[request.key]:
        raise CommandRefused(Status.EINVAL, f"the value is an object of {', '.join(sorted(_KEYS[request.key]))}")
    if not isinstance(content.get("takeover", False), bool):
        raise CommandRefused(Status.EINVAL, "takeover is true or false")
    return content


def _source(properties: dict[str, Any], own_bucket: str) -> ProducerAddress:
    match = _SOURCE.fullmatch(str(properties.get("from", "")))
    user, password = properties.get("user"), properties.get("password")
    if match is None or not 0 < int(match["port"]) < 65536:
        raise CommandRefused(Status.EINVAL, "from is host:port/bucket, the bucket may be left out")
    if not all(each is None or isinstance(each, str) for each in (user, password)):
        raise CommandRefused(Status.EINVAL, "user and password are texts")
    tls_port = properties.get("tls")
    if tls_port is not None and not (isinstance(tls_port, int) and 0 < tls_port < 65536):
        raise CommandRefused(Status.EINVAL, "tls is the port on which to call it by TLS")
    host, bucket = match["host"].strip("[]"), match["bucket"] or own_bucket
    return ProducerAddress(host, int(match["port"]), bucket, user, password, tls_port)


def _vbucket(arguments: list[str]) -> int | None:
    """Return the vbucket that the arguments of STAT name; None if there are no arguments, which means all vbuckets."""
    if not arguments:
        return None
    if len(arguments) > 1 or not (arguments[0].isascii() and arguments[0].isdecimal() and len(arguments[0]) <= 5):
        raise CommandRefused(Status.EINVAL, "the argument is a vbucket")
    return int(arguments[0])


def _vbuckets(text: object, count: int) -> list[int]:
    try:
        return list(vbucket_set(str(text), count))
    except OptionError as error:
        raise CommandRefused(Status.EINVAL, str(error)) from None
