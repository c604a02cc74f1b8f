"""Parsers of nodes' answers to an administrator. No I/O; every length and number is checked.

Source: specification, kv.md 1.7 and 3, failover.md 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.errors import RemoteProtocolError
from headwater.wire.vbucket import State

NO_STREAM = frozenset(
    {"does_not_exist", "connection_does_not_exist", "stream_does_not_exist", "vb_does_not_exist", "stream_is_dead"}
)
"""The words of `TakeoverStats.status` when nothing is being streamed."""

IS_DAMAGED, HAS_GAP = "has damaged changes", "refused changes"
"""The flaws of a copy, as messages for people have them behind the node's name."""


@dataclass(frozen=True, slots=True)
class TakeoverStats:
    """The progress of a producer's stream of one vbucket (STAT dcp-vbtakeover).

    Attributes:
        status: "backfilling", "calculating-item-count", "in-memory", or one of NO_STREAM.
        estimate: about how many changes are still to be sent.
    """

    status: str
    estimate: int

    @property
    def is_streaming(self) -> bool:
        """True if there is such a stream, and it is alive."""
        return self.status not in NO_STREAM

    @classmethod
    def of(cls, stats: Mapping[str, str]) -> TakeoverStats:
        """Read the group; a missing value counts as 0."""
        return cls(
            stats.get("status", "does_not_exist"),
            number(stats.get("estimate", "0"), "dcp-vbtakeover estimate"),
        )


@dataclass(frozen=True, slots=True)
class FollowingReport:
    """The state of one producer that a node follows by its own connection (STAT replication).

    Attributes:
        source: the producer, host:port/bucket.
        connected: True if the connection is open. connects: the number of times that it was opened.
        problem: the failure of the last attempt; empty after a success.
        vbuckets: the state of each vbucket's stream; "waiting" for a vbucket without one.
        problems: the reasons why vbuckets wait.
        takeovers: the vbuckets that are to be taken over from the producer.
    """

    source: str
    connected: bool = False
    connects: int = 0
    problem: str = ""
    vbuckets: Mapping[int, str] = field(default_factory=dict)
    problems: Mapping[int, str] = field(default_factory=dict)
    takeovers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class CopyReport:
    """A node's copy of one vbucket, as of one moment (STAT vbucket-copies).

    Attributes:
        state: its state. log: its failover log, newest branch first: (vb uuid, seqno).
        seqno: its seqno on disk. complete: the seqno up to which it lacks nothing.
        refused, damaged: the numbers of changes that it refused, and that are damaged on disk.
        bytes: the bytes of the newest versions of its keys, tombstones included; None if the server does not report
            them.
    """

    state: State
    seqno: int
    complete: int
    log: Sequence[tuple[int, int]]
    refused: int = 0
    damaged: int = 0
    bytes: int | None = None

    @property
    def is_active(self) -> bool:
        """True if the node owns the vbucket."""
        return self.state is State.ACTIVE

    @property
    def flaw(self) -> str:
        """The copy's flaw, for people; empty for a sound copy."""
        return IS_DAMAGED if self.damaged else HAS_GAP if self.refused and self.complete < self.seqno else ""


def copies(stats: Mapping[str, str]) -> dict[int, CopyReport]:
    """Read STAT vbucket-copies: names vb_NUMBER, values STATE HIGH COMPLETE REFUSED DAMAGED BYTES UUID:SEQNO ..."""
    return {_vbucket_of(name): _copy(name, value.split(" ")) for name, value in stats.items()}


def _vbucket_of(name: str) -> int:
    return number(name.removeprefix("vb_"), "vbucket-copies")


def _copy(name: str, fields: list[str]) -> CopyReport:
    name_ = f"vbucket-copies {name}"
    try:
        state, high, complete, refused_seqno, damaged, held_seqno, *log = fields
        branches = [entry.split(":") for entry in log]
        table = [(int(vb_uuid, 16), number(seqno, name_)) for vb_uuid, seqno in branches]
        numbers = [number(text_, name_) for text_ in (high, complete, refused_seqno, damaged, held_seqno)]
        return CopyReport(State[state.upper()], numbers[0], numbers[1], table, *numbers[2:])
    except (ValueError, KeyError):
        raise RemoteProtocolError(f"STAT {name_} is {' '.join(fields)[:80]!r}") from None


def following(stats: Mapping[str, str]) -> dict[str, FollowingReport]:
    """Read STAT replication, whose names are SOURCE:STATISTIC; by source."""
    reports: dict[str, dict[str, str]] = {}
    for name, value in stats.items():
        # The source has colons of its own, the name of a statistic has none: so the last one divides them.
        source, _, statistic = name.rpartition(":")
        reports.setdefault(source, {})[statistic] = value
    return {source: _following(source, group) for source, group in reports.items()}


