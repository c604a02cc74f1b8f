"""Small commands: NOOP, VERSION, VERBOSITY, QUIT, FLUSH, traffic and persistence switches (kv.md 1.6, 3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.errors import StorageError
from headwater.node.kv.command import handles
from headwater.node.kv.vbuckets import IF_GONE, moving, undecided
from headwater.node.refused import CommandRefused, NoRoom
from headwater.wire import admin, bootstrap, documents, times
from headwater.wire.layout import Done
from headwater.wire.privilege import ADMINISTER
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.kv.api import BucketCatalog, Session

VERSION_TEXT = b"7.6.0-0000-headwater"
"""The version text. It begins with digits, of 5.5 or more; otherwise clients omit features or refuse the node
(interop.md 4, rule 4)."""

FLUSH_PARAMETERS = 1
LIMIT_DIGITS_MAX = 18


@handles(bootstrap.Noop)
def noop(session: Session, request: bootstrap.Noop) -> Done:
    """Answer NOOP, without any effect; request and answer are empty."""
    return Done()


@handles(bootstrap.Version)
def version(session: Session, request: bootstrap.Version) -> bootstrap.VersionResponse:
    """Return the version text."""
    return bootstrap.VersionResponse(value=VERSION_TEXT)


@handles(bootstrap.Verbosity)
def verbosity(session: Session, request: bootstrap.Verbosity) -> Done:
    """Accept the request and do nothing; the log level is one of the node's settings."""
    return Done()


@handles(bootstrap.Quit)
def quit_(session: Session, request: bootstrap.Quit) -> Done:
    """Close the connection: after an answer to QUIT, without one to QUITQ."""
    session.finish()
    return Done()


@handles(documents.Flush, writes=True, frees=True)
def flush(session: Session, request: documents.Flush) -> Done:
    """Answer FLUSH: delete every document of every active vbucket, at once or after a delay. Each deletion is a change,
    so streams send it.

    The modern server has retired the command (0x83); memcached clients still need it. The delay is relative or
    absolute, like an expiry.

    Raises:
        NoRoom: some deletions had no room; the request must be handled again.
    """
    bucket = session.store_bucket
    bucket.counters["cmd_flush"] += 1
    at = times.absolute_expiry(request.expiration or 0, bucket.now())
    if at > bucket.now():
        session.server.flush_later(at)
        session.server.record(session, f"had bucket {bucket.name!r} flushed at {at}")
        return Done()
    check_decided(session)
    if not bucket.flush():
        session.wrote()
        # The deletions so far are staged; after the commit, the request is handled again for the other documents.
        raise NoRoom
    session.server.record(session, f"flushed bucket {bucket.name!r}")
    session.wrote()
    return Done()


def check_decided(session: Session) -> None:
    """Refuse a flush while another node may own some vbuckets, or a vbucket is being handed over: the flush would not
    delete their documents, which would be visible again afterwards.
    """
    if waiting := undecided(session.server):
        cause = f"nothing is deleted: {len(waiting)} vbuckets may belong to another node by now; {IF_GONE}"
        raise CommandRefused(Status.ETMPFAIL, cause)
    if (vb := moving(session.store_bucket)) is not None:
        raise CommandRefused(Status.ETMPFAIL, f"nothing is deleted: vbucket {vb} is being handed over")


@handles(admin.EnableTraffic, admin.DisableTraffic)
def traffic(session: Session, request: admin.EnableTraffic | admin.DisableTraffic) -> Done:
    """Enable or disable traffic; while it is disabled, document commands answer ETMPFAIL."""
    session.store_bucket.traffic_disabled = isinstance(request, admin.DisableTraffic)
    return Done()


@handles(admin.StartPersistence)
def start_persistence(session: Session, request: admin.StartPersistence) -> Done:
    """Answer START_PERSISTENCE with success, because persistence can't be stopped on this node."""
    return Done()


@handles(admin.SetParam, lasts=True)
async def set_param(session: Session, request: admin.SetParam) -> Done:
    """Answer SET_PARAM: set a limit of the selected bucket. The parameters are those of Couchbase's tools, in the group
    flush; there are no others:

    * `max_size`: the quota in bytes; 0 for none;
    * `history_retention_seconds`, `history_retention_bytes`: how long, and how many bytes of, superseded versions are
      kept;
    * `history_retention_collection_default`: 1 if new collections have a history, otherwise 0.

    They take disk space from other buckets, so the user must administer all buckets.
    """
    limit = _LIMITS.get(request.key) if request.param_type == FLUSH_PARAMETERS else None
    if limit is None:
        names = ", ".join(each.decode() for each in _LIMITS)
        raise CommandRefused(Status.EINVAL, f"no such parameter: of flush (1) there are {names}")
    bucket, users = session.store_bucket, session.server.users
    if not users.rights(session.user, None) & ADMINISTER:
        session.server.audit(session, f"may not change {limit.noun}: that needs administer in all buckets")
        raise CommandRefused(Status.EACCESS, f"{limit.noun} is the business of who administers all buckets")
    number = _number(request, limit)
    try:
        await limit.set(session.server.catalog, bucket, number)
    except StorageError as error:
        raise CommandRefused(Status.ETMPFAIL, str(error)) from None
    session.server.record(session, f"gave bucket {bucket.name!r} {limit.noun} of {number} {limit.unit}")
    return Done()


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit of a bucket that SET_PARAM can set.

    Attributes:
        noun: the description of the limit, for messages.
        unit: the unit of its numbers, for messages.
        step: a valid number is a multiple of this.
        set: sets the limit.
    """

    noun: str
    unit: str
    step: int
    set: Callable[[BucketCatalog, Bucket, int], Awaitable[None]]


async def _give_collections_history(catalog: BucketCatalog, bucket: Bucket, number: int) -> None:
    if number > 1:
        raise CommandRefused(Status.EINVAL, "new collections have a history, 1, or none, 0")
    await catalog.give_collections_history(bucket, history=bool(number))


_LIMITS = {
    b"max_size": _Limit(
        "a quota", "bytes", 1 << 20, lambda catalog, bucket, size: catalog.set_quota(bucket, size >> 20)
    ),
    b"history_retention_seconds": _Limit(
        "a history", "seconds", 1, lambda catalog, bucket, age: catalog.keep_history(bucket, seconds=age)
    ),
    b"history_retention_bytes": _Limit(
        "a history", "bytes", 1, lambda catalog, bucket, size: catalog.keep_history(bucket, size=size)
    ),
    b"history_retention_collection_default": _Limit(
        "a history for new collections", "(1: yes, 0: no)", 1, _give_collections_history
    ),
}


def _number(request: admin.SetParam, limit: _Limit) -> int:
    value = request.value
    if not value.isdigit() or len(value) > LIMIT_DIGITS_MAX or (number := int(value)) % limit.step:
        whole = ", whole MiB" if limit.step > 1 else ", whole and not below 0"
        raise CommandRefused(Status.EINVAL, f"{limit.noun} is a number of {limit.unit}{whole}")
    return number
