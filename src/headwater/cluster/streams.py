"""Streams and their lag, by STAT dcp, STAT tap and STAT replication. No I/O.

A client may choose any name for its connection, with colons too: a statistic's name comes after the last colon.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.client.routing import Address
from headwater.cluster import answers
from headwater.cluster.answers import FollowingReport, number_of
from headwater.errors import RemoteProtocolError

DCP, TAP = "eq_dcpq:", "eq_tapq:"
STREAM = re.compile(r"stream_(\d{1,5})_(\w+)")


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One vbucket on one DCP connection. `seqno` is the last one that was sent or received, and `remaining` the number
    of changes still to send; None if unknown.
    """

    vbucket: int
    state: str
    seqno: int | None
    remaining: int | None


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    """One connection, as its node reports it; None for missing facts.

    Attributes:
        dialect: dcp or tap. part: the node's role: producer or consumer. count: the number of its vbuckets.
        backlog: changes still to send on its open streams. worst: those on the stream with the most.
        unacked: the sent and unacknowledged bytes. window: their limit.
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
    """Return a node's connections, those with the largest backlog first."""
    rows = [_dcp_row(node, name, stats) for name, stats in by_name(dcp, DCP).items()]
    rows += [_tap_row(node, name, stats) for name, stats in by_name(tap, TAP).items()]
    return sorted(rows, key=lambda row: (-(row.backlog or 0), row.name))


def by_name(stats: Mapping[str, str], prefix: str) -> dict[str, dict[str, str]]:
    """Return the statistics of each connection, by its name. The keys of `stats` are the prefix and NAME:STATISTIC; all
    others are left out.
    """
    by_connection: dict[str, dict[str, str]] = {}
    for line, value in stats.items():
        if line.startswith(prefix):
            name, _, statistic = line.removeprefix(prefix).rpartition(":")
            by_connection.setdefault(name, {})[statistic] = value
    return by_connection


def _dcp_row(node: Address, name: str, stats: Mapping[str, str]) -> ConnectionRow:
    streams = _streams(stats)
    backlogs = [stream.remaining for stream in streams if stream.remaining is not None]
    sends = stats.get("type") == "producer"
    return ConnectionRow(
        node,
        name,
        "dcp",
        stats.get("type", ""),
        stats.get("peer", ""),
        number_of(stats, "num_streams"),
        sum(backlogs) if sends else None,
        max(backlogs, default=0) if sends else None,
        number_of(stats, "unacked_bytes"),
        number_of(stats, "max_buffer_bytes"),
        stats.get("paused") == "true",
        tuple(streams),
    )


def _streams(stats: Mapping[str, str]) -> list[StreamRow]:
    by_vbucket: dict[int, dict[str, str]] = {}
    for name, value in stats.items():
        if parts := STREAM.fullmatch(name):
            by_vbucket.setdefault(int(parts[1]), {})[parts[2]] = value
    rows = [
        StreamRow(
            vbucket,
            each_stats.get("state", ""),
            number_of(each_stats, "last_sent_seqno" if "last_sent_seqno" in each_stats else "last_received_seqno"),
            number_of(each_stats, "items_remaining"),
        )
        for vbucket, each_stats in by_vbucket.items()
    ]
    return sorted(rows, key=lambda row: (-(row.remaining or 0), row.vbucket))


def _tap_row(node: Address, name: str, stats: Mapping[str, str]) -> ConnectionRow:
    backlog = number_of(stats, "total_backlog_size")
    filtered = stats.get("vb_filter", "").split()
    return ConnectionRow(
        node,
        name,
        "tap",
        stats.get("type", ""),
        "" if stats.get("connected") == "true" else "waits for its client",
        len(filtered),
        backlog,
        None,
        None,
        None,
        stats.get("suspended") == "true",
    )


def followed(stats: Mapping[str, str]) -> list[FollowingReport]:
    """Return the producers that a node follows by its own connections, those in trouble first; empty if the statistics
    can't be read.
    """
    try:
        return sorted(answers.following(stats).values(), key=lambda each: not (each.problem or each.problems))
    except (RemoteProtocolError, ValueError):
        return []
