"""The offset that Spark keeps between micro-batches: one position for each vbucket, as canonical JSON.

Spark compares offsets as texts only. If the same position were written with another key order, Spark would start a new
micro-batch, and ten milliseconds later another one, for ever. So there is one way to write an offset, in this file:

    {"v": 1, "vb": {"0": ["00a1b2c3d4e5f607", 120], "7": ["...", 9, 3, 11]}, "rollback": [7]}

* vbuckets in numeric order; one whose history has not been touched (seqno 0) is left out;
* each with vb uuid (16 hex digits), seqno, snapshot start, snapshot end; the snapshot collapses when both equal the
  seqno;
* `rollback` only when there is one: the vbuckets that lost delivered changes at the start of the batch ending here;
* `dataLoss` only when deletions were purged before they were read: {"7": 120}, vbucket and last purged seqno;
* `generations` only for a reader that undoes rollbacks: {"7": 2}, vbucket and how often it rolled back (undo.py);
* `notes` only for such a reader: the id of its notes' folder (keylog.py);
* `completeUntil` only when it is known: the time, as a CAS, up to which nothing is missing here (client/complete.py);
* `collections` only when some were chosen: {"uid": "4", "collections": ["8", "9"]}, as in a stream request. A seqno
  covers the changes of that choice only, so no reader may continue with another.

`{"v": 1, "latest": true}` stands for "whatever is newest at the first plan": `initialOffset` is called more than once
and must return the same each time, so it returns this wish, and the first `latestOffset` turns it into numbers.

planner.py explains the four numbers; integers are exact up to 2^64-1, also through Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import OptionError
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import Position

VERSION = 1
U64_MAX = (1 << 64) - 1
HEX_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Offset:
    """A reader's positions in all vbuckets.

    Args:
        positions: by vbucket; a missing vbucket stands at its beginning.
        rollbacks: vbuckets whose delivered changes above `snapshot_start` are taken back by the batch that ends here.
        latest: True for the symbolic start "newest", without positions.
        coverage: the collections that were read, by id; None for the default one alone.
        losses: those of `rollbacks` whose reader missed purged deletions: vbucket to the last purged seqno.
        generations: how often delivered changes were taken back, by vbucket; one that is missing never was.
        notes: id of the folder with the keys of all that was delivered up to here; empty if there is none.
        complete_until: no change that is missing here has a CAS at or below this one; 0 if that is not known.
    """

    positions: Mapping[int, Position] = field(default_factory=dict)
    rollbacks: frozenset[int] = frozenset()
    latest: bool = False
    coverage: Coverage | None = None
    losses: Mapping[int, int] = field(default_factory=dict)
    complete_until: int = 0
    generations: Mapping[int, int] = field(default_factory=dict)
    notes: str = ""

    def position(self, vbucket: int) -> Position:
        """Return the position in one vbucket."""
        return self.positions.get(vbucket) or Position.beginning(vbucket)

    def to_json(self) -> dict[str, Any]:
        """Return the offset in the form that Spark needs: a dict of JSON types, always in the same order."""
        if self.latest:
            return {"v": VERSION, "latest": True}
        places = ((vb, self.positions[vb]) for vb in sorted(self.positions))
        entries = {str(vb): _entry(place) for vb, place in places if not _untouched(place) or vb in self.rollbacks}
        fields: dict[str, Any] = {"v": VERSION, "vb": entries}
        if self.rollbacks:
            fields["rollback"] = sorted(self.rollbacks)
        if self.losses:
            fields["dataLoss"] = {str(vb): self.losses[vb] for vb in sorted(self.losses)}
        if self.generations:
            fields["generations"] = {str(vb): self.generations[vb] for vb in sorted(self.generations)}
        if self.notes:
            fields["notes"] = self.notes
        if self.complete_until:
            fields["completeUntil"] = self.complete_until
        if self.coverage is not None:
            fields["collections"] = self.coverage.as_json()
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Offset:
        """Return the offset that `to_json` wrote, as Spark's checkpoint returns it.

        Raises:
            OptionError: not an offset of this source, or one of a later version.
        """
        if not isinstance(fields, Mapping) or fields.get("v") != VERSION:
            raise OptionError("offset", str(fields), f"an offset of version {VERSION} of the dcp source")
        if fields.get("latest"):
            return cls(latest=True)
        rollbacks = frozenset(_vbucket("offset", vbucket) for vbucket in fields.get("rollback", ()))
        covered = fields.get("collections")
        coverage = None if covered is None else Coverage.from_json(covered)
        losses = _numbers(fields.get("dataLoss", {}))
        generations = _numbers(fields.get("generations", {}))
        until = _u64("offset", fields.get("completeUntil", 0))
        positions = parse_positions("offset", fields.get("vb"))
        return cls(
            positions,
            rollbacks,
            coverage=coverage,
            losses=losses,
            complete_until=until,
            generations=generations,
            notes=str(fields.get("notes", "")),
        )


def _numbers(entries: Mapping[str, object]) -> dict[int, int]:
    return {_vbucket("offset", vb): _u64("offset", number) for vb, number in entries.items()}


def _untouched(position: Position) -> bool:
    return position.seqno == position.snapshot_end == 0


def _entry(position: Position) -> list[str | int]:
    entry: list[str | int] = [hex_uuid(position.vb_uuid), position.seqno]
    collapsed = position.snapshot_start == position.seqno == position.snapshot_end
    return entry if collapsed else [*entry, position.snapshot_start, position.snapshot_end]


def hex_uuid(vb_uuid: int) -> str:
    """Return a vb uuid in the form for users: 16 lower-case hex digits."""
    return f"{vb_uuid:016x}"


def parse_positions(option: str, entries: object) -> dict[int, Position]:
    """Read positions by vbucket: those of an offset, or the shorter forms that users write.

    Args:
        option: name of the option, for the error message.
        entries: {"0": seqno}, {"0": [vb uuid, seqno]} or {"0": [vb uuid, seqno, snapshot start, snapshot end]}. A bare
            seqno has vb uuid 0, which stands for the node's current history.

    Raises:
        OptionError: anything else.
    """
    if not isinstance(entries, Mapping):
        raise OptionError(option, str(entries), 'a JSON object such as {"0": 120}')
    places = {_vbucket(option, key): entry for key, entry in entries.items()}
    return {vbucket: _position(option, vbucket, places[vbucket]) for vbucket in sorted(places)}


def _vbucket(option: str, key: object) -> int:
    digits = str(key)
    # Spark compares offsets as texts: "07" and "7" would be two offsets of one place.
    if not (digits.isascii() and digits.isdecimal()) or str(int(digits)) != digits or int(digits) > 0xFFFF:
        raise OptionError(option, str(key), "a vbucket number")
    return int(digits)


def _position(option: str, vbucket: int, entry: object) -> Position:
    fields = entry if isinstance(entry, list | tuple) else ["0" * HEX_DIGITS, entry]
    if len(fields) not in (2, 4):
        raise OptionError(
            option, str(entry), f"a position of vbucket {vbucket}: [vb uuid, seqno] or with snapshot start and end"
        )
    seqno, *snapshot = (_u64(option, number) for number in fields[1:])
    start, end = snapshot or (seqno, seqno)
    if not start <= seqno <= end:
        raise OptionError(option, str(entry), f"a position of vbucket {vbucket}: its seqno lies outside its snapshot")
    return Position(vbucket, _uuid(option, fields[0]), seqno, start, end)


def _u64(option: str, number: object) -> int:
    # bool is an int in Python, and JSON's true is no seqno.
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= U64_MAX:
        raise OptionError(option, str(number), "a whole number from 0 to 2^64-1")
    return number


def _uuid(option: str, digits: object) -> int:
    if isinstance(digits, str) and len(digits) == HEX_DIGITS and not set(digits) - set("0123456789abcdef"):
        return int(digits, 16)
    raise OptionError(option, str(digits), f"a vb uuid of {HEX_DIGITS} lower-case hex digits")
