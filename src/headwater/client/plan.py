"""From what the caller of a drain says to what to ask for: positions to start from, seqnos to end at.

`start` and `until` may both be "now", which takes one question to every node: the high seqno of each vbucket. A start
at "now" also takes the failover logs: a position needs the history that its seqno belongs to.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headwater.client.cluster import Cluster
from headwater.client.drainer import Drainer
from headwater.client.logs import failover_logs
from headwater.client.options import DrainOptions, Start, Until
from headwater.errors import OptionError
from headwater.protocol.dcp.position import ENDLESS, Position
from headwater.transport.waiting import Steps


def plan(
    cluster: Cluster, start: Start, vbuckets: Iterable[int] | None, until: Until, options: DrainOptions
) -> Steps[Drainer]:
    """Return the drain that was asked for; no stream is requested yet.

    Raises:
        OptionError: vbuckets that the bucket does not have, or a `start` or `until` that is no such thing.
        TransportError, StatusError: the nodes could not be asked.
    """
    chosen = _chosen(cluster, start, vbuckets)
    seqnos: Mapping[int, int] = {}
    if "now" in (start, until):
        patience = math.inf if options.patience_seconds is None else options.patience_seconds
        seqnos = yield from cluster.seqnos(chosen, patience)
    begin = yield from _begin(cluster, start, chosen, seqnos)
    ends = seqnos if until == "now" else until if isinstance(until, Mapping) else {}
    if until is not None and not isinstance(until, Mapping) and until != "now":
        raise OptionError("until", until, '"now", a mapping of vbucket to seqno, or None for a drain without end')
    name = options.name or f"headwater-{secrets.token_hex(6)}"
    return Drainer(cluster.twin(), begin, {vb: ends.get(vb, ENDLESS) for vb in chosen}, replace(options, name=name))


def _chosen(cluster: Cluster, start: Start, vbuckets: Iterable[int] | None) -> list[int]:
    count = cluster.map.vbuckets
    chosen = list(range(count)) if vbuckets is None else sorted(set(vbuckets))
    named = [*chosen, *(start if isinstance(start, Mapping) else ())]
    if strange := [vb for vb in named if not 0 <= vb < count]:
        raise OptionError("vbuckets", strange[0], f"one of the bucket's {count} vbuckets, 0 to {count - 1}")
    return chosen


def _begin(cluster: Cluster, start: Start, chosen: list[int], seqnos: Mapping[int, int]) -> Steps[dict[int, Position]]:
    if start is None:
        return {vb: Position.beginning(vb) for vb in chosen}
    if isinstance(start, Mapping):
        return {vb: _fitting(vb, start[vb]) if vb in start else Position.beginning(vb) for vb in chosen}
    if start != "now":
        raise OptionError("start", start, '"now", a mapping of vbucket to Position, or None for the whole history')
    logs = yield from failover_logs(cluster, chosen)
    return {vb: Position.after(vb, seqnos.get(vb, 0), log) for vb, log in logs.items()}


def _fitting(vbucket: int, position: Any) -> Position:
    if not isinstance(position, Position) or position.vbucket != vbucket:
        raise OptionError("start", position, f"a Position of vbucket {vbucket}")
    return position
