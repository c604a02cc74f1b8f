"""Decides from all requests, answers and reads whether a node lost, invented or contradicted anything.

Every operation is entered before it is sent (`sent`) and completed by its answer (`acked`), if one comes: without an
answer it is unknown, it may have happened or not. Every change that any reader saw is entered too (`shown`). From these
the ledger checks that a node keeps its promises ("acknowledged means durable, visible means durable"):

    identity   a seqno of a vbucket has one content for ever, for every reader, whatever was killed in between
    order      CAS values of a vbucket rise with its seqnos
    floor      a change that was acknowledged or shown is there afterwards, or something newer in its place
    ceiling    nothing is there that was not sent
    prefix     a writer's operations survive in order: the state is that after its first n operations, and n is not
               below the last one acknowledged
               where a full disk may refuse some of them, and their answers be lost with the node, each document is
               that of the last acknowledged operation, or of an unknown one behind it
    once       an unknown operation that did not survive never turns up later

A Violation is an AssertionError that names vbucket, seqno and key. Values are kept as checksums.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias
from zlib import crc32

GONE = None
"""Stands for the checksum of a deleted document."""

State: TypeAlias = dict[tuple[int, bytes], int | None]
"""Checksums of documents by (vbucket, key)."""


class Violation(AssertionError):  # noqa: N818 - what it is
    """The node broke a promise."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A change as a reader saw it.

    Attributes:
        digest: CRC-32 of the value; None for a deletion.
        cas: 0 if the reader did not see it.
    """

    vbucket: int
    seqno: int
    key: bytes
    digest: int | None
    cas: int = 0


@dataclass(slots=True)
class Operation:
    """One write of one writer. `seqno` is 0 until it is acknowledged."""

    number: int
    vbucket: int
    key: bytes
    digest: int | None
    seqno: int = 0


def digest(value: bytes | None) -> int | None:
    """Return the CRC-32 of a value, which the ledger keeps; None for a deletion."""
    return GONE if value is None else crc32(value)


class Ledger:
    """A record of requests, answers and observations. Each writer has keys of its own, and no two values are the same.

    May be used by several threads; `settle` only when no writer runs.

    Args:
        disk_may_fill: True if an unknown operation may have been refused, though a later one survived: a full disk
            takes deletions, and no documents.

    Attributes:
        acknowledged, recovered, lost_unknown, observations: how many of each there were.
    """

    def __init__(self, *, disk_may_fill: bool = False) -> None:
        self._disk_may_fill = disk_may_fill
        self.acknowledged = self.recovered = self.lost_unknown = self.observations = 0
        self._lock = Lock()
        self._values: set[tuple[int, bytes, int | None]] = set()  # sent, and not known to be lost
        self._contents: dict[tuple[int, int], Shown] = {}
        self._newest: dict[tuple[int, bytes], Shown] = {}
        self._seqnos: defaultdict[int, list[int]] = defaultdict(list)  # sorted, those whose CAS is known
        self._operations: defaultdict[int, list[Operation]] = defaultdict(list)  # of each writer, since `settle`
        self._state: defaultdict[int, State] = defaultdict(dict)

    def sent(self, writer: int, operation: Operation) -> None:
        """Enter an operation that a writer is about to send."""
        self._values.add((operation.vbucket, operation.key, operation.digest))
        self._operations[writer].append(operation)

    def refused(self, writer: int, operation: Operation) -> None:
        """Note that the node refused an operation."""
        self._operations[writer].remove(operation)
        self._never_happened(operation)

    def acked(self, operation: Operation, seqno: int, cas: int) -> None:
        """Note that the node acknowledged an operation."""
        operation.seqno = seqno
        self.acknowledged += 1
        self.shown(Shown(operation.vbucket, seqno, operation.key, operation.digest, cas))

    def shown(self, change: Shown) -> None:
        """Check a change that a reader was shown: identity and order against everything shown before."""
        with self._lock:
            self._shown(change)

    def _shown(self, change: Shown) -> None:
        self.observations += 1
        known_value = (change.vbucket, change.key, change.digest) in self._values
        if not known_value:
            raise Violation(f"made up, or lost before: {change} is no value that was sent")
        place = change.vbucket, change.seqno
        known = self._contents.get(place)
        if known is not None:
            same = (known.key, known.digest) == (change.key, change.digest)
            same = same and (not known.cas or not change.cas or known.cas == change.cas)
            if not same:
                raise Violation(f"seqno {change.seqno} of vbucket {change.vbucket} was {known}, and is {change} now")
        if known is None or not known.cas:
            self._contents[place] = change
            self._check_order(change)
        newest = self._newest.get((change.vbucket, change.key))
        if newest is None or newest.seqno < change.seqno:
            self._newest[change.vbucket, change.key] = change

    def _check_order(self, change: Shown) -> None:
        if not change.cas:
            return
        seqnos = self._seqnos[change.vbucket]
        at = bisect_left(seqnos, change.seqno)
        for other, below in ((at - 1, True), (at, False)):
            if 0 <= other < len(seqnos):
                cas = self._contents[change.vbucket, seqnos[other]].cas
                if (cas < change.cas) is not below:
                    raise Violation(f"CAS {cas} of seqno {seqnos[other]} does not rise to {change}")
        seqnos.insert(at, change.seqno)

    def settle(self, there: Iterable[Shown]) -> None:
        """Check the newest change of every key after a fault, as the node has them, against the ledger.

        The writers continue from the surviving operations: unknown operations are decided by this.

        Raises:
            Violation: a promise was broken.
        """
        found: dict[tuple[int, bytes], Shown] = {}
        for change in there:
            self.shown(change)
            found[change.vbucket, change.key] = change
        for place, newest in self._newest.items():
            now = found.get(place)
            if now is None:
                raise Violation(f"lost: {newest} was acknowledged or shown, and is not there")
            if now.seqno < newest.seqno:
                raise Violation(f"lost: {newest} was acknowledged or shown, {now} is there")
        state: State = {place: change.digest for place, change in found.items() if change.digest is not GONE}
        for writer in self._operations:
            self._settle_writer(writer, state)
        expected = {place: value for held in self._state.values() for place, value in held.items() if value is not GONE}
        if state != expected:
            raise Violation(f"made up: {set(state.items()) ^ set(expected.items())}")

    def _settle_writer(self, writer: int, state: State) -> None:
        """Find the number n of a writer's operations that survived, and keep their state.

        Raises:
            Violation: no n from the last acknowledged operation on explains the state.
        """
        operations, held = self._operations[writer], dict(self._state[writer])
        certain = max((at + 1 for at, operation in enumerate(operations) if operation.seqno), default=0)
        for operation in operations[:certain]:
            held[operation.vbucket, operation.key] = operation.digest
        places = held.keys() | {(operation.vbucket, operation.key) for operation in operations}
        wrong = {place for place in places if state.get(place) != held.get(place)}
        survived = certain
        while wrong and survived < len(operations):
            operation = operations[survived]
            place = operation.vbucket, operation.key
            held[place] = operation.digest
            (wrong.discard if state.get(place) == operation.digest else wrong.add)(place)
            survived += 1
        if wrong and self._disk_may_fill:
            self._settle_refused(writer, certain, state)
            return
        if wrong:
            raise Violation(f"writer {writer}: no first n of {len(operations)} operations make what is there: {wrong}")
        self.recovered += survived - certain
        self.lost_unknown += len(operations) - survived
        for operation in operations[survived:]:
            self._never_happened(operation)
        self._state[writer] = held
        operations.clear()

    def _settle_refused(self, writer: int, certain: int, state: State) -> None:
        """Take each document as that of the last acknowledged operation, or of an unknown one behind it.

        Raises:
            Violation: a document is of none of them.
        """
        operations, held = self._operations[writer], dict(self._state[writer])
        for operation in operations[:certain]:
            held[operation.vbucket, operation.key] = operation.digest
        unknown = [((operation.vbucket, operation.key), operation) for operation in operations[certain:]]
        survived = {place: at for at, (place, each) in enumerate(unknown) if state.get(place) == each.digest}
        held |= {place: unknown[at][1].digest for place, at in survived.items()}
        wrong = {place for place, value in held.items() if state.get(place) != value}
        if wrong:
            raise Violation(f"writer {writer}: no operation makes what is there: {wrong}")
        for at, (place, operation) in enumerate(unknown):
            if at <= survived.get(place, -1):  # it is there, or may have been, until a later one replaced it
                self.recovered += 1
            else:
                self.lost_unknown += 1
                self._never_happened(operation)
        self._state[writer] = held
        operations.clear()

    def _never_happened(self, operation: Operation) -> None:
        if operation.digest is not GONE:  # deletions can't be told apart
            self._values.discard((operation.vbucket, operation.key, operation.digest))

    def state_of(self, writer: int) -> State:
        """Return a writer's documents by (vbucket, key) after `settle`: digests, None for deleted ones."""
        return dict(self._state[writer])
