"""Two and three real nodes that share a map: following, the fence, and what a map must not do."""

from __future__ import annotations

import pytest

from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State
from tests.node.membership.support import EPOCH, cluster_map, known_map, nodes, send_map, spread, stats
from tests.node.replication.support import call, content, failover_log, high_seqno, put, set_state, state, until

ALL_ON_FIRST = [[0, 1]] * 4
ETMPFAIL, NOT_MY_VBUCKET = 0x86, 0x07


def follows(one: object, two: object, vb: int) -> bool:
    return high_seqno(one, vb) == high_seqno(two, vb) and state(two, vb) is State.REPLICA  # type: ignore[arg-type]


def test_a_replica_follows_because_the_map_says_so_and_again_after_a_crash() -> None:
    with nodes(2) as (owner, replica):
        put(owner, 0, "before", b"1")
        spread(1, [owner, replica], ALL_ON_FIRST)
        until(lambda: follows(owner, replica, 0), "the replica is there")
        replica.kill()
        put(owner, 0, "meanwhile", b"2")
        replica.start()
        until(lambda: follows(owner, replica, 0), "it follows again by itself")
        assert content(replica, 0) == content(owner, 0)
        assert (known_map(replica)["revEpoch"], known_map(replica)["rev"]) == (EPOCH, 1)
        told = stats(replica, "cluster")
        assert (told["vb_replica"], told["map_replica"], told["following"]) == ("4", "4", "4")


def test_an_old_owner_that_comes_back_with_an_old_map_never_serves_and_follows_the_new_one() -> None:
    with nodes(3) as (old, new, third):
        put(old, 0, "shared", b"1")
        spread(1, [old, new, third], [[0, 1]] * 4)
        until(lambda: follows(old, new, 0), "the replica is there")
        new.kill()
        put(old, 0, "shared", b"lost")
        put(old, 0, "lost", b"2")
        old.kill()
        new.start()
        assert call(new, Opcode.GET, b"shared", vbucket=0).status == NOT_MY_VBUCKET
        spread(2, [old, new, third], [[1, 0]] * 4, to=[third, new])
        for vb in range(4):
            set_state(new, vb, State.ACTIVE)
        put(new, 0, "kept", b"3")
        old.start()
        for opcode, extras in ((Opcode.GET, b""), (Opcode.SET, bytes(8))):
            value = b"no" if extras else b""
            assert call(old, opcode, b"shared", value, extras, 0).status in (ETMPFAIL, NOT_MY_VBUCKET)
        until(lambda: state(old, 0) is State.REPLICA, "the new map has found it")
        until(lambda: failover_log(old, 0) == failover_log(new, 0) and follows(new, old, 0), "it follows")
        assert content(old, 0) == content(new, 0)
        assert content(old, 0)[b"shared"][3] == b"1" and b"lost" not in content(old, 0)
        assert known_map(old)["rev"] == 2
        entries = known_map(old)["nodesExt"]
        assert isinstance(entries, list) and [bool(each.get("thisNode")) for each in entries] == [True, False, False]


def test_of_two_nodes_one_that_is_alone_serves_only_what_an_operator_says() -> None:
    with nodes(2) as (owner, other):
        put(owner, 0, "k", b"v")
        spread(1, [owner, other], ALL_ON_FIRST)
        other.kill()
        owner.restart()
        assert call(owner, Opcode.SET, b"k", b"no", bytes(8), 0).status == ETMPFAIL
        assert call(owner, Opcode.GET, b"k", vbucket=0).status == ETMPFAIL
        assert stats(owner, "cluster")["fence"] == "closed"
        set_state(owner, 0, State.ACTIVE)
        put(owner, 0, "k", b"yes")
        assert call(owner, Opcode.SET, b"k", b"no", bytes(8), 1).status == ETMPFAIL
        spread(1, [owner, other], ALL_ON_FIRST, to=[owner])
        put(owner, 1, "k", b"yes")
        assert stats(owner, "cluster")["fence"] == "open"


def test_the_fence_opens_when_the_other_node_answers() -> None:
    with nodes(2) as (owner, other):
        put(owner, 0, "k", b"v")
        spread(1, [owner, other], ALL_ON_FIRST)
        other.kill()
        owner.restart()
        assert call(owner, Opcode.GET, b"k", vbucket=0).status == ETMPFAIL
        other.start()
        until(lambda: call(owner, Opcode.GET, b"k", vbucket=0).value == b"v", "both have been heard")
        until(lambda: follows(owner, other, 0), "the replica follows")


