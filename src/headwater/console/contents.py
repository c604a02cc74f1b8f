"""The pages of a cluster's contents: the collections of the bucket, and the buckets. Their forms request work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from headwater.cluster import buckets as known_buckets
from headwater.cluster import collections as known_collections
from headwater.console.desk import desk_of, status_of
from headwater.console.lookout import plain
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["BucketRow", "buckets", "collections"]


@dataclass(frozen=True, slots=True)
class BucketRow:
    """A bucket with its quotas on the nodes.

    Attributes:
        rooms: the limit of its files' size on each node, in words.
        problem: why the limits are unknown; empty if they are known.
    """

    name: str
    rooms: tuple[str, ...] = ()
    problem: str = ""


async def collections(request: Request) -> Response:
    """Show the scopes and collections of the bucket, and the forms that create and drop them."""
    desk = desk_of(request)
    manifest, problem, status = None, "", 200
    try:
        async with desk.members() as members:
            manifest = await known_collections.current(members, desk.lookout.dialled())
    except HeadwaterError as error:
        problem, status = plain(error), status_of(error)
    rows = [collection for scope in manifest.scopes for collection in scope.collections] if manifest else []
    context = {"manifest": manifest, "rows": rows, "problem": problem, "rights": await desk.rights()}
    return desk.render(request, "collections.html", {"title": "Collections"} | context, status)


async def buckets(request: Request) -> Response:
    """Show the buckets and their quotas, and the forms that create, limit and drop them."""
    desk = desk_of(request)
    rows: Sequence[BucketRow] = ()
    problem, status = "", 200
    try:
        async with desk.members() as members:
            seeds = desk.lookout.dialled()
            names = await known_buckets.names(members, seeds)
            rows = await asyncio.gather(*(_row(members, seeds, name) for name in names))
    except HeadwaterError as error:
        problem, status = plain(error), status_of(error)
    context = {"rows": rows, "problem": problem, "rights": await desk.rights()}
    return desk.render(request, "buckets.html", {"title": "Buckets"} | context, status)


async def _row(members: Members, seeds: Sequence[Address], name: str) -> BucketRow:
    try:
        quotas = await known_buckets.quotas(members, seeds, name)
    except HeadwaterError as error:
        return BucketRow(name, problem=f"Its quota is not known: {plain(error)}.")
    rooms = [f"{mib:,} MiB" if mib else "the disk" for mib in quotas.values()]
    if len(set(rooms)) == 1:
        return BucketRow(name, (rooms[0],))
    return BucketRow(name, tuple(f"{node}: {room}" for node, room in zip(quotas, rooms, strict=True)))
