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
"""Digits first, and at least 5.5, or clients leave out features or refuse to talk (interop.md 4, rule 4)."""

FLUSH_PARAMETERS = 1
LIMIT_DIGITS_MAX = 18


@handles(bootstrap.Noop)
def noop(session: Session, request: bootstrap.Noop) -> Done:
    """Answer a no-op; request and answer are empty."""
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
    """QUIT: answer, then close. QUITQ: close."""
    session.finish()
    return Done()


@handles(documents.Flush, writes=True, frees=True)
def flush(session: Session, request: documents.Flush) -> Done:
    """Delete every document of every active vbucket, as deletions, so that streams see them; at once or after a delay.

    Retired in the modern server (0x83); kept here for memcached clients. The delay is relative or absolute like an
    expiry.
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
        # The deletions so far are staged; the request is handled again after the commit, and finds fewer documents
        # left.
        raise NoRoom
    session.server.record(session, f"flushed bucket {bucket.name!r}")
    session.wrote()
    return Done()


def check_decided(session: Session) -> None:
    """Refuse a flush while another node may own vbuckets, or a vbucket is handed over: their documents would not be
    deleted, and would be visible again afterwards.
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
    """Answer success: persistence can't be stopped here."""
    return Done()


@handles(admin.SetParam, lasts=True)
async def set_param(session: Session, request: admin.SetParam) -> Done:
    """Set a limit of the selected bucket: `max_size` of the group flush, its quota in bytes;
    `history_retention_seconds` and `history_retention_bytes`, its retention of superseded versions; 0 for none; or
    `history_retention_collection_default`, 1 if new collections have a history, else 0. These are the names of
    Couchbase's tools.

    There are no other parameters. A user who administers only this bucket may not change them: they take disk space
    from other buckets.
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
    """A limit of a bucket: its description, the unit of its numbers, which must be multiples of `step`, and the
    function that sets it.
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
        "a quota", "bytes", 1 << 20, lambda catalog, bucket, size: catalog.set_quota(bucket.name, size >> 20)
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
