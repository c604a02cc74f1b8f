"""The position of a consumer in the history of one vbucket: the five numbers that it needs to continue.

A bare seqno is not a position: after a failover two histories may both have a seqno 900 with different changes. So a
position names the history (vb uuid), the last change held (seqno), and the range that the consumer may hold only in
part (snapshot start, snapshot end): inside this range, older versions of a key may already be replaced by newer ones
that have not arrived yet.

    seqno == snapshot_end     everything up to seqno is held, as one consistent state
    seqno <  snapshot_end     consistent again only at snapshot_start (behind) or snapshot_end (ahead)

A position also keeps the failover log of the stream that it came from. The log does not take part in equality, but
decides which uuid to quote after a rollback.

Unless only the default collection was read, a position also names the collections: `coverage.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeAlias

from headwater.errors import OptionError
from headwater.invariants import invariant
from headwater.protocol.dcp.coverage import Coverage
from headwater.wire.vbucket import VBUCKET_MAX

FailoverLog: TypeAlias = tuple[tuple[int, int], ...]
"""(vb uuid, seqno) pairs, newest first: the history `uuid` began after `seqno`."""

WIRE_SEQNO_MAX = 0xFFFF_FFFF_FFFF_FFFF
"""The highest seqno on the wire; the highest that is stored is `wire.numbers.SEQNO_MAX`."""
ENDLESS = WIRE_SEQNO_MAX

_NUMBERS = ("vb_uuid", "seqno", "snapshot_start", "snapshot_end")


@dataclass(frozen=True, slots=True)
class Position:
    """The last change held of one vbucket, and the snapshot around it.

    Args:
        vbucket: 0 to 65535.
        vb_uuid: the history that the change belongs to, unsigned 64 bits; 0 only before the first change.
        seqno: the last change held, 0 for none.
        snapshot_start: the last seqno at which the held data was consistent.
        snapshot_end: the next seqno at which the held data will be consistent; `seqno` if it is now.
        failover_log: the log of the last successful stream, newest first; may be empty.
        coverage: the collections that were read up to here; None for the default collection alone.

    Raises:
        OptionError: a number out of its range, or a seqno outside its own snapshot.

    Source: DCP, commands/stream-request.md (start seqno, snapshot start, snapshot end).
    """

    vbucket: int
    vb_uuid: int = 0
    seqno: int = 0
    snapshot_start: int = 0
    snapshot_end: int = 0
    failover_log: FailoverLog = field(default=(), compare=False, repr=False)
    coverage: Coverage | None = None

    def __post_init__(self) -> None:
        start, end = self.snapshot_start, self.snapshot_end
        # Bits above the 64 are those of what is too large or below 0. A drain has two positions for each vbucket.
        if not start <= self.seqno <= end or (start | end | self.vb_uuid) >> 64 or not 0 <= self.vbucket <= VBUCKET_MAX:
            self._complain()

    def _complain(self) -> None:
        """Raise the OptionError that names the invalid number."""
        if not 0 <= self.vbucket <= VBUCKET_MAX:
            raise OptionError("vbucket", self.vbucket, f"a vbucket number, 0 to {VBUCKET_MAX}")
        for name in _NUMBERS:
            if not 0 <= getattr(self, name) <= WIRE_SEQNO_MAX:
                raise OptionError(name, getattr(self, name), "an unsigned number of 64 bits")
        # A stream request whose start lies outside its snapshot is answered ERANGE (dcp.md 2.4, step 8).
        if not self.snapshot_start <= self.seqno <= self.snapshot_end:
            allowed = f"a seqno inside its snapshot, {self.snapshot_start} to {self.snapshot_end}"
            raise OptionError("seqno", self.seqno, allowed)

    @classmethod
    def beginning(cls, vbucket: int) -> Position:
        """Return the position before the first change."""
        return cls(vbucket)

    @classmethod
    def after(cls, vbucket: int, seqno: int, failover_log: Iterable[Sequence[int]]) -> Position:
        """Return the position of a consumer that holds the history of a failover log up to `seqno`."""
        log = tuple((int(uuid), int(start)) for uuid, start in failover_log)
        return cls(vbucket, history_at(log, seqno), seqno, seqno, seqno, log)

    @property
    def complete(self) -> bool:
        """True if the data held is consistent (no snapshot half received)."""
        return self.seqno == self.snapshot_end

    def to_json(self) -> str:
        """Return the position as one line of JSON, keys in a fixed order, so that equal positions give equal texts."""
        fields: dict[str, object] = {"vbucket": self.vbucket, "vb_uuid": f"{self.vb_uuid:016x}"}
        fields |= {name: getattr(self, name) for name in _NUMBERS[1:]}
        if self.failover_log:
            fields["failover_log"] = [[f"{uuid:016x}", seqno] for uuid, seqno in self.failover_log]
        if self.coverage is not None:
            fields["collections"] = self.coverage.as_json()
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """Return the position that `to_json` encoded.

        Raises:
            OptionError: not JSON, a missing field, or invalid numbers.
        """
        text_shown = text if isinstance(text, str) else repr(text)
        try:
            fields = json.loads(text)
        except ValueError:
            raise _no_position(text_shown) from None
        return cls.from_fields(fields, text_shown)

    @classmethod
    def from_fields(cls, fields: Any, text_shown: str = "") -> Position:
        """Return the position from the parsed JSON of `to_json`; `text_shown` is its text, for the error.

        Raises:
            OptionError: a missing field, or invalid numbers.
        """
        try:
            log = tuple((int(uuid, 16), int(seqno)) for uuid, seqno in fields.get("failover_log", ()))
            seqno, start, end = (int(fields[name]) for name in _NUMBERS[1:])
            coverage = Coverage.from_json(fields["collections"]) if "collections" in fields else None
            return cls(int(fields["vbucket"]), int(fields["vb_uuid"], 16), seqno, start, end, log, coverage)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, OptionError):
                raise
            raise _no_position(text_shown or repr(fields)) from None


def _no_position(text_shown: str) -> OptionError:
    return OptionError("position", text_shown, 'a saved position: {"vbucket":..,"vb_uuid":"16 hex digits",..}')


@dataclass(frozen=True, slots=True)
class ClaimedPosition(Position):
    """The position of a consumer that requests the changes after a seqno, with a snapshot range that the producer must
    check.

    Example: a planner read seqno 900 from a node, and requests the changes 301 to 400 with the snapshot 299 to 900. The
    producer refuses the request unless its history contains the whole range. The consumer holds no part of a snapshot,
    and needs no change after 400.
    """


def history_at(log: Sequence[Sequence[int]], seqno: int) -> int:
    """Return the uuid of the history that `seqno` belongs to; 0 if the log has none.

    It is the uuid of the newest entry whose seqno is not above `seqno` (failover.md 2.3): an entry that begins later
    describes changes that the consumer does not hold. Real logs are not always in descending order (errata S7), so the
    whole log is searched.
    """
    return next((uuid for uuid, begins in log if begins <= seqno), 0)


def older_histories(position: Position) -> list[int]:
    """Return the vb uuids for further requests, in order, if a producer does not know the uuid of a position.

    A branch that begins at the consumer's seqno has written none of the changes that the consumer holds: without that
    branch, the consumer is at the same seqno of the previous branch (dcp.md 9: "newest entry's seqno equals the start:
    drop that entry, retry with the previous uuid"). The same holds after each dropped entry. An entry that begins below
    the consumer's seqno ends the list: the branch before it may continue with changes that the consumer does not hold,
    and a producer that wrote them would accept the claim. Inside a snapshot the list is empty: the data may already
    contain writes of the branch at the snapshot's end.
    """
    if not position.complete or not position.failover_log:
        return []
    earlier_branches = [entry for entry in position.failover_log if entry[1] <= position.seqno]
    at = next((at for at, (uuid, _) in enumerate(earlier_branches) if uuid == position.vb_uuid), len(earlier_branches))
    empty = len(list(takewhile(lambda entry: entry[1] == position.seqno, earlier_branches[at:])))
    return [uuid for uuid, _ in earlier_branches[at + 1 : at + 1 + empty]]


def place(  # noqa: PLR0917 - the numbers of a row, as kernels keep them
    vbucket: int, last: int, held_start: int, held_end: int, log: FailoverLog, coverage: Coverage | None = None
) -> Position:
    """Return the position of a consumer whose last change is `last`, consistent at `held_start` and again at
    `held_end`.

    The resume rule of dcp.md 9: at the end of a snapshot, or before its first change, the position is (last, last,
    last). Inside a snapshot the position has the snapshot's range, and the history of the snapshot's end: the newer
    versions, which replaced those that the consumer lacks, were written in that history (failover.md 2.3).
    """
    # "Nothing received of the announced snapshot" and "complete snapshot" are asked for alike (dcp 9): with the
    # unreached end in it, a request would be sent back further than needed.
    if last in (held_start, held_end):
        held_start = held_end = last
    return Position(vbucket, history_at(log, held_end), last, held_start, held_end, log, coverage)


def shared_seqno(ours: FailoverLog, theirs: FailoverLog) -> int:
    """Return the last seqno up to which two failover logs describe the same history.

    ENDLESS if both end in the same branch; 0 if they have no branch in common.
    """
    our_uuids = {uuid for uuid, _ in ours}
    # The newest branch that both logs name; where either of them left it the histories part.
    uuid = next((uuid for uuid, _ in theirs if uuid in our_uuids), None)
    if uuid is None:
        return 0
    ends = ([seqno for _, seqno in takewhile(lambda entry: entry[0] != uuid, log)][-1:] for log in (ours, theirs))
    return min((end for of_log in ends for end in of_log), default=ENDLESS)


def safe_point(saved: Iterable[Position], vbucket: int, common: int) -> Position:
    """Return the position from which to continue after `RollbackRequired`: the newest consistent one at or below
    `common`.

    Going back to `common` itself is safe only for a consumer that once held exactly that state. Inside a snapshot, a
    version at or below `common` may never have been sent because a newer one, now undone, had replaced it (dcp.md 9:
    "the state is exactly a snapshot end at or below that seqno"). So only complete positions are considered.

    Args:
        saved: positions saved earlier, in any order, of any vbuckets.
        vbucket: the vbucket that was refused.
        common: `RollbackRequired.common`.

    Returns: a saved position, or the beginning if there is none at or below `common`; the caller drops every later
    change.
    """
    fitting = [p for p in saved if p.vbucket == vbucket and p.complete and p.seqno <= common]
    point = max(fitting, key=lambda p: p.seqno, default=Position.beginning(vbucket))
    invariant(point.complete and point.seqno <= common, "vbucket {}: back to {}, not {}", vbucket, point.seqno, common)
    return point


def save_positions(positions: Mapping[int, Position]) -> str:
    """Return positions of many vbuckets as a JSON text, a line each, ordered by vbucket; `load_positions` reads it."""
    return "[" + ",\n".join(positions[vbucket].to_json() for vbucket in sorted(positions)) + "]"


def load_positions(text: str | bytes) -> dict[int, Position]:
    """Return the positions that `save_positions` wrote.

    Raises:
        OptionError: the text is not such a list.
    """
    try:
        entries = json.loads(text)
        read = [Position.from_json(json.dumps(entry)) for entry in entries]
    except (ValueError, TypeError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError("positions", "...", "a JSON list of saved positions") from None
    return {position.vbucket: position for position in read}
