"""The spans of a rebalance."""

from tests.tracing import told, traced

from .nodes import VBUCKETS, at, check, documents, empty_nodes, fill, init, rebalance

DOCUMENTS = documents()


def test_a_rebalance_is_a_span_with_its_plan_and_a_span_for_each_vbucket():
    with empty_nodes(2) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)
        with traced() as seen:
            rebalance(nodes[0], add=at(nodes[1]), replicas=1)
        check(nodes, DOCUMENTS)
    (whole,) = seen.named("rebalance")
    below = seen.below(whole)
    assert (below[0], below[-1], below.count("rebalance.move")) == ("rebalance.plan", "rebalance.finish", VBUCKETS)
    assert told(whole) == {"moves": VBUCKETS}
    assert told(seen.named("rebalance.plan")[0]) == {"moves": VBUCKETS, "servers": 2}
    moves = seen.named("rebalance.move")
    assert {told(move)["vbucket"] for move in moves} == set(range(VBUCKETS))
    handed = [move for move in moves if told(move)["source"] != told(move)["target"]]
    assert len(handed) == VBUCKETS // 2
    for each in handed:
        steps = ["rebalance.join", "move.copy", "move.take_over", "move.map", "rebalance.narrow"]
        assert seen.below(each) == steps
    for each in seen.named("move.take_over"):
        assert told(each)["ownerless_seconds"] > 0
