"""What became of a stream: the facts a `Drain` reports to whoever drives it, besides the rows of changes.

An event comes with the number of the row it came before, so the two can be merged in the order of the wire.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opened:
    """The producer accepted the request; its failover log is that of the stream from here on."""

    vbucket: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The producer answered with a status; `body` is what it wrote (a cluster map with NOT_MY_VBUCKET)."""

    vbucket: int
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Diverged:
    """The producer's history left ours after `common`."""

    vbucket: int
    requested: int
    common: int
    reason: str


@dataclass(frozen=True, slots=True)
class Marked:
    """A snapshot begins."""

    vbucket: int
    start_seqno: int
    end_seqno: int
    flags: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """A seqno was passed that carries nothing for us (collections, durability)."""

    vbucket: int
    seqno: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The producer ended the stream; `reason` is an EndReason, or a number later than this program."""

    vbucket: int
    reason: int


Event = Opened | Refused | Diverged | Marked | Advanced | Ended
