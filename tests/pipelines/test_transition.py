"""Vbuckets handed over by a job: to their new owners, each once, with all that was acknowledged, whoever dies."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import nodes
from harness.checker import Ledger
from harness.nodes import failover_log, set_state
from harness.owners import Nomad, OwnerWatch, check_history
from headwater import failpoints
from headwater.client.routing import Address
from headwater.cluster.admin import Endpoint, NodeAdmin
from headwater.errors import HeadwaterError, MoveError, OptionError, TransportError
from headwater.pipelines import transition
from headwater.pipelines.jobs import Transition, TransitionProgress
from headwater.pipelines.transition import MoveJournal, NodePair, TransitionNodes, judged
from headwater.testing.node import Node, node
from headwater.wire.vbucket import State
from tests.battery import few_of
from tests.pipelines.buckets import create, state_by_collection

VBUCKETS = 8
DOCUMENTS = 400
STEPS = ("transition.moved", "transition.answered", "transition.noted", "move.active_sent", "move.owned")

Three = tuple[Node, Node, Node]


@pytest.fixture
def three() -> Iterator[Three]:
    """An owner with documents, and two nodes without a vbucket."""
    with (
        node(vbuckets=VBUCKETS) as owner,
        node(vbuckets=VBUCKETS, vbucket_state="none") as one,
        node(vbuckets=VBUCKETS, vbucket_state="none") as other,
    ):
        with owner.client() as client:
            assert client.set_many((f"k{i}", b"%d" % i) for i in range(DOCUMENTS)) == {}
            assert client.delete_many([f"k{i}" for i in range(0, DOCUMENTS, 10)]) == {}
        yield owner, one, other


def endpoint(bucket: Node) -> Endpoint:
    return Endpoint(Address(bucket.host, bucket.port))


def go(three: Three, place: Path, **asked: Any) -> TransitionProgress:
    ends = [endpoint(each) for each in three]
    options = {"engine": "local", "workers": 0, "at_once": 2} | asked
    return Transition(ends[:1], ends[1:], place, **options).run()


def states(bucket: Node) -> dict[int, str]:
    with bucket.client() as client:
        return {int(name[3:]): told for name, told in client.stats("vbucket").items()}


def contents(*owners: Node) -> dict[bytes, tuple[Any, ...]]:
    """Each document of all nodes, from their own histories."""
    found: dict[bytes, tuple[Any, ...]] = {}
    for bucket in owners:
        active = [vb for vb, told in states(bucket).items() if told == "active"]
        with bucket.client() as client, client.changes(vbuckets=active, until="now", markers=False) as changes:
            for change in changes:
                if hasattr(change, "key"):
                    kind = type(change).__name__
                    found[change.key] = (kind, getattr(change, "value", None), change.cas, change.rev_seqno)
    return found


def test_vbuckets_bring_their_collections_along_and_go_to_no_node_with_others(three: Three, tmp_path: Path) -> None:
    owner, one, other = three
    create(owner, "shop.orders", "shop.gone")
    create(owner, drop=["shop.gone"])
    with owner.client() as client:
        orders = client.collection("shop.orders")
        assert orders.set_many((f"k{i}", b"order %d" % i) for i in range(40)) == {}
        orders.delete("k3")
    before, manifest = state_by_collection(owner), client_manifest(owner)
    create(other, "other.things")  # has the id that shop.orders has
    with pytest.raises(OptionError, match=r"shop\.orders of the one .* have the same id, 8"):
        go(three, tmp_path / "refused")
    with pytest.raises(OptionError, match="have the same id"):
        asyncio.run(TransitionNodes([endpoint(owner)], [endpoint(other)], None).look())
    pair = [[endpoint(each)] for each in (owner, one)]
    assert Transition(*pair, tmp_path / "moved", engine="local", workers=0).run().moved == VBUCKETS
    assert state_by_collection(one) == before and client_manifest(one) == manifest
    with one.client() as client:
        assert client.collection("shop.orders").get("k1").value == b"order 1"


def client_manifest(bucket: Node) -> Any:
    with bucket.client() as client:
        return client.manifest()


def is_moved(three: Three, before: dict[bytes, Any], place: Path) -> None:
    owner, one, other = three
    assert "active" not in states(owner).values()
    assert states(one) == dict.fromkeys(range(0, VBUCKETS, 2), "active")
    assert states(other) == dict.fromkeys(range(1, VBUCKETS, 2), "active")
    after = contents(one, other)
    assert {key: after.get(key) for key in before} == before
    assert [row["vbucket"] for row in MoveJournal(place).rows()] == list(range(VBUCKETS))


def test_two_nodes_share_what_one_had_and_a_journal_tells_of_each_move(three: Three, tmp_path: Path) -> None:
    before, told = contents(three[0]), []
    done = go(three, tmp_path, progress=lambda progress: told.append((progress.moved, progress.total)))
    is_moved(three, before, tmp_path)
    assert told == [(4, 8), (8, 8)] and (done.batches, done.changes >= DOCUMENTS) == (2, True)
    rows = MoveJournal(tmp_path).rows()
    assert {row["target"] for row in rows if row["vbucket"] % 2} == {three[2].address}
    assert all(row["source"] == three[0].address and row["high_seqno"] and row["attempts"] == 1 for row in rows)
    assert sum(row["changes"] for row in rows) == done.changes and done.ownerless_seconds > 0
    again = go(three, tmp_path)
    assert (again.batches, again.moved, again.total) == (0, 8, 8)
    go(three, tmp_path, delete=True)
    assert states(three[0]) == {}
    is_moved(three, before, tmp_path)
    assert go(three, tmp_path).moved == 8


def test_a_journal_of_an_earlier_transition_says_nothing_of_the_moves_to_other_nodes(
    three: Three, tmp_path: Path
) -> None:
    """Its rows are of the same vbuckets: without a look at both ends the old owner's copy would be removed."""
    owner, one, other = three
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "at_once": 4, "retry_seconds": 0.0}
    first = Transition([endpoint(owner)], [endpoint(one)], tmp_path, vbuckets=[0, 1], **asked).run()
    assert (first.moved, first.total) == (2, 2)
    second = Transition([endpoint(one)], [endpoint(other)], tmp_path, delete=True, **asked)
    with failpoints.armed("transition.answered=raise"), pytest.raises(HeadwaterError):
        second.run()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(MoveError, match="looked at"):
        patch.setattr(transition, "judged", _refuses)
        second.run()
    assert states(one) == {0: "dead", 1: "dead"}
    done = second.run()
    assert (done.moved, done.total, states(one)) == (2, 2, {})
    assert {(row["vbucket"], row["source"], row["target"]) for row in MoveJournal(tmp_path).rows()} == {
        (vb, one.address, other.address) for vb in (0, 1)
    }


