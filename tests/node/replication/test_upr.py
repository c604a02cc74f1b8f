"""A node that follows a producer which knows no DCP."""

from __future__ import annotations

from headwater.testing.node import node
from headwater.testing.peers import serve
from headwater.wire.vbucket import State
from tests.node.membership.support import stats
from tests.node.replication.support import content, failover_log, high_seqno, put, replicate, set_state, until
from tests.upr_peer import BRANCH, LOG, Change, UprPeer, three_snapshots

HELD = {
    b"k1": (6, 1006, 2, b"again"),
    b"k2": (7, 1007, 2, None),
    b"k3": (8, 1008, 2, None),
    b"k4": (4, 1004, 1, b"v"),
    b"k5": (5, 1005, 1, b"v"),
    b"k6": (9, 1009, 1, b"v"),
    b"k7": (10, 1010, 1, b"\0" * 3000),
}


def test_a_node_follows_a_producer_that_speaks_upr_alone() -> None:
    producer = UprPeer(vbuckets=4, held={0: three_snapshots(), 3: [[Change(b"other")]]})
    with serve(producer) as address, node(vbuckets=4, vbucket_state="none") as replica:
        replicate(replica, address, "0-3")
        until(lambda: [high_seqno(replica, vb) for vb in range(4)] == [10, 0, 0, 1], "it has all there is")
        assert content(replica, 0) == HELD
        assert failover_log(replica, 0) == list(LOG)
        told = stats(replica, "replication")
        assert {told[f"{address}/default:vb_{vb}"] for vb in range(4)} == {"reading"}
        assert told[f"{address}/default:problem"] == ""


def test_it_goes_on_from_the_last_boundary_when_the_connection_breaks_and_after_a_crash() -> None:
    producer = UprPeer(vbuckets=1, held={0: three_snapshots()}, cuts=[900, 1200, 1300])
    with serve(producer) as address, node(vbuckets=1, vbucket_state="none") as replica:
        replicate(replica, address, "0")
        until(lambda: high_seqno(replica, 0) == 10, "it has all there is")
        assert producer.connections == 4
        assert all(start in (0, 5, 7, 10) for _, start, _, _ in producer.asked), producer.asked
        assert any(start for _, start, _, _ in producer.asked) and {
            asked[2:] for asked in producer.asked if asked[1]
        } == {BRANCH}
        replica.kill()
        replica.start()
        assert content(replica, 0) == HELD
        replicate(replica, address, "0")
        until(lambda: stats(replica, "replication").get(f"{address}/default:vb_0") == "reading", "it follows again")
        assert producer.asked[-1] == (0, 10, *BRANCH)
        set_state(replica, 0, State.ACTIVE)
        assert content(replica, 0) == HELD


def test_one_that_knows_another_history_is_followed_from_the_beginning() -> None:
    producer = UprPeer(vbuckets=1, held={0: three_snapshots()})
    with serve(producer) as address, node(vbuckets=1) as replica:
        put(replica, 0, "mine", b"1")
        set_state(replica, 0, State.REPLICA)
        replicate(replica, address, "0")
        until(lambda: high_seqno(replica, 0) == 10, "it has all there is")
        assert content(replica, 0) == HELD
