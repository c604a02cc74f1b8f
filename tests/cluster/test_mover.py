"""The mover: attempts and patience, connections that are opened and given up, hand-overs that nobody interrupts."""

import asyncio
from types import SimpleNamespace

import pytest

from headwater.cluster import mover as module
from headwater.cluster.admin import Endpoint, Operator
from headwater.cluster.mover import Mover, MoveStage
from headwater.cluster.patience import CopyPosition
from headwater.cluster.proxied import Limits
from headwater.cluster.proxy import Side
from headwater.errors import AuthError, Busy, ClusterError, ConnectionLost, MoveError, OptionError

from .fakes import FakeConnection, FakeNode, turns
from .views import A, B

LOST = ConnectionLost(str(B), "reset")
REFUSED = MoveError(0, "both nodes say that they own it", "look at both nodes")
AGAIN = MoveError(0, "its stream ended: slow", "ask again", retriable=True)


class Now:
    """Monotonic time that a test moves."""

    def __init__(self):
        self.seconds = 1000.0

    def monotonic(self):
        return self.seconds


class World:
    """The nodes and proxies of a mover. Each list says how the next calls end: an error to raise, or None for well.

    `settles`: what `settle` finds, True where the target owns the vbucket already. `copies`, `takes`: of a transfer.
    `opens`: of a connection. `log` is what was done, in order. `changes` pass at each copy; the target keeps `keeps`
    of them, and holds `holds` seqnos; `asked_for` is whether each connection was opened with delete times. `follows`:
    the vbuckets in which the target follows the source by itself.
    """

    def __init__(self, monkeypatch, *, settles=(), copies=(), takes=(), opens=()):
        self.settles, self.copies, self.takes, self.opens = map(list, (settles, copies, takes, opens))
        self.log, self.connections, self.now = [], [], Now()
        self.gate, self.active_sent, self.fails_to_close, self.changes = None, {}, False, 0
        self.keeps, self.holds, self.asked_for = 0, 0, []
        self.admins, self.leased, self.followed, self.follows = {}, [], set(), set()
        monkeypatch.setattr(module, "open_proxied", self._open_proxied)
        monkeypatch.setattr(module, "Settling", lambda source, target: self)
        monkeypatch.setattr(module, "NodeAdmin", self._administered)
        monkeypatch.setattr(module, "Transfer", lambda vb, *rest: SimpleTransfer(self, vb))
        monkeypatch.setattr(module, "Backoff", lambda **_: SimpleNamespace(next_seconds=float, reset=lambda: None))
        monkeypatch.setattr(module, "time", self.now)
        monkeypatch.setattr(module, "QUIET_SECONDS", 0.0)

    def _administered(self, endpoint, _):
        node = self.admins[endpoint.address] = FakeNode(endpoint.address)
        lease = node.lease

        async def noted(operator, **how):
            self.leased.append(node)
            await lease(operator, **how)

        node.lease = noted
        return node

    def comes_to(self, outcomes, default=None):
        outcome = outcomes.pop(0) if outcomes else default
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _open_proxied(self, source, target, limits, purpose, *, delete_times):
        self.comes_to(self.opens)
        self.asked_for.append((purpose, delete_times))
        self.log.append(f"open {purpose}")
        connection = FakeConnection(purpose)
        connection.close_stream = self._close_stream
        self.connections.append(connection)
        return connection

    async def _close_stream(self, vb):
        self.log.append(f"close {vb}")
        if self.fails_to_close:
            raise LOST

    async def held(self, vb):
        return CopyPosition(0xAB, self.holds)

    async def let_go(self, vb):
        self.log.append(f"let go {vb}")
        self.followed.discard(vb)

    async def settle(self, vb, *, follows=False):
        self.log.append(f"settle {vb}")
        self.followed = self.follows if follows else set()
        return self.comes_to(self.settles, False)

    async def settle_alone(self, vb, problem):
        self.log.append(f"settle {vb} alone")
        if not self.comes_to(self.settles, False):
            raise problem


class SimpleTransfer:
    """A transfer that does what the world says."""

    def __init__(self, world, vb):
        self.world, self.vb, self.active_sent, self.ownerless_seconds = world, vb, False, 0.25

    async def copy(self, connection):
        connection.listen(self.vb, self)
        self.world.log.append(f"copy {self.vb}")
        connection.proxy.down.changes[self.vb] += self.world.changes
        self.world.holds += self.world.keeps
        self.world.comes_to(self.world.copies)

    async def follow(self):
        self.world.log.append(f"follow {self.vb}")
        self.world.comes_to(self.world.copies)

    async def take_over(self, connection):
        connection.listen(self.vb, self)
        self.world.log.append(f"take over {self.vb}")
        if self.world.gate is not None:
            await self.world.gate.wait()
        self.world.comes_to(self.world.takes)

    async def wait_end(self, connection):
        self.world.log.append(f"end {self.vb}")


