"""Rebalance on real nodes: nothing is lost or doubled, whoever writes and whatever is killed meanwhile."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from headwater.cluster.admin import NodeAdmin
from headwater.cluster.balance import Move
from headwater.cluster.failover import plan_failover
from headwater.cluster.members import NO_OTHERS, Members
from headwater.cluster.proxied import Limits
from headwater.cluster.publisher import Publisher
from headwater.cluster.rebalance import SMALL_AT_ONCE, SMALL_BYTES, Rebalance, RebalanceStep, Room, _joining
from headwater.cluster.refusals import FailoverRefusal
from headwater.cluster.watch import Watch
from headwater.errors import ClusterError, ConnectionLost, HeadwaterError, MoveError
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State
from tests.node.aware import Aware, manifest

from .contents import vbuckets
from .fakes import FakeMembers, FakeNode, turns
from .nodes import VBUCKETS, Writer, at, check, command, documents, empty_nodes, fill, init, rebalance
from .views import A, B, C, D, E, a_map, survey, view

DOCUMENTS = documents()
KILLED = -9
IMPATIENT = Limits(patience_seconds=3.0)


def owned(*nodes):
    return [sum(state.name == "ACTIVE" for state in vbuckets(node.port).values()) for node in nodes]


def test_from_one_node_to_three_and_back_while_an_application_writes():
    with empty_nodes(3) as nodes:
        first, *others = nodes
        init(first)
        fill(first, DOCUMENTS)
        with Writer(first) as writer:
            rebalance(first, add=at(*others), replicas=1)
        check(nodes, DOCUMENTS | writer.acknowledged)
        assert sorted(owned(*nodes)) == [5, 5, 6]
        with Writer(first) as again:
            rebalance(first, remove=at(*others))
            again.until_acknowledged(1)
        check([first], DOCUMENTS | writer.acknowledged | again.acknowledged)
        assert owned(*nodes) == [VBUCKETS, 0, 0] and vbuckets(others[0].port) == {}


def test_a_node_of_a_younger_cluster_that_is_to_join_leaves_the_owners_of_this_one_as_they_are():
    """Its map is the newer one, by which this cluster's nodes own what is not theirs: all of it was made dead."""
    with empty_nodes(3) as nodes:
        first, *others = nodes
        init(first)
        fill(first, DOCUMENTS)
        init(*others)
        with pytest.raises(ClusterError, match=r"is of another cluster than .*, whose map is newer"):
            rebalance(first, add=at(others[0]))
        assert owned(*nodes) == [VBUCKETS, VBUCKETS // 2, VBUCKETS // 2]
        check([first], DOCUMENTS)


def test_the_copy_that_is_to_take_over_is_filled_by_the_owner_itself():
    with empty_nodes(3) as nodes:
        init(*nodes[:2], replicas=1)
        fill(nodes[0], DOCUMENTS)
        passed = asyncio.run(passed_movers(nodes[0], nodes[2]))
        assert passed and set(passed) == {0}
        check(nodes, DOCUMENTS)
        assert sorted(owned(*nodes)) == [5, 5, 6]


def test_a_target_follows_again_when_its_hand_over_was_given_up(monkeypatch):
    """Else it is in the chain, and in the majorities, and has nothing new until somebody types another command."""

    async def refused(self, connection):
        raise MoveError(self.vb, "the target would not have it", "see its log")

    with empty_nodes(3) as nodes:
        init(*nodes[:2], replicas=1)
        with monkeypatch.context() as patched:
            patched.setattr("headwater.cluster.transfer.Transfer.take_over", refused)
            with pytest.raises(MoveError, match="would not have it"):
                rebalance(nodes[0], add=at(nodes[2]))
        fill(nodes[0], DOCUMENTS)
        asyncio.run(until_level(nodes[0]))


async def until_level(seed):
    """Return when every copy that the map names has what its owner has."""
    async with Members() as members:
        await Watch(members, still_seconds_max=5.0).until_all_level((await members.survey(at(seed))).map)


async def passed_movers(seed, joining):
    """How many changes passed through each mover of a rebalance."""
    async with Members() as members:
        run = Rebalance(members, at(seed), add=at(joining))
        await run.run()
        return [mover.passed()[0] for mover in run._movers.values()]


@pytest.mark.parametrize(
    ("move", "joining"),
    [
        (Move(0, (A, B), (C, B)), (C,)),
        (Move(0, (A, B, C), (D, B, C)), (D,)),
        (Move(0, (A,), (B, C)), (B, C)),
        (Move(0, (A, B), (C, D)), (D,)),
        (Move(0, (A,), (B,)), ()),
        (Move(0, (A,), (B, A)), (B,)),
        (Move(0, (A, B), (B, C)), (C,)),
    ],
)
def test_the_next_owner_joins_the_chain_first_unless_durable_writes_would_wait_for_copies_that_fill_up(move, joining):
    assert tuple(_joining(move, len(move.before))) == joining


def test_no_more_vbuckets_change_hands_at_the_same_time_than_are_allowed_however_small_they_are(monkeypatch):
    """Each refuses writes for as long as the others take."""
    moving, most = [], []

    class Counted:
        def __init__(self, *_, **__):
            pass

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def move(self, vbucket, *, takeover):
            moving.append(vbucket)
            most.append(len(moving))
            await turns()
            moving.remove(vbucket)

    async def work():
        run = Rebalance(FakeMembers(FakeNode(A), FakeNode(B), FakeNode(C)), [A], vbuckets_at_once=2)
        targets = (B, C) * 5
        async with AsyncExitStack() as movers:
            moves = (run._hand_over(Move(vb, (A,), (to,)), A, to, movers) for vb, to in enumerate(targets))
            await asyncio.gather(*moves)

    monkeypatch.setattr("headwater.cluster.rebalance.Mover", Counted)
    asyncio.run(work())
    assert len(most) == 10 and max(most) == 2


def under_way(most, sizes):
    """How many vbuckets of these sizes are under way together, when all have asked and none has ended."""

    async def work():
        room, begun, over = Room(most), [], asyncio.Event()

        async def move(size):
            async with room.place(size):
                begun.append(size)
                await over.wait()

        moving = [asyncio.create_task(move(size)) for size in sizes]
        await turns()
        count = len(begun)
        over.set()
        await asyncio.gather(*moving)
        assert len(begun) == len(sizes)
        return count

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([0] * 100, 2 * SMALL_AT_ONCE),
        ([SMALL_BYTES // 2] * 100, 4),
        ([SMALL_BYTES] * 100, 2),
        ([100 * SMALL_BYTES] * 100, 2),
        ([None] * 100, 2),
        ([None, 0, 0, 0], 2),
        ([0, 0, 0, None], 3),
    ],
)
def test_of_small_vbuckets_more_are_under_way_but_not_more_bytes(sizes, count):
    assert under_way(2, sizes) == count


@pytest.mark.parametrize(
    "failpoint",
    [
        "move.followed=kill@2",
        "move.closed=kill@2",
        "move.pending_answered=kill@2",
        "move.active_sent=kill",
        "move.owned=kill@3",
    ],
)
def test_a_rebalance_whose_targets_fill_themselves_goes_on_when_it_was_killed(failpoint):
    with empty_nodes(3) as nodes:
        init(*nodes[:2], replicas=1)
        fill(nodes[0], DOCUMENTS)
        line = ("cluster", "rebalance", nodes[0].address, "--add", nodes[2].address, "--yes")
        assert command(*line, failpoints=failpoint)[0] == KILLED
        rebalance(nodes[0], add=at(nodes[2]))
        check(nodes, DOCUMENTS)
        assert sorted(owned(*nodes)) == [5, 5, 6]


@pytest.mark.parametrize(
    "failpoint",
    [
        "rebalance.joined=kill@2",
        "move.followed=kill@3",
        "move.pending_answered=kill@2",
        "move.active_sent=kill",
        "move.active_answered=kill@2",
        "move.owned=kill@3",
        "rebalance.narrowed=kill@4",
    ],
)
def test_a_rebalance_that_was_killed_goes_on_when_it_is_typed_again(failpoint):
    with empty_nodes(2) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)
        line = ("cluster", "rebalance", nodes[0].address, "--add", nodes[1].address, "--replicas", "1", "--yes")
        assert command(*line, failpoints=failpoint)[0] == KILLED
        rebalance(nodes[0], add=at(nodes[1]), replicas=1)
        check(nodes, DOCUMENTS)
        assert owned(*nodes) == [VBUCKETS // 2] * 2


@pytest.mark.parametrize("place", ["copying", "caught_up", "persisted", "active_sent"])
def test_a_rebalance_whose_targets_are_filled_by_the_mover_goes_on_when_it_was_killed(place):
    with empty_nodes(2) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)
        line = ("cluster", "rebalance", nodes[0].address, "--add", nodes[1].address, "--yes")
        assert command(*line, failpoints=f"move.{place}=kill@2")[0] == KILLED
        rebalance(nodes[0], add=at(nodes[1]))
        check(nodes, DOCUMENTS)
        assert owned(*nodes) == [VBUCKETS // 2] * 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_node_that_dies_during_a_rebalance_is_started_and_the_rest_is_done(which):
    with empty_nodes(3) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)

        def kill(step: RebalanceStep) -> None:
            if step.done == 3 and nodes[which].is_running:
                nodes[which].kill()

        with pytest.raises(HeadwaterError):
            rebalance(nodes[0], add=at(*nodes[1:]), replicas=1, progress=kill, limits=IMPATIENT)
        with pytest.raises(ClusterError, match="does not answer"):
            rebalance(nodes[2], add=at(*nodes[1:]), replicas=1)
        nodes[which].restart()
        rebalance(nodes[0], add=at(*nodes[1:]), replicas=1)
        check(nodes, DOCUMENTS)


