"""The judge of a change log with every version: the one that the simulated mirror of half of the worlds keeps.

A log that was kept with `history` promises: it has each change of the history that its table's record describes, once,
and no other; and each row with `before` names what the change replaced (befores.py). Where a node's history does not
reach back far enough, a warning says up to which seqno of a vbucket the log may have only last versions.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.simulation.histories import Broken
from harness.world.backups import CAS_MASK, change_of
from headwater.client.befores import Before, Lack
from headwater.spark import reader

if TYPE_CHECKING:
    from harness.simulation.histories import Change, Log
    from harness.world.befores import BeforesJudge
    from harness.world.watcher import Watcher
    from headwater.client.befores import Replaced

WHO = "the change log"


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A row of the log, as the judge of replaced versions wants it."""

    vbucket: int
    seqno: int
    key: bytes
    before: Replaced


class Warnings(logging.Handler):
    """Notes the warnings that only last versions were read.

    Attributes:
        floors: by vbucket, the highest seqno that one of them named.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.floors: dict[int, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Note a warning."""
        match record.args:
            case (int(vb), int(seqno)) if "history does not reach back" in record.msg:
                self.floors[vb] = max(seqno, self.floors.get(vb, 0))

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen during a block; a world silences warnings otherwise."""
        level = reader.logger.level
        reader.logger.addHandler(self)
        reader.logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            reader.logger.removeHandler(self)
            reader.logger.setLevel(level)


class LogJudge:
    """Compares the rows of a log with the histories.

    Args:
        befores: the judge of what changes replaced.
    """

    def __init__(self, watcher: Watcher, befores: BeforesJudge, counts: Counter[str]) -> None:
        self._watcher, self._befores, self._counts = watcher, befores, counts

    def judge_added(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Check the rows of a commit, whatever came of their branch since.

        Raises:
            Broken: no owner wrote such a change, or it replaced something else.
        """
        for row in rows:
            if row["event"] != "rollback":
                self._judge_row(row)

    def _judge_row(self, row: Mapping[str, Any]) -> None:
        vb, seqno, key = row["vbucket"], row["seqno"], bytes(row["key"])
        log = self._watcher.log_of(vb, int(row["vb_uuid"], 16))
        self._watcher.branches.shown(WHO, vb, log, seqno, change_of_row(row, key))
        self._counts["rows of the change log judged"] += 1
        if row.get("before_known") is not None:
            self._befores.judge(WHO, log, LoggedChange(vb, seqno, key, _before(row)))

    def judge_whole(self, vb: int, place: tuple[int, int], rows: Iterable[Mapping[str, Any]], floor: int) -> None:
        """Check that the rows of a vbucket that count are its history.

        Args:
            place: the vb uuid and the seqno at which the table is.
            floor: the seqno up to which only last versions need to be there.

        Raises:
            Broken: they lack a change, or have another one.
        """
        held = {row["seqno"] for row in rows}
        written = set(dict(self._watcher.branches.changes(vb, self._log(vb, place), place[1])))
        wanted = {seqno for seqno in written if seqno > floor}
        lacks, invents = sorted(wanted - held), sorted(held - written)
        self._counts["versions of the change log judged"] += len(wanted)
        if lacks or invents:
            raise Broken(
                f"lake: the change log, at {place[0]:x}@{place[1]} of vbucket {vb}, lacks {lacks} and has {invents}"
                f" beside the history; up to {floor} it may have the last versions alone"
            )

    def _log(self, vb: int, place: tuple[int, int]) -> Log:
        return self._watcher.log_of(vb, place[0]) if place[1] else ()


def change_of_row(row: Mapping[str, Any], key: bytes) -> Change:
    """Return a row of a log as a change of the model of histories."""
    change = change_of(row, key)
    return change if row["event"] == "mutation" else replace(change, value=None, flags=0)


def _before(row: Mapping[str, Any]) -> Replaced:
    if not row["before_known"]:
        return Lack.NOT_KEPT
    was = row["before"]
    return (
        None if was is None else Before(**(was | {"cas": was["cas"] & CAS_MASK, "value": bytes(was["value"] or b"")}))
    )
