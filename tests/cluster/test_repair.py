"""Settling what an earlier run left open: each row of the survey's table, and nothing else."""

import asyncio

import pytest

from headwater.cluster import repair as module
from headwater.cluster.repair import repair
from headwater.cluster.survey import Settlement, Survey, settle
from headwater.errors import ClusterError, MoveError
from headwater.wire.cluster_map import UNKNOWN
from headwater.wire.vbucket import State

from .fakes import FakeMembers, FakeNode
from .views import A, B, C, a_map, survey, view

LEVEL = a_map("AB", "BC", "CA")


class Publisher:
    """Keeps the map, and notes each change: (vbucket, chain, whom first)."""

    def __init__(self, found):
        self.current, self.changes = found, []

    async def change(self, vb, chain, *, first=()):
        self.changes.append((vb, chain, first))
        self.current = self.current.with_chains({vb: chain})

    async def need(self, seqnos):
        self.current = self.current.with_needed(seqnos)


class Mover:
    """Recovers a vbucket in favour of `winner`."""

    winner = None
    retriable = True

    def __init__(self, source, target, *, operator):
        self.ends = source.address, target.address

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    async def recover(self, vb):
        if self.winner is None:
            raise MoveError(vb, "who owns it can't be told", "start the node", self.retriable)
        self.recovered = vb
        Mover.members.nodes[self.winner].held[vb] = State.ACTIVE


def repaired(members, found=None, **open_matters):
    """Return the commands that nodes got, and the maps of the publisher."""
    publisher = Publisher(LEVEL)
    settlement = Settlement(**open_matters)
    asyncio.run(repair(members, publisher, found or survey(LEVEL), settlement))
    return members.calls, publisher.changes


def three(a="A . r", b="r A .", c=". r A", **logs):
    nodes = [FakeNode(address, states) for address, states in ((A, a), (B, b), (C, c))]
    for node, letter in zip(nodes, "abc", strict=True):
        node.log = logs.get(letter, node.log)
    return FakeMembers(*nodes)


def test_a_settled_cluster_is_left_alone():
    assert repaired(three()) == ([], [])


def test_what_waited_to_become_active_is_a_replica_again():
    assert repaired(three(b="p A ."), waiting={0: [B]}) == ([(B, "set_state", 0, State.REPLICA)], [])


def test_owners_that_do_not_count_are_made_dead():
    calls, changes = repaired(three(), fenced={0: [B, C], 2: [A]})
    assert calls == [(node, "set_state", vb, State.DEAD) for node, vb in ((B, 0), (C, 0), (A, 2))] and changes == []


def test_the_map_follows_a_vbucket_that_was_handed_over_the_owner_first():
    calls, changes = repaired(three(a="d . r", b="A A ."), handed_over={0: B})
    assert calls == [] and changes == [(0, (B, A), (B,))]


def test_of_copies_without_an_owner_the_one_with_most_of_the_history_is_promoted_after_the_map_says_so():
    members = three(a="d . r", c="r r A")
    members.nodes[B].high[0] = 12
    calls, changes = repaired(members, survey(LEVEL, A="d . r", C="r r A"), unowned={0: [A, B, C]})
    assert calls == [(B, "set_state", 0, State.ACTIVE)] and changes == [(0, (None, A, B), ()), (0, (B, A), (B,))]


def test_copies_are_asked_how_far_they_are_when_they_follow_nobody_any_more():
    members = three(a="d . r", c="r r A")

    class Leaving(Publisher):
        async def change(self, vb, chain, *, first=()):
            await super().change(vb, chain, first=first)
            if chain[0] is None:
                members.nodes[C].high[0] = 40  # it was part of a majority until it had this map

    publisher = Leaving(LEVEL)
    asyncio.run(repair(members, publisher, survey(LEVEL, A="d . r", C="r r A"), Settlement(unowned={0: [A, B, C]})))
    assert members.calls == [(C, "set_state", 0, State.ACTIVE)] and publisher.changes[-1] == (0, (C, A, B), (C,))


def test_a_copy_that_has_not_caught_up_since_another_was_taken_out_is_not_promoted():
    members = three(a="d . r", c="r r A")
    found = survey(LEVEL.with_needed({0: 43}), A="d . r", C="r r A")
    with pytest.raises(ClusterError, match="durable writes up to 43 may be at the dead node alone"):
        repaired(members, found, unowned={0: [A, B, C]})
    assert members.calls == []
    members.nodes[B].high[0] = 43
    assert repaired(members, found, unowned={0: [A, B, C]})[0] == [(B, "set_state", 0, State.ACTIVE)]


def test_a_copy_that_does_not_answer_any_more_stops_the_choice():
    members = three(a="d . r")
    members.nodes[B].is_gone = True
    with pytest.raises(ClusterError, match=f"{B} does not answer"):
        repaired(members, survey(LEVEL, A="d . r"), unowned={0: [A, B]})
    assert members.calls == []


def test_a_copy_that_fills_up_is_not_promoted_before_a_complete_one():
    members = three(a="d . r", c="r r A")
    members.nodes[C].high[0], members.nodes[C].within[0] = 12, 3
    calls, _ = repaired(members, survey(LEVEL, A="d . r", C="r r A"), unowned={0: [C, A, B]})
    assert calls == [(A, "set_state", 0, State.ACTIVE)]


def test_of_equal_copies_the_one_that_the_map_names_first_is_promoted():
    calls, _ = repaired(three(a="r . r", c="r r A"), survey(LEVEL, A="r . r", C="r r A"), unowned={0: [C, B, A]})
    assert calls == [(A, "set_state", 0, State.ACTIVE)]


