"""The newest seqno of each collection in a vbucket, updated as changes become durable.

A client that polls a bucket requests this seqno several times a second, and the newest change of its collection may be
ten million rows back. So each row is read only once: when its batch becomes durable, or at a query. Only upper bounds
are stored: a rollback lowers them, and a purge may remove the row of a bound. A query searches back from the bound;
usually the first row that it reads is the newest.

Vbuckets without marked rows are not read: their newest seqno is that of the vbucket. Usually all vbuckets have changes
of the same collections, so the numbers of the choices that occur in one vbucket are used for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from headwater.invariants import node_invariant
from headwater.kernels import choices, index

if TYPE_CHECKING:
    from headwater.node.storage.columns import Index
    from headwater.node.storage.slots import Slots
    from headwater.node.storage.views import Shown

BEHIND_MAX: Final = 10_000
"""The most changes of a vbucket that are not read until a query; reading them takes some tens of microseconds."""


def _none() -> NDArray[np.uint64]:
    return np.zeros(0, np.uint64)


@dataclass(slots=True)
class _Bounds:
    """The bounds of one vbucket.

    Attributes:
        numbers: numbers of choices (kernels/choices.py), sorted. Vbuckets share this array, so it is never changed in
            place.
        seqnos: for each number, a seqno above which the vbucket has no row of that choice.
    """

    numbers: NDArray[np.uint64] = field(default_factory=_none)
    seqnos: NDArray[np.uint64] = field(default_factory=_none)

    def take(self, numbers: NDArray[np.uint64]) -> None:
        """Replace the numbers by `numbers`, which must include the present ones; new numbers get the bound 0."""
        seqnos = np.zeros(len(numbers), np.uint64)
        seqnos[numbers.searchsorted(self.numbers)] = self.seqnos
        self.numbers, self.seqnos = numbers, seqnos


class NewestSeqnos:
    """The newest seqnos, by collection, of all vbuckets of a store."""

    def __init__(self, of: Index, slots: Slots) -> None:
        self._index = of
        self._slots = slots
        self._looked = np.zeros(len(of.table), np.uint64)  # the seqno up to which each vbucket's rows were read
        self._bounds: dict[int, _Bounds] = {}
        self._numbers = _none()  # of all vbuckets together

    def follow(self) -> None:
        """Read the newly durable changes of the vbuckets that are far behind."""
        table = self._index.table
        ahead = table[:, index.DURABLE_HIGH] - np.minimum(self._looked, table[:, index.DURABLE_HIGH])
        for vb in np.flatnonzero((ahead > BEHIND_MAX) & (table[:, index.MIXED] != 0)).tolist():
            self._look(vb)

    def seqno(self, vbucket: int, choice: Shown) -> int:
        """Return the newest durable seqno of a change in the choice `choice`; 0 if there is none."""
        bounds = self._look(vbucket)
        if not len(bounds.numbers):
            return 0
        newest, places = 0, bounds.numbers.searchsorted(choice)
        matching = places[bounds.numbers.take(places, mode="clip") == choice]
        for at in matching[np.argsort(bounds.seqnos[matching])[::-1]].tolist():
            # The remaining bounds are lower than the newest seqno so far, so their rows are, too.
            if bounds.seqnos.item(at) <= newest:
                break
            bound = bounds.seqnos.item(at)
            exact = self._last(vbucket, bounds.numbers[at : at + 1], bound)
            node_invariant(exact <= bound, "vbucket {}: the newest seqno {} is above {}", vbucket, exact, bound)
            # The next query begins at the exact row.
            bounds.seqnos[at] = exact
            newest = max(newest, exact)
        return newest

    def numbers(self, vbucket: int) -> NDArray[np.uint64]:
        """Return the numbers of all choices that may have durable rows; empty for a vbucket without marked rows."""
        if not self._index.table.item(vbucket, index.MIXED):
            return _none()
        bounds = self._look(vbucket)
        return bounds.numbers[bounds.seqnos > 0]

    def cut(self, vbucket: int, seqno: int) -> None:
        """Lower the bounds to `seqno`, because all changes above it are undone."""
        self._looked[vbucket] = min(self._looked.item(vbucket), seqno)
        if seqno == 0:
            self._bounds.pop(vbucket, None)
        elif (bounds := self._bounds.get(vbucket)) is not None:
            np.minimum(bounds.seqnos, np.uint64(seqno), out=bounds.seqnos)

    def _look(self, vb: int) -> _Bounds:
        """Read the durable rows that were not read yet, and update the bounds."""
        bounds = self._bounds.setdefault(vb, _Bounds())
        columns, rows = self._index.columns[vb], self._index.table.item(vb, index.DURABLE_ROWS)
        row = min(self._index.rows_up_to(vb, self._looked.item(vb)), rows)
        segments = self._slots.table
        while row < rows:
            bounds_known = bounds.numbers, bounds.seqnos
            row = int(choices.note_newest(columns.loc, columns.seq, row, rows, segments, *bounds_known))
            if row < rows:
                self._learn(np.uint64(choices.choice_at(columns.loc, row, segments)))
                bounds.take(self._numbers)
        self._looked[vb] = self._index.table[vb, index.DURABLE_HIGH]
        return bounds

    def _learn(self, number: np.uint64) -> None:
        at = int(self._numbers.searchsorted(number))
        if at == len(self._numbers) or self._numbers[at] != number:
            self._numbers = np.insert(self._numbers, at, number)

    def _last(self, vb: int, number: NDArray[np.uint64], bound: int) -> int:
        """Return the seqno of the last row of a choice at or below a bound; 0 if there is none."""
        columns = self._index.columns[vb]
        rows = min(self._index.rows_up_to(vb, bound), self._index.table.item(vb, index.DURABLE_ROWS))
        row = int(choices.last_shown(columns.loc, columns.next, 0, rows, self._slots.table, number))
        return columns.seq.item(row) if row >= 0 else 0
