"""A ledger of tables of type 1 and 2, of acknowledged writes alone: no seqno, offset or row of the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

State = dict[str, str]


@dataclass
class Update:
    """The documents that the tables could see at one update.

    Attributes:
        state: the documents then, which the tables have to have.
        passed: by key, values since the update before: an update of several batches may have seen some of them.
    """

    state: State
    passed: dict[str, list[str | None]]


@dataclass
class Ledger:
    """The documents as they are, and as they were at each update of the tables."""

    now: State = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    passed: dict[str, list[str | None]] = field(default_factory=dict)

    def put(self, key: str, value: str | None) -> None:
        """Note an acknowledged write; None is a deletion."""
        if value is None:
            self.now.pop(key, None)
        else:
            self.now[key] = value
        self.passed.setdefault(key, []).append(value)

    def copy(self) -> Ledger:
        """Return the ledger as a failover will bring it back."""
        passed = {key: list(values) for key, values in self.passed.items()}
        return Ledger(dict(self.now), list(self.updates), passed)

    def return_to(self, kept: Ledger) -> None:
        """Note a failover to what a copy had."""
        lost = self.now
        self.now = dict(kept.now)
        is_fresh = len(kept.updates) == len(self.updates)
        # What the tables saw of the lost branch, they see go before anything newer comes.
        self.passed = kept.copy().passed if is_fresh else {key: [kept.now.get(key)] for key in lost.keys() | kept.now}

    def note_update(self, *, in_batches: bool) -> None:
        """Note that the tables were updated now, in one batch or in several."""
        self.updates.append(Update(dict(self.now), self.passed if in_batches else {}))
        self.passed = {}

    def keys(self) -> set[str]:
        """Return all keys that tables may have."""
        return {key for update in self.updates for key in update.state.keys() | update.passed}

    def allows(self, key: str, history: list[str | None]) -> bool:
        """Return True if a key may have had these values, one after the other, None where it was deleted."""
        values = [None, *history]
        places = {0}  # in `values`: what the table may have got to
        for update in self.updates:
            for value in update.passed.get(key, []):
                places |= _further(values, places, value)
            right = update.state.get(key)
            places = {at for at in places | _further(values, places, right) if values[at] == right}
        return len(history) in places

    def history(self, key: str) -> list[str | None]:
        """Return the values of a key at the updates, without repeats."""
        history: list[str | None] = []
        for update in self.updates:
            if update.state.get(key) != (history[-1] if history else None):
                history.append(update.state.get(key))
        return history


def _further(values: list[str | None], places: Iterable[int], value: str | None) -> set[int]:
    return {at + 1 for at in places if at + 1 < len(values) and values[at + 1] == value}


def history_of(rows: Iterable[tuple[str, Any, Any]]) -> list[str | None]:
    """Return the values that the rows of one key in a table of type 2 say, one after the other.

    Args:
        rows: (value, start, end), in any order; end is None for the row that holds now.
    """
    history: list[str | None] = []
    last_end: Any = None
    for value, start, end in sorted(rows, key=lambda row: row[1]):
        if history and last_end != start:
            history.append(None)
        history.append(value)
        last_end = end
    return [*history, None] if history and last_end is not None else history


def differences(ledger: Ledger, scd1: Mapping[str, str], scd2: Mapping[str, list[tuple[str, Any, Any]]]) -> list[str]:
    """Return what is wrong with the tables, a line each; empty if they are right."""
    expected = ledger.updates[-1].state if ledger.updates else {}
    lines = [
        f"type 1: {key} is {scd1.get(key)}, not {expected.get(key)}"
        for key in sorted(scd1.keys() | expected.keys())
        if scd1.get(key) != expected.get(key)
    ]
    for key in sorted(scd2.keys() | ledger.keys()):
        found = history_of(scd2.get(key, []))
        if not ledger.allows(key, found):
            lines.append(f"type 2: {key} was {found}, not {ledger.history(key)}")
    return lines