def test_a_rebalance_that_is_asked_to_stop_leaves_nothing_half_done(monkeypatch):
    monkeypatch.setattr("headwater.cluster.rebalance.SMALL_AT_ONCE", 1)
    with empty_nodes(2) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)
        done = []

        def stopping() -> bool:
            return len(done) >= 3

        asked = {"progress": done.append, "stopping": stopping, "vbuckets_at_once": 2}
        stopped = rebalance(nodes[0], add=at(nodes[1]), **asked)
        assert stopped is None
        check(nodes, DOCUMENTS)
        assert 0 < owned(nodes[1])[0] < VBUCKETS // 2
        assert rebalance(nodes[0], add=at(nodes[1])) is not None
        assert owned(*nodes) == [VBUCKETS // 2] * 2
        check(nodes, DOCUMENTS)


def test_of_two_at_the_same_time_one_works_and_the_other_finds_its_work_done_or_is_refused():
    async def both(nodes):
        async with Members() as one, Members() as two:
            runs = (Rebalance(members, at(nodes[0]), add=at(nodes[1])).run() for members in (one, two))
            return await asyncio.gather(*runs, return_exceptions=True)

    with empty_nodes(2) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)
        refused = [each for each in asyncio.run(both(nodes)) if not isinstance(each, ClusterMap)]
        assert all(isinstance(each, ClusterError) and "is at work on this node" in str(each) for each in refused)
        assert len(refused) < 2
        check(nodes, DOCUMENTS)
        assert owned(*nodes) == [VBUCKETS // 2] * 2


def test_a_run_that_lost_its_leases_touches_nothing_any_more_and_the_next_one_goes_on():
    """As one that was stopped for a minute: another one was at work meanwhile, and what it knows is from before."""

    async def story(nodes):
        async with Members() as hung, Members() as other:
            paused, going_on = asyncio.Event(), asyncio.Event()

            async def pause(vbucket, *rest, **options):
                paused.set()
                await going_on.wait()
                return await change(vbucket, *rest, **options)

            work = Rebalance(hung, at(nodes[0]), add=at(nodes[1]), vbuckets_at_once=1)
            running = asyncio.create_task(work.run())
            while not hasattr(work, "_publisher"):
                await asyncio.sleep(0.01)
            change, work._publisher.change = work._publisher.change, pause
            await paused.wait()
            cut_off(hung, *work._movers.values())
            await Rebalance(other, at(nodes[0]), add=at(nodes[1])).run()
            going_on.set()
            with pytest.raises(HeadwaterError, match="has been at work on this node meanwhile"):
                await running

    with empty_nodes(2) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)
        asyncio.run(story(nodes))
        check(nodes, DOCUMENTS)
        assert owned(*nodes) == [VBUCKETS // 2] * 2
        assert rebalance(nodes[0]) is not None


def cut_off(members, *movers):
    """The nodes miss the administrators' connections, and they hear nothing of it."""
    for admin in (*members._admins.values(), *(end for mover in movers for end in (mover._source, mover._target))):
        admin._stop_renewing()
        admin._link.close()


def test_a_vbucket_that_is_pending_somewhere_and_owned_nowhere_is_owned_after_the_next_run():
    """Two movers at a time could leave that before there were leases."""
    with empty_nodes(2) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)
        rebalance(nodes[0], add=at(nodes[1]))
        lost, pending = vbuckets_in(nodes[1], "ACTIVE")[:2], State.PENDING

        async def leave(admin):
            for vb in lost:
                await admin.set_state(vb, pending)

        administered(nodes[1], leave)
        rebalance(nodes[0])
        check(nodes, DOCUMENTS)