def test_a_newer_map_takes_ownership_away_and_refusals_carry_it_at_once() -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], ALL_ON_FIRST)
        spread(2, [one, two], [[1, 0], [1], [0, 1], [-1]], to=[one])
        assert [state(one, vb) for vb in range(4)] == [State.REPLICA, State.DEAD, State.ACTIVE, State.ACTIVE]
        refused = call(one, Opcode.GET, b"k", vbucket=1)
        assert refused.status == NOT_MY_VBUCKET and b'"rev":2' in refused.value


def test_a_map_never_makes_a_vbucket_active() -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], [[1, 0]] * 4, to=[two])
        assert state(two, 0) is None
        spread(2, [one, two], ALL_ON_FIRST)
        until(lambda: state(two, 0) is State.REPLICA, "the replica is made")
        spread(3, [one, two], [[1, 0]] * 4, to=[two])
        assert state(two, 0) is State.REPLICA


def test_what_was_taken_over_stays_active_while_maps_speak_of_others_only() -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], [[0]] * 4)
        set_state(one, 0, State.DEAD)
        set_state(two, 0, State.ACTIVE)
        spread(2, [one, two], [[0], [0], [0], [0, 1]], to=[two])
        assert state(two, 0) is State.ACTIVE


def test_what_was_taken_over_before_the_next_map_is_not_served_after_a_restart_until_that_comes() -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], [[0]] * 4)
        set_state(one, 0, State.DEAD)
        set_state(two, 0, State.ACTIVE)
        put(two, 0, "k", b"v")
        two.restart()
        until(lambda: stats(two, "cluster")["fence"] == "open", "the other node was heard")
        assert state(two, 0) is State.ACTIVE
        assert call(two, Opcode.GET, b"k", vbucket=0).status == ETMPFAIL
        assert stats(two, "cluster")["fenced"] == "1"
        spread(2, [one, two], [[1], [0], [0], [0]], to=[two])
        assert call(two, Opcode.GET, b"k", vbucket=0).value == b"v"


@pytest.mark.parametrize("point", ["cluster.before_rename", "cluster.after_rename"])
def test_a_crash_while_a_map_is_taken_forgets_nothing_that_was_promised(point: str) -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], ALL_ON_FIRST)
        one.stop()
        one.environment = {"HEADWATER_FAILPOINTS": f"{point}=kill"}
        one.start()
        with pytest.raises(ConnectionError):
            spread(2, [one, two], [[1], [1, 0], [0, 1], [0, 1]], to=[one])
        one.wait()
        one.environment = {}
        one.start()
        if point == "cluster.before_rename":
            until(lambda: call(one, Opcode.GET, b"k", vbucket=0).status == 1, "it still owns everything")
            spread(2, [one, two], [[1], [1, 0], [0, 1], [0, 1]], to=[one])
        assert [state(one, vb) for vb in range(4)] == [State.DEAD, State.REPLICA, State.ACTIVE, State.ACTIVE]


def test_a_node_that_the_map_leaves_out_gives_up_what_others_own() -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], [[0, 1], [1, 0], [0], [0]])
        until(lambda: state(one, 1) is State.REPLICA, "it follows")
        config = cluster_map(2, [two.address], [[0], [0], [-1], [0]])
        assert send_map(one, 2, config) == 0
        assert [state(one, vb) for vb in range(4)] == [State.DEAD, State.REPLICA, State.ACTIVE, State.DEAD]
        assert stats(one, "cluster")["following"] == "0"
        one.restart()
        assert known_map(one)["rev"] == 2 and state(one, 3) is State.DEAD


def test_a_stopped_replica_waits_for_news_of_its_chain() -> None:
    with nodes(2) as (owner, replica):
        spread(1, [owner, replica], ALL_ON_FIRST)
        until(lambda: follows(owner, replica, 0), "the replica is there")
        stop = b'{"from":"%s","vbuckets":"0"}' % owner.address.encode()
        assert call(replica, Opcode.IOCTL_SET, b"replicate.stop", stop).status == 0
        assert stats(replica, "cluster")["held"] == "1"
        spread(2, [owner, replica], [[0, 1], [0], [0, 1], [0, 1]])
        assert (stats(replica, "cluster")["held"], stats(replica, "cluster")["following"]) == ("1", "2")
        spread(3, [owner, replica], [[0], [0], [0, 1], [0, 1]])
        spread(4, [owner, replica], ALL_ON_FIRST)
        told = stats(replica, "cluster")
        assert (told["held"], told["following"]) == ("0", "4")


def test_a_damaged_map_stops_the_start_and_names_its_file() -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], ALL_ON_FIRST)
        one.stop()
        path = one.data / "CLUSTER_MAP"
        path.write_bytes(path.read_bytes()[:-10])
        try:
            one.start()
        except AssertionError as error:
            assert str(path) in str(error) and "checksum" in str(error) and "Traceback" not in str(error)
        else:
            raise AssertionError("it started")