@pytest.mark.parametrize(("winner", "changes"), [(B, [(0, (B, A), (B,))]), (A, [])])
def test_a_takeover_that_was_cut_ends_for_one_and_the_map_follows_only_the_target(monkeypatch, winner, changes):
    members = three(a="d . r", b="p A .")
    monkeypatch.setattr(module, "Mover", Mover)
    monkeypatch.setattr(Mover, "winner", winner)
    monkeypatch.setattr(Mover, "members", members, raising=False)
    assert repaired(members, cut={0: (A, B)}) == ([], changes)


def test_a_takeover_that_can_not_be_settled_stops_the_repair(monkeypatch):
    members = three(a="d . r", b="p A .")
    monkeypatch.setattr(module, "Mover", Mover)
    with pytest.raises(MoveError, match="vbucket 0"):
        repaired(members, cut={0: (A, B)}, unowned={1: [B]})
    assert members.calls == []


def test_a_takeover_that_was_none_between_these_two_ends_with_the_best_copy_of_all(monkeypatch):
    members = three(a="d . r", b="p A .", c="r r A")
    members.nodes[C].high[0] = 12
    monkeypatch.setattr(module, "Mover", Mover)
    monkeypatch.setattr(Mover, "retriable", False)
    found = survey(LEVEL, A="d . r", B="p A .", C="r r A")
    calls, changes = repaired(members, found, cut={0: (A, B)})
    assert calls == [(C, "set_state", 0, State.ACTIVE)]
    assert changes == [(0, (None, A, B), ()), (0, (C, A, B), (C,))]


def test_a_copy_with_a_flaw_is_not_promoted_without_a_word():
    members = three(a="d . r")
    members.nodes[B].high[0] = 12
    members.nodes[B].damage = {0: 3}
    with pytest.raises(ClusterError, match=f"{B} has damaged changes of the vbuckets 0") as refused:
        repaired(members, survey(LEVEL, A="d . r"), unowned={0: [A, B]})
    assert "failover --accept damaged" in str(refused.value) and members.calls == []


def test_a_sound_copy_is_not_promoted_without_a_word_where_the_damaged_owners_has_more():
    """The damage ends what the owner's copy is complete up to, not what it has acknowledged."""
    members = three(a="d . r")
    members.nodes[A].high[0], members.nodes[A].within[0], members.nodes[A].damage = 12, 4, {0: 1}
    told = f"{B} lacks changes that {A}, whose copy is damaged, has of the vbuckets 0"
    with pytest.raises(ClusterError, match=told) as refused:
        repaired(members, survey(LEVEL, A="d . r"), unowned={0: [A, B]})
    assert "failover --accept damaged" in str(refused.value) and members.calls == []
    members.nodes[B].high[0] = 12
    assert repaired(members, survey(LEVEL, A="d . r"), unowned={0: [A, B]})[0] == [(B, "set_state", 0, State.ACTIVE)]


def test_a_refusal_leaves_the_map_as_it_was_so_that_the_next_run_knows_whose_copy_was_the_owners():
    members, publisher = three(a="d . r"), Publisher(LEVEL)
    members.nodes[A].high[0], members.nodes[A].within[0], members.nodes[A].damage = 12, 4, {0: 1}
    for _ in range(2):
        with pytest.raises(ClusterError, match="whose copy is damaged"):
            found = survey(publisher.current, A="d . r")
            asyncio.run(repair(members, publisher, found, Settlement(unowned={0: [A, B]})))
        assert publisher.current.chains == LEVEL.chains


def test_of_two_histories_none_is_promoted_without_a_word():
    members = three(a="d . r")
    members.nodes[A].log, members.nodes[B].log = [(2, 5), (1, 0)], [(3, 6), (1, 0)]
    with pytest.raises(ClusterError, match="have different histories of the vbuckets 0"):
        repaired(members, survey(LEVEL, A="d . r"), unowned={0: [A, B]})
    assert members.calls == []


def test_how_far_copies_must_be_is_found_out_where_a_failover_was_cut_off_before_it_knew():
    """Two vbuckets have owners, whose replicas are behind and level; of one all copies are asked for the best."""
    found = a_map("AB", "BA", "-AB", servers=(A, B)).with_needed({0: UNKNOWN, 1: UNKNOWN, 2: UNKNOWN})
    one, two = FakeNode(A, "A r r", seqnos=[42, 10, 7]), FakeNode(B, "r A r", seqnos=[30, 10, 9])
    members, publisher = FakeMembers(one, two), Publisher(found)

    async def look(seeds, *, without=()):
        return Survey(publisher.current, {each: await members.view(each) for each in (A, B)})

    members.survey = look
    before = asyncio.run(look([A]))
    asyncio.run(repair(members, publisher, before, settle(before)))
    assert members.calls[-1] == (B, "set_state", 2, State.ACTIVE)
    assert publisher.current.needed == {0: 42, 2: 9}
    assert settle(asyncio.run(look([A]))).is_settled


def test_no_copy_is_promoted_where_one_that_a_failover_had_not_asked_is_gone():
    found = a_map("-AB", servers=(A, B)).with_needed({0: UNKNOWN})
    told = survey(found, B=".")
    with pytest.raises(ClusterError, match=f"{B}, which has no copy now, may have had more"):
        asyncio.run(repair(FakeMembers(FakeNode(A, "r"), FakeNode(B)), Publisher(found), told, settle(told)))


def test_how_far_an_owner_is_that_does_not_answer_stays_unknown():
    found = a_map("AB", servers=(A, B)).with_needed({0: UNKNOWN})
    told = survey(found, A=view(A, "", found, error="gone"))
    publisher = Publisher(found)
    with pytest.raises(ClusterError, match=f"{A} does not answer"):
        asyncio.run(repair(FakeMembers(found=told), publisher, told, Settlement(unknown=[0])))
    assert publisher.current.needed == {0: UNKNOWN}