def vbuckets_in(node, state):
    return [vb for vb, found in vbuckets(node.port).items() if found.name == state]


def administered(node, work):
    async def run():
        async with await NodeAdmin.connect(*at(node)) as admin:
            await work(admin)

    asyncio.run(run())


def test_a_node_whose_newer_manifest_would_drop_collections_of_the_cluster_is_given_that_of_the_cluster() -> None:
    with empty_nodes(2) as (one, two):
        init(one)
        with Aware(one.port) as client:
            assert client.becomes(manifest(1, carts=8)) == client.put(b"k", b"v", 8) == 0
        with Aware(two.port) as client:
            assert client.becomes(manifest(5, other=9)) == 0
        rebalance(one, add=at(two))
        rebalance(one, remove=at(one))
        with Aware(two.port) as client:
            assert client.got(b"k", 8) == b"v"


class Late(FakeNode):
    """A replica that has a backlog: it comes to where the owner is only when it has been asked a few times."""

    async def copies(self, vbuckets):
        found = await super().copies(vbuckets)
        if self.backlog:
            self.backlog.pop()
        elif self.owner is not None:
            self.high = dict(self.owner.high)
        return found

    owner, backlog = None, ()


def test_a_copy_that_made_majorities_until_the_owner_had_the_map_is_deleted_when_the_others_have_what_it_has():
    """The owner and the copy that goes acknowledge durable writes while the new map is under way; the other is late."""
    owner, stays, goes = FakeNode(A, "A", seqnos=[10]), Late(B, "r", seqnos=[10]), FakeNode(C, "r", seqnos=[10])
    members = FakeMembers(owner, stays, goes, found=survey(a_map("ABC", replicas=2)))
    stood_at = []

    async def tell(address, wanted):
        if wanted.copies(0) == (A, B) and stays.owner is None:
            owner.high[0] = goes.high[0] = 40
            stays.owner, stays.backlog = owner, [1, 2, 3]

    async def delete(vbucket):
        stood_at.append((stays.high[vbucket], stays.backlog))

    members.tell, goes.delete = tell, delete
    asyncio.run(Rebalance(members, [A], replicas=1).run())
    assert stood_at[0] == (40, [])


