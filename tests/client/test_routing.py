"""Connection strings and cluster maps of every generation."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.routing import Address, ClusterMap, map_of_one, parse, read_map
from headwater.errors import OptionError, RemoteProtocolError
from headwater.tls.settings import TlsSettings

SOURCE = Address("10.0.0.9", 12000)


def read(told: object) -> ClusterMap:
    return read_map(json.dumps(told).encode(), SOURCE)


@pytest.mark.parametrize(
    ("text", "seeds", "bucket"),
    [
        ("couchbase://127.0.0.1", [("127.0.0.1", 11210)], "default"),
        ("couchbase://a:1,b:2/beer", [("a", 1), ("b", 2)], "beer"),
        ("a:1/beer", [("a", 1)], "beer"),
        ("couchbase://[::1]:5/x?option=1", [("::1", 5)], "x"),
    ],
)
def test_a_connection_string_names_nodes_and_a_bucket(text, seeds, bucket):
    target = parse(text)
    assert (list(target.seeds), target.bucket) == (seeds, bucket)


@pytest.mark.parametrize("text", ["", "couchbase://", "a:x", "a:0", "a:70000", "couchbases://a:x", "http://a", ":5"])
def test_a_connection_string_that_leads_nowhere_is_refused(text):
    with pytest.raises(OptionError, match=r"couchbases?://"):
        parse(text)


def test_a_connection_string_for_tls_says_whom_to_trust_and_as_whom_to_come():
    target = parse("couchbases://ann:secret@a,b:9/beer?trust_store=/ca.pem&tls_verify=chain&timeout=7")
    assert target.seeds == (("a", 11207), ("b", 9)) and target.user == "ann"
    assert target.tls == TlsSettings(trust_store="/ca.pem", verify="chain")
    assert target.url == "couchbases://a:11207,b:9/beer?trust_store=/ca.pem&tls_verify=chain"
    assert parse("couchbases://a").tls == TlsSettings() and parse("couchbase://a?timeout=7").tls is None
    with pytest.raises(OptionError, match="trust_store does nothing without"):
        parse("couchbase://a?trust_store=/ca.pem")


def test_who_speaks_tls_finds_the_nodes_by_their_ports_for_it():
    told = {"vBucketServerMap": {"serverList": ["a:11210", "b:11210"], "vBucketMap": [[0, 1]]}}
    told["nodesExt"] = [{"hostname": "a", "services": {"kv": 11210, "kvSSL": 11207}}, {"services": {"kvSSL": 9}}]
    found = read_map(json.dumps(told).encode(), SOURCE, speaks_tls=True)
    assert found.servers == (("a", 11207), ("b", 9))
    del told["nodesExt"][1]["services"]["kvSSL"]
    with pytest.raises(RemoteProtocolError, match="no port of b for TLS"):
        read_map(json.dumps(told).encode(), SOURCE, speaks_tls=True)
    del told["nodesExt"]
    with pytest.raises(RemoteProtocolError, match="no port of a for TLS"):
        read_map(json.dumps(told).encode(), SOURCE, speaks_tls=True)


def test_a_connection_string_says_in_which_network_nodes_are_called():
    assert parse("couchbase://a").network == "auto"
    target = parse("couchbase://a/beer?network=external&timeout=7")
    assert target.network == "external" and target.url == "couchbase://a:11210/beer?network=external"
    assert parse("couchbases://a?tls_verify=none&network=default").url == (
        "couchbases://a:11207/default?tls_verify=none&network=default"
    )


def test_the_golden_minimum():
    told = {
        "rev": 7,
        "nodeLocator": "vbucket",
        "nodes": [{}, {}],
        "nodesExt": [
            {"services": {"mgmt": 8091, "kv": 11210}, "hostname": "a"},
            {"services": {"kv": 11212}, "thisNode": True},
            {"services": {"kv": 1}, "hostname": "not a member yet"},
        ],
        "vBucketServerMap": {"numReplicas": 0, "vBucketMap": [[0], [1], [-1, 0]]},
    }
    found = read(told)
    assert found.servers == (("a", 11210), ("10.0.0.9", 11212)) and found.version == (0, 7)
    assert [found.owner(vb) for vb in range(4)] == [("a", 11210), ("10.0.0.9", 11212), None, None]


def test_old_maps_list_their_servers():
    servers = {"serverList": ["$HOST:11210", "b:11211"], "vBucketMap": [[1, 0]]}
    assert read({"vBucketServerMap": servers}).servers == (("10.0.0.9", 11210), ("b", 11211))


def test_a_map_of_one_node_means_the_node_we_are_talking_to():
    for told in ({"hostname": "unreachable", "thisNode": True}, {}):
        node = {"nodes": [{}], "nodesExt": [{"services": {"kv": 1}, **told}]}
        assert read(node | {"vBucketServerMap": {"vBucketMap": [[0]]}}).servers == (SOURCE,)
    assert read({"vBucketServerMap": {"serverList": ["unreachable:1"], "vBucketMap": [[0]]}}).servers == (SOURCE,)


def test_a_node_that_left_the_cluster_names_the_only_one_that_is_left():
    told = {"nodes": [{}], "nodesExt": [{"services": {"kv": 1}, "hostname": "left"}]}
    assert read(told | {"vBucketServerMap": {"vBucketMap": [[0]]}}).servers == (("left", 1),)


def test_keys_are_spread_by_the_hash_of_the_specification():
    single = map_of_one(SOURCE, 1024)
    assert [single.vbucket_of(key) for key in (b"foo", b"bar", b"key-0000")] == [
        115,
        767,
        single.vbucket_of(b"key-0000"),
    ]
    assert single.owner(1023) == SOURCE and single.owner(1024) is None


@pytest.mark.parametrize(
    "servers",
    [
        {},
        {"vBucketMap": []},
        {"vBucketMap": [[2]]},
        {"vBucketMap": [[-2]]},
        {"vBucketMap": [[]]},
        {"vBucketMap": [["x"]]},
        {"vBucketMap": 5},
        {"vBucketMap": [[0]] * 65537},
        {"vBucketMap": [[0]], "serverList": [5, 6]},
        {"vBucketMap": [[0]], "serverList": ["a", "b"]},
    ],
)
def test_a_map_that_points_nowhere_is_the_nodes_fault(servers):
    with pytest.raises(RemoteProtocolError, match=r"cluster map of 10\.0\.0\.9:12000"):
        read({"vBucketServerMap": servers, "nodes": [{}, {}] if "serverList" not in servers else []})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["nodes", "nodesExt", "services"]), inner)
    ),
)


@given(JSON, JSON, JSON)
def test_whatever_a_node_calls_its_map_is_read_or_refused(nodes, extended, servers):
    for told in ({"nodes": nodes, "nodesExt": extended, "vBucketServerMap": {"vBucketMap": [[0]]}}, servers, b"\xff"):
        try:
            read_map(told if isinstance(told, bytes) else json.dumps(told).encode(), SOURCE)
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize(
    "text", ["couchbase://ann:s3cr%40t@host/b", "ann:s3cr%40t@host/b", "couchbase://ann:s3cr@t@host/b"]
)
def test_a_name_and_a_password_in_a_connection_string_are_taken_and_not_shown(text: str) -> None:
    target = parse(text)
    assert (target.user, target.password, target.bucket) == ("ann", "s3cr@t", "b")
    assert target.url == "couchbase://host:11210/b" and "s3cr" not in repr(target)
    assert target.login(None, None) == ("ann", "s3cr@t")
    with pytest.raises(OptionError, match="only once"):
        target.login("bob", None)


def test_without_a_name_in_it_what_is_given_beside_it_counts() -> None:
    assert parse("couchbase://host").login("bob", "pw") == ("bob", "pw")


@pytest.mark.parametrize(
    "text", ["http://ann:s3@cret@host", "ann:s3cret@", "ann:s3cret@host:x", ":s3cret@host", "x://ann:s3cret@h"]
)
def test_a_connection_string_that_is_none_is_told_without_its_password(text: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(text)
    assert "cret" not in str(refused.value) and "ann" not in repr(refused.value)
