"""Clients outside of a cluster's own network, which reach its real nodes by mapped ports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from harness.nodes import HandMade, cluster
from headwater.client import Mutation, connect
from headwater.testing.proxy import FaultProxy

VBUCKETS = 8


class Mapped(HandMade):
    """Two nodes that are also reached by the name localhost and the ports of proxies."""

    def __init__(self, made: HandMade, proxies: list[FaultProxy]) -> None:
        super().__init__(made.nodes, VBUCKETS)
        self.ports = [int(proxy.address.rpartition(":")[2]) for proxy in proxies]

    def map(self, this: int) -> bytes:
        told = json.loads(super().map(this))
        for entry, port in zip(told["nodesExt"], self.ports, strict=True):
            entry["alternateAddresses"] = {"external": {"hostname": "localhost", "ports": {"kv": port}}}
        return json.dumps(told).encode()


@pytest.fixture
def mapped() -> Iterator[Mapped]:
    with ExitStack() as stack:
        made = stack.enter_context(cluster(2, VBUCKETS))
        proxies = [stack.enter_context(FaultProxy(node.address)) for node in made.nodes]
        two = Mapped(made, proxies)
        for vb in range(0, VBUCKETS, 2):
            two.take_over(vb, 1)
        two.publish()
        yield two


def test_who_comes_by_a_mapped_port_calls_all_nodes_by_theirs(mapped: Mapped) -> None:
    url = f"couchbase://localhost:{mapped.ports[1]}/default"
    with connect(url) as bucket:
        assert [str(server) for server in bucket.map.servers] == [f"localhost:{port}" for port in mapped.ports]
        bucket.set_many({f"key-{number}": str(number) for number in range(100)})
        with bucket.changes(until="now") as changes:
            found = {change.key: change.value for change in changes if isinstance(change, Mutation)}
    assert found == {b"key-%d" % number: b"%d" % number for number in range(100)}


def test_who_says_so_calls_them_as_they_call_each_other(mapped: Mapped) -> None:
    with connect(f"couchbase://localhost:{mapped.ports[0]}/default?network=default") as bucket:
        assert [str(server) for server in bucket.map.servers] == [node.address for node in mapped.nodes]
        bucket.set_many({f"key-{number}": "v" for number in range(100)})