def test_a_noted_move_is_checked_again_before_the_old_copy_is_removed(three: Three, tmp_path: Path) -> None:
    """The new owner may have lost its disk since: then the dead copy is the only one."""
    owner, one, other = three
    before = contents(owner)
    go(three, tmp_path)
    lose(one, 0)
    with pytest.raises(MoveError, match=r"vbucket 0: the new owner has not what the old one had"):
        go(three, tmp_path, delete=True)
    assert states(owner) == {0: "dead"}, "the others are moved and removed all the same"
    set_state(owner, 0, State.ACTIVE)
    assert contents(owner, one, other) == before


@pytest.mark.parametrize("delete", [False, True])
def test_a_move_that_no_run_noted_and_whose_target_lost_it_holds_up_no_other(
    delete: bool, three: Three, tmp_path: Path
) -> None:
    owner, one, other = three
    before = contents(owner)
    with failpoints.armed("transition.answered=raise"), pytest.raises(HeadwaterError):
        go(three, tmp_path, retry_seconds=0)
    lose(one, 0)
    for _ in range(2):  # a run that begins anew says the same
        with pytest.raises(MoveError, match=r"vbucket 0: the new owner has not what the old one had"):
            go(three, tmp_path, delete=delete)
        assert [row["vbucket"] for row in MoveJournal(tmp_path).rows()] == list(range(1, VBUCKETS))
        assert states(owner) == dict.fromkeys([0] if delete else range(VBUCKETS), "dead")
    set_state(owner, 0, State.ACTIVE)
    assert contents(owner, one, other) == before


def test_a_note_of_an_earlier_move_hides_no_later_one_that_was_refused(three: Three, tmp_path: Path) -> None:
    """The vbucket went there, came back, and goes there again: the note says nothing of the last move."""
    owner, one, _ = three
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "vbuckets": [0]}
    there = Transition([endpoint(owner)], [endpoint(one)], tmp_path / "there", **asked)
    back = Transition([endpoint(one)], [endpoint(owner)], tmp_path / "back", **asked, delete=True)
    before = contents(owner)
    assert (there.run().moved, back.run().moved) == (1, 1)

    def point(name: str) -> None:
        if name == "transition.answered":
            lose(one, 0)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(MoveError, match="vbucket 0: the new owner has not"):
        patch.setattr(transition, "failpoint", point)
        there.run()
    with pytest.raises(MoveError, match="vbucket 0: the new owner has not"):
        there.run()
    assert MoveJournal(tmp_path / "there").rows() == []
    set_state(owner, 0, State.ACTIVE)
    assert contents(owner, one) == before


