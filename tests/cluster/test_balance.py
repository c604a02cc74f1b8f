"""A balanced map: its rules, few moves, and the same plan for the same map."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.client.routing import Address
from headwater.cluster.balance import Move, balance, crowded, moves
from headwater.wire.cluster_map import ClusterMap

NODES = tuple(Address("127.0.0.1", 11210 + number) for number in range(7))
A, B, C, D = NODES[:4]


def single(vbuckets=64, node=A, replicas=0):
    return ClusterMap("b", "0" * 32, 1, 1, (node,), ((0,),) * vbuckets, replicas)


def owned(found):
    return Counter(chain[0] for chain in found.chains)


def replicas_on(found):
    return Counter(index for chain in found.chains for index in chain[1:])


def spread(counts, nodes):
    return max(counts[index] for index in range(nodes)) - min(counts[index] for index in range(nodes))


def copies_made(before, after):
    return sum(len(move.copied_to) for move in moves(before, after))


def handed_over(before, after):
    return sum(move.changes_owner for move in moves(before, after))


@st.composite
def maps(draw, unowned=True):
    servers = tuple(draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=5, unique=True)))
    chain = st.permutations(range(len(servers))).flatmap(
        lambda order: st.integers(1, min(4, len(order))).map(lambda n: tuple(order[:n]))
    )
    vbuckets = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    chains = tuple(draw(st.lists(chain, min_size=vbuckets, max_size=vbuckets)))
    if unowned and draw(st.booleans()):
        chains = ((-1, *chains[0][1:]), *chains[1:])
    return ClusterMap("b", "0" * 32, 1, 1, servers, chains, draw(st.integers(0, 3)))


members = st.lists(st.sampled_from(NODES), min_size=1, max_size=7, unique=True).map(tuple)


@settings(max_examples=300)
@given(maps(), members, st.integers(0, 3))
def test_owners_and_replicas_are_level_and_no_node_is_twice_in_a_chain(before, servers, replicas):
    after = balance(before, servers, replicas)
    assert after.servers == servers and after.version > before.version and after.replica_count == replicas
    assert spread(owned(after), len(servers)) <= 1 and -1 not in owned(after)
    assert spread(replicas_on(after), len(servers)) <= 1
    assert {len(chain) for chain in after.chains} == {1 + min(replicas, len(servers) - 1)}
    assert all(len(set(chain)) == len(chain) for chain in after.chains)


@given(maps(unowned=False), members)
def test_no_vbucket_changes_its_owner_without_need(before, servers):
    after = balance(before, servers)
    share, larger = divmod(before.vbuckets, len(servers))
    kept = sorted((len(before.held_by(node)[0]) for node in servers), reverse=True)
    stay = sum(min(count, share + (rank < larger)) for rank, count in enumerate(kept))
    assert handed_over(before, after) == before.vbuckets - stay


@given(maps(), members, st.integers(0, 3))
def test_a_balanced_map_stays_as_it_is(before, servers, replicas):
    after = balance(before, servers, replicas)
    assert moves(after, balance(after, servers)) == []


@given(maps(), members)
def test_a_vbucket_that_nobody_owns_counts_as_its_first_replicas(before, servers):
    promoted = before.with_chains(
        {vb: before.replicas(vb) for vb in range(before.vbuckets) if before.owner(vb) is None and before.replicas(vb)}
    )
    left = [vb for vb in range(before.vbuckets) if before.owner(vb) is None and set(before.replicas(vb)) & {*servers}]
    after, same = balance(before, servers), balance(promoted, servers)
    assert all(after.chains[vb] == same.chains[vb] for vb in left if before.replicas(vb)[0] in servers)


@given(st.integers(1, 5), st.integers(0, 2), st.sampled_from([16, 64]))
def test_a_node_that_joins_is_the_only_one_that_copies(count, replicas, vbuckets):
    before = balance(single(vbuckets), NODES[:count], replicas)
    after = balance(before, NODES[: count + 1])
    if min(replicas, count) == min(replicas, count - 1):  # else every vbucket gets one replica more
        assert {node for move in moves(before, after) for node in move.copied_to} == {NODES[count]}


@given(st.integers(2, 6), st.integers(1, 2), st.sampled_from([16, 64]))
def test_when_a_node_leaves_only_its_own_copies_are_made_again(count, replicas, vbuckets):
    before = balance(single(vbuckets), NODES[:count], replicas)
    after = balance(before, NODES[: count - 1])
    lost = sum(map(len, before.held_by(NODES[count - 1])))
    fewer = sum(map(len, before.chains)) - sum(map(len, after.chains))
    assert copies_made(before, after) <= lost - fewer + count  # one more for each pair that had to be levelled


def test_one_node_becomes_three():
    before = single(64, replicas=1)
    after = balance(before, (A, B, C))
    assert sorted(owned(after).values()) == [21, 21, 22] and sorted(replicas_on(after).values()) == [21, 21, 22]
    assert handed_over(before, after) == 42
    shared = Counter((chain[0], chain[1]) for chain in after.chains)
    assert min(shared.values()) >= 8  # each node's work would fall on both others


def test_three_nodes_become_one_again():
    three = balance(single(64, replicas=1), (A, B, C))
    one = balance(three, (A,))
    assert set(one.chains) == {(0,)} and handed_over(three, one) == 42 and one.replica_count == 1


def test_an_owner_that_leaves_hands_over_to_its_replicas():
    three = balance(single(64, replicas=1), (A, B, C))
    two = balance(three, (A, B))
    handed = [move for move in moves(three, two) if move.source == C]
    assert sum(move.target in three.replicas(move.vbucket) for move in handed) >= len(handed) - 1


def test_a_thousand_vbuckets_on_twelve_nodes_are_planned_level():
    nodes = tuple(Address("10.0.0.1", 1000 + number) for number in range(12))
    before = balance(single(1024, nodes[0]), nodes[:7], 2)
    after = balance(before, nodes)
    assert spread(owned(after), 12) <= 1 and spread(replicas_on(after), 12) <= 1


def test_a_move_tells_what_is_copied_and_what_is_dropped():
    move = Move(3, (A, B), (C, A))
    assert (move.source, move.target, move.changes_owner) == (A, C, True)
    assert (move.copied_to, move.dropped_from) == ((C,), (B,))
    assert not Move(3, (A, B), (A, C)).changes_owner


@pytest.mark.parametrize(("servers", "replicas"), [((), 0), ((A, A), 0), ((A,), 4), ((A,), -1)])
def test_a_plan_that_can_not_be_is_refused(servers, replicas):
    with pytest.raises(ValueError):
        balance(single(4), servers, replicas)


# --- groups -----------------------------------------------------------------------------------------------------------


def group_sizes(groups, servers):
    return Counter(groups.get(server, server) for server in servers)


def copies_of_groups(found):
    for chain in found.chains:
        yield Counter(found.groups.get(found.servers[index], found.servers[index]) for index in chain)


def least_crowd(sizes, copies):
    """The fewest copies that the fullest group of any arrangement has."""
    return next(most for most in range(1, 9) if sum(min(size, most) for size in sizes.values()) >= copies)


groups_of_nodes = st.fixed_dictionaries({node: st.sampled_from(["", "east", "west", "north"]) for node in NODES})


@settings(max_examples=300)
@given(maps(), members, st.integers(0, 3), groups_of_nodes)
def test_no_group_has_more_copies_of_a_vbucket_than_it_must(before, servers, replicas, named):
    groups = {node: group for node, group in named.items() if group}
    after = balance(before, servers, replicas, groups=groups)
    copies = 1 + min(replicas, len(servers) - 1)
    assert after.groups == {node: group for node, group in groups.items() if node in servers}
    assert {len(chain) for chain in after.chains} == {copies} and spread(owned(after), len(servers)) <= 1
    most = least_crowd(group_sizes(groups, servers), copies)
    assert all(max(counts.values()) <= most for counts in copies_of_groups(after))
    assert crowded(after) == []


@settings(max_examples=300)
@given(maps(), members, st.integers(0, 3), groups_of_nodes)
def test_a_map_that_is_balanced_by_groups_stays_as_it_is(before, servers, replicas, named):
    after = balance(before, servers, replicas, groups={node: group for node, group in named.items() if group})
    assert moves(after, balance(after, servers)) == []


@given(maps(), members, st.integers(0, 3))
def test_groups_of_one_node_each_change_nothing(before, servers, replicas):
    alone = {node: f"rack {number}" for number, node in enumerate(NODES)}
    assert balance(before, servers, replicas, groups=alone).chains == balance(before, servers, replicas).chains


def test_copies_of_two_racks_are_never_in_one_and_are_level():
    racks = {A: "east", B: "east", C: "west", D: "west"}
    after = balance(single(64, replicas=1), (A, B, C, D), groups=racks)
    assert all(set(counts.values()) == {1} for counts in copies_of_groups(after))
    assert spread(replicas_on(after), 4) <= 1


def test_a_group_that_two_nodes_share_now_gives_its_second_copies_away():
    together = balance(single(64, replicas=1), (A, B, C))
    apart = balance(together, (A, B, C), groups={A: "east", B: "east"})
    before = [vb for vb, chain in enumerate(together.chains) if set(chain) == {0, 1}]
    assert before and crowded(together.with_groups(apart.groups)) == before
    assert crowded(apart) == []
    assert {move.vbucket for move in moves(together, apart)} >= set(before)
    assert handed_over(together, apart) == 0


def test_a_group_of_one_node_beside_one_of_three_has_a_copy_of_each_vbucket():
    after = balance(single(64, replicas=1), (A, B, C, D), groups={A: "east", B: "east", C: "east", D: "west"})
    assert all(3 in chain for chain in after.chains)


def test_three_copies_in_two_groups_are_two_and_one():
    after = balance(single(64, replicas=2), (A, B, C, D), groups={A: "east", B: "east", C: "west", D: "west"})
    assert all(sorted(counts.values()) == [1, 2] for counts in copies_of_groups(after))
