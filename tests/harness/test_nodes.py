"""Nodes by hand: what the other tests stand on."""

from __future__ import annotations

from harness.nodes import call, cluster, diverge, failover_log, high_seqno, keep, put, return_to, state
from headwater.testing.node import node
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State


def test_a_vbucket_is_taken_over_followed_and_failed_over() -> None:
    with cluster(2, 4) as two:
        first, second = two.nodes
        put(first, 1, "k", b"v")
        two.take_over(1, 1)
        two.publish()
        assert (state(first, 1), state(second, 1), high_seqno(second, 1)) == (State.DEAD, State.ACTIVE, 1)
        two.follow(1, 0)
        branches = len(failover_log(first, 1))
        two.fail_over(1, 0)
        two.publish()
        assert (state(first, 1), len(failover_log(first, 1))) == (State.ACTIVE, branches + 1)
        assert call(first, Opcode.GET, b"k", vbucket=1).value == b"v"


def test_a_node_is_put_back_to_what_was_kept_and_begins_a_branch() -> None:
    with node(vbuckets=2) as bucket:
        put(bucket, 0, "kept", b"v")
        before = failover_log(bucket, 0)
        diverge(bucket, lost=lambda: put(bucket, 0, "lost", b"v"), vbuckets=2)
        assert high_seqno(bucket, 0) == 1 and failover_log(bucket, 0)[1:] == before
        kept = keep(bucket)
        put(bucket, 0, "lost again", b"v")
        return_to(bucket, kept, vbuckets=2)
        assert high_seqno(bucket, 0) == 1
