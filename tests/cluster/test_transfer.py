"""One vbucket's way: when a copy is near enough, what the mover sees of the states, and what ends it."""

import asyncio
import gc

import pytest

from headwater.cluster.proxied import Limits
from headwater.cluster.proxy import Side
from headwater.cluster.transfer import ESTIMATE_MAX, Transfer
from headwater.errors import ConnectionLost, MoveError, PeerSilent
from headwater.wire import dcp
from headwater.wire.header import response
from headwater.wire.status import Status
from headwater.wire.vbucket import State

from .fakes import FakeConnection, FakeNode, turns
from .views import A, B

VB = 0
TAKEOVER = 1
PENDING = dcp.SetVbucketState(vbucket=VB, state=State.PENDING).frame()
ACTIVE = dcp.SetVbucketState(vbucket=VB, state=State.ACTIVE).frame()


class Case:
    """A transfer between two nodes, on a connection; `lags`: what it told of the distance."""

    def __init__(self, source="A", target="r", *, limits=None, seqnos=(10, 10), told=()):
        self.source, self.target = FakeNode(A, source, seqnos=seqnos[:1]), FakeNode(B, target, seqnos=seqnos[1:])
        self.source.takeover_told = list(told)
        self.connection, self.lags = FakeConnection("mover"), []
        self.transfer = Transfer(VB, self.source, self.target, limits or Limits(poll_seconds=0.0), self.lags.append)

    def passes(self, *frames):
        """Frames that pass the mover: requests come from the producer, answers from the consumer."""
        for frame in frames:
            self.transfer.observe(Side.CONSUMER if frame.is_response else Side.PRODUCER, frame)

    def ends(self, reason):
        self.passes(dcp.StreamEnd(vbucket=VB, status=reason).frame())


def copied(**options):
    """A case whose copy was made."""

    async def work():
        case = Case(**options)
        await case.transfer.copy(case.connection)
        return case

    return asyncio.run(work())


# --------------------------------------------------------------------------- copying


def test_a_copy_begins_with_a_stream_and_ends_on_the_targets_disk():
    case = copied(told=[("in-memory", 0)], seqnos=(17, 17))
    assert case.connection.asked == [("add", VB, 0)] and case.connection.listeners == {VB: case.transfer}
    assert case.target.calls == [(B, "wait_persisted", VB, 17)] and case.lags == [0]
    assert ("takeover_stats", VB, "mover") in case.source.asked


def test_it_is_near_enough_when_at_most_a_thousand_changes_are_left():
    told = [("in-memory", 5000), ("in-memory", ESTIMATE_MAX + 1), ("in-memory", ESTIMATE_MAX)]
    assert copied(told=told).lags == [5000, 1001, 1000]


def test_a_backfill_is_not_near_whatever_is_left_of_it():
    told = [("backfilling", 3), ("calculating-item-count", 0), ("in-memory", 3)]
    assert copied(told=told).lags == [1001, 1001, 3]


@pytest.mark.parametrize("told", [[], [("does_not_exist", 0)]], ids=["no such statistics", "no such stream"])
def test_what_is_not_told_is_reckoned_from_the_seqnos(told):
    assert copied(told=told, seqnos=(900, 400)).lags == [500]


def test_a_source_that_owns_it_no_more_ends_the_copy():
    with pytest.raises(MoveError, match="the source stopped owning it while it was copied") as gone:
        copied(source="d", told=[("in-memory", 0)])
    assert gone.value.retriable


def test_a_stream_that_ends_ends_the_copy_and_the_reason_is_in_words():
    async def work():
        case = Case(told=[("backfilling", 9)] * 100)
        copying = asyncio.create_task(case.transfer.copy(case.connection))
        await turns()
        case.ends(dcp.EndReason.STATE_CHANGED)
        await copying

    with pytest.raises(MoveError, match="its stream ended: state changed"):
        asyncio.run(work())


def test_a_connection_that_breaks_ends_the_copy_with_its_reason():
    async def work():
        case = Case(told=[("backfilling", 9)] * 100)
        copying = asyncio.create_task(case.transfer.copy(case.connection))
        await turns()
        case.connection.lose(ConnectionLost(str(B), "reset"))
        await copying

    with pytest.raises(ConnectionLost, match="reset"):
        asyncio.run(work())


