"""From what the caller of a drain says to positions and end seqnos."""

import pytest

from headwater.client.cluster import Cluster
from headwater.client.options import DrainOptions
from headwater.client.plan import plan
from headwater.client.settings import settings_for
from headwater.errors import NotMyVbucket, OptionError
from headwater.protocol.dcp.position import ENDLESS, Position
from headwater.testing.peers import UUID, History, Peer, cluster_map, history, serve
from headwater.transport.blocking import run
from headwater.wire.opcodes import Opcode


@pytest.fixture
def peer():
    newer = History(history(9).snapshots, [(0xB, 7), (UUID, 0)])
    return Peer(vbuckets=4, histories={1: history(5), 2: newer})


@pytest.fixture
def planned(peer):
    """The positions a drain begins at and the seqnos it ends at, of what a caller says."""
    with serve(peer) as address:
        cluster = Cluster(settings_for(address, timeout_seconds=60.0))
        run(cluster.connect())

        def make(start=None, vbuckets=None, until=None, **options):
            drainer = run(plan(cluster, start, vbuckets, until, DrainOptions(**options)))
            progress = drainer.progress
            drainer.close()
            starts = {vb: each.position for vb, each in progress.items()}
            return starts, {vb: each.end_seqno for vb, each in progress.items()}

        yield make
        cluster.close()


def test_without_anything_said_all_of_every_vbucket_comes_for_ever(planned, peer):
    begin, ends = planned()
    assert begin == {vb: Position.beginning(vb) for vb in range(4)} and ends == dict.fromkeys(range(4), ENDLESS)
    assert Opcode.GET_ALL_VB_SEQNOS not in {frame.opcode for frame in peer.seen}


def test_now_as_an_end_is_the_high_seqno_of_each_vbucket(planned):
    assert planned(until="now")[1] == {0: 0, 1: 5, 2: 9, 3: 0}


def test_now_as_a_start_is_a_position_on_the_newest_history(planned):
    begin, _ = planned("now", vbuckets=[2, 1])
    assert {vb: (at.vb_uuid, at.seqno, at.snapshot_start, at.snapshot_end) for vb, at in begin.items()} == {
        1: (UUID, 5, 5, 5),
        2: (0xB, 9, 9, 9),
    }


def test_a_failover_between_seqnos_and_logs_gives_no_seqno_of_the_branch_that_is_lost(planned, peer):
    """The seqno of the old branch under the uuid of the new one would pass over what the new owner writes up to it."""
    answers = peer.answers

    def fails_over_at_the_first_log(request):
        if request.opcode == Opcode.GET_FAILOVER_LOG:
            peer.histories = {1: History(history(3).snapshots, [(0xC, 2), (UUID, 0)])}
        return answers(request)

    peer.answers = fails_over_at_the_first_log
    begin, ends = planned("now", vbuckets=[1], until="now")
    assert (begin[1].vb_uuid, begin[1].seqno, ends) == (0xC, 3, {1: 3})


def test_vbuckets_are_taken_once_and_in_order(planned):
    assert list(planned(vbuckets=[3, 1, 3])[0]) == [1, 3]


def test_saved_positions_are_used_and_the_rest_begins_at_the_beginning(planned):
    saved = Position(2, UUID, 4, 4, 4)
    assert planned({2: saved}, vbuckets=[1, 2])[0] == {1: Position.beginning(1), 2: saved}


def test_an_end_that_was_not_given_is_never(planned):
    assert planned(until={1: 3}, vbuckets=[0, 1])[1] == {0: ENDLESS, 1: 3}


def test_a_vbucket_without_a_node_is_waited_for_and_not_taken_for_an_empty_one(planned, peer):
    owners = [0, -1, 0, 0]
    peer.config = lambda own: cluster_map([own], owners, rev=2 + sum(owners))
    with serve(peer) as address:
        cluster = Cluster(settings_for(address))
        run(cluster.connect())
        with pytest.raises(NotMyVbucket, match=r"1 of 4 vbuckets, the first is 1, are active on no node .*attempts in"):
            run(plan(cluster, None, None, "now", DrainOptions(patience_seconds=0.1)))
        owners[1] = 0
        drainer = run(plan(cluster, None, None, "now", DrainOptions()))
        assert drainer.progress[1].end_seqno == peer.history(1).high_seqno > 0
        drainer.close()
        cluster.close()


@pytest.mark.parametrize(
    ("arguments", "option", "allowed"),
    [
        ({"vbuckets": [4]}, "vbuckets", "one of the bucket's 4 vbuckets, 0 to 3"),
        ({"vbuckets": [-1]}, "vbuckets", "one of the bucket's 4 vbuckets, 0 to 3"),
        ({"start": {9: Position.beginning(9)}}, "vbuckets", "0 to 3"),
        ({"start": "then"}, "start", '"now", a mapping of vbucket to Position'),
        ({"start": {1: Position.beginning(2)}}, "start", "a Position of vbucket 1"),
        ({"start": {1: 17}}, "start", "a Position of vbucket 1"),
        ({"until": "later"}, "until", '"now", a mapping of vbucket to seqno'),
        ({"until": 17}, "until", '"now", a mapping of vbucket to seqno'),
    ],
)
def test_what_is_no_start_and_no_end_is_refused_with_what_is(planned, arguments, option: str, allowed: str):
    with pytest.raises(OptionError, match=allowed) as caught:
        planned(**arguments)
    assert caught.value.name == option
