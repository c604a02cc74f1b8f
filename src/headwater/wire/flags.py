"""Flags and small numbers inside DCP messages. Source: specification, dcp.md 2 and 3."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from headwater.wire.privilege import REPLICATE, STREAM, Beyond

__all__ = ["BeforeState", "EndReason", "OpenFlag", "SnapshotFlag", "StreamFlag"]


class OpenFlag(IntFlag):
    """Flags of OPEN. Source: dcp.md 2.1."""

    PRODUCER = 0x01
    INCLUDE_XATTRS = 0x04
    NO_VALUE = 0x08
    INCLUDE_DELETE_TIMES = 0x20
    NO_VALUE_WITH_UNDERLYING_DATATYPE = 0x40
    INCLUDE_DELETED_USER_XATTRS = 0x100
    SKIP_DELETES_IN_INITIAL_BACKFILL = 0x200


class StreamFlag(IntFlag):
    """Flags of STREAM_REQ and ADD_STREAM. Source: dcp.md 3."""

    TAKEOVER = 0x01
    DISK_ONLY = 0x02
    TO_LATEST = 0x04
    ACTIVE_VB_ONLY = 0x10
    STRICT_VB_UUID = 0x20
    FROM_LATEST = 0x40
    IGNORE_PURGED_TOMBSTONES = 0x80
    CACHE_TRANSFER = 0x100


class SnapshotFlag(IntFlag):
    """Type flags of a snapshot marker. Source: dcp.md 2.7."""

    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACK = 0x08
    HISTORY = 0x10
    MAY_CONTAIN_DUPLICATES = 0x20


class EndReason(IntEnum):
    """The reason why a stream ended. Source: dcp.md 2.6."""

    OK = 0
    CLOSED = 1
    STATE_CHANGED = 2
    DISCONNECTED = 3
    SLOW = 4
    BACKFILL_FAIL = 5
    ROLLBACK = 6
    FILTER_EMPTY = 7
    LOST_PRIVILEGES = 8


PRODUCES_OR_CONSUMES = (
    Beyond("the receiver produces", OpenFlag.PRODUCER, OpenFlag.PRODUCER, STREAM),
    Beyond("the receiver consumes", OpenFlag.PRODUCER, 0, REPLICATE),
)
"""The rights that OPEN needs besides a login: to receive changes, or to send some."""
TAKES_OVER = (Beyond("takeover", StreamFlag.TAKEOVER, StreamFlag.TAKEOVER, REPLICATE),)
"""A stream that takes its vbucket over leaves the vbucket dead at the sender."""


class BeforeState(IntEnum):
    """A producer's knowledge of the version that a change replaced, in headwater's own message Before."""

    VERSION = 1
    NONE = 2
    NOT_KEPT = 3