@pytest.mark.parametrize("delete", [False, True])
def test_a_target_that_loses_one_of_a_batch_holds_up_no_other(delete: bool, three: Three, tmp_path: Path) -> None:
    """The good moves of its batch and of later pairs of nodes are noted, and later batches moved."""
    counts: list[tuple[int, int]] = []

    def point(name: str) -> None:
        if name == "transition.answered" and not counts:
            lose(three[1], 0)

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(MoveError, match=r"vbucket 0: the new owner has not what the old one had"),
    ):
        patch.setattr(transition, "failpoint", point)
        go(three, tmp_path, delete=delete, progress=lambda progress: counts.append((progress.moved, progress.total)))
    assert counts == [(3, 8), (7, 8)]
    assert [row["vbucket"] for row in MoveJournal(tmp_path).rows()] == list(range(1, VBUCKETS))
    assert states(three[0]) == dict.fromkeys([0] if delete else range(VBUCKETS), "dead")


def test_a_move_that_does_not_last_is_done_again_by_the_next_run_and_not_without_end_by_this_one(
    three: Three, tmp_path: Path
) -> None:
    before, passed = contents(three[0]), []

    def point(name: str) -> None:
        if name == "transition.answered":
            passed.append(name)
            assert len(passed) < VBUCKETS, "vbucket 0 is moved again and again"
            set_state(three[1], 0, State.PENDING)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(MoveError, match="vbucket 0: the new owner has not"):
        patch.setattr(transition, "failpoint", point)
        go(three, tmp_path)
    assert len(passed) == 2 and states(three[1])[0] == "pending"
    assert go(three, tmp_path).moved == VBUCKETS
    is_moved(three, before, tmp_path)


def test_a_move_that_is_refused_and_passes_a_moment_later_is_removed_only_once_it_is_noted(
    three: Three, tmp_path: Path
) -> None:
    with failpoints.armed("transition.answered=raise"), pytest.raises(HeadwaterError):
        go(three, tmp_path, retry_seconds=0)
    calls = list[NodePair]()

    async def refuses_once(pair: NodePair, moved: Any) -> Any:
        calls.append(pair)
        rows, refused = await judged(pair, moved)
        first = [MoveError(0, "not yet", "look again")] if len(calls) == 1 else []
        return [row for row in rows if not first or row["vbucket"]], refused + first

    with pytest.MonkeyPatch.context() as patch, pytest.raises(MoveError, match="vbucket 0: not yet"):
        patch.setattr(transition, "judged", refuses_once)
        go(three, tmp_path, delete=True)
    assert [row["vbucket"] for row in MoveJournal(tmp_path).rows()] == list(range(1, VBUCKETS))
    assert states(three[0]) == {0: "dead"}
    assert go(three, tmp_path, delete=True).moved == VBUCKETS
    assert (states(three[0]), len(MoveJournal(tmp_path).rows())) == ({}, VBUCKETS)


def test_the_last_report_names_those_that_no_node_owns_and_those_whose_target_lacks_them(
    three: Three, tmp_path: Path
) -> None:
    go(three, tmp_path)
    for vb in (0, 2):
        lose(three[1], vb)
    set_state(three[2], 1, State.DEAD)
    with pytest.raises(MoveError, match=r"vbucket 1: .*none of these nodes.*vbucket 0: the new owner has not.*0, 2"):
        go(three, tmp_path, delete=True)
    assert states(three[0]) == dict.fromkeys(range(3), "dead")


def lose(bucket: Node, vb: int) -> None:
    """Let an owner have an empty vbucket, as after the loss of its disk."""
    with bucket.client() as client:
        client.delete_vbucket(vb)
    set_state(bucket, vb, State.ACTIVE)


@pytest.mark.parametrize("log", [[(7, 60), (5, 0)], [(7, 0)], []])
def test_a_new_owner_whose_history_left_the_old_one_earlier_is_found_out(log: list[tuple[int, int]]) -> None:
    """The new owner has more seqnos, and a branch of the old owner's, but not all of that branch."""
    ends = {"old": History([(5, 0)], 100, State.DEAD), "new": History(log, 120, State.ACTIVE)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeAdmin, "connect", lambda end: ends[end.address.host].connected())
        pair = NodePair(Endpoint(Address("old", 1)), Endpoint(Address("new", 1)))
        rows, refused = asyncio.run(judged(pair, [{"vbucket": 0}]))
    assert rows == [] and [error.vbucket for error in refused] == [0]
    assert "up to seqno 120, old:1 had it up to 100" in str(refused[0])


