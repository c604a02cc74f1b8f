"""The commands that create, drop and list the buckets of a node (kv.md 1.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headwater.errors import StorageError
from headwater.node.buckets.catalog import NewBucket
from headwater.node.kv.answering import settle
from headwater.node.kv.command import handles
from headwater.node.refused import CommandRefused
from headwater.wire.bootstrap import CreateBucket, DeleteBucket, ListBuckets, ListBucketsResponse
from headwater.wire.layout import Done
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Session

CONFIG_BYTES_MAX: Final = 4096
_NUMBERS: Final = {"vbuckets": "vbuckets", "max_vbuckets": "vbuckets", "quota_mib": "quota_mib"}


@handles(ListBuckets)
def list_buckets(session: Session, request: ListBuckets) -> ListBucketsResponse:
    """Answer LIST_BUCKETS with the names of the buckets in which the user has any right, separated by blanks."""
    server = session.server
    names = [name for name in server.buckets if server.users.may_enter(session.user, name)]
    return ListBucketsResponse(value=" ".join(names).encode())


@handles(CreateBucket, of_node=True, lasts=True, value_bytes_max=CONFIG_BYTES_MAX)
async def create_bucket(session: Session, request: CreateBucket) -> Done:
    """Answer CREATE_BUCKET: create a bucket, which is durable and served before the answer is sent."""
    try:
        await session.server.catalog.create(asked_of(request.key, request.value))
    except StorageError as error:
        raise CommandRefused(Status.ETMPFAIL, str(error)) from None
    session.server.record(session, f"made bucket {request.key.decode()!r}")
    return Done()


@handles(DeleteBucket, of_node=True, lasts=True, value_bytes_max=CONFIG_BYTES_MAX)
async def delete_bucket(session: Session, request: DeleteBucket) -> Done:
    """Answer DELETE_BUCKET: drop a bucket with all of its documents. Couchbase's option `force=true` has no effect
    here.
    """
    name = request.key.decode("utf-8", "replace")
    if request.value not in (b"", b"force=true", b"force=false"):
        raise CommandRefused(Status.EINVAL, "the value is empty, force=true or force=false")
    buckets = session.server.buckets
    first, selected = next(iter(buckets.values())), None
    if buckets.get(name) is session.server is not first:  # else the drop would close this connection before the answer
        selected = session.server.bucket
        await settle(session)
        session.select(first)
        session.deselect()
    try:
        await session.server.catalog.drop(name, selected)
    except StorageError as error:
        raise CommandRefused(Status.ETMPFAIL, str(error)) from None
    session.server.record(session, f"dropped bucket {name!r}")
    return Done()


def asked_of(key: bytes, value: bytes) -> NewBucket:
    """Return the wish in a request to create a bucket. The request's value is `module 00 name=value;...`; the module is
    ignored.

    Names are `vbuckets` (or `max_vbuckets`), `quota_mib`, and `state`: `active`, or `none` for a bucket without
    vbuckets, for a node that will join a cluster.

    Raises:
        CommandRefused: EINVAL, a name or value is invalid.
    """
    options: dict[str, Any] = {}
    for each in filter(None, value.partition(b"\0")[2].decode("utf-8", "replace").split(";")):
        name, _, text = each.partition("=")
        if name in _NUMBERS and text.isascii() and text.isdecimal() and len(text) < 10:
            options[_NUMBERS[name]] = int(text)
        elif name == "state" and text in ("active", "none"):
            options["is_empty"] = text == "none"
        else:
            raise CommandRefused(Status.EINVAL, f"{each!r}: known are vbuckets=N, quota_mib=N and state=active or none")
    try:
        return NewBucket(key.decode(), **options)
    except UnicodeDecodeError:
        raise CommandRefused(Status.EINVAL, "the name is not UTF-8") from None
