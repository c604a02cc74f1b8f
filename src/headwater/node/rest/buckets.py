"""The HTTP pages that make and drop buckets, as SDKs ask for it.

Of a form only the name is used, and `quotaMiB` and `vbuckets`, which are ours: settings of the other server about
memory, replicas and eviction have no counterpart in a node, and are taken without effect.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from headwater.errors import StorageError
from headwater.node.buckets.catalog import NewBucket
from headwater.node.refused import CommandRefused
from headwater.node.rest.made import Made
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Services

__all__ = ["create", "drop"]

_STATUS: dict[int, int] = {Status.KEY_ENOENT: 404}
_OF_SEVERAL = "Not allowed on this version of cluster: of several nodes, use headwater bucket, which tells all of them"


async def create(server: Services, _: tuple[str, ...], body: bytes) -> Made:
    """Make a bucket, on a node that is alone."""
    try:
        if _is_of_several(server):
            return _refused(_OF_SEVERAL, 400)
        await server.catalog.create(_asked(body))
    except CommandRefused as refused:
        if refused.status == Status.KEY_EEXISTS:  # SDKs look for these words
            return _refused("Bucket with given name already exists", 400)
        return _refused(refused.context, _STATUS.get(refused.status, 400))
    except StorageError as error:
        return _refused(str(error), 503)
    except ValueError as error:
        return _refused(str(error), 400)
    return Made(b"", 202)


async def drop(server: Services, _: tuple[str, ...], __: bytes) -> Made:
    """Drop a bucket, on a node that is alone."""
    try:
        if _is_of_several(server):
            return _refused(_OF_SEVERAL, 400)
        await server.catalog.drop(server.bucket.name)
    except CommandRefused as refused:
        return _refused(refused.context, _STATUS.get(refused.status, 400))
    except StorageError as error:
        return _refused(str(error), 503)
    return Made(b"", 200)


def _is_of_several(server: Services) -> bool:
    """Whether the node is one of a cluster with others, by the map of any of its buckets."""
    maps = (json.loads(each.cluster.config()) for each in server.buckets.values())
    return any(len(each.get("nodesExt", [])) > 1 for each in maps)


def _refused(why: str, status: int) -> Made:
    return Made(json.dumps({"errors": {"name": why, "_": why}}).encode(), status)


def _asked(body: bytes) -> NewBucket:
    """Read a form; ValueError if it can't be one."""
    form = {name: values[-1] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}
    numbers = {name: form.get(name, "") for name in ("quotaMiB", "vbuckets")}
    for name, told in numbers.items():
        if told and not (told.isascii() and told.isdecimal() and len(told) < 10):
            raise ValueError(f"{name} is a whole number")
    if form.get("bucketType", "membase") not in ("membase", "couchbase"):
        raise ValueError("a bucket of this node is of type couchbase: it has a disk")
    vbuckets = int(numbers["vbuckets"]) if numbers["vbuckets"] else None
    return NewBucket(form.get("name", ""), vbuckets, int(numbers["quotaMiB"] or 0))
