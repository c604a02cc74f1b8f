"""Named places where a fault can be made to happen, so that every crash can be placed, counted and repeated.

    HEADWATER_FAILPOINTS="log.before_sync=kill@3,compact.before_rename=eio"

arms them for a process: at the third pass of `log.before_sync` the process kills itself with SIGKILL, at the first
pass of `compact.before_rename` an OSError (EIO) is raised. Actions: kill, stop (SIGSTOP, for who watches and has more
to kill than one process), eio, enospc, raise (InjectedFault). Without `@n` the first pass counts. An armed point fires
once. Nothing armed: a pass costs one look at an empty dict.

Every name that exists stands in FAILPOINTS, with what has just happened there.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headwater.errors import OptionError

__all__ = ["FAILPOINTS", "InjectedFault", "arm", "arm_from_environment", "armed", "failpoint", "passes"]

FAILPOINTS = {
    "log.append": "a batch is about to be written",
    "log.before_sync": "a batch is written, not synced",
    "log.after_sync": "a batch is on disk, nobody was told",
    "segment.created": "a new segment's file is there and synced, no manifest names it",
    "segment.before_manifest": "a new manifest is written and synced beside the old one, not renamed",
    "segment.after_manifest": "the manifest is renamed, the folder not synced",
    "compact.planned": "purge seqnos are raised and durable, nothing is copied",
    "compact.copied": "the new segments are written, not synced",
    "compact.before_rename": "the new segments are synced, the manifest still names the old ones",
    "compact.after_rename": "the manifest names the new segments, the old files are still there",
    "compact.before_unlink": "the columns are swapped, the old files are still there",
    "recover.indexed": "everything is read and indexed, the torn end is not cut",
    "recover.cut": "the torn end is cut, the manifest of this start is not written",
    "rollback.staged": "a rollback is staged and indexed, not written",
    "drop.staged": "the drop of a vbucket is staged, not written",
    "takeover.pending_sent": "a vbucket is being handed over: the consumer was asked to become pending",
    "takeover.pending_acked": "the consumer is pending, the vbucket is still active here",
    "takeover.dead": "the vbucket is dead here, and that is staged; the rest of its changes is not sent",
    "takeover.active_sent": "all is sent, the consumer was asked to become active",
    "takeover.active_acked": "the consumer is active, the stream is not ended",
    "collections.before_rename": "a new collections manifest is written and synced beside the old one, not renamed",
    "collections.after_rename": "it is renamed; no vbucket has its system events yet",
    "collections.before_events": "the next vbucket is about to get the events of a new collections manifest",
    "buckets.before_rename": "a new list of buckets is written and synced beside the old one, not renamed",
    "buckets.after_rename": "a new list of buckets is in place, the folder not synced",
    "buckets.listed": "a bucket is listed as being made, it has no folder",
    "buckets.made": "its folder and its store are there, without vbuckets",
    "buckets.filled": "its vbuckets are durable, it is not listed as served",
    "buckets.drop_listed": "a bucket is listed as dropped, its connections are open",
    "buckets.removing": "one of its files is removed",
    "buckets.emptied": "all of its files are removed, the folder is there",
    "buckets.removed": "its folder is gone, it is still listed as dropped",
    "users.before_rename": "a new list of users is written and synced beside the old one, not renamed",
    "users.after_rename": "a new list of users is in place, the folder not synced",
    "workers.before_rename": "the layout of a folder of workers is written and synced beside the old one, not renamed",
    "workers.after_rename": "the layout of a folder of workers is in place, the folder not synced",
    "clock.before_rename": "a new bound of the clock is written and synced beside the old one, not renamed",
    "clock.after_rename": "the new bound of the clock is renamed, its folder not synced",
    "cluster.before_rename": "a new cluster map is written and synced beside the old one, not renamed",
    "cluster.after_rename": "the new cluster map is in place, the folder not synced, nobody was told",
    "replica.marker": "a snapshot that a replica receives was announced, and that is staged",
    "replica.state": "the producer of a replica has set its state, and that is staged; it was not answered",
    "lake.planned": "a batch's tasks are planned, none has begun",
    "lake.reading": "a task has the first of its changes, nothing is written",
    "lake.files_written": "a task's files and indexes are written, no commit names them",
    "lake.log_committed": "a batch is in the change log, not in the table",
    "lake.quarantine_committed": "a batch is in the quarantine, not in the table",
    "lake.before_commit": "a batch's deletion vectors are written, its commit is not",
    "lake.after_commit": "a batch is a version of the table, nobody was told",
    "lake.folding": "some of the files that are folded are copied, nobody knows the new ones",
    "lake.before_fold": "folded files are written, no commit names them",
    "lake.after_fold": "folded files are in the table, in the place of those they were made of",
    "iceberg.vectors_written": "a Puffin file of deletion vectors is written, no manifest names it",
    "iceberg.manifests_written": "a snapshot's manifests are written, no manifest list names them",
    "iceberg.before_commit": "all files of a snapshot are written, no metadata names it",
    "iceberg.after_commit": "a snapshot is in the newest metadata, the hint for readers still names the one before",
    "iceberg.before_catalog": "a snapshot is in the newest metadata, the catalog has the one before",
    "iceberg.after_catalog": "the catalog has the newest snapshot, and its answer was read",
    "iceberg.left_catalog": "a table is dropped from its catalog, and still has its name there",
    "lake.checkpointed": "a checkpoint of a table's log is written, its name is not noted",
    "backup.begun": "a backup's folder says what is about to be read, nothing is read",
    "backup.file_written": "a file of a backup is in place, nothing names it",
    "backup.part_noted": "some vbuckets of a backup are read and noted, others are not",
    "backup.before_manifest": "all of a backup is read, its manifest is not written",
    "backup.after_manifest": "a backup's manifest is written, the index does not name it",
    "backup.entered": "the index names the backup, the notes of its parts are still there",
    "backup.removing": "the index says which backups are being removed, all their files are there",
    "backup.removed": "the files of removed backups are gone, the index still says that they are being removed",
    "backup.restoring": "some changes of a backup are written to the bucket",
    "export.written": "an export has written some of its documents into a file that has not its name yet",
    "index.read": "a task of an index has read its changes and told them to nobody",
    "index.sent": "a task of an index has told a search server its changes, and answered nobody",
    "publish.read": "a task of a publication has read its changes, nothing is sent",
    "publish.sent": "a batch and its record are with the producer, by a transaction that is open",
    "publish.committed": "a batch is in its topics, nobody was told",
    "ledger.before_commit": "a batch and its record are in a job's file, by a transaction that is open",
    "ledger.after_commit": "a batch is in a job's file, nobody was told",
    "transition.moved": "a task's vbuckets have changed hands, the driver was not told",
    "transition.answered": "a batch's vbuckets have changed hands, none is checked",
    "transition.noted": "a pair's moves are in the journal, nobody was told, no dead copy is removed",
    "move.connected": "the mover has opened both ends",
    "move.replica_made": "the vbucket is a replica on the target, nothing streams",
    "move.copying": "the target follows through the mover",
    "move.caught_up": "the target has nearly everything",
    "move.persisted": "the target has on disk what it has",
    "move.followed": "the target, which follows the source by itself, is near; it follows still",
    "move.closed": "the stream that copied is closed at both ends, the one that takes over is not asked for",
    "move.taking_over": "the target was told to take over, and streams",
    "move.pending_sent": "the source asks the target to become pending; that is not passed on yet",
    "move.pending_answered": "the target is pending; that is not passed on yet",
    "move.active_sent": "the source asks the target to become active; that is not passed on yet",
    "move.active_answered": "the target is active; that is not passed on yet, and nobody was told",
    "move.owned": "the target is active, and whoever asked for the move is about to be told",
    "init.map_sent": "the first map is at all nodes, no vbucket was made active",
    "rebalance.joined": "the new replicas of a vbucket are in its chain and level with the owner",
    "rebalance.narrowed": "the copies that are to go are out of the map, and still on their nodes",
    "failover.ownerless": "the map without the dead node and without owners of its vbuckets is at all others",
    "failover.map_sent": "the map with the new owners is at all others, nobody is promoted",
    "move.given_back": "a hand-over broke off: the source is active again, the target still pending",
}


class InjectedFault(RuntimeError):  # noqa: N818 - a fault
    """The exception that the action `raise` raises."""


def _kill(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(name: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(name: str) -> None:
    raise InjectedFault(name)


def _eio(name: str) -> None:
    raise OSError(errno.EIO, f"injected at {name}")


def _enospc(name: str) -> None:
    raise OSError(errno.ENOSPC, f"injected at {name}")


ACTIONS: dict[str, Callable[[str], None]] = {
    "kill": _kill,
    "stop": _stop,
    "raise": _raise,
    "eio": _eio,
    "enospc": _enospc,
}


@dataclass
class _Armed:
    action: str
    at: int
    passed: int = 0


_armed: dict[str, _Armed] = {}


def failpoint(name: str) -> None:
    """Pass the named place; does nothing unless it is armed and its turn has come."""
    if _armed and (point := _armed.get(name)) is not None:
        point.passed += 1
        if point.passed == point.at:
            ACTIONS[point.action](name)


def passes(name: str) -> int:
    """Return the number of times that an armed place was passed (0 if it is not armed)."""
    point = _armed.get(name)
    return point.passed if point else 0


def arm(text: str) -> None:
    """Arm from a text such as "log.append=kill@3,compact.copied=eio"; an empty one disarms all.

    Raises:
        OptionError: an unknown name or action, or a count that is not a number from 1.
    """
    points = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, setting = entry.partition("=")
        action, _, count = setting.partition("@")
        if name not in FAILPOINTS or action not in ACTIONS or not (count or "1").isdigit() or count == "0":
            allowed = f"NAME=ACTION[@n] with ACTION one of {', '.join(ACTIONS)}, NAME one of {', '.join(FAILPOINTS)}"
            raise OptionError("HEADWATER_FAILPOINTS", entry, allowed)
        points[name] = _Armed(action, int(count or "1"))
    _armed.clear()
    _armed.update(points)


@contextmanager
def armed(text: str) -> Iterator[None]:
    """Arm inside a with block, disarm after it (for tests)."""
    arm(text)
    try:
        yield
    finally:
        _armed.clear()


def arm_from_environment() -> None:
    """Arm what HEADWATER_FAILPOINTS names: at import, and again in a process forked with another environment."""
    arm(os.environ.get("HEADWATER_FAILPOINTS", ""))


arm_from_environment()