@pytest.fixture
def world(monkeypatch):
    return lambda **outcomes: World(monkeypatch, **outcomes)


def moved(vb=0, *, takeover=True, patience=60.0, **options):
    """Move one vbucket: what came of it, and the stages that were told."""
    stages = []

    async def work():
        limits = Limits(patience_seconds=patience)
        options.setdefault("progress", lambda event: stages.append((event.stage, event.problem)))
        async with Mover(Endpoint(A), Endpoint(B), limits=limits, **options) as mover:
            return await mover.move(vb, takeover=takeover)

    return asyncio.run(work()), stages


# --------------------------------------------------------------------------- one attempt


def test_a_vbucket_is_looked_at_copied_taken_over_and_its_map_is_sent_before_the_end_is_waited_for(world):
    met = world()

    async def push(vb):
        met.log.append(f"map {vb}")

    found, stages = moved(on_owned=push)
    assert met.log == [
        "open hand-over",
        "open copy",
        "settle 0",
        "copy 0",
        "close 0",
        "take over 0",
        "map 0",
        "end 0",
    ]
    assert stages == [(MoveStage.COPYING, ""), (MoveStage.TAKING_OVER, ""), (MoveStage.OWNED, "")]
    assert (found.vbucket, found.attempts, found.ownerless_seconds) == (0, 1, 0.25)


def test_a_copy_stays_a_copy_and_its_stream_goes_on(world):
    met = world()
    _, stages = moved(takeover=False)
    assert met.log[-1] == "copy 0" and stages[-1] == (MoveStage.COPIED, "")


def test_a_target_that_follows_the_source_by_itself_does_so_until_the_vbucket_changes_hands(world):
    met = world()
    met.follows = {0}
    moved()
    assert met.log == ["open hand-over", "open copy", "settle 0", "follow 0", "let go 0", "take over 0", "end 0"]


def test_what_did_not_come_to_a_hand_over_by_itself_is_copied_by_the_mover(world):
    met = world(copies=[AGAIN])
    met.follows = {0}
    moved()
    assert met.log[3:] == ["follow 0", "settle 0", "copy 0", "close 0", "take over 0", "end 0"]


def test_who_only_copies_brings_the_stream_himself(world):
    met = world()
    met.follows = {0}
    moved(takeover=False)
    assert met.log[-1] == "copy 0"


def test_what_was_moved_already_is_only_told(world):
    met = world(settles=[True])
    _, stages = moved()
    assert met.log == ["open hand-over", "open copy", "settle 0"] and stages == [(MoveStage.OWNED, "")]


def test_when_a_node_can_not_be_reached_the_rest_is_settled_without_a_connection(world):
    met = world(opens=[LOST], settles=[True])
    _, stages = moved()
    assert met.log == ["settle 0 alone"] and stages == [(MoveStage.OWNED, "")]


@pytest.mark.parametrize("number", [0, -1])
def test_less_than_one_at_a_time_is_refused(number):
    with pytest.raises(OptionError, match="concurrency"):
        Mover(Endpoint(A), Endpoint(B), concurrency=number)


# --------------------------------------------------------------------------- patience


def test_a_problem_that_may_pass_is_told_and_the_vbucket_is_begun_again(world):
    met = world(copies=[AGAIN], takes=[LOST])
    found, stages = moved()
    assert found.attempts == 3 and met.log.count("settle 0") == 3
    assert [problem for stage, problem in stages if stage is MoveStage.RETRYING] == [str(AGAIN), str(LOST)]


@pytest.mark.parametrize("error", [AuthError("log in"), REFUSED], ids=["login", "two owners"])
def test_what_does_not_pass_is_raised_at_once(world, error):
    met = world(settles=[error])
    with pytest.raises(type(error)) as raised:
        moved()
    assert raised.value is error and met.log.count("settle 0") == 1


def test_who_has_no_patience_hears_of_the_first_problem_with_the_next_step(world):
    world(copies=[Busy("stream vbucket 0")])
    with pytest.raises(MoveError, match="stream vbucket 0") as given_up:
        moved(patience=0.0)
    assert given_up.value.advice == "ask for the same move again"
    world(copies=[AGAIN])
    with pytest.raises(MoveError) as given_up:
        moved(patience=0.0)
    assert given_up.value is AGAIN