def _following(source: str, group: Mapping[str, str]) -> FollowingReport:
    numbered = {name.removeprefix("vb_"): value for name, value in group.items() if name.startswith("vb_")}
    return FollowingReport(
        source,
        group.get("connected") == "true",
        number(group.get("connects", "0"), "replication connects"),
        group.get("problem", ""),
        {int(name): value for name, value in numbered.items() if name.isdecimal()},
        {
            number(name.removesuffix("_problem"), "replication vbucket"): value
            for name, value in numbered.items()
            if name.endswith("_problem")
        },
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


def seqnos(stats: Mapping[str, str]) -> dict[int, int]:
    """Read the high seqnos out of STAT vbucket-details: names vb_NUMBER:high_seqno."""
    by_name = {name: number(value, name) for name, value in stats.items() if name.endswith(":high_seqno")}
    return {number(name.removeprefix("vb_").partition(":")[0], "a vbucket"): seqno for name, seqno in by_name.items()}


def complete(stats: Mapping[str, str]) -> dict[int, int]:
    """Read out of STAT vbucket-details the seqno up to which each copy is complete; a failover to the copy takes back
    no change up to that seqno.

    If a node does not report it, a partly persisted snapshot counts up to its beginning (failover.md 1); a node that
    reports no snapshots either is assumed to be complete up to its high seqno.
    """
    return {
        vb: _complete({name: number(stats[f"vb_{vb}:{name}"], name) for name in _ENDS if f"vb_{vb}:{name}" in stats})
        for vb in seqnos(stats)
    }


_ENDS = ("complete_seqno", "high_seqno", "last_persisted_snap_start", "last_persisted_snap_end")


def _complete(seqnos_by_name: Mapping[str, int]) -> int:
    high = seqnos_by_name["high_seqno"]
    is_within = seqnos_by_name.get("last_persisted_snap_end", high) > high
    return seqnos_by_name.get(
        "complete_seqno", min(seqnos_by_name.get("last_persisted_snap_start", high), high) if is_within else high
    )


def refused(stats: Mapping[str, str]) -> dict[int, int]:
    """Read out of STAT vbucket-details the number of refused changes, for vbuckets that refused some."""
    return _counts(stats, "refused_changes")


def damaged(stats: Mapping[str, str]) -> dict[int, int]:
    """Read out of STAT vbucket-details the number of damaged changes, for vbuckets that have some."""
    return _counts(stats, "damaged_changes")


def acknowledged(stats: Mapping[str, str]) -> dict[int, int]:
    """Read out of STAT vbucket-details the seqno up to which each damaged copy may have acknowledged durable writes.

    A vbucket without that statistic is left out.
    """
    return _counts(stats, "acknowledged_seqno")


def flaw(vbucket: int, stats: Mapping[str, str]) -> str:
    """Read out of STAT vbucket-details the flaw of a copy, for people; empty for a sound one."""
    if vbucket in damaged(stats):
        return IS_DAMAGED
    is_behind = complete(stats).get(vbucket, 0) < seqnos(stats).get(vbucket, 0)
    return HAS_GAP if is_behind and vbucket in refused(stats) else ""


def _counts(stats: Mapping[str, str], statistic: str) -> dict[int, int]:
    counts = {name: number(value, name) for name, value in stats.items() if name.endswith(f":{statistic}")}
    return {number(name[3:].partition(":")[0], "a vbucket"): count for name, count in counts.items() if count}


def failover_statistics(vbucket: int, stats: Mapping[str, str]) -> list[tuple[int, int]]:
    """Read a failover log out of STAT failovers: names vb_NUMBER:PLACE:id and :seq, place 0 the newest."""
    count = number(stats.get(f"vb_{vbucket}:num_entries", "0"), f"failovers vb_{vbucket}:num_entries")
    # The count is the server's word: it must not decide how long the loop below runs.
    if not 0 < count <= len(stats):
        raise RemoteProtocolError(f"STAT failovers {vbucket}: {len(stats)} statistics of {count} entries")

    def statistic(place: int, part: str) -> int:
        name = f"vb_{vbucket}:{place}:{part}"
        return number(stats.get(name, ""), f"failovers {name}")

    return [(statistic(place, "id"), statistic(place, "seq")) for place in range(count)]


def number(text: str, name_: str) -> int:
    """Read a decimal number of at most 20 digits; raises RemoteProtocolError, with `name_`, for any other text."""
    # `int` would also take signs, blanks, underscores and the digits of other scripts. 20 digits hold each u64.
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise RemoteProtocolError(f"{name_}: {text[:40]!r} is no number")
    return int(text)


def number_of(stats: Mapping[str, str] | None, name: str) -> int | None:
    """Return a statistic that is an integer; None if it is missing."""
    text = (stats or {}).get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None