@dataclass
class History:
    """A node with one vbucket."""

    log: list[tuple[int, int]]
    high_seqno: int
    is_in: State

    async def connected(self) -> Any:
        return self

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def seqnos(self, state: State) -> dict[int, int]:
        return {0: self.high_seqno}

    async def stats(self, group: str) -> dict[str, str]:
        return {"vb_0:high_seqno": str(self.high_seqno)}

    async def failover_log(self, vb: int) -> list[tuple[int, int]]:
        return self.log

    async def state(self, vb: int) -> State:
        return self.is_in


async def _refuses(pair: Any, moved: Any) -> list[dict[str, Any]]:
    raise MoveError(0, "both ends are looked at", "here")


def test_only_the_vbuckets_that_are_named_move_and_a_job_that_is_to_end_ends_between_batches(
    three: Three, tmp_path: Path
) -> None:
    done = go(three, tmp_path, vbuckets=[1, 3, 5], at_once=1, stop=lambda: bool(MoveJournal(tmp_path).rows()))
    assert (done.moved, done.total, states(three[2])) == (1, 3, {1: "active"})
    assert go(three, tmp_path, vbuckets=[1, 3, 5], delete=True).moved == 3
    assert states(three[0]) == dict.fromkeys((0, 2, 4, 6, 7), "active") and states(three[1]) == {}


def test_a_plan_names_each_pair_of_nodes_and_changes_nothing(three: Three, tmp_path: Path) -> None:
    owner, one, other = (each.address for each in three)
    job = Transition([owner], [one, other], tmp_path / "journal", vbuckets=range(5))
    text, facts = asyncio.run(job.plan())
    assert text.splitlines() == [
        f"{owner} would hand 3 vbuckets over to {one}",
        f"{owner} would hand 2 vbuckets over to {other}",
        "5 vbuckets would be moved, 0 have been",
    ]
    assert (facts["left"], facts["moved"], facts["pairs"][1]) == (5, 0, {"from": owner, "to": other, "vbuckets": 2})
    assert set(states(three[0]).values()) == {"active"} and not (tmp_path / "journal").exists()


def die(url: tuple[Endpoint, ...], place: Path, points: str) -> None:
    """Run it in this process, which is to die."""
    failpoints.arm(points)
    with suppress(HeadwaterError):
        Transition(url[:1], url[1:], place, engine="local", workers=0, at_once=2, retry_seconds=0).run()


@pytest.mark.parametrize("point", few_of(STEPS, "transition.answered", "move.active_sent"))
def test_a_job_that_is_killed_goes_on_where_the_nodes_are_and_nothing_acknowledged_is_lost(
    point: str, three: Three, tmp_path: Path
) -> None:
    before, (owner, one, _) = contents(three[0]), three
    history = failover_log(owner, 0)
    nomad = Nomad(Ledger(), {"a": owner.port, "b": one.port}, 0)
    watch = OwnerWatch(owner.port, one.port, 0)
    nomad.start()
    watch.start()
    try:
        assert nomad.wait(20)
        ends = tuple(endpoint(each) for each in three)
        dying = multiprocessing.get_context("forkserver").Process(target=die, args=(ends, tmp_path, f"{point}=kill"))
        dying.start()
        dying.join(120)
        assert dying.exitcode == -9
        go(three, tmp_path)
        assert nomad.wait(20, node="b") and watch.wait_samples(3)
    finally:
        nomad.finish()
        watch.finish()
    is_moved(three, before, tmp_path)
    check_history(failover_log(one, 0), nomad.acknowledged, history)
    written = {key for key in contents(one) if key.startswith(b"n0-")}
    assert len(written) >= 20


def test_a_target_that_dies_is_waited_for(three: Three, tmp_path: Path) -> None:
    before, problems = contents(three[0]), []
    three[1].kill()

    def told(progress: TransitionProgress) -> None:
        if progress.problem and not problems:
            three[1].restart()
        problems.append(progress.problem)

    done = go(three, tmp_path, progress=told)
    assert done.retries == 1 and str(three[1].port) in problems[0]
    is_moved(three, before, tmp_path)


