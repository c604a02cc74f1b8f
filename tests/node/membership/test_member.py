"""Two and three real nodes that share a map: who follows whom, who gives up what, and what a map must not do."""

from __future__ import annotations

import json

from headwater.testing.proxy import Fault, FaultProxy
from headwater.wire.dcp import EndReason
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State
from tests.node.dcp.test_opening import Consumer
from tests.node.membership.support import (
    ALL_ON_FIRST,
    EINVAL,
    EPOCH,
    ETMPFAIL,
    KEY_EEXISTS,
    NOT_MY_VBUCKET,
    cluster_map,
    follows,
    known_map,
    nodes,
    send_map,
    spread,
    stats,
)
from tests.node.replication.support import (
    Line,
    call,
    content,
    failover_log,
    leave,
    put,
    replicate,
    set_state,
    state,
    until,
)


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


def test_a_node_that_the_map_leaves_out_gives_up_what_others_own() -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], [[0, 1], [1, 0], [0], [0]])
        until(lambda: state(one, 1) is State.REPLICA, "it follows")
        config = cluster_map(2, [two.address], [[0], [0], [-1], [0]])
        assert send_map(one, 2, config) == 0
        assert [state(one, vb) for vb in range(4)] == [State.DEAD, State.REPLICA, State.DEAD, State.DEAD]
        assert stats(one, "cluster")["following"] == "0"
        one.restart()
        assert known_map(one)["rev"] == 2 and state(one, 3) is State.DEAD


def test_readers_are_sent_away_by_the_map_with_which_a_failover_begins() -> None:
    """The map of the next owner is sent to nobody who is left out."""
    with nodes(2) as (one, two), Consumer(one.port) as reader:
        spread(1, [one, two], [[0, 1]] * 4, to=[one])
        put(one, 0, "k", b"v")
        assert reader.request(0).status == 0
        reader.until(Opcode.DCP_MUTATION)
        assert send_map(one, 2, cluster_map(2, [two.address], [[-1, 0]] * 4)) == 0
        (end,) = reader.until(Opcode.DCP_STREAM_END)
        assert int.from_bytes(end.extras) == EndReason.STATE_CHANGED
        assert call(one, Opcode.GET, b"k").status == NOT_MY_VBUCKET


def test_what_was_taken_over_by_a_node_that_the_next_map_leaves_out_is_the_owners_of_that_map() -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], [[0]] * 4)
        set_state(one, 0, State.DEAD)
        set_state(two, 0, State.ACTIVE)
        assert send_map(two, 2, cluster_map(2, [one.address], [[0]] * 4)) == 0  # failed over: the owner as before
        assert state(two, 0) is State.DEAD
        set_state(two, 0, State.ACTIVE)
        assert state(two, 0) is State.ACTIVE, "an operator's word counts"


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


def test_a_replica_that_a_dead_operators_run_held_follows_again_when_another_run_begins() -> None:
    """A rebalance was killed while it moved a vbucket, and the next one had no reason to move that: so the map had no
    news of it, and it followed nobody for ever.

    Found by seed 2016 of `python -m harness.world --operations 300`.
    """

    def lease(run: str) -> dict[str, object]:
        return {"run": run, "by": "a test", "connection": run}

    with nodes(2) as (owner, replica):
        spread(1, [owner, replica], ALL_ON_FIRST)
        until(lambda: follows(owner, replica, 0), "the replica is there")
        with Line(replica.port) as operator:
            assert ioctl(operator, "lease", lease("one")) == 0
            assert ioctl(operator, "replicate.stop", {"from": owner.address, "vbuckets": "0"}) == 0
        assert stats(replica, "cluster")["held"] == "1"
        with Line(replica.port) as operator:
            assert ioctl(operator, "lease", lease("two")) == 0
        told = stats(replica, "cluster")
        assert (told["held"], told["following"]) == ("0", "4")


def ioctl(line: Line, key: str, value: dict[str, object]) -> int:
    return line.call(Opcode.IOCTL_SET, key.encode(), json.dumps(value).encode()).status


