"""The judge of a change log with every version: each row that is wrong, surplus or missing is found."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from harness.simulation.histories import Broken, Change, Log
from harness.world import mirror
from harness.world.befores import BeforesJudge
from harness.world.mirror import Lake
from harness.world.steps import Fault, Step
from harness.world.versions import LogJudge, Warnings
from harness.world.watcher import Branches
from harness.world.world import World
from headwater.spark import reader
from tests.harness.world.resting import resting

LOG = ((0xB, 4), (0xA, 0))
FIRST, SECOND, GONE = Change(b"k", b"v1-", 11, 1, 3, 5), Change(b"k", b"v2-", 12, 2), Change(b"k", None, 13, 3)
STEPS = (
    Step(0.01, Fault.HISTORY, 0, 1, 1.0, 0.9),
    Step(0.1, Fault.MIRROR, 0, 1, 0.0, 0.5),
    Step(0.6, Fault.MIRROR, 0, 1, 0.1, 0.5),
)


class Logs:
    """The histories of a vbucket: k was created as 1, changed as 5 in a branch that was given up and in the one that
    lives, and deleted as 6.
    """

    def __init__(self) -> None:
        self.branches = Branches()
        self.branches.wrote("n0", 0, 0xA, 1, FIRST)
        self.branches.wrote("n0", 0, 0xA, 5, Change(b"k", b"v9-", 19, 2))
        self.branches.wrote("n1", 0, 0xB, 5, SECOND)
        self.branches.wrote("n1", 0, 0xB, 6, GONE)

    def log_of(self, vb: int, uuid: int) -> Log:
        return LOG if uuid == 0xB else LOG[1:]


def judge() -> LogJudge:
    logs: Any = Logs()
    return LogJudge(logs, BeforesJudge(logs.branches, Counter()), Counter())


def row(seqno: int, change: Change, uuid: str = "b", **others: Any) -> dict[str, Any]:
    """Return a change as a row of the log."""
    event = "deletion" if change.value is None else "mutation"
    columns = {name: getattr(change, name) for name in ("key", "value", "cas", "rev_seqno", "flags", "expiry")}
    return {"vbucket": 0, "seqno": seqno, "vb_uuid": uuid, "event": event} | columns | others


def test_each_row_is_a_change_that_an_owner_wrote() -> None:
    judge().judge_added([row(1, FIRST, "a"), row(5, SECOND), {"event": "rollback"}, row(6, GONE)])


@pytest.mark.parametrize("wrong", [row(5, FIRST), row(6, SECOND), row(5, SECOND, "a"), row(7, GONE)])
def test_a_row_that_no_owner_wrote_is_found(wrong: dict[str, Any]) -> None:
    with pytest.raises(Broken, match=r"^identity: the change log has "):
        judge().judge_added([wrong])


def test_a_wrong_replaced_version_is_found() -> None:
    was = {"seqno": 1, "rev_seqno": 1, "cas": 11, "flags": 3, "expiry": 5, "datatype": 0, "value": b"v1-"}
    judge().judge_added([row(5, SECOND, before_known=True, before=was), row(6, GONE, before_known=False, before=None)])
    with pytest.raises(Broken, match=r"^before: the change log was shown that seqno 6 of vbucket 0 replaced "):
        judge().judge_added([row(6, GONE, before_known=True, before=was)])


def test_the_rows_that_count_are_the_whole_history() -> None:
    whole = [row(1, FIRST), row(5, SECOND), row(6, GONE)]
    judge().judge_whole(0, (0xB, 6), whole, 0)
    judge().judge_whole(0, (0xB, 6), whole[1:], 1)
    judge().judge_whole(0, (0, 0), [], 0)
    with pytest.raises(Broken, match=r"of vbucket 0, lacks \[5\] and has \[\]"):
        judge().judge_whole(0, (0xB, 6), [whole[0], whole[2]], 1)
    with pytest.raises(Broken, match=r"of vbucket 0, lacks \[\] and has \[6\]"):
        judge().judge_whole(0, (0xB, 5), whole, 0)


def test_warnings_say_how_far_the_last_versions_alone_were_read() -> None:
    warnings, text = Warnings(), "vbucket %d: the node's history does not reach back that far: up to seqno %d"
    with warnings.heard():
        reader.logger.warning(text, 3, 40)
        reader.logger.warning(text, 3, 20)
        reader.logger.warning("something else")
    reader.logger.warning(text, 3, 90)
    assert warnings.floors == {3: 40}
    assert reader.logger.level == logging.NOTSET


@pytest.fixture(name="world", scope="module")
def a_world_whose_mirror_has_every_version() -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror, "VERSIONS", ("before",))
        with resting(120, STEPS) as world:
            world.job(Lake).check()
            yield world


def test_a_world_judges_the_log_of_its_mirror(world: World) -> None:
    assert world.job(Lake).versions_logged == "before"
    assert world.counts["replaced versions judged"] > 50
    assert world.counts["rows of the change log judged"] > 50
    assert world.counts["versions of the change log judged"] > 50
