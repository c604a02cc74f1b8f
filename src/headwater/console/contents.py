"""The pages of what a cluster holds: the collections of the bucket, and the buckets. Their forms ask for work."""

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
    """A bucket, and how much its files may take on each node; `problem`: why that is not known."""

    name: str
    rooms: tuple[str, ...] = ()
    problem: str = ""


async def collections(request: Request) -> Response:
    """The scopes and collections of the bucket, and the forms that make and drop them."""
    desk = desk_of(request)
    manifest, problem, status = None, "", 200
    try:
        async with desk.members() as members:
            manifest = await known_collections.current(members, desk.lookout.dialled())
    except HeadwaterError as error:
        problem, status = plain(error), status_of(error)
    rows = [each for scope in manifest.scopes for each in scope.collections] if manifest else []
    told = {"manifest": manifest, "rows": rows, "problem": problem, "rights": await desk.rights()}
    return desk.render(request, "collections.html", {"title": "Collections"} | told, status)


async def buckets(request: Request) -> Response:
    """The buckets and their quotas, and the forms that make, limit and drop them."""
    desk = desk_of(request)
    rows: Sequence[BucketRow] = ()
    problem, status = "", 200
    try:
        async with desk.members() as members:
            seeds = desk.lookout.dialled()
            names = await known_buckets.names(members, seeds)
            rows = await asyncio.gather(*(_row(members, seeds, each) for each in names))
    except HeadwaterError as error:
        problem, status = plain(error), status_of(error)
    told = {"rows": rows, "problem": problem, "rights": await desk.rights()}
    return desk.render(request, "buckets.html", {"title": "Buckets"} | told, status)


async def _row(members: Members, seeds: Sequence[Address], name: str) -> BucketRow:
    try:
        told = await known_buckets.quotas(members, seeds, name)
    except HeadwaterError as error:
        return BucketRow(name, problem=f"Its quota is not known: {plain(error)}.")
    rooms = [f"{mib:,} MiB" if mib else "the disk" for mib in told.values()]
    if len(set(rooms)) == 1:
        return BucketRow(name, (rooms[0],))
    return BucketRow(name, tuple(f"{node}: {room}" for node, room in zip(told, rooms, strict=True)))
