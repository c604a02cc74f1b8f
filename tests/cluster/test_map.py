"""The keeper's map: written, read, changed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.routing import Address, ClusterMap
from headwater.cluster.map import BucketMap
from headwater.errors import RemoteProtocolError

A, B, C = Address("10.0.0.1", 11210), Address("10.0.0.2", 11210), Address("::1", 12000)


def plain(chains=((0, 1), (1, 2), (2,), (-1, 0)), servers=(A, B, C), **more):
    return BucketMap("beer", "ab" * 16, 1, 7, servers, chains, **{"replica_count": 1, **more})


@st.composite
def maps(draw):
    ports = draw(st.lists(st.integers(1, 65535), min_size=1, max_size=5, unique=True))
    servers = tuple(Address("127.0.0.1", port) for port in ports)
    chain = st.permutations(range(len(servers))).flatmap(
        lambda order: st.integers(1, len(order)).map(lambda n: tuple(order[:n]))
    )
    nobody = chain.map(lambda found: (-1, *found[1:]))
    chains = tuple(draw(st.lists(chain | nobody, min_size=1, max_size=20)))
    return BucketMap("b", "0" * 32, draw(st.integers(0, 9)), draw(st.integers(1, 9)), servers, chains, 1)


@given(maps())
def test_a_map_that_is_written_is_read_as_the_same(drawn):
    assert BucketMap.from_json(drawn.to_json(drawn.servers[0])) == drawn


@given(maps())
def test_clients_read_the_same_owners_out_of_it(drawn):
    seen = ClusterMap.from_json(drawn.to_json(None), drawn.servers[0])
    assert [seen.owner(vb) for vb in range(seen.vbuckets)] == [drawn.active(vb) for vb in range(drawn.vbuckets)]
    assert seen.nodes == drawn.servers and seen.rev == drawn.version


def test_each_node_finds_itself_in_its_copy():
    told = json.loads(plain().to_json(B))
    assert [entry.get("thisNode", False) for entry in told["nodesExt"]] == [False, True, False]
    assert [entry["hostname"] for entry in told["nodesExt"]] == ["10.0.0.1", "10.0.0.2", "::1"]
    assert told["vBucketServerMap"]["serverList"] == ["10.0.0.1:11210", "10.0.0.2:11210", "[::1]:12000"]


def test_rows_are_as_long_as_the_longest_chain():
    told = json.loads(plain(chains=((0,), (0, 1, 2))).to_json(A))
    assert told["vBucketServerMap"]["vBucketMap"] == [[0, -1, -1], [0, 1, 2]]
    assert told["vBucketServerMap"]["numReplicas"] == 1


def test_the_map_of_a_node_alone_names_the_address_it_was_fetched_from():
    told = {"rev": 3, "name": "b", "vBucketServerMap": {"serverList": ["$HOST:11210"], "vBucketMap": [[0], [-1]]}}
    found = BucketMap.from_json(json.dumps(told).encode(), B)
    assert found.servers == (B,) and found.active(0) == B and found.active(1) is None


def test_a_map_answers_who_holds_what():
    found = plain()
    assert (found.active(1), found.replicas(1), found.copies(3)) == (B, (C,), (A,))
    assert found.held_by(A) == ([0], [3]) and found.held_by(Address("nobody", 1)) == ([], [])


def test_each_change_is_the_next_revision():
    after = plain().with_chains({0: (C, A)}).with_chains({2: (None,), 3: ()})
    assert after.rev == 9 and after.chains == ((2, 0), (1, 2), (-1,), (-1,))
    assert after.with_replica_count(0).rev == 10 and after.after(20).rev == 21 and after.after(3).rev == 10


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
        BucketMap.from_json(text)


def test_an_own_map_that_nobody_sent_has_no_address():
    alone = with_row("0").replace(b'"a:1"', b'"$HOST:1"')
    assert BucketMap.from_json(alone, A).servers == (Address(A.host, 1),)
    with pytest.raises(RemoteProtocolError, match=r"\$HOST"):
        BucketMap.from_json(alone)


@given(st.binary(max_size=40))
def test_noise_is_no_map(noise):
    with pytest.raises(RemoteProtocolError):
        BucketMap.from_json(noise)