async def ignore(*_):
    """Keep a copy that is to be deleted."""


def test_a_late_copy_is_not_promoted_for_what_one_that_goes_acknowledged_while_the_map_was_under_way():
    """Owner and copy that goes acknowledge up to 40 until the owner has the map without it. It is asked by nobody any
    more when all have it and the owner dies: the third, which is late, was promoted without a question."""
    owner, stays, goes = FakeNode(A, "A", seqnos=[10]), Late(B, "r", seqnos=[10]), FakeNode(C, "r", seqnos=[10])
    members = FakeMembers(owner, stays, goes, found=survey(a_map("ABC", replicas=2)))

    async def tell(address, wanted):
        assert (address, wanted.copies(0), wanted.unknown) == (A, (A, B), [0])
        if stays.owner is None:
            owner.high[0] = goes.high[0] = 40
            stays.owner, stays.backlog = owner, [1, 2, 3]

    async def send(wanted, *, first=(), also=(), instead=NO_OTHERS):
        members.sent.append(wanted)
        if wanted.copies(0) != (A, B):
            return
        if stays.high[0] < 40:
            left = survey(wanted, A=view(A, "", wanted, error="refused"), B=view(B, "r", wanted, seqnos=[10]))
            with pytest.raises(ClusterError, match="vbucket 0"):
                plan_failover(left, [A], {})

    members.tell, members.send, goes.delete = tell, send, ignore
    final = asyncio.run(Rebalance(members, [A], replicas=1).run())
    narrow = [each.needed for each in members.sent if each.copies(0) == (A, B)]
    assert final.needed == {} and {0: 40} in narrow


