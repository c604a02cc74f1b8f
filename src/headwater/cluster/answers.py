"""What nodes answer to an administrator, read into objects. No I/O; every length and number is checked.

Source: specification, kv.md 1.7 and 3, failover.md 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.errors import RemoteProtocolError
from headwater.wire.header import Frame
from headwater.wire.vbucket import State

SEQNO_ENTRY_BYTES = 10
LOG_ENTRY_BYTES = 16
NO_STREAM = frozenset(
    {"does_not_exist", "connection_does_not_exist", "stream_does_not_exist", "vb_does_not_exist", "stream_is_dead"}
)
"""What `TakeoverStats.status` says when nothing is being streamed."""


@dataclass(frozen=True, slots=True)
class TakeoverStats:
    """How far a producer's stream of one vbucket is (STAT dcp-vbtakeover).

    Attributes:
        status: "backfilling", "calculating-item-count", "in-memory", or one of NO_STREAM.
        estimate: changes still to be sent, about.
        backfill_remaining: those of them that come from disk.
    """

    status: str
    estimate: int
    backfill_remaining: int

    @property
    def is_streaming(self) -> bool:
        """Whether there is such a stream, and it lives."""
        return self.status not in NO_STREAM

    @classmethod
    def of(cls, stats: Mapping[str, str]) -> TakeoverStats:
        """Read the group; a value that is missing counts as 0."""
        return cls(
            stats.get("status", "does_not_exist"),
            number(stats.get("estimate", "0"), "dcp-vbtakeover estimate"),
            number(stats.get("backfillRemaining", "0"), "dcp-vbtakeover backfillRemaining"),
        )


@dataclass(frozen=True, slots=True)
class Following:
    """How a node follows one producer by calls of its own (STAT replication).

    Attributes:
        source: the producer, host:port/bucket.
        connected: whether the connection is open. connects: how often it was opened.
        problem: why the last attempt failed; empty after a success.
        vbuckets: the state of each vbucket's stream; "waiting" for one that has none now.
        takeovers: those that are to be taken over.
    """

    source: str
    connected: bool = False
    connects: int = 0
    problem: str = ""
    vbuckets: Mapping[int, str] = field(default_factory=dict)
    takeovers: frozenset[int] = frozenset()


def following(stats: Mapping[str, str]) -> dict[str, Following]:
    """Read STAT replication, whose names are SOURCE:STATISTIC; by source."""
    told: dict[str, dict[str, str]] = {}
    for name, value in stats.items():
        source, _, statistic = name.rpartition(":")
        told.setdefault(source, {})[statistic] = value
    return {source: _following(source, group) for source, group in told.items()}


def _following(source: str, group: Mapping[str, str]) -> Following:
    numbered = {name.removeprefix("vb_"): value for name, value in group.items() if name.startswith("vb_")}
    return Following(
        source,
        group.get("connected") == "true",
        number(group.get("connects", "0"), "replication connects"),
        group.get("problem", ""),
        {int(name): value for name, value in numbered.items() if name.isdecimal()},
        frozenset(
            number(name.removesuffix("_takeover"), "replication vbucket")
            for name, value in numbered.items()
            if name.endswith("_takeover") and value == "true"
        ),
    )


def states(stats: Mapping[str, str]) -> dict[int, State]:
    """Read STAT vbucket: names vb_NUMBER, values the names of states."""
    try:
        return {int(name.removeprefix("vb_")): State[value.upper()] for name, value in stats.items()}
    except (ValueError, KeyError) as error:
        raise RemoteProtocolError(f"STAT vbucket: {error} is neither a vbucket nor a state") from None


def items(stats: Mapping[str, str]) -> dict[int, int]:
    """Read the document counts out of STAT vbucket-details: names vb_NUMBER:num_items."""
    counts = {name: value for name, value in stats.items() if name.endswith(":num_items")}
    return {
        number(name.removeprefix("vb_").partition(":")[0], "a vbucket"): number(value, name)
        for name, value in counts.items()
    }


def state(answer: Frame) -> State:
    """Read GET_VBUCKET's answer: four bytes."""
    if len(answer.value) != 4 or int.from_bytes(answer.value) not in set(State):
        raise RemoteProtocolError(f"GET_VBUCKET (opcode 0x3e): state {answer.value[:8].hex()}, expected 1 to 4")
    return State(int.from_bytes(answer.value))


def seqnos(answer: Frame) -> dict[int, int]:
    """Read GET_ALL_VB_SEQNOS's answer: entries of vbucket and high seqno."""
    value = memoryview(answer.value)
    if len(value) % SEQNO_ENTRY_BYTES:
        raise RemoteProtocolError(f"GET_ALL_VB_SEQNOS: {len(value)} bytes, no multiple of {SEQNO_ENTRY_BYTES}")
    entries = (value[at : at + SEQNO_ENTRY_BYTES] for at in range(0, len(value), SEQNO_ENTRY_BYTES))
    return {int.from_bytes(entry[:2]): int.from_bytes(entry[2:]) for entry in entries}


def failover_log(answer: Frame) -> list[tuple[int, int]]:
    """Read a failover log: (vb uuid, seqno), newest first, at least one."""
    value = answer.value
    if not value or len(value) % LOG_ENTRY_BYTES:
        raise RemoteProtocolError(f"failover log: {len(value)} bytes, expected {LOG_ENTRY_BYTES} for each entry")
    numbers = [int.from_bytes(value[at : at + 8]) for at in range(0, len(value), 8)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def number(text: str, what: str) -> int:
    """Read a decimal number of a statistic."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise RemoteProtocolError(f"{what}: {text[:40]!r} is no number")
    return int(text)