def test_the_error_of_what_was_waited_for_meanwhile_is_not_left_for_nobody():
    """A wait whose answer came in the moment when it was cancelled may end with that answer, be it an error."""
    complaints = []

    async def work():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context["message"]))
        case = Case(told=[("in-memory", 0)])

        async def wait_persisted(vb, seqno):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise PeerSilent(str(B), 1.0) from None

        case.target.wait_persisted = wait_persisted
        copying = asyncio.create_task(case.transfer.copy(case.connection))
        await turns()
        case.connection.lose(ConnectionLost(str(B), "reset"))
        with pytest.raises(ConnectionLost, match="reset"):
            await copying
        await turns()

    asyncio.run(work())
    gc.collect()
    assert complaints == []


def followed(*seqnos, limits=None):
    """The distances that are told while the target comes from one of these seqnos to the next by itself."""
    case = None

    async def work():
        nonlocal case
        case = Case(seqnos=(5000, 0), limits=limits)
        told = iter(seqnos)

        async def lag():
            case.target.high[VB] = next(told, case.target.high[VB])
            return 5000 - case.target.high[VB]

        case.transfer.lag = lag
        await case.transfer.follow()

    asyncio.run(work())
    return case


def test_a_target_that_follows_the_source_by_itself_is_waited_for_without_a_stream(monkeypatch):
    monkeypatch.setattr("headwater.cluster.transfer.POLL_SECONDS_MAX", 0.0)
    case = followed(0, 3000, 4000)
    assert case.lags == [5000, 2000, 1000] and case.connection.asked == []


def test_a_target_that_comes_no_nearer_by_itself_is_told_how_far_it_is(monkeypatch):
    monkeypatch.setattr("headwater.cluster.transfer.POLL_SECONDS_MAX", 0.0)
    with pytest.raises(MoveError, match="stays 2000 changes behind") as stuck:
        followed(0, 3000, limits=Limits(answer_seconds=0.01))
    assert stuck.value.retriable


# --------------------------------------------------------------------------- taking over


def taken_over(talk, **options):
    """`talk(case)` while the takeover goes on; returns the case, or raises what the takeover did."""

    async def work():
        case = Case(**options)
        taking = asyncio.create_task(case.transfer.take_over(case.connection))
        await turns()
        talk(case)
        await taking
        return case

    return asyncio.run(work())


def test_the_target_owns_it_when_its_answer_to_active_has_passed():
    case = taken_over(lambda case: case.passes(PENDING, response(PENDING), ACTIVE, response(ACTIVE)))
    assert case.connection.asked == [("add", VB, TAKEOVER)]
    assert case.transfer.active_sent and case.transfer.ownerless_seconds > 0


def test_what_was_only_begun_is_not_owned():
    def talk(case):
        case.passes(PENDING, response(PENDING))
        assert not case.transfer.active_sent
        case.passes(ACTIVE)
        assert case.transfer.active_sent
        case.ends(dcp.EndReason.DISCONNECTED)

    with pytest.raises(MoveError, match="its stream ended: disconnected"):
        taken_over(talk)


def test_an_answer_to_what_was_never_asked_owns_nothing():
    def talk(case):
        case.passes(response(ACTIVE))
        case.ends(dcp.EndReason.OK)

    with pytest.raises(MoveError, match="its stream ended: ok"):
        taken_over(talk)


def test_a_target_that_refuses_a_state_does_not_own_it():
    def talk(case):
        case.passes(PENDING, response(PENDING), ACTIVE, response(ACTIVE, Status.ETMPFAIL))
        case.ends(dcp.EndReason.SLOW)

    with pytest.raises(MoveError, match=r"slow, for the target would not have it .ETMPFAIL.; see its log"):
        taken_over(talk)


def test_an_end_for_no_known_reason_keeps_its_number():
    with pytest.raises(MoveError, match="its stream ended: 77"):
        taken_over(lambda case: case.ends(77))


def test_a_takeover_that_nobody_ends_is_given_up():
    with pytest.raises(PeerSilent) as silent:
        taken_over(lambda case: case.passes(PENDING), limits=Limits(handover_seconds=0.0))
    assert silent.value.args[0] == str(B)


def test_the_end_of_the_stream_may_as_well_be_lost_with_the_connection():
    async def work():
        case = Case()
        case.connection.lose(ConnectionLost(str(A), "reset"))
        await asyncio.wait_for(case.transfer.wait_end(case.connection), 120)

    asyncio.run(work())
