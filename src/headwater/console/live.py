"""The pages that move: streams, rates, the tail; and the server-sent events that update them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from headwater.client.routing import Address
from headwater.cluster import streams as reading
from headwater.cluster.answers import FollowingReport
from headwater.cluster.streams import ConnectionRow
from headwater.console import figures
from headwater.console import tail as tailing
from headwater.console.desk import Desk, desk_of
from headwater.console.lookout import STREAMS_SECONDS, TimedAnswer, plain
from headwater.console.rates import MEASURES, TICK_SECONDS
from headwater.errors import HeadwaterError

TAILS_MAX = 4
"""The most open tails: a browser opens six connections for all tabs, and other pages need some."""
CONNECTIONS_SHOWN_MAX = 32
STREAMS_SHOWN_MAX = 50
"""The most streams of one connection that the page shows."""
FOLLOWED_SHOWN_MAX = 50
"""The most producers of one node that the page shows."""


async def streams(request: Request) -> Response:
    """Show the DCP and TAP connections of each node and their lag, a page at a time."""
    desk = desk_of(request)
    latest = await desk.lookout.look()
    groups = await desk.lookout.groups_by_node(("dcp", "tap", "replication"), STREAMS_SECONDS)
    # Thousands of streams take a while to read, in which the other pages go on.
    nodes = await asyncio.to_thread(_nodes, groups)
    rows = [row for node in nodes for row in node.rows]
    part = figures.paged(rows, figures.page_of(request.query_params), CONNECTIONS_SHOWN_MAX)
    rows_by_node: dict[Address, list[ConnectionRow]] = {}
    for row in part.rows:
        rows_by_node.setdefault(row.node, []).append(row)
    context = {
        "title": "Streams",
        "said": latest,
        "nodes": nodes,
        "part": part,
        "shown": rows_by_node,
        "streams_max": STREAMS_SHOWN_MAX,
        "followed_max": FOLLOWED_SHOWN_MAX,
    }
    return desk.render(request, "streams.html", context)


@dataclass(frozen=True, slots=True)
class _NodeStreams:
    """The connections of one node, and the nodes that it follows; those in trouble first."""

    address: Address
    said: TimedAnswer[Mapping[str, str]]
    rows: list[ConnectionRow]
    followed: list[FollowingReport]


def _nodes(groups: Mapping[str, Mapping[Address, TimedAnswer[Mapping[str, str]]]]) -> list[_NodeStreams]:
    nodes = []
    for address, dcp in groups["dcp"].items():
        rows = reading.connections(address, dcp.answer or {}, groups["tap"][address].answer or {})
        followed = reading.followed(groups["replication"][address].answer or {})
        nodes.append(_NodeStreams(address, dcp, rows, followed))
    return nodes


async def rates(request: Request) -> Response:
    """Show the charts, whose points arrive as events."""
    context = {"title": "Rates", "measures": MEASURES, "seconds": TICK_SECONDS}
    return desk_of(request).render(request, "rates.html", context)


async def tail(request: Request) -> Response:
    """Show the form of the filter, and the table that events fill."""
    desk = desk_of(request)
    fields = request.query_params
    context = {"title": "Tail", "asked": fields, "kinds": tuple(tailing.KINDS), "rights": await desk.rights()}
    return desk.render(request, "tail.html", context)


async def rate_events(request: Request) -> Response:
    """Send the existing points as events, then each new one."""
    return _events(_points(desk_of(request)))


async def _points(desk: Desk) -> AsyncIterator[str]:
    yield event("history", [point.to_json() for point in desk.rates.points])
    async for point in desk.rates.follow():
        yield event("point", point.to_json())


async def tail_events(request: Request) -> Response:
    """Send the changes that pass a filter, as events."""
    return _events(_changes(desk_of(request), dict(request.query_params)))


async def _changes(desk: Desk, fields: dict[str, str]) -> AsyncIterator[str]:
    if desk.tails >= TAILS_MAX:
        yield event("end", {"why": f"{TAILS_MAX} tails are open already; close one of them"})
        return
    desk.tails += 1
    try:
        client = await desk.client()
        filter_ = tailing.TailFilter.of(fields, client.map.vbuckets)
        async with aclosing(tailing.follow(client, filter_)) as deliveries:
            async for delivery in deliveries:
                if desk.is_ending:
                    return
                yield event("changes", delivery.to_json())
    except HeadwaterError as error:
        yield event("end", {"why": plain(error)})
    finally:
        desk.tails -= 1


def event(name: str, data: Any) -> str:
    """Return one server-sent event; JSON has no line ends, so its data is one line."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _events(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")