def test_an_owner_that_dies_while_a_copy_is_dropped_is_failed_over_without_a_question():
    """The others were told before it was asked how far it is, and that nobody knows: no copy was promoted then."""
    owner, stays, goes = FakeNode(A, "A", seqnos=[10]), Late(B, "r", seqnos=[10]), FakeNode(C, "r", seqnos=[10])
    members = FakeMembers(owner, stays, goes, found=survey(a_map("ABC", replicas=2)))

    async def tell(address, wanted):
        assert address == A
        owner.high[0] = goes.high[0] = 40
        owner.is_gone = True

    members.tell = tell
    with pytest.raises(ConnectionLost):
        asyncio.run(Rebalance(members, [A], replicas=1).run())
    known = members.sent[-1]
    assert known.copies(0) == (A, B, C) and known.needed == {}
    left = survey(known, A=view(A, "", known, error="refused"), C=view(C, "r", known, seqnos=[40]))
    plan = plan_failover(left, [A], {})
    assert [(promotion.chosen, promotion.losses) for promotion in plan.promotions] == [(C, {})]


class Heard(FakeMembers):
    """Members that keep the newest map of each node. What the owner A is told alone waits for `hears`."""

    def __init__(self, *nodes, found):
        super().__init__(*nodes)
        self.maps, self.hears, self.sends = dict.fromkeys(found.servers, found), asyncio.Event(), asyncio.Event()

    async def send(self, wanted, *, first=(), also=(), instead=NO_OTHERS):
        self.sent.append(wanted)
        self.maps |= dict.fromkeys(wanted.servers, wanted)
        await self.sends.wait()

    async def tell(self, address, wanted):
        if address == A:
            await self.hears.wait()
            self.nodes[A]._hear("map")
        self.maps[address] = wanted


async def asked_together(members, found, *others):
    """A map is under way; a narrowing of vbucket 0 waits for it, and other works. Returns the tasks, the narrowing's
    first, when the map has gone out and the owner has been asked."""
    run = Rebalance(members, [A])
    run._publisher, run._moves = Publisher(members, found), {1: Move(1, (C,), (B,))}
    under_way = asyncio.create_task(run._publisher.change(2, (A, C)))
    await turns()
    narrowing = asyncio.create_task(run._move(Move(0, (A, B, C), (A, C)), AsyncExitStack()))
    tasks = [narrowing, *(asyncio.create_task(other(run)) for other in others)]
    await turns(200)
    members.sends.set()
    await under_way
    await turns(200)
    return tasks


