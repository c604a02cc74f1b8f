"""STAT dcp-vbtakeover VB NAME: how far the stream of a vbucket to a connection is, which is what a mover watches.

The keys are those of failover.md 5. Nothing here is in checkpoints, so `chk_items` is what waits in memory: all that
is still to be sent once the backfill is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headwater.kernels import index
from headwater.node.kv.command import Refused
from headwater.node.streams.session import DcpSession
from headwater.node.streams.stream import Phase
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.dcp import DcpHub
    from headwater.node.streams.stream import Stream
    from headwater.node.vbucket.vbucket import VBucket

VBUCKET_DIGITS_MAX = 5
_STATUS = {Phase.BACKFILLING: "backfilling", Phase.DEAD: "stream_is_dead"}
"""What is neither is "in-memory"."""


def takeover_stats(hub: DcpHub, arguments: list[str]) -> Iterable[tuple[str, str]]:
    """The group; `arguments` are the vbucket and the words of the connection's name.

    Raises:
        Refused: EINVAL without a number and a name, NOT_MY_VBUCKET if the vbucket is not here.
    """
    vbucket, name = _asked(hub, arguments)
    session = hub.sessions.get(name.encode("latin-1", "replace"))
    found = None
    if isinstance(session, DcpSession):
        found = next((each for each in session.streams.values() if each.vbucket is vbucket), None)
    yield "name", name
    yield "vb_items", str(hub.bucket.store.items(vbucket.id))
    yield "on_disk_deletes", str(_deletions(hub, vbucket))
    if found is not None:
        yield from _of_stream(found)
    else:
        yield from _without_stream(hub, vbucket, "connection" if session is None else "stream")


def _asked(hub: DcpHub, arguments: list[str]) -> tuple[VBucket, str]:
    number, *words = arguments or [""]
    if not (number.isascii() and number.isdecimal() and len(number) <= VBUCKET_DIGITS_MAX and words):
        raise Refused(Status.EINVAL, "the arguments are a vbucket and the name of a connection")
    vbucket = hub.bucket.vbuckets.get(int(number))
    if vbucket is None:
        raise Refused(Status.NOT_MY_VBUCKET)
    return vbucket, " ".join(words)


def _of_stream(stream: Stream) -> Iterable[tuple[str, str]]:
    left = stream.items_remaining
    backfilling = stream.phase is Phase.BACKFILLING
    yield "status", _STATUS.get(stream.phase, "in-memory")
    yield "estimate", str(left)
    yield "backfillRemaining", str(left if backfilling else 0)
    yield "chk_items", str(0 if backfilling else left)


def _without_stream(hub: DcpHub, vbucket: VBucket, missing: str) -> Iterable[tuple[str, str]]:
    """All of the vbucket is still to be sent."""
    yield "status", f"{missing}_does_not_exist"
    yield "estimate", str(hub.bucket.store.items(vbucket.id) + _deletions(hub, vbucket))
    yield "backfillRemaining", "0"
    yield "chk_items", "0"


def _deletions(hub: DcpHub, vbucket: VBucket) -> int:
    """Keys whose newest version is a tombstone."""
    row = hub.bucket.store.table[vbucket.id]
    return int(row[index.KEYS]) - int(row[index.ITEMS])
