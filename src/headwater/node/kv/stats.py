"""STAT: groups of (name, value) pairs. Each pair is one answer; an empty answer ends the group (kv.md 1.7).

The groups about vbuckets are here; other parts of the node (DCP, TAP) add theirs to `Bucket.stat_groups`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from headwater.errors import OptionError
from headwater.node.kv.admin import VERSION_TEXT
from headwater.node.kv.command import handles
from headwater.node.kv.gathering import merged
from headwater.node.refused import CommandRefused
from headwater.protocol.dcp.position import ENDLESS
from headwater.wire.bootstrap import Stat, StatResponse
from headwater.wire.privilege import EVERYTHING
from headwater.wire.status import Status
from headwater.wire.vbucket import State, vbucket_set

if TYPE_CHECKING:
    from headwater.node.kv.api import Session
    from headwater.node.vbucket.vbucket import VBucket

Pairs = Iterable[tuple[str, str]]
U64_MAX = (1 << 64) - 1


@handles(Stat)
def stat(session: Session, request: Stat) -> Iterator[StatResponse]:
    """Answer with one group of statistics; the key of the request has its name and arguments, separated by blanks."""
    name, *arguments = request.key.decode("latin-1").split(" ") if request.key else ("",)
    pairs = _group(session, name, [argument for argument in arguments if argument])
    for key, value in merged(pairs, session.others) if session.others else pairs:
        yield StatResponse(key=key.encode("latin-1", "replace"), value=value.encode())
    yield StatResponse()


def _group(session: Session, name: str, arguments: list[str]) -> Pairs:
    registered = session.store_bucket.stat_groups.get(name)
    if registered is not None:
        return registered(arguments)
    group = _GROUPS.get(name)
    if group is None:
        raise CommandRefused(Status.KEY_ENOENT, "there is no such group")
    return group(session, arguments)


def _general(session: Session, arguments: list[str]) -> Pairs:
    bucket = session.store_bucket
    counters, committer = bucket.counters, bucket.committer
    items = sum(bucket.store.index.items(vb) for vb in bucket.vbuckets)
    yield "pid", str(os.getpid())
    yield "time", str(bucket.now())
    yield "version", VERSION_TEXT.decode()
    yield from session.server.figures()
    yield "curr_items", str(items)
    yield "cmd_get", str(counters["cmd_get"])
    yield "get_hits", str(counters["get_hits"])
    yield "get_misses", str(counters["cmd_get"] - counters["get_hits"])
    for each in ("cmd_set", "cmd_delete", "cmd_flush", "expired"):
        yield each, str(counters[each])
    yield "ep_commit_num", str(committer.commits)
    yield "ep_commit_failures", str(committer.failures)
    yield "ep_queue_size", "0" if committer.gate() == 0 else "1"
    yield "ep_flusher_todo", "0"
    yield "ep_degraded_mode", "0"
    yield "ep_disk_full", "1" if bucket.store.staging.lacks_room else "0"
    yield "ep_removed_bytes_held", str(bucket.store.slots.retired_bytes)
    yield "ep_damaged_batches", str(bucket.store.damaged_batches)
    yield "ep_damaged_vbuckets", str(len(bucket.store.quarantine.vbuckets))
    yield "ep_prepares_waiting", str(bucket.prepares_waiting)
    yield "ep_range_scans", str(len(bucket.scans))


def _reset(session: Session, arguments: list[str]) -> Pairs:
    counters = session.store_bucket.counters
    counters.update(dict.fromkeys(counters, 0))
    return ()


def _uuid(session: Session, arguments: list[str]) -> Pairs:
    yield "uuid", session.store_bucket.uuid


def _chosen_vbuckets(session: Session, arguments: list[str]) -> list[VBucket]:
    """Return the vbucket that the arguments of a group name, or all vbuckets if there are no arguments.

    Raises:
        CommandRefused: EINVAL for an invalid number, status 07 for a vbucket that is not on this node.
    """
    vbuckets = session.store_bucket.vbuckets
    if not arguments:
        return [vbuckets[vb] for vb in sorted(vbuckets)]
    if len(arguments) > 1 or not (arguments[0].isascii() and arguments[0].isdecimal() and len(arguments[0]) < 6):
        raise CommandRefused(Status.EINVAL, "the argument is one vbucket number")
    vbucket = vbuckets.get(int(arguments[0]))
    if vbucket is None:
        raise session.not_my_vbucket()
    return [vbucket]


def _vbucket(session: Session, arguments: list[str]) -> Pairs:
    for vbucket in _chosen_vbuckets(session, arguments):
        yield f"vb_{vbucket.id}", vbucket.state.name.lower()


def _previous(session: Session, arguments: list[str]) -> Pairs:
    return ()


def _seqnos(each: VBucket) -> Pairs:
    high = str(each.durable_seqno)
    uuid = str(each.failover.newest.vb_uuid)
    yield f"vb_{each.id}:high_seqno", high
    yield f"vb_{each.id}:abs_high_seqno", high
    yield f"vb_{each.id}:last_persisted_seqno", high
    yield f"vb_{each.id}:uuid", uuid
    yield f"vb_{each.id}:vb_uuid", uuid  # the public text's name (erratum P15)
    yield f"vb_{each.id}:purge_seqno", str(each.purge_seqno)
    receiving = each.is_receiving_snapshot
    yield f"vb_{each.id}:last_persisted_snap_start", str(each.snapshot_start) if receiving else high
    yield f"vb_{each.id}:last_persisted_snap_end", str(each.snapshot_end) if receiving else high


def _vbucket_seqno(session: Session, arguments: list[str]) -> Pairs:
    for vbucket in _chosen_vbuckets(session, arguments):
        yield from _seqnos(vbucket)


def _vbucket_details(session: Session, arguments: list[str]) -> Pairs:
    store = session.store_bucket.store
    for vbucket in _chosen_vbuckets(session, arguments):
        yield f"vb_{vbucket.id}", vbucket.state.name.lower()
        yield f"vb_{vbucket.id}:num_items", str(store.index.items(vbucket.id))
        yield f"vb_{vbucket.id}:refused_changes", str(vbucket.refused_changes)
        yield f"vb_{vbucket.id}:damaged_changes", str(vbucket.damaged_changes)
        yield f"vb_{vbucket.id}:complete_seqno", str(vbucket.readable_seqno)
        yield f"vb_{vbucket.id}:max_cas", str(vbucket.record().max_cas)
        begun = vbucket.held_versions_after
        yield f"vb_{vbucket.id}:history_start_seqno", str(begun + 1 if begun < ENDLESS else 0)
        if vbucket.damaged_changes:
            yield f"vb_{vbucket.id}:acknowledged_seqno", str(vbucket.acknowledged_seqno)
        yield from _seqnos(vbucket)


def _vbucket_copies(session: Session, arguments: list[str]) -> Pairs:
    """Yield the facts that a mover needs: one line for each vbucket of a list, or for all, all from the same moment.

    A line has the state, the high seqno, the seqno up to which the copy is complete, the numbers of refused and of
    damaged changes, the bytes of the newest versions of its keys (tombstones included), and its failover log, newest
    branch first.
    """
    bucket = session.store_bucket
    for vbucket in _listed_vbuckets(session, arguments):
        session.saw(vbucket)
        table = [f"{branch.vb_uuid:x}:{branch.seqno}" for branch in vbucket.failover.entries]
        numbers = vbucket.durable_seqno, vbucket.readable_seqno, vbucket.refused_changes, vbucket.damaged_changes
        columns = vbucket.state.name.lower(), *numbers, bucket.store.index.bytes_of(vbucket.id), *table
        yield f"vb_{vbucket.id}", " ".join(map(str, columns))


def _listed_vbuckets(session: Session, arguments: list[str]) -> list[VBucket]:
    """Return the vbuckets of a list such as 0-3,7 that are on this node; all vbuckets if there is no list."""
    bucket = session.store_bucket
    if len(arguments) > 1:
        raise CommandRefused(Status.EINVAL, "the argument is one list of vbuckets")
    try:
        numbers = vbucket_set(arguments[0], bucket.vbucket_count) if arguments else sorted(bucket.vbuckets)
    except OptionError as error:
        raise CommandRefused(Status.EINVAL, str(error)) from None
    return [bucket.vbuckets[vb] for vb in numbers if vb in bucket.vbuckets]


def _collections(session: Session, arguments: list[str]) -> Pairs:
    """Yield the number of documents of each collection in the active vbuckets, by scope id and collection id."""
    bucket = session.store_bucket
    manifest = bucket.collections.manifest
    sums = {number: [0, 0, 0] for number in manifest.by_id()}
    yield "manifest_uid", f"0x{manifest.uid:x}"
    for vbucket in _chosen_vbuckets(session, arguments):
        if vbucket.state is State.ACTIVE:
            for number, items, size, tombstones in bucket.store.collections(vbucket.id, sorted(sums)):
                sums[number] = [a + b for a, b in zip(sums[number], (items, size, tombstones), strict=True)]
            yield f"vb_{vbucket.id}:manifest_uid", f"0x{vbucket.collections.uid:x}"
    for scope, collection in manifest.each_collection():
        name, counts = f"0x{scope.id:x}:0x{collection.id:x}", sums[collection.id]
        yield f"{name}:scope_name", scope.name
        yield f"{name}:name", collection.name
        if collection.max_ttl is not None:
            yield f"{name}:maxTTL", str(collection.max_ttl)
        yield f"{name}:history", str(collection.history).lower()
        for statistic, count in zip(("items", "data_size", "tombstones"), counts, strict=True):
            yield f"{name}:{statistic}", str(count)


def _scopes(session: Session, arguments: list[str]) -> Pairs:
    manifest = session.store_bucket.collections.manifest
    yield "manifest_uid", f"0x{manifest.uid:x}"
    for name, number in zip(("next_collection", "next_scope"), session.store_bucket.collections.next_ids, strict=True):
        yield name, f"0x{number:x}"
    for scope in manifest.scopes:
        yield f"0x{scope.id:x}:name", scope.name
        yield f"0x{scope.id:x}:collections", str(len(scope.collections))


def _durability(session: Session, arguments: list[str]) -> Pairs:
    """Yield the number and seqnos of waiting prepares in one vbucket, or in all vbuckets that have some, and the seqno
    that each replica has acknowledged.
    """
    writes = session.store_bucket.durable_writes
    for vbucket in _chosen_vbuckets(session, arguments):
        pending = vbucket.prepares.pending.values()
        if not pending and not arguments:
            continue
        yield f"vb_{vbucket.id}:state", vbucket.state.name.lower()
        yield f"vb_{vbucket.id}:num_tracked", str(len(pending))
        yield f"vb_{vbucket.id}:oldest_prepared_seqno", str(min(pending, default=0))
        yield f"vb_{vbucket.id}:high_prepared_seqno", str(max(pending, default=0))
        for replica, seqno in sorted(writes.acknowledged_by(vbucket.id).items()):
            yield f"vb_{vbucket.id}:{replica}:acknowledged_seqno", str(seqno)


def _range_scans(session: Session, arguments: list[str]) -> Pairs:
    """Yield the open scans of one vbucket or of all: their plans, and their idle times."""
    numbers, now = set(_chosen_vbuckets(session, arguments)), session.server.loop.time()
    for scan in tuple(session.store_bucket.scans):
        if scan.vbucket in numbers:
            prefix = f"vb_{scan.vbucket.id}:{scan.name[0]:016x}{scan.name[1]:016x}"
            yield f"{prefix}:collection", f"0x{scan.plan.collection:x}"
            yield f"{prefix}:key_only", str(scan.plan.key_only).lower()
            yield f"{prefix}:state", "running" if scan.is_running else "idle"
            yield f"{prefix}:idle_seconds", f"{max(0.0, now - scan.used_at):.0f}"


def _failovers(session: Session, arguments: list[str]) -> Pairs:
    for vbucket in _chosen_vbuckets(session, arguments):
        entries = vbucket.failover.entries
        yield f"vb_{vbucket.id}:num_entries", str(len(entries))
        yield f"vb_{vbucket.id}:num_erroneous_entries_erased", "0"
        for place, entry in enumerate(entries):
            yield f"vb_{vbucket.id}:{place}:id", str(entry.vb_uuid)
            yield f"vb_{vbucket.id}:{place}:seq", str(entry.seqno)


def _checkpoint(session: Session, arguments: list[str]) -> Pairs:
    """Yield one checkpoint for each vbucket, the last that a TAP producer sent; this node has no checkpoints of its
    own.
    """
    for vbucket in _chosen_vbuckets(session, arguments):
        yield f"vb_{vbucket.id}:state", vbucket.state.name.lower()
        yield f"vb_{vbucket.id}:open_checkpoint_id", str(vbucket.checkpoint + 1)
        yield f"vb_{vbucket.id}:last_closed_checkpoint_id", str(vbucket.checkpoint)
        yield f"vb_{vbucket.id}:num_checkpoints", "1"
        yield f"vb_{vbucket.id}:persisted_checkpoint_id", str(vbucket.checkpoint or 1)


def _config(session: Session, arguments: list[str]) -> Pairs:
    config = session.server.config
    for name in (
        "bucket",
        "vbuckets",
        "connections_max",
        "idle_seconds",
        "login_seconds",
        "memory_mib",
        "connection_memory_mib",
        "segment_mib",
        "compact_dead_percent",
        "purge_age_seconds",
    ):
        yield name, str(getattr(config, name))


def _rights(session: Session, arguments: list[str]) -> Pairs:
    """Yield the user's name and rights, so that a page can hide actions that would be refused."""
    yield "user", session.user or ""
    for each in EVERYTHING:
        name = (each.name or "").lower()
        yield name, str(bool(session.access.rights & each)).lower()
        yield f"{name}_somewhere", str(bool(session.access.anywhere & each)).lower()  # in a scope or a collection


def _timings(session: Session, arguments: list[str]) -> Pairs:
    """Yield the number of commits by duration: `disk_commit_FROM,TO` in microseconds, TO included."""
    low, below = 0, 0
    for bound, count in session.server.committer.durations.at_most():
        high = U64_MAX if bound == "+Inf" else round(1e6 * float(bound))
        yield f"disk_commit_{low},{high}", str(count - below)
        low, below = high, count


def _nothing(session: Session, arguments: list[str]) -> Pairs:
    return ()


_GROUPS: dict[str, Callable[[Session, list[str]], Pairs]] = {
    "": _general,
    "reset": _reset,
    "uuid": _uuid,
    "vbucket": _vbucket,
    "prev-vbucket": _previous,
    "vbucket-seqno": _vbucket_seqno,
    "vbucket-details": _vbucket_details,
    "vbucket-copies": _vbucket_copies,
    "durability-monitor": _durability,
    "range-scans": _range_scans,
    "failovers": _failovers,
    "collections": _collections,
    "scopes": _scopes,
    "checkpoint": _checkpoint,
    "config": _config,
    "rights": _rights,
    "timings": _timings,
    "dcp": _nothing,
    "dcpagg": _nothing,
    "tap": _nothing,
    "tapagg": _nothing,
}
