"""The cluster map: written, read, changed; and what is no map."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import RemoteProtocolError
from headwater.wire.address import Address
from headwater.wire.cluster_map import HOST, MAP_VBUCKETS_MAX, SERVERS_MAX, ClusterMap, newest_addresses

A, B, C = Address("10.0.0.1", 11210), Address("10.0.0.2", 11210), Address("::1", 12000)


def plain(chains=((0, 1), (1, 2), (2,), (-1, 0)), servers=(A, B, C), **more):
    return ClusterMap("beer", "ab" * 16, 1, 7, servers, chains, **{"replica_count": 1, **more})


@st.composite
def maps(draw):
    ports = draw(st.lists(st.integers(1, 65535), min_size=1, max_size=5, unique=True))
    servers = tuple(Address("127.0.0.1", port) for port in ports)
    chain = st.permutations(range(len(servers))).flatmap(
        lambda order: st.integers(1, len(order)).map(lambda n: tuple(order[:n]))
    )
    nobody = chain.map(lambda found: (-1, *found[1:]))
    chains = tuple(draw(st.lists(chain | nobody, min_size=1, max_size=20)))
    return ClusterMap("b", "0" * 32, draw(st.integers(0, 9)), draw(st.integers(1, 9)), servers, chains, 1)


@given(maps())
def test_a_map_that_is_written_is_read_as_the_same(drawn):
    assert ClusterMap.from_json(drawn.to_json(drawn.servers[0])) == drawn


@given(maps())
def test_clients_read_the_same_out_of_it(drawn):
    seen = ClusterMap.from_json(drawn.to_json(None), drawn.servers[0], addresses=newest_addresses)
    assert (seen.servers, seen.chains, seen.version) == (drawn.servers, drawn.chains, drawn.version)


def test_each_node_finds_itself_in_its_copy():
    told = json.loads(plain().to_json(B))
    assert [entry.get("thisNode", False) for entry in told["nodesExt"]] == [False, True, False]
    assert [entry["hostname"] for entry in told["nodesExt"]] == ["10.0.0.1", "10.0.0.2", "::1"]
    assert told["vBucketServerMap"]["serverList"] == ["10.0.0.1:11210", "10.0.0.2:11210", "[::1]:12000"]


def test_a_node_is_in_a_group_where_the_sdks_look_for_it():
    known = plain().with_groups({A: "east", C: "west", Address("10.0.0.9", 1): "gone"})
    assert known.version == (1, 8) and known.groups == {A: "east", C: "west"}
    told = json.loads(known.to_json(B))
    assert [entry.get("serverGroup") for entry in told["nodesExt"]] == ["east", None, "west"]
    assert ClusterMap.from_json(known.to_json(None)) == known
    assert known.with_chains({0: (B, A)}).groups == known.groups, "its successors keep them"


def test_a_group_that_is_no_text_is_none():
    told = json.loads(plain().to_json(B))
    told["nodesExt"][0]["serverGroup"], told["nodesExt"][1]["serverGroup"] = 7, {"name": "east"}
    assert ClusterMap.from_json(json.dumps(told).encode()).groups == {}


def test_rows_are_as_long_as_the_longest_chain():
    told = json.loads(plain(chains=((0,), (0, 1, 2))).to_json(A))
    assert told["vBucketServerMap"]["vBucketMap"] == [[0, -1, -1], [0, 1, 2]]
    assert told["vBucketServerMap"]["numReplicas"] == 1


def test_the_map_of_a_node_alone_names_the_address_it_was_fetched_from():
    told = {"rev": 3, "name": "b", "vBucketServerMap": {"serverList": ["$HOST:11210"], "vBucketMap": [[0], [-1]]}}
    found = ClusterMap.from_json(json.dumps(told).encode(), B)
    assert found.servers == (B,) and found.owner(0) == B and found.owner(1) is None


def test_a_map_answers_who_holds_what():
    found = plain()
    assert (found.owner(1), found.replicas(1), found.copies(3)) == (B, (C,), (A,))
    assert found.held_by(A) == ([0], [3]) and found.held_by(Address("nobody", 1)) == ([], [])


def test_each_change_is_the_next_revision():
    after = plain().with_chains({0: (C, A)}).with_chains({2: (None,), 3: ()})
    assert after.rev == 9 and after.chains == ((2, 0), (1, 2), (-1,), (-1,))
    assert after.with_replica_count(0).rev == 10 and after.after(20).rev == 21 and after.after(3).rev == 10


def test_a_map_says_how_far_a_replica_must_be_and_so_do_its_successors_until_one_says_otherwise():
    found = plain().with_needed({2: 168})
    assert json.loads(found.to_json(A))["neededSeqnos"] == {"2": 168}
    assert ClusterMap.from_json(found.to_json(A)).with_servers([A, B]).with_chains({0: [B]}).needed == {2: 168}
    assert "neededSeqnos" not in json.loads(found.with_needed({}).to_json(A))


def test_a_map_that_does_not_know_how_far_copies_must_be_knows_how_far_at_least() -> None:
    found = ClusterMap.from_json(plain().with_needed({2: 168}).with_unknown([0, 2]).to_json(A))
    assert sorted(found.unknown) == [0, 2] == sorted(found.with_unknown([0]).unknown)
    assert (
        [found.needed_at_least(vb) for vb in range(3)]
        == [0, 0, 168]
        == [found.with_unknown([0, 2]).needed_at_least(vb) for vb in range(3)]
    )


def test_what_a_node_that_left_owned_is_owned_by_nobody():
    after = plain().with_servers((C, A))
    assert after.chains == ((1,), (-1, 0), (0,), (-1, 1)) and after.rev == 8


@pytest.mark.parametrize("chains", [((0, 0),), ((3,),), ((0, -1, 1),), ((),), (), ((-2,),)])
def test_a_chain_that_can_not_be_is_refused(chains):
    with pytest.raises(ValueError):
        plain(chains=chains)


@pytest.mark.parametrize("servers", [(), (A, A)])
def test_members_that_can_not_be_are_refused(servers):
    with pytest.raises(ValueError):
        plain(chains=((0,),), servers=servers)


def with_row(row):
    return f'{{"rev":1,"name":"b","vBucketServerMap":{{"serverList":["a:1"],"vBucketMap":[[{row}]]}}}}'.encode()


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", *map(with_row, ("1", "0,0", ""))])
def test_text_that_is_no_map_is_told_as_such(text):
    with pytest.raises(RemoteProtocolError, match="cluster map"):
        ClusterMap.from_json(text)


def test_host_stands_for_the_host_it_was_fetched_from_where_that_is_known():
    alone = with_row("0").replace(b'"a:1"', b'"$HOST:1"')
    assert ClusterMap.from_json(alone, A).servers == (Address(A.host, 1),)
    assert ClusterMap.from_json(alone).servers == (Address(HOST, 1),)
    with pytest.raises(RemoteProtocolError, match="nobody knows where it came from"):
        ClusterMap.from_json(alone, addresses=newest_addresses)


@given(st.binary(max_size=40))
def test_noise_is_no_map(noise):
    with pytest.raises(RemoteProtocolError):
        ClusterMap.from_json(noise)


def test_a_node_that_does_not_know_its_name_leaves_it_to_the_reader():
    here = Address(HOST, 11210)
    found = json.loads(ClusterMap("b", "", 1, 1, (here,), ((0,),)).to_json(here))
    assert found["nodes"][0]["hostname"] == "$HOST:11210" and "hostname" not in found["nodesExt"][0]
    assert found["nodesExt"][0]["thisNode"] is True


def changed(**changes):
    content = {"rev": 7, "name": "b", "vBucketServerMap": {"serverList": ["a:1", "b:1"], "vBucketMap": [[0, 1]] * 4}}
    return json.dumps(content | changes).encode()


def table(servers, rows):
    return {"vBucketServerMap": {"serverList": servers, "vBucketMap": rows}}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rev": True}, "True where a whole number belongs"),
        ({"rev": 1.0}, "1.0 where a whole number belongs"),
        ({"revEpoch": "1"}, "'1' where a whole number belongs"),
        ({"vBucketServerMap": {}}, "it has no serverList"),
        (table(["host"], [[0]]), '"host" is no host:port'),
        (table(["host:0"], [[0]]), '"host:0" is no host:port'),
        (table(["host:65536"], [[0]]), '"host:65536" is no host:port'),
        (table(["a:1"] * 2, [[0]]), "2 servers, 1 of them different"),
        (table(["a:1"] * (SERVERS_MAX + 1), [[0]]), "4097 nodes, at most 4096"),
        (table(["a:1"], [[0]] * (MAP_VBUCKETS_MAX + 1)), "65537 vbuckets, 1 to 65536"),
        (table(["a:1"], []), "0 vbuckets"),
        (table(["a:1"], {}), "dict vbuckets"),
        (table("a:1", [[0]]), "str where a list of nodes belongs"),
        (table(["a:1"], [[0], []]), "vbucket 1 has the chain"),
        (table(["a:1"], [[0], 7]), "vbucket 1 has the chain 7"),
        (table(["a:1"], [[0], ["0"]]), "'0' where a whole number belongs"),
        (table(["a:1"], [[0], [1]]), "vbucket 1 has the chain"),
        (table(["a:1", "b:1"], [[0], [0, 0]]), "vbucket 1 has the chain"),
        ({"nodesExt": [{"thisNode": True}] * 2}, "2 entries say thisNode"),
        ({"nodesExt": [7]}, "can not be read"),
        ({"neededSeqnos": [1]}, "neededSeqnos has no seqno for each of some vbuckets"),
        ({"neededSeqnos": {"1": 7}, **table(["a:1"], [[0]])}, "neededSeqnos has seqno 7 for vbucket 1, of 1"),
        ({"neededSeqnos": {"0": -1}}, "neededSeqnos has seqno -1 for vbucket 0"),
        ({"neededSeqnos": {"0": "7"}}, "'7' where a whole number belongs"),
        ({"neededSeqnos": {"a": 7}}, "can not be read"),
    ],
)
def test_a_map_that_is_wrong_somewhere_is_refused_by_what_and_where(changes, problem):
    with pytest.raises(RemoteProtocolError, match=f"cluster map of 10.0.0.1:11210.*{problem}"):
        ClusterMap.from_json(changed(**changes), A)


def test_a_chain_is_read_without_its_filling():
    assert ClusterMap.from_json(changed(**table(["a:1", "b:1"], [[1, 0, -1], [-1, -1, -1]]))).chains == ((1, 0), (-1,))


def test_a_map_says_who_it_was_made_for_and_keeps_its_text():
    text = changed(nodesExt=[{}, {"thisNode": True}])
    found = ClusterMap.from_json(text)
    assert (found.this, found.here, found.peers, found.text) == (1, Address("b", 1), (Address("a", 1),), text)
    assert all(found.is_replica(vb) and not found.is_owner(vb) for vb in range(4))
    after = found.after(0)
    assert (after.this, after.text) == (None, b"")
