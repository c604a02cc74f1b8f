"""Reading a cluster map: what it says of this node, and what is no map."""

from __future__ import annotations

import json

import pytest

from headwater.errors import RemoteProtocolError
from headwater.node.membership.map import read_map, says_the_same, seen_from
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap
from tests.node.membership.support import EPOCH, cluster_map

ONE, TWO = "127.0.0.1:4001", "[::1]:4002"


def read(config: bytes, vbuckets: int = 4) -> ClusterMap:
    return read_map(config, bucket="default", vbuckets=vbuckets)


def test_a_map_tells_owners_replicas_and_who_we_are() -> None:
    found = read(cluster_map(7, [ONE, TWO], [[0, 1], [1, 0], [1, -1], [-1, 0]], this=0))
    assert found.version == (EPOCH, 7) and found.here == Address("127.0.0.1", 4001)
    assert found.peers == (Address("::1", 4002),) and str(found.peers[0]) == TWO
    assert [found.is_owner(vb) for vb in range(4)] == [True, False, False, False]
    assert [found.is_replica(vb) for vb in range(4)] == [False, True, False, True]
    assert [found.owner(vb) for vb in range(4)] == [found.here, *found.peers, *found.peers, None]
    assert found.chain(2) == found.peers


def test_a_map_without_our_entry_names_nobody() -> None:
    found = read(cluster_map(7, [ONE, TWO], [[0, 1]] * 4))
    assert found.here is None and len(found.peers) == 2
    assert not any(found.is_owner(vb) or found.is_replica(vb) for vb in range(4))


def test_a_node_without_vbuckets_comes_last_and_is_no_member() -> None:
    told = json.loads(cluster_map(7, [ONE, TWO], [[0, 1]] * 4))
    told["nodesExt"].append({"services": {"kv": 4003}, "hostname": "127.0.0.1", "thisNode": True})
    assert read(json.dumps(told).encode()).here is None


def test_a_peers_copy_becomes_ours() -> None:
    theirs = read(cluster_map(7, [ONE, TWO], [[0, 1]] * 4, this=1))
    mine = seen_from(theirs, Address("127.0.0.1", 4001))
    assert mine.text == cluster_map(7, [ONE, TWO], [[0, 1]] * 4, this=0)
    assert says_the_same(mine, read(mine.text)) and not says_the_same(mine, theirs)
    assert seen_from(theirs, Address("127.0.0.1", 9)).here is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rev": "7"}, "whole number"),
        ({"revEpoch": True}, "whole number"),
        ({"name": "other"}, 'bucket "other"'),
        ({"vBucketServerMap": {}}, "has no serverList"),
        ({"vBucketServerMap": {"serverList": [], "vBucketMap": []}}, "0 servers"),
        ({"vBucketServerMap": {"serverList": [ONE, ONE], "vBucketMap": [[0]] * 4}}, "1 of them different"),
        ({"vBucketServerMap": {"serverList": ["here"], "vBucketMap": [[0]] * 4}}, "no host:port"),
        ({"vBucketServerMap": {"serverList": ["here:70000"], "vBucketMap": [[0]] * 4}}, "no host:port"),
        ({"vBucketServerMap": {"serverList": [ONE], "vBucketMap": [[0]] * 8}}, "8 vbuckets, this node 4"),
        ({"vBucketServerMap": {"serverList": [ONE], "vBucketMap": [[1]] * 4}}, "vbucket 0 has the chain"),
        ({"vBucketServerMap": {"serverList": [ONE], "vBucketMap": [[-2]] * 4}}, "vbucket 0 has the chain"),
        ({"vBucketServerMap": {"serverList": [ONE], "vBucketMap": [[0]] * 3 + [[0, 0]]}}, "vbucket 3 has the chain"),
        ({"vBucketServerMap": {"serverList": [ONE], "vBucketMap": [[]] * 4}}, "can not be read"),
        ({"nodesExt": [{"thisNode": True}] * 2}, "2 entries say thisNode"),
        ({"nodesExt": [7]}, "can not be read"),
    ],
)
def test_what_is_wrong_is_told(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        read(json.dumps(json.loads(cluster_map(7, [ONE, TWO], [[0, 1]] * 4, this=0)) | changes).encode())


@pytest.mark.parametrize("config", [b"", b"[]", b"7", b"{", b"\xff", b"{}", b"[" * 100_000])
def test_what_is_no_map_at_all_is_refused(config: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(config)
