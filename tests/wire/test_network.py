"""Maps of clusters that have other addresses outside of their own network."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.routing import Address, read_map
from headwater.errors import RemoteProtocolError
from headwater.wire.network import as_seen_from

INSIDE, OUTSIDE = Address("10.0.0.1", 11210), Address("203.0.113.7", 31210)
MAP = {
    "rev": 3,
    "vBucketServerMap": {"serverList": ["10.0.0.1:11210", "10.0.0.2:11210"], "vBucketMap": [[0, 1], [1, 0]]},
    "nodesExt": [
        {
            "hostname": "10.0.0.1",
            "services": {"kv": 11210, "kvSSL": 11207},
            "alternateAddresses": {"external": {"hostname": "203.0.113.7", "ports": {"kv": 31210, "kvSSL": 31207}}},
        },
        {
            "hostname": "10.0.0.2",
            "services": {"kv": 11210, "kvSSL": 11207},
            "alternateAddresses": {"external": {"hostname": "203.0.113.8"}},
        },
    ],
}


def servers(source: Address, network: str = "auto", *, told: object = MAP, tls: bool = False) -> list[str]:
    text = json.dumps(told).encode()
    return [str(server) for server in read_map(text, source, speaks_tls=tls, network=network).servers]


@pytest.mark.parametrize(
    ("source", "network", "tls", "found"),
    [
        (INSIDE, "auto", False, ["10.0.0.1:11210", "10.0.0.2:11210"]),
        (OUTSIDE, "auto", False, ["203.0.113.7:31210", "203.0.113.8:11210"]),  # the second's ports are its own
        (Address("203.0.113.8", 11210), "auto", False, ["203.0.113.7:31210", "203.0.113.8:11210"]),
        (Address("203.0.113.7", 31207), "auto", True, ["203.0.113.7:31207", "203.0.113.8:11207"]),
        (OUTSIDE, "default", False, ["10.0.0.1:11210", "10.0.0.2:11210"]),
        (INSIDE, "external", False, ["203.0.113.7:31210", "203.0.113.8:11210"]),
        (Address("a.name.of.all", 11210), "auto", False, ["10.0.0.1:11210", "10.0.0.2:11210"]),
        (Address("203.0.113.7", 9), "auto", False, ["10.0.0.1:11210", "10.0.0.2:11210"]),
    ],
)
def test_nodes_are_called_as_in_the_network_in_which_one_was_reached(source, network, tls, found):
    assert servers(source, network, tls=tls) == found


def test_a_network_that_a_node_is_not_in_is_told_with_those_that_it_is_in():
    with pytest.raises(
        RemoteProtocolError, match=r'10\.0\.0\.1 has no address in the network "lan", but in: default, ext'
    ):
        servers(INSIDE, "lan")
    bare = {**MAP, "nodesExt": [MAP["nodesExt"][0], {"hostname": "10.0.0.2", "services": {"kv": 11210}}]}
    with pytest.raises(RemoteProtocolError, match=r"10\.0\.0\.2 has no address"):
        servers(OUTSIDE, told=bare)


def test_a_network_that_does_not_show_key_value_is_told():
    shown = {"hostname": "203.0.113.7", "ports": {"mgmt": 38091}}
    told = {**MAP, "nodesExt": [{**MAP["nodesExt"][0], "alternateAddresses": {"external": shown}}]}
    with pytest.raises(
        RemoteProtocolError, match=r'203\.0\.113\.7 has no port for key-value in the network "external"'
    ):
        servers(INSIDE, "external", told=told)


def test_a_map_without_other_addresses_is_left_as_it_is():
    plain = {**MAP, "nodesExt": [{"services": {"kv": 1}}]}
    assert as_seen_from(plain, OUTSIDE) is plain and as_seen_from(plain, OUTSIDE, "default") is plain


GARBAGE = st.recursive(
    st.none() | st.integers() | st.sampled_from(["203.0.113.7", "kv", "", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["external", "hostname", "ports", "kv", "services"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(GARBAGE, st.sampled_from(["auto", "external", "default"]))
def test_whatever_a_node_calls_its_other_addresses_is_read_or_refused(garbage, network):
    told = {**MAP, "nodesExt": [{**MAP["nodesExt"][0], "alternateAddresses": garbage}, garbage]}
    try:
        servers(OUTSIDE, network, told=told)
    except RemoteProtocolError as refused:
        assert "10" in str(refused) or "203" in str(refused)