def test_patience_is_counted_from_the_last_change_that_the_target_kept(world):
    met = world(copies=[LOST] * 10)
    met.changes = met.keeps = 1

    def pass_time(_event):
        met.now.seconds += 2.0

    found, _ = moved(patience=9.0, progress=pass_time)
    assert (found.attempts, found.changes) == (11, 11) and found.seconds > 20


def test_what_passes_and_is_never_kept_does_not_feed_patience(world):
    met = world(copies=[LOST] * 100)
    met.changes = 1

    def pass_time(_event):
        met.now.seconds += 1.0

    with pytest.raises(MoveError, match="reset"):
        moved(patience=9.0, progress=pass_time)
    assert met.now.seconds < 1020 and met.log.count("copy 0") < 12


def test_a_hand_over_that_fails_again_and_again_ends_though_more_is_written_each_time(world):
    met = world(takes=[LOST] * 100)
    met.changes = met.keeps = 5

    def pass_time(_event):
        met.now.seconds += 1.0

    with pytest.raises(MoveError, match="reset"):
        moved(patience=9.0, progress=pass_time)
    assert met.log.count("take over 0") < 12


def test_who_gives_up_in_a_hand_over_sees_to_it_first_that_the_vbucket_has_an_owner(world):
    """Patience at its end, or a refusal for good: either left nobody to serve the vbucket until the next run."""
    for error in (LOST, AuthError("log in")):
        met = world(takes=[error])
        with pytest.raises((MoveError, AuthError), match=r"reset|log in"):
            moved(patience=0.0)
        assert met.log[-1] == "settle 0" and met.log.count("settle 0") == 2


def test_who_gives_up_and_finds_that_the_target_owns_it_has_moved_it(world):
    met = world(takes=[LOST], settles=[False, True])
    found, stages = moved(patience=0.0)
    assert stages[-1] == (MoveStage.OWNED, "") and found.attempts == 1
    assert met.log.count("settle 0") == 2


def test_who_gives_up_when_a_node_is_gone_settles_what_can_be_settled_without_it(world):
    """A target that died before it was told to be active gives the vbucket back, at once and not with the next run."""
    met = world(takes=[LOST])

    def lose(event):
        if event.stage is MoveStage.TAKING_OVER:
            met.opens.append(LOST)
            met.connections[0].close()

    with pytest.raises(MoveError, match="reset"):
        moved(patience=0.0, progress=lose)
    assert met.log[-1] == "settle 0 alone"


def test_who_gives_up_while_copying_touches_nothing_more(world):
    met = world(copies=[AGAIN])
    with pytest.raises(MoveError):
        moved(patience=0.0)
    assert met.log.count("settle 0") == 1


def test_a_vbucket_that_nobody_can_put_right_is_told_with_what_went_wrong_first(world):
    world(takes=[LOST], settles=[False, REFUSED])
    with pytest.raises(MoveError, match="reset"):
        moved(patience=0.0)


# --------------------------------------------------------------------------- being alone


@pytest.mark.parametrize("takeover", [True, False])
def test_nodes_are_leased_in_one_order_before_anything_is_looked_at_and_released_in_the_end(world, takeover):
    met = world()
    moved(takeover=takeover)
    (a, b), seen = (met.admins[each].asked for each in (A, B)), met.log[0]
    assert seen == "open hand-over" and a[0] == b[0] == ("lease", False)
    assert [node.address for node in met.leased[:2]] == [A, B]
    assert ("release",) in a and ("release",) in b


def test_a_mover_that_is_part_of_a_run_takes_the_lease_of_that_run_and_leaves_the_end_to_it(world):
    met, run = world(), Operator("a run", "rebalance")
    moved(operator=run)
    assert met.admins[A].asked[0] == ("lease", True) and ("release",) not in met.admins[A].asked
    assert set(met.admins[A].operators) == {run}


def test_a_mover_that_lost_its_lease_to_another_operator_does_not_try_again(world):
    met = world()

    async def refuse(operator, *, is_renewal=False):
        raise ClusterError("the failover has been at work on this node meanwhile", "wait")

    def lose(event):
        met.admins[B].lease = refuse

    met.copies = [LOST]
    with pytest.raises(ClusterError, match="meanwhile"):
        moved(progress=lose)
    assert met.log.count("copy 0") == 1


def test_what_was_known_of_a_hand_over_is_forgotten_when_others_may_have_been_at_work(world):
    met = world()

    async def work():
        async with Mover(Endpoint(A), Endpoint(B)) as mover:
            met.active_sent[7] = False
            await mover.move(0)
        assert met.active_sent == {}

    asyncio.run(work())


# --------------------------------------------------------------------------- connections


def test_an_attempt_that_failed_leaves_no_stream_behind(world):
    met = world(copies=[AGAIN])
    moved()
    assert met.log[3:6] == ["copy 0", "close 0", "settle 0"]


