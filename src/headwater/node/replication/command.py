"""IOCTL_SET: telling a node whom its vbuckets follow.

    key "replicate"        value {"from": "host:port/bucket", "vbuckets": "0-3,7", "takeover": false,
                                  "user": "...", "password": "..."}
    key "replicate.stop"   value {"from": "host:port/bucket", "vbuckets": "0-3,7"}

"vbuckets" left out means all that the node has (or, to stop, all that follow). A vbucket that is not here is made, as a
replica; one that is active is refused with EINVAL, and then nothing happens. The answer means "understood": STAT
replication tells how far it is. A private use of an opcode that the specification leaves to each server; see
docs/replication.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headwater.node.kv.command import Part, Refused, Reply, command
from headwater.node.replication.dialer import Dialer, Source
from headwater.wire.dcp import StreamFlag
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket
    from headwater.node.kv.session import KvSession
    from headwater.node.server import Server

START, STOP = b"replicate", b"replicate.stop"
_KEYS = {START: {"from", "vbuckets", "takeover", "user", "password"}, STOP: {"from", "vbuckets"}}
_SOURCE = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\s]+):(?P<port>[0-9]{1,5})(?:/(?P<bucket>[^/\s]+))?")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


class Replication:
    """The producers that this node follows by calls of its own, by address and bucket."""

    def __init__(self, server: Server) -> None:
        self.dialers: dict[tuple[str, int, str], Dialer] = {}
        self._server = server
        server.bucket.stat_groups["replication"] = self.stats
        server.bucket.on_owned.append(self._owned)

    def start(self, source: Source, vbuckets: list[int], *, takeover: bool) -> None:
        """Let vbuckets follow a producer; those that follow another one by our call leave it."""
        key = (source.host, source.port, source.bucket)
        for other, dialer in self.dialers.items():
            if other != key:
                dialer.leave(vb for vb in vbuckets if vb in dialer.wanted)
        if key not in self.dialers or self.dialers[key].source != source:
            if (before := self.dialers.get(key)) is not None:
                vbuckets = sorted({*vbuckets, *before.wanted})
                before.stop()
            self.dialers[key] = Dialer(self._server, source)
        self.dialers[key].follow(vbuckets, StreamFlag.TAKEOVER if takeover else StreamFlag(0))

    def leave(self, source: Source, vbuckets: list[int] | None) -> bool:
        """Let vbuckets (None: all) follow a producer no more; what they hold stays. False if none was ever called."""
        dialer = self.dialers.get((source.host, source.port, source.bucket))
        if dialer is not None:
            dialer.leave(tuple(dialer.wanted) if vbuckets is None else vbuckets)
        return dialer is not None

    def _owned(self, vb: int) -> None:
        for dialer in self.dialers.values():
            dialer.forget(vb)

    def wants(self, vb: int) -> bool:
        """Whether a vbucket follows anybody, or is about to."""
        return any(vb in dialer.wanted for dialer in self.dialers.values())

    def stop(self) -> None:
        """The node stops."""
        for dialer in self.dialers.values():
            dialer.stop()

    def stats(self, _: list[str]) -> Iterable[tuple[str, str]]:
        """STAT replication: each producer, and the vbuckets that follow it."""
        for dialer in self.dialers.values():
            for name, value in dialer.stats():
                yield f"{dialer.source}:{name}", value


@command(Opcode.IOCTL_SET, key=Part.REQUIRED, value=Part.ANY, writes=True)
def ioctl_set(session: KvSession, frame: Frame) -> Reply:
    """Start or stop following a producer."""
    if frame.key not in _KEYS:
        raise Refused(Status.EINVAL, f"the keys are {START.decode()} and {STOP.decode()}")
    asked, bucket, replication = _properties(frame), session.store_bucket, session.server.replication
    source = _source(asked, bucket.name)
    if frame.key == STOP:
        named = _vbuckets(asked["vbuckets"], bucket.vbucket_count) if "vbuckets" in asked else None
        held = session.server.membership.hold(source.host, source.port, named)
        if not replication.leave(source, named) and not held:
            raise Refused(Status.KEY_ENOENT, f"nothing follows {source}")
        return Reply()
    wanted = _vbuckets(asked["vbuckets"], bucket.vbucket_count) if "vbuckets" in asked else sorted(bucket.vbuckets)
    _make_replicas(bucket, wanted)
    session.wrote()
    session.server.membership.following.by_hand(wanted)
    replication.start(source, wanted, takeover=bool(asked.get("takeover", False)))
    return Reply()


def _make_replicas(bucket: Bucket, wanted: list[int]) -> None:
    active = [vb for vb in wanted if bucket.state(vb) is State.ACTIVE]
    if active:
        raise Refused(Status.EINVAL, f"vbucket {active[0]} is active here: make it a replica first")
    for vb in wanted:
        if vb not in bucket.vbuckets:
            bucket.create_vbucket(vb, State.REPLICA)


def _properties(frame: Frame) -> dict[str, Any]:
    try:
        found = json.loads(frame.value)
    except (ValueError, RecursionError):
        raise Refused(Status.EINVAL, "the value is not JSON") from None
    if not isinstance(found, dict) or not set(found) <= _KEYS[frame.key]:
        raise Refused(Status.EINVAL, f"the value is an object of {', '.join(sorted(_KEYS[frame.key]))}")
    if not isinstance(found.get("takeover", False), bool):
        raise Refused(Status.EINVAL, "takeover is true or false")
    return found


def _source(asked: dict[str, Any], own_bucket: str) -> Source:
    match = _SOURCE.fullmatch(str(asked.get("from", "")))
    user, password = asked.get("user"), asked.get("password")
    if match is None or not 0 < int(match["port"]) < 65536:
        raise Refused(Status.EINVAL, "from is host:port/bucket, the bucket may be left out")
    if not all(each is None or isinstance(each, str) for each in (user, password)):
        raise Refused(Status.EINVAL, "user and password are texts")
    return Source(match["host"].strip("[]"), int(match["port"]), match["bucket"] or own_bucket, user, password)


def _vbuckets(text: object, count: int) -> list[int]:
    """The vbuckets of a list such as 0-3,7."""
    found: set[int] = set()
    for part in str(text).split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or not int(match[1]) <= int(match[2] or match[1]) < count:
            raise Refused(Status.EINVAL, f"vbuckets is a list such as 0-3,7 of 0 to {count - 1}")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(found)
