"""Streams and their lag, as STAT dcp, STAT tap and STAT replication tell them. No I/O.

The name of a connection is its client's choice and may hold anything, colons too: a statistic is what stands behind the
last one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.client.routing import Address
from headwater.cluster import answers
from headwater.cluster.answers import FollowingReport
from headwater.console.figures import number_of
from headwater.errors import RemoteProtocolError

DCP, TAP = "eq_dcpq:", "eq_tapq:"
STREAM = re.compile(r"stream_(\d{1,5})_(\w+)")


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One vbucket on one DCP connection; `remaining` is how many changes it has yet to be sent, None if not told."""

    vbucket: int
    state: str
    seqno: int | None
    remaining: int | None


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    """One connection as its node tells it; None for what it does not.

    Attributes:
        part: this node's part: producer or consumer. dialect: dcp or tap.
        backlog: changes that are yet to be sent on its open streams; worst: on the worst one.
        unacked, window: bytes that are sent and not acknowledged, and how many may be.
    """

    node: Address
    name: str
    dialect: str
    part: str
    peer: str
    count: int | None
    backlog: int | None
    worst: int | None
    unacked: int | None
    window: int | None
    paused: bool
    streams: tuple[StreamRow, ...] = field(default=())


def connections(node: Address, dcp: Mapping[str, str], tap: Mapping[str, str]) -> list[ConnectionRow]:
    """Return the connections that a node tells of; those with the most to send first."""
    found = [_dcp(node, name, told) for name, told in by_name(dcp, DCP).items()]
    found += [_tap(node, name, told) for name, told in by_name(tap, TAP).items()]
    return sorted(found, key=lambda row: (-(row.backlog or 0), row.name))


def by_name(stats: Mapping[str, str], prefix: str) -> dict[str, dict[str, str]]:
    """Return the statistics of each connection: PREFIX NAME:STATISTIC."""
    found: dict[str, dict[str, str]] = {}
    for line, value in stats.items():
        if line.startswith(prefix):
            name, _, statistic = line.removeprefix(prefix).rpartition(":")
            found.setdefault(name, {})[statistic] = value
    return found


def _dcp(node: Address, name: str, told: Mapping[str, str]) -> ConnectionRow:
    streams = _streams(told)
    left = [each.remaining for each in streams if each.remaining is not None]
    sends = told.get("type") == "producer"
    return ConnectionRow(
        node,
        name,
        "dcp",
        told.get("type", ""),
        told.get("peer", ""),
        number_of(told, "num_streams"),
        sum(left) if sends else None,
        max(left, default=0) if sends else None,
        number_of(told, "unacked_bytes"),
        number_of(told, "max_buffer_bytes"),
        told.get("paused") == "true",
        tuple(streams),
    )


def _streams(told: Mapping[str, str]) -> list[StreamRow]:
    found: dict[int, dict[str, str]] = {}
    for name, value in told.items():
        if parts := STREAM.fullmatch(name):
            found.setdefault(int(parts[1]), {})[parts[2]] = value
    rows = [
        StreamRow(
            vbucket,
            stats.get("state", ""),
            number_of(stats, "last_sent_seqno" if "last_sent_seqno" in stats else "last_received_seqno"),
            number_of(stats, "items_remaining"),
        )
        for vbucket, stats in found.items()
    ]
    return sorted(rows, key=lambda row: (-(row.remaining or 0), row.vbucket))


def _tap(node: Address, name: str, told: Mapping[str, str]) -> ConnectionRow:
    backlog = number_of(told, "total_backlog_size")
    filtered = told.get("vb_filter", "").split()
    return ConnectionRow(
        node,
        name,
        "tap",
        told.get("type", ""),
        "" if told.get("connected") == "true" else "waits for its client",
        len(filtered),
        backlog,
        None,
        None,
        None,
        told.get("suspended") == "true",
    )


def followed(stats: Mapping[str, str]) -> list[FollowingReport]:
    """Return whom a node follows by calls of its own; nobody where that can't be read."""
    try:
        return list(answers.following(stats).values())
    except (RemoteProtocolError, ValueError):
        return []