async def give_up(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_new_copy_is_not_promoted_empty_when_the_owner_died_and_the_run_was_killed_in_a_question_about_another():
    """The new copy was told of itself together with the question, and how far it must be after the answer."""
    found = a_map("ABC", "A", "A", servers=(A, B, C))
    owner = FakeNode(A, "A A A", seqnos=[10, 10, 10])
    one, two = FakeNode(B, "r . .", seqnos=[10]), FakeNode(C, "r . r", seqnos=[10, 10])

    async def work():
        members = Heard(owner, one, two, found=found)
        await give_up(
            await asked_together(members, found, lambda run: run._move(Move(1, (A,), (A, B)), AsyncExitStack()))
        )
        return max((members.maps[B], members.maps[C]), key=lambda each: each.version)

    newest = asyncio.run(work())
    assert newest.copies(1) == (A, B)
    left = {"B": view(B, "r r .", newest, seqnos=[10, 0]), "C": view(C, "r . r", newest, seqnos=[10, 10])}
    without = survey(newest, A=view(A, "", newest, error="refused"), **left)
    with pytest.raises(ClusterError, match="it has vbucket 1 up to seqno 0, and durable writes up to 10"):
        plan_failover(without, [A], {}, accept={FailoverRefusal.UNKNOWN})


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_question_that_hangs_or_fails_neither_holds_up_nor_fails_a_hand_over_of_another_vbucket(is_gone):
    found = a_map("ABC", "C", "A", servers=(A, B, C))
    owner = FakeNode(A, "A . A", seqnos=[10, 10])
    one, two = FakeNode(B, "r A .", seqnos=[10, 10]), FakeNode(C, "r d r", seqnos=[10, 10, 10])

    async def work():
        members = Heard(owner, one, two, found=found)
        narrowing, handing_over = await asked_together(members, found, lambda run: run._publish_owner(1))
        owner.is_gone = is_gone
        if is_gone:
            members.hears.set()
            await turns(200)
        assert handing_over.done() and handing_over.exception() is None and members.maps[C].owner(1) == B
        assert narrowing.done() == is_gone and members.maps[C].copies(0) == (A, B, C)
        await give_up([narrowing])

    asyncio.run(work())


def test_a_map_that_drops_a_copy_of_a_vbucket_whose_others_are_level_is_one():
    owner, stays, goes = FakeNode(A, "A", seqnos=[10]), FakeNode(B, "r", seqnos=[10]), FakeNode(C, "r", seqnos=[10])
    members = FakeMembers(owner, stays, goes, found=survey(a_map("ABC", replicas=2)))
    goes.delete = ignore
    asyncio.run(Rebalance(members, [A], replicas=1).run())
    narrow = [each for each in members.sent if each.copies(0) == (A, B) and C in each.servers]
    assert [each.needed for each in narrow] == [{}] * 2, "the last one is that of all who stay"


def test_a_stray_copy_of_what_is_found_damaged_at_the_end_of_a_run_is_kept():
    owner, replica, stray = FakeNode(A, "A", seqnos=[10]), FakeNode(B, "r", seqnos=[10]), FakeNode(C, "d", seqnos=[10])
    members = FakeMembers(owner, replica, stray, found=survey(a_map("AB"), C="d"))
    deleted = []

    async def send(wanted, *, first=(), also=(), instead=NO_OTHERS):
        members.found = survey(
            wanted,
            A=view(A, "A", wanted, complete=[4], damaged={0: 1}),
            B=view(B, "r", wanted, complete=[6], damaged={0: 1}),
            C="d",
        )

    async def delete(node, vbuckets):
        deleted.append((node, vbuckets))

    members.send, members.delete = send, delete
    asyncio.run(Rebalance(members, [A]).run())
    assert deleted == [(A, []), (B, []), (C, [])]


def test_the_first_replica_of_an_owner_is_not_promoted_before_it_has_received_what_that_had():
    """Empty, it is complete up to 0, as a vbucket without changes is: the owner died, and all it had was gone."""
    owner, replica = FakeNode(A, "A", seqnos=[10]), FakeNode(B, ".")
    members = FakeMembers(owner, replica, found=survey(a_map("A", servers=(A, B), replicas=0)))

    async def send(wanted, *, first=(), also=(), instead=NO_OTHERS):
        members.sent.append(wanted)
        replica.held, replica.high = {0: State.REPLICA}, {0: 10}
        if wanted.copies(0) == (A, B) and len(members.sent) == 2:
            left = survey(wanted, A=view(A, "", wanted, error="refused"), B=view(B, "r", wanted, seqnos=[0]))
            with pytest.raises(ClusterError, match="it has vbucket 0 up to seqno 0, and durable writes up to 10"):
                plan_failover(left, [A], {})
            assert plan_failover(left, [A], {}, force=True).after.copies(0) == (B,)

    members.send = send
    final = asyncio.run(Rebalance(members, [A], replicas=1).run())
    assert len(members.sent) > 2 and final.copies(0) == (A, B) and final.needed == {}


def test_a_further_replica_is_not_promoted_before_it_has_received_what_all_others_had():
    """Owner and first replica died, two of five: the second replica had nothing yet, and was taken for a whole copy."""
    owner, replica, *others = nodes = [FakeNode(each, ".") for each in (A, B, C, D, E)]
    owner.held, owner.high, replica.held, replica.high = {0: State.ACTIVE}, {0: 10}, {0: State.REPLICA}, {0: 8}
    members = FakeMembers(*nodes, found=survey(a_map("AB", servers=(A, B, C, D, E))))
    refused = []

    async def send(wanted, *, first=(), also=(), instead=NO_OTHERS):
        members.sent.append(wanted)
        if len(wanted.copies(0)) == 3 and not refused:
            new = next(other for other in others if other.address == wanted.copies(0)[2])
            gone = {name: view(node, "", wanted, error="refused") for name, node in (("A", A), ("B", B))}
            empty = {"CDE"[others.index(new)]: view(new.address, "r", wanted, seqnos=[0])}
            with pytest.raises(ClusterError, match="has vbucket 0 up to seqno 0, and durable writes up to 8"):
                plan_failover(survey(wanted, **gone, **empty), [A, B], {})
            first = view(B, "r", wanted, seqnos=[8])
            assert plan_failover(survey(wanted, **{**gone, "B": first}, **empty), [A], {}).after.owner(0) == B
            refused.append(new.address)
            new.held, new.high, replica.high = {0: State.REPLICA}, {0: 10}, {0: 10}

    members.send = send
    final = asyncio.run(Rebalance(members, [A], replicas=2).run())
    assert final.copies(0) == (A, B, *refused) and final.needed == {}


def test_a_replica_that_has_nothing_itself_is_no_measure_for_a_further_one():
    """The first replica came back with an empty disk. Beside it, a new one needed nothing to be promoted."""
    owner, replica, *others = nodes = [FakeNode(each, ".") for each in (A, B, C)]
    owner.held, owner.high, replica.held, replica.high = {0: State.ACTIVE}, {0: 10}, {0: State.REPLICA}, {0: 0}
    members = FakeMembers(*nodes, found=survey(a_map("AB", servers=(A, B, C))))

    async def send(wanted, *, first=(), also=(), instead=NO_OTHERS):
        members.sent.append(wanted)
        if wanted.copies(0) == (A, B, C) and not others[0].held:
            empty = {name: view(node, "r", wanted, seqnos=[0]) for name, node in (("B", B), ("C", C))}
            with pytest.raises(ClusterError, match="has vbucket 0 up to seqno 0, and durable writes up to 10"):
                plan_failover(survey(wanted, A=view(A, "", wanted, error="refused"), **empty), [A], {})
            others[0].held, others[0].high, replica.high = {0: State.REPLICA}, {0: 10}, {0: 10}

    members.send = send
    final = asyncio.run(Rebalance(members, [A], replicas=2).run())
    assert final.copies(0) == (A, B, C) and final.needed == {}


def test_the_copy_that_is_to_take_over_is_not_promoted_before_it_has_received_what_the_owner_had():
    """No chain names it yet. The owner died: an empty copy was taken for a whole one, and all was gone."""
    owner, target = FakeNode(A, "A", seqnos=[10]), FakeNode(B, ".")
    members = FakeMembers(owner, target, found=survey(a_map("A", servers=(A, B), replicas=0)))
    run = Rebalance(members, [A], remove=[A])

    async def hand_over(move, *_):
        wanted = members.sent[-1]
        left = survey(wanted, A=view(A, "", wanted, error="refused"), B=view(B, "r", wanted, seqnos=[0]))
        with pytest.raises(ClusterError, match="it has vbucket 0 up to seqno 0, and durable writes up to 10"):
            plan_failover(left, [A], {})
        owner.held, target.held, target.high = {}, {0: State.ACTIVE}, {0: 10}
        owner.high = {}
        await run._publish_owner(move.vbucket)

    run._hand_over = hand_over
    final = asyncio.run(run.run())
    assert final.copies(0) == (B,) and final.needed == {}


def test_a_replica_that_lacks_what_the_owners_had_must_catch_up_once_the_old_owner_is_out_of_the_chain():
    """A and C acknowledged up to 40 when C took over. A was failed over, in no chain any more; then C died, and B,
    which was late, was promoted without a question."""
    found = a_map("ABC")
    target = FakeNode(C, "A", seqnos=[40])
    members = FakeMembers(FakeNode(A, "d", seqnos=[40]), Late(B, "r", seqnos=[10]), target)
    run = Rebalance(members, [A], remove=[A])
    run._publisher, run._moves = Publisher(members, found), {0: Move(0, (A, B), (C, B))}
    asyncio.run(run._publish_owner(0))
    left = {"A": view(A, "", found, error="refused"), "B": view(B, "r", found, seqnos=[10])}
    without = plan_failover(survey(members.sent[-1], **left, C=view(C, "A", found, seqnos=[40])), [A], {}).after
    assert without.copies(0) == (C, B)
    with pytest.raises(ClusterError, match="has vbucket 0 up to seqno 10, and durable writes up to 40"):
        plan_failover(survey(without, B=left["B"], C=view(C, "", found, error="refused")), [C], {})


class Leased(FakeMembers):
    """Holds each map but the first until `deliver` is set; `ends` has what ended, in order."""

    def __init__(self, *nodes, found):
        super().__init__(*nodes, found=found)
        self.deliver, self.ends = asyncio.Event(), []

    @asynccontextmanager
    async def alone(self, work, addresses):
        try:
            yield
        finally:
            self.ends.append("leases")

    async def send(self, wanted, **how):
        await super().send(wanted, **how)
        if len(self.sent) > 1:
            await self.deliver.wait()
            self.ends.append("map")


class OnlyMaps(Rebalance):
    """A run whose moves change the map, and nothing else."""

    async def _move(self, move, movers):
        await self._publisher.change(move.vbucket, (move.target,))


def test_a_run_that_is_cancelled_gives_its_leases_back_behind_its_maps():
    """A map on its way could have the revision of the next operator's, and other owners."""

    async def work():
        alone = a_map("A", "A", "A", "A", servers=(A,), replicas=0)
        members = Leased(FakeNode(A, "A A A A"), FakeNode(B), found=survey(alone, B=view(B, ". . . .", None)))
        run = asyncio.create_task(OnlyMaps(members, [A], add=[B]).run())
        await turns(200)
        assert len(members.sent) == 2 and not run.done()
        run.cancel()
        await turns(200)
        members.deliver.set()
        with pytest.raises(asyncio.CancelledError):
            await run
        await turns(200)
        return members.ends

    assert asyncio.run(work()) == ["map", "leases"]