def test_a_stream_that_can_not_be_closed_costs_its_connection_and_what_passed_there_still_counts(world):
    met = world(copies=[AGAIN])
    met.changes, met.fails_to_close = 5, True

    def heal(event):
        met.fails_to_close = met.fails_to_close and event.stage is not MoveStage.RETRYING

    found, _ = moved(progress=heal)
    assert [connection.name for connection in met.connections] == ["hand-over", "copy", "copy"]
    assert not met.connections[1].is_open and found.changes == 10


def test_the_connections_are_shared_by_all_vbuckets_and_closed_in_the_end(world):
    met = world()

    async def work():
        async with Mover(Endpoint(A), Endpoint(B), concurrency=2) as mover:
            await asyncio.gather(*(mover.move(vb, takeover=False) for vb in range(6)))
            assert mover.is_copying
            await mover.release(3)
        assert not mover.is_copying

    asyncio.run(work())
    assert len(met.connections) == 2 and met.log[-1] == "close 3"


def test_a_target_that_refuses_a_deletion_with_its_time_is_sent_none_with_one_on_either_connection(world):
    met = world(copies=[LOST])

    def refuse(event):
        if event.stage is MoveStage.RETRYING:
            met.connections[1].refuses_delete_times = True
            met.connections[1].close()

    moved(progress=refuse)
    assert met.asked_for == [("hand-over", True), ("copy", True), ("hand-over", False), ("copy", False)]
    assert not met.connections[0].is_open and not met.connections[1].is_open


# --------------------------------------------------------------------------- stopping


def test_a_hand_over_under_way_comes_to_its_end_though_the_mover_is_stopped(world):
    met = world()

    async def work():
        met.gate = asyncio.Event()
        mover = Mover(Endpoint(A), Endpoint(B))
        moving = asyncio.create_task(mover.move(0))
        while "take over 0" not in met.log:
            await asyncio.sleep(0)
        moving.cancel()
        closing = asyncio.create_task(mover.close())
        await turns()
        assert not closing.done() and met.log[-1] == "take over 0", "its stream is not closed under it"
        met.gate.set()
        await closing
        with pytest.raises(asyncio.CancelledError):
            await moving

    asyncio.run(work())
    assert met.log[-1] == "end 0" and not any(connection.is_open for connection in met.connections)


def test_the_next_hand_over_does_not_wait_for_the_map_that_tells_of_the_one_before(world):
    met = world()

    async def work():
        sent = asyncio.Event()

        async def push(vb):
            met.log.append(f"map {vb}")
            await sent.wait()

        async with Mover(Endpoint(A), Endpoint(B), on_owned=push) as mover:
            moving = asyncio.gather(*(mover.move(vb) for vb in (0, 1)))
            while "map 1" not in met.log:
                await asyncio.sleep(0)
            assert not {"end 0", "end 1"} & set(met.log)
            sent.set()
            await moving

    asyncio.run(asyncio.wait_for(work(), 60))
    assert met.log.index("take over 1") < met.log.index("end 0")


def test_a_hand_over_that_could_not_begin_lets_the_next_one_have_its_turn(world):
    met = world()

    async def work():
        async with Mover(Endpoint(A), Endpoint(B), operator=Operator("a run", "rebalance")) as mover:
            looked = mover._lease

            async def refuse_once():
                if "copy 0" in met.log:
                    mover._lease = looked
                    raise ClusterError("node-b: another operator has been at work", "type this again")

            mover._lease = refuse_once
            with pytest.raises(ClusterError):
                await mover.move(0)
            await mover.move(1)

    asyncio.run(asyncio.wait_for(work(), 60))
    assert "take over 0" not in met.log and "take over 1" in met.log


@pytest.mark.parametrize(
    ("fallen", "sent", "known"),
    [(Side.CONSUMER, False, False), (Side.PRODUCER, False, None), (Side.PRODUCER, True, True)],
)
def test_whether_the_target_was_told_to_be_active_is_kept_as_far_as_it_is_known(
    world, monkeypatch, fallen, sent, known
):
    """A source that fell may have sent it without our seeing it; one that lives has sent what we saw."""
    met = world(takes=[LOST])

    def transfer(vb, *rest):
        made = SimpleTransfer(met, vb)
        made.active_sent = sent
        return made

    monkeypatch.setattr(module, "Transfer", transfer)

    async def take_over(self, connection):
        connection.proxy.fallen = fallen
        raise LOST

    monkeypatch.setattr(SimpleTransfer, "take_over", take_over)
    with pytest.raises(MoveError):
        moved(patience=0.0)
    assert met.active_sent == {0: known}
