"""From the caller's arguments to a drain: positions to start from, seqnos to end at.

`start` and `until` may both be "now", which takes one request to every node: the high seqno of each vbucket. A start at
"now" also takes the failover logs: a position needs the branch that its seqno belongs to. The logs are requested before
and after the seqnos, and again until both agree: otherwise a failover in between could pair a seqno of the old branch
with the vb uuid of the new one, and no node has that position.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headwater.client.cluster import Cluster
from headwater.client.collections import (
    CollectionNames,
    StreamedCollections,
    check_start,
    covering,
    manifest_of,
    resolve,
)
from headwater.client.drainer import Drainer
from headwater.client.kv import check_vbuckets
from headwater.client.logs import Log, failover_logs
from headwater.client.options import DrainOptions, Start, Until
from headwater.errors import OptionError
from headwater.protocol.dcp.position import ENDLESS, Position
from headwater.transport.waiting import Steps
from headwater.wire.features import Feature


def plan(
    cluster: Cluster, start: Start, vbuckets: Iterable[int] | None, until: Until, options: DrainOptions
) -> Steps[Drainer]:
    """Return the drain for these arguments; it has requested no stream yet.

    Raises:
        OptionError: vbuckets that the bucket does not have, or an invalid `start` or `until`; positions that were saved
            with another choice of collections.
        UnknownCollection, UnknownScope: a chosen one does not exist.
        TransportError, StatusError: the nodes could not be asked.
        LocalProtocolError: the client was closed.
    """
    cluster.check_open()
    _check_copies(cluster, options)
    if not options.chooses:
        saved_positions = _saved_positions_of(start)
        if any(position.coverage is not None for position in saved_positions.values()):
            check_start(saved_positions, None, (yield from manifest_of(cluster)))
        begin, ends = yield from _ends(cluster, start, vbuckets, until, options)
        return Drainer(cluster.twin(), begin, ends, _with_name(options))
    # With Collections, nodes say how far all of a vbucket has come, and not the default collection alone (kv.md 3).
    twin = cluster.twin(Feature.COLLECTIONS)
    try:
        streamed = yield from _chosen_share(twin, _saved_positions_of(start), options)
        begin, ends = yield from _ends(twin, start, vbuckets, until, options)
        return Drainer(twin, covering(begin, streamed.choice), ends, _with_name(options), streamed)
    except BaseException:
        twin.close()
        raise


def _check_copies(cluster: Cluster, options: DrainOptions) -> None:
    copies = 1 + cluster.map.replica_count
    if isinstance(options.min_persisted, int) and options.min_persisted > copies:
        raise OptionError("min_persisted", options.min_persisted, f"at most {copies}, the copies that the bucket keeps")


def _saved_positions_of(start: Start) -> Mapping[int, Position]:
    return {vb: _fitting(vb, position) for vb, position in start.items()} if isinstance(start, Mapping) else {}


def _with_name(options: DrainOptions) -> DrainOptions:
    return replace(options, name=options.name or f"headwater-{secrets.token_hex(6)}")


def _chosen_share(
    cluster: Cluster, saved_positions: Mapping[int, Position], options: DrainOptions
) -> Steps[StreamedCollections]:
    """Return the chosen share of the bucket's collections."""
    covered = [position.coverage.manifest_uid for position in saved_positions.values() if position.coverage is not None]
    # A node that has not heard of the newest manifest would make a collection of the saved choice look dropped.
    manifest = yield from manifest_of(cluster, max(covered, default=0))
    choice = resolve(manifest, options.collections, options.scope)
    check_start(saved_positions, choice, manifest)
    return StreamedCollections(choice, CollectionNames(manifest))


def _ends(
    cluster: Cluster, start: Start, vbuckets: Iterable[int] | None, until: Until, options: DrainOptions
) -> Steps[tuple[dict[int, Position], dict[int, int]]]:
    """Return the start position and the end seqno of each vbucket; ENDLESS for a stream without an end."""
    numbers = _chosen_vbuckets(cluster, start, vbuckets)
    seqnos: Mapping[int, int] = {}
    patience = math.inf if options.patience_seconds is None else options.patience_seconds
    if start == "now":
        begin = yield from _now(cluster, numbers, patience)
        seqnos = {vb: position.seqno for vb, position in begin.items()}
    else:
        begin = _begin(start, numbers)
        if until == "now":
            seqnos = yield from cluster.seqnos(numbers, patience)
    ends = seqnos if until == "now" else until if isinstance(until, Mapping) else {}
    if until is not None and not isinstance(until, Mapping) and until != "now":
        raise OptionError("until", until, '"now", a mapping of vbucket to seqno, or None for a drain without end')
    return begin, {vb: ends.get(vb, ENDLESS) for vb in numbers}


def _chosen_vbuckets(cluster: Cluster, start: Start, vbuckets: Iterable[int] | None) -> list[int]:
    if vbuckets is not None and not isinstance(vbuckets, Iterable):
        raise OptionError("vbuckets", vbuckets, "a list of vbuckets, such as [7], or None for all")
    numbers = range(cluster.map.vbuckets) if vbuckets is None else set(vbuckets)
    check_vbuckets(cluster, numbers)
    check_vbuckets(cluster, start if isinstance(start, Mapping) else ())
    return sorted(numbers)


def _begin(start: Start, numbers: list[int]) -> dict[int, Position]:
    if start is None:
        return {vb: Position.beginning(vb) for vb in numbers}
    if isinstance(start, Mapping):
        return {vb: _fitting(vb, start[vb]) if vb in start else Position.beginning(vb) for vb in numbers}
    raise OptionError("start", start, '"now", a mapping of vbucket to Position, or None for the whole history')


def _now(cluster: Cluster, numbers: list[int], patience_seconds: float) -> Steps[dict[int, Position]]:
    """Return the position of each vbucket at its high seqno."""
    logs: Mapping[int, Log] | None = None
    while True:
        before, seqnos = logs, (yield from cluster.seqnos(numbers, patience_seconds))
        logs = yield from failover_logs(cluster, numbers)
        if logs == before:
            return {vb: Position.after(vb, seqnos.get(vb, 0), log) for vb, log in logs.items()}


def _fitting(vbucket: int, position: Any) -> Position:
    if not isinstance(position, Position) or position.vbucket != vbucket:
        raise OptionError("start", position, f"a Position of vbucket {vbucket}")
    return position