def test_a_vbucket_that_changes_hands_is_left_alone_until_that_is_over() -> None:
    with nodes(2) as (one, two), FaultProxy(one.address) as proxy:
        spread(1, [one, two], [[0]] * 4)
        proxy.before = lambda way, frame: (
            Fault.DROP if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE and frame.is_response else Fault.NONE
        )
        replicate(two, proxy.address, "0", takeover=True)
        until(lambda: state(two, 0) is State.PENDING, "the takeover has come half-way")
        spread(2, [one, two], [[1]] * 4, to=[one])
        assert [state(one, vb) for vb in range(4)] == [State.ACTIVE, State.DEAD, State.DEAD, State.DEAD]
        assert stats(one, "cluster")["moving"] == "1"
        assert call(one, Opcode.GET, b"k").status == ETMPFAIL, "whoever it goes to, it is not this node's any more"
        leave(two, proxy.address)
        until(lambda: state(one, 0) is State.DEAD, "the takeover came to nothing, the map counts")
        assert stats(one, "cluster")["moving"] == "0"


def test_a_takeover_turns_the_chain_round_and_the_history_goes_on() -> None:
    with nodes(2) as (one, two):
        put(one, 0, "k", b"1")
        spread(1, [one, two], ALL_ON_FIRST)
        until(lambda: follows(one, two, 0), "the replica is there")
        log = failover_log(one, 0)
        replicate(two, one.address, "0", takeover=True)
        until(lambda: state(two, 0) is State.ACTIVE, "the takeover")
        put(two, 0, "k", b"2")
        spread(2, [one, two], [[1, 0], *ALL_ON_FIRST[1:]])
        until(lambda: follows(two, one, 0), "the old owner follows the new one")
        assert content(one, 0) == content(two, 0)
        assert failover_log(one, 0) == failover_log(two, 0) == log
        assert [state(one, vb) for vb in range(1, 4)] == [State.ACTIVE] * 3
        assert stats(two, "cluster")["following"] == "3"


def test_a_stream_begun_by_hand_goes_on_until_the_map_has_news() -> None:
    with nodes(3) as (one, two, three):
        spread(1, [one, two, three], [[0, 1]] * 4)
        until(lambda: stats(two, "cluster")["following"] == "4", "it follows")
        replicate(three, one.address, "0")
        replicate(two, three.address, "0")
        by_hand, by_map = f"{three.address}/default:vb_0", f"{one.address}/default:vb_0"
        until(lambda: stats(two, "replication").get(by_hand) == "reading", "it follows the other replica")
        spread(2, [one, two, three], [[0, 1], [0, 1], [0, 1], [0]])
        assert by_hand in stats(two, "replication") and by_map not in stats(two, "replication")
        spread(3, [one, two, three], [[0, 1, 2], [0, 1], [0, 1], [0]])
        assert by_map in stats(two, "replication") and by_hand not in stats(two, "replication")
        put(one, 0, "k", b"v")
        until(lambda: content(two, 0) == content(one, 0) == content(three, 0) != {}, "all follow the map")


def test_older_maps_other_maps_and_nonsense_are_refused() -> None:
    with nodes(2) as (one, two):
        both = [one.address, two.address]
        own_epoch = 1
        assert send_map(one, 5, cluster_map(5, both, ALL_ON_FIRST, 0), epoch=own_epoch) == EINVAL
        older = json.dumps(json.loads(cluster_map(5, both, ALL_ON_FIRST, 0)) | {"revEpoch": 1}).encode()
        assert send_map(one, 5, older, epoch=1) == KEY_EEXISTS, "clients know a newer one, of its own"
        assert send_map(two, 5, cluster_map(5, both, ALL_ON_FIRST, 1)) == 0
        assert send_map(one, 5, cluster_map(5, both, ALL_ON_FIRST, 0)) == 0
        assert send_map(one, 5, cluster_map(5, both, ALL_ON_FIRST, 0)) == 0, "the same again"
        assert send_map(one, 5, cluster_map(5, both, [[1, 0]] * 4, 0)) == KEY_EEXISTS
        assert send_map(one, 4, cluster_map(4, both, [[1, 0]] * 4, 0)) == KEY_EEXISTS
        assert send_map(one, 6, cluster_map(6, both, [[1, 0]] * 8, 0)) == EINVAL
        assert send_map(one, 6, b'{"rev":6}') == EINVAL
        strangers = json.loads(cluster_map(6, both, [[1, 0]] * 4, 0)) | {"uuid": "ab" * 16}
        assert send_map(one, 6, json.dumps(strangers).encode()) == EINVAL, "of another cluster"
        assert [state(one, vb) for vb in range(4)] == [State.ACTIVE] * 4
        assert known_map(one)["rev"] == 5
