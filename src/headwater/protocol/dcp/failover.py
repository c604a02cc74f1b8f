"""The failover table of a vbucket, and the rollback decision of a producer.

A failover table lists the seqno at which each branch of a vbucket's history began: entries (vb uuid, seqno), newest
first. The seqnos above an entry's, up to that of the next newer entry, were written under that entry's uuid. With the
table a producer decides whether a consumer that stopped at some seqno may continue, and if not, up to which seqno both
histories agree.

Everything here is arithmetic on numbers: no I/O, no clock; the owner passes a function that returns new uuids.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headwater.invariants import invariant
from headwater.wire.records import encode_log

ENTRIES_MAX = 25
"""The oldest entry is dropped when one more is added (failover 1)."""

END_OF_TIME = 0xFFFF_FFFF_FFFF_FFFF
"""The end seqno of a stream that never ends."""

VB_UUID_BITS = 48
"""Upper 16 bits stay clear, so that programs that keep numbers as doubles hold a vb uuid exactly (failover 1)."""


class FailoverEntry(NamedTuple):
    """One branch of a vbucket's history: the seqnos above `seqno` were written under `vb_uuid`."""

    vb_uuid: int
    seqno: int


class FailoverTable:
    """The branches of one vbucket's history, newest first; never empty.

    Args:
        entries: (vb uuid, seqno) pairs, newest first. Without any, the table of a new vbucket: (fresh uuid, 0).
        new_uuid: returns 64 random bits; they are cut to 48, and drawn again if they are 0 or known.
        entries_max: the largest number of entries; the oldest are dropped.

    Source: failover log; failover 1.
    """

    def __init__(
        self,
        entries: Iterable[tuple[int, int]] = (),
        *,
        new_uuid: Callable[[], int],
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        self._new_uuid = new_uuid
        self._entries_max = entries_max
        # The oldest go: a consumer that is on one of those has been away for so many failovers that it begins anew.
        self._entries = tuple(FailoverEntry(*entry) for entry in entries)[:entries_max]
        self._encoded: tuple[tuple[FailoverEntry, ...], bytes] = ((), b"")  # of which entries, and their bytes
        if not self._entries:
            self._push(0)

    def __iter__(self) -> Iterator[FailoverEntry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"FailoverTable({', '.join(f'{uuid:#x}@{seqno}' for uuid, seqno in self._entries)})"

    @property
    def newest(self) -> FailoverEntry:
        """The branch that is being written now."""
        return self._entries[0]

    @property
    def entries(self) -> tuple[FailoverEntry, ...]:
        """All branches, newest first."""
        return self._entries

    def create(self, seqno: int) -> FailoverEntry:
        """Begin a new branch after `seqno`; drop entries that begin above it. Returns the new entry."""
        # An entry that begins above is of a branch of which nothing is here; left in the table, it would let its
        # consumers keep changes that do not exist here (failover 1, create).
        self._entries = tuple(entry for entry in self._entries if entry.seqno <= seqno)
        return self._push(seqno)

    def prune(self, seqno: int) -> None:
        """Drop the branches that began above `seqno`, the target of a rollback.

        After a rollback to 0, begin with a new table instead.
        """
        self._entries = tuple(entry for entry in self._entries if entry.seqno <= seqno) if seqno else ()
        # The table is never empty; the new uuid is nobody's, so every consumer with data is sent back (failover 1,
        # prune).
        if not self._entries:
            self._push(seqno)
        highest = max(entry.seqno for entry in self._entries)
        invariant(highest <= seqno, "a branch from seqno {} is left of a rollback to {}", highest, seqno)

    def replace(self, log: Iterable[tuple[int, int]]) -> None:
        """Replace all entries by the log of this replica's producer; `log` has at least one entry."""
        entries = tuple(FailoverEntry(*entry) for entry in log)[: self._entries_max]
        if not entries:
            raise ValueError("a failover log has at least one entry; this one has none")
        self._entries = entries

    def sanitize(self, high_seqno: int) -> None:
        """Repair a loaded table: drop entries with uuid 0, and entries that begin above a newer entry."""
        entries: list[FailoverEntry] = []
        for entry in self._entries:
            # Compared with the newer entry that was kept, so one bad entry does not take the good ones behind it along
            # (vector T09).
            if entry.vb_uuid and (not entries or entry.seqno <= entries[-1].seqno):
                entries.append(entry)
        self._entries = tuple(entries)
        if not entries:
            self.create(high_seqno)

    def last_seqno_for_uuid(self, vb_uuid: int, high_seqno: int) -> int | None:
        """Return the last seqno of a branch: `high_seqno` for the newest; None for an unknown uuid."""
        upper = high_seqno
        for entry in self._entries:
            if entry.vb_uuid == vb_uuid:
                return upper
            upper = entry.seqno
        return None

    def encode(self) -> bytes:
        """Return the log in its wire form: 16 bytes an entry, newest first (dcp 2.5)."""
        # By identity: the tuple is exchanged, never changed, and a thousand streams ask for the same log.
        if self._encoded[0] is not self._entries:
            self._encoded = self._entries, encode_log(self._entries)
        return self._encoded[1]

    def _push(self, seqno: int) -> FailoverEntry:
        uuids = {entry.vb_uuid for entry in self._entries}
        vb_uuid = 0
        # 0 means "no history" in a request (dcp 2.4), and a uuid that comes twice would name two branches (vector F50).
        while vb_uuid == 0 or vb_uuid in uuids:
            vb_uuid = self._new_uuid() & ((1 << VB_UUID_BITS) - 1)
        highest = max((entry.seqno for entry in self._entries), default=0)
        invariant(highest <= seqno, "a branch from seqno {} follows one from {}", seqno, highest)
        self._entries = (FailoverEntry(vb_uuid, seqno), *self._entries)[: self._entries_max]
        return self._entries[0]


class Claim(NamedTuple):
    """A consumer's claim to hold data: the numbers of its stream request (dcp 2.4).

    `branch_seqno` is None in DCP; in UPR it is the seqno at which the branch `vb_uuid` began, according to the
    consumer's log.
    """

    start_seqno: int = 0
    end_seqno: int = END_OF_TIME
    vb_uuid: int = 0
    snap_start_seqno: int = 0
    snap_end_seqno: int = 0
    branch_seqno: int | None = None


@dataclass(frozen=True, slots=True)
class Ok:
    """The consumer may continue."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """The consumer must first go back to `seqno`; `reason` is for people."""

    seqno: int
    reason: str


@dataclass(frozen=True, slots=True)
class Erange:
    """The numbers contradict each other; `reason` is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class KeyEnoent:
    """UPR only: no branch has this uuid and seqno; the consumer must start from 0."""


Decision = Ok | Rollback | Erange
_OK = Ok()


def decide(
    claim: Claim,
    table: Iterable[tuple[int, int]],
    high_seqno: int,
    *,
    purge_seqno: int = 0,
    remote_purge_seqno: int = 0,
    strict: bool = False,
    collection_high_seqno: int | None = None,
) -> Decision:
    """Decide whether a consumer may continue, by the first rule of failover 2 that applies.

    Args:
        claim: the stream request's numbers.
        table: this vbucket's (vb uuid, seqno) entries, newest first.
        high_seqno: the vbucket's newest seqno.
        purge_seqno: the highest tombstone seqno that was purged; 0 for none, and for "ignore purged tombstones".
        remote_purge_seqno: the purge seqno in the request; 0 for none.
        strict: True to check the uuid of a consumer that starts at 0 as well.
        collection_high_seqno: highest seqno of the collections streamed; None for a stream of everything.
    """
    contradiction = check_ranges(claim)
    if contradiction is not None:
        return contradiction
    # 1. Whoever has nothing can not disagree; with the strict flag a uuid that was given must still be known.
    if claim.start_seqno == 0 and (not strict or claim.vb_uuid == 0):
        return _OK
    # 2. A deletion that was purged above the start would never reach the consumer. Not so when it proves that it knew
    #    of that purge, or when nothing in the collections it reads changed since.
    # Both bounds: a collection that changed behind the purge, or behind the start, may have had one of its tombstones
    # purged in between (vectors F39, F40).
    unchanged = collection_high_seqno is not None and collection_high_seqno <= min(claim.start_seqno, purge_seqno)
    if 0 < claim.start_seqno < purge_seqno and remote_purge_seqno != purge_seqno and not unchanged:
        return Rollback(0, f"deletions up to seqno {purge_seqno} were purged")
    decision = (
        _rollback(claim, list(table), high_seqno) if claim.branch_seqno is None else _upr(claim, table, high_seqno)
    )
    # Hardly to be met, for whoever is ahead of us was sent back by now (failover 2, "after").
    if decision is None and claim.start_seqno > high_seqno:
        return Erange(f"start seqno {claim.start_seqno} lies above the high seqno {high_seqno}")
    if decision is not None:
        back, start = decision.seqno, claim.start_seqno
        invariant(back <= start, "a consumer at seqno {} is sent back to {}", start, back)
    return decision or _OK


def check_ranges(claim: Claim) -> Erange | None:
    """Check that start lies neither above end nor outside its snapshot (dcp 2.4, checks 7 and 8)."""
    if claim.start_seqno > claim.end_seqno:
        return Erange(f"start seqno {claim.start_seqno} lies above end seqno {claim.end_seqno}")
    if not claim.snap_start_seqno <= claim.start_seqno <= claim.snap_end_seqno:
        snapshot = f"[{claim.snap_start_seqno}, {claim.snap_end_seqno}]"
        return Erange(f"start seqno {claim.start_seqno} lies outside its snapshot {snapshot}")
    return None


def _rollback(claim: Claim, table: list[tuple[int, int]], high_seqno: int) -> Rollback | None:
    """Apply rules 3 to 8; return the rollback, or None if the consumer may continue.

    The rules find the last seqno of the consumer's branch in `table`, and the part of the consumer's data up to it.
    """
    start, snap_start, snap_end = claim.start_seqno, claim.snap_start_seqno, claim.snap_end_seqno
    # 3. and 4. From the oldest entry, so that of a uuid listed twice the earlier branch decides.
    upper = _upper(table, lambda entry: entry[0] == claim.vb_uuid, high_seqno)
    if upper is None:
        return Rollback(0, f"no branch of the history has vb uuid {claim.vb_uuid:#x}")
    # 5. Nothing of that snapshot was received: where it would have ended does not matter.
    if start == snap_start:
        snap_end = start
    # 6. All that the consumer may hold was written before the branches parted.
    if snap_end <= upper:
        return None
    # 7. The whole snapshot was received: it may be cut at any seqno.
    if start == snap_end:
        snap_start = start
    # 8. Back to where the branches part; but a snapshot half received can only be given up as a whole.
    # Between `snap_start` and the parting the consumer may lack versions that a later one, of the other branch, had
    # replaced.
    common = min(upper, snap_start)
    return Rollback(common, f"branch {claim.vb_uuid:#x} ended at seqno {upper} here")


def decide_upr(
    start_seqno: int, vb_uuid: int, branch_seqno: int, table: Iterable[tuple[int, int]], high_seqno: int
) -> Ok | Rollback | KeyEnoent:
    """Decide for the UPR dialect, which identifies a branch by its uuid and the seqno at which it began.

    A start below the branch's first seqno may continue; UPR once answered it with a "rollback forward", a mistake
    (failover 2, UPR variant).
    """
    if start_seqno == 0:
        return Ok()
    upper = _upper(list(table), lambda entry: entry == (vb_uuid, branch_seqno), high_seqno)
    if upper is None:
        return KeyEnoent()
    return Ok() if start_seqno <= upper else Rollback(upper, f"branch {vb_uuid:#x} ended at seqno {upper} here")


def _upr(claim: Claim, table: Iterable[tuple[int, int]], high_seqno: int) -> Rollback | None:
    """Decide for UPR; for an unknown branch return ROLLBACK 0, as the sample does, not KEY_ENOENT (erratum U4)."""
    match decide_upr(claim.start_seqno, claim.vb_uuid, claim.branch_seqno or 0, table, high_seqno):
        case Rollback() as decision:
            return decision
        case KeyEnoent():
            return Rollback(0, f"no branch of the history is {claim.vb_uuid:#x} from seqno {claim.branch_seqno}")
    return None


def _upper(table: list[tuple[int, int]], is_branch: Callable[[tuple[int, int]], bool], high_seqno: int) -> int | None:
    """Return the last seqno of the oldest branch for which `is_branch` is true; None if there is none.

    It is the seqno of the next newer entry, or `high_seqno` for the newest branch.
    """
    for place in reversed(range(len(table))):
        if is_branch(table[place]):
            return table[place - 1][1] if place else high_seqno
    return None