def test_without_patience_it_ends_with_the_reason(three: Three, tmp_path: Path) -> None:
    three[1].kill()
    with pytest.raises(TransportError, match=str(three[1].port)):
        go(three, tmp_path, retry_seconds=0)


def test_a_hand_over_that_was_begun_goes_on_to_the_same_node(three: Three, tmp_path: Path) -> None:
    owner, one, other = three
    nodes.replicate(other, owner.address, "0")
    nodes.until(lambda: nodes.high_seqno(other, 0) == nodes.high_seqno(owner, 0), "the copy is level")
    nodes.leave(other, owner.address)
    set_state(other, 0, State.PENDING)
    set_state(owner, 0, State.DEAD)
    assert go(three, tmp_path, vbuckets=[0]).moved == 1
    assert (states(other), states(one)) == ({0: "active"}, {})


def test_a_vbucket_without_an_owner_is_told_once_the_others_have_moved(three: Three, tmp_path: Path) -> None:
    owner, one, other = three
    set_state(owner, 0, State.DEAD)
    found = asyncio.run(TransitionNodes([endpoint(owner)], [endpoint(one), endpoint(other)], None).look())
    assert (found.ownerless, found.moved, len(found.left)) == ({0}, {}, VBUCKETS - 1)
    with pytest.raises(MoveError, match=r"vbucket 0: .*none of these nodes owns it"):
        go(three, tmp_path)
    assert len(MoveJournal(tmp_path).rows()) == VBUCKETS - 1
    assert go(three, tmp_path, vbuckets=range(1, VBUCKETS)).moved == VBUCKETS - 1


def test_nodes_that_lack_some_of_a_history_are_found_out(three: Three, tmp_path: Path) -> None:
    owner, one, _ = three
    set_state(owner, 0, State.DEAD)
    set_state(one, 0, State.ACTIVE)
    with pytest.raises(MoveError, match=r"vbucket 0: the new owner has not what the old one had"):
        go(three, tmp_path)
    assert [row["vbucket"] for row in MoveJournal(tmp_path).rows()] == list(range(1, VBUCKETS))


def test_two_owners_members_of_a_cluster_and_nodes_that_are_named_twice_are_refused(
    three: Three, tmp_path: Path
) -> None:
    ends = [endpoint(each) for each in three]
    for sources, targets in (([], ends[1:]), (ends[:1], []), (ends[:1], ends[:2]), (ends[:1], [ends[1], ends[1]])):
        with pytest.raises(OptionError, match="each named once"):
            TransitionNodes(sources, targets, None)
    with pytest.raises(OptionError, match=r"vbuckets.*77.*which have 0 to"):
        asyncio.run(TransitionNodes(ends[:1], ends[1:], [0, 77]).look())
    set_state(three[1], 3, State.ACTIVE)
    with pytest.raises(OptionError, match="vbucket 3 has two owners"):
        go(three, tmp_path)
    with nodes.cluster(2, VBUCKETS) as two:
        members = [endpoint(node) for node in two.nodes]
        with pytest.raises(OptionError, match="headwater cluster rebalance"):
            Transition(members[:1], members[1:], tmp_path, engine="local", workers=0).run()
    with pytest.raises(OptionError, match="a disk of this machine"):
        MoveJournal("s3://bucket/journal")


def test_the_journal_holds_the_last_move_of_a_vbucket(tmp_path: Path) -> None:
    row = dict.fromkeys(("vbucket", "changes", "bytes", "seconds", "attempts", "high_seqno", "moved_at"), 7)
    row |= {"source": "a:1", "target": "b:1", "ownerless_seconds": 0.25}
    journal = MoveJournal(tmp_path)
    journal.note([row])
    journal.note([row | {"target": "c:1"}])
    assert MoveJournal(tmp_path).rows() == [row | {"target": "c:1"}]
    with sqlite3.connect(journal.path) as base:
        assert base.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.spark
@pytest.mark.battery
def test_executors_move_them_and_one_that_is_killed_costs_nothing(spark: Any, three: Three, tmp_path: Path) -> None:
    before = contents(three[0])
    environment = spark.sparkContext.environment
    environment["HEADWATER_FAILPOINTS"] = "move.active_answered=kill"
    try:
        with pytest.raises(HeadwaterError):
            go(three, tmp_path, engine="spark", spark=spark, retry_seconds=0)
    finally:
        del environment["HEADWATER_FAILPOINTS"]
    done = go(three, tmp_path, engine="spark", spark=spark)
    is_moved(three, before, tmp_path)
    assert done.moved == VBUCKETS
