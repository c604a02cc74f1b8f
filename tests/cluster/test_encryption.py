"""Whether nodes speak TLS with each other; and a cluster of three real nodes that speak nothing else."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from headwater import client, testing
from headwater.client.routing import Address, parse
from headwater.cluster.encryption import check_encryption, set_encryption
from headwater.cluster.failover import Failover
from headwater.cluster.founding import found_cluster
from headwater.cluster.members import Members
from headwater.cluster.rebalance import Rebalance
from headwater.cluster.survey import NodeView
from headwater.errors import ClusterError
from headwater.testing.certificates import Certificates
from headwater.wire.cluster_map import ClusterMap
from tests.cluster.fakes import FakeMembers
from tests.cluster.views import A, B, C, a_map, survey, view

PORTS = {A: 11207, B: 11207, C: 11207}


def test_a_map_is_encrypted_only_if_all_its_nodes_speak_tls() -> None:
    known = a_map("AB", "BC", "CA")
    check_encryption(known.with_tls(PORTS, encrypted=True))
    check_encryption(known.with_tls({A: 1}))
    with pytest.raises(ClusterError, match="node-b:11210 speaks no TLS"):
        check_encryption(known.with_tls({A: 1, C: 1}, encrypted=True))


def test_it_takes_up_the_ports_that_the_nodes_tell() -> None:
    known = a_map("AB", "BC", "CA").with_tls({A: 1, B: 1, C: 1})
    told = {"A": (A, 5), "B": (B, 6), "C": (C, 7)}
    views = {name: replace(view(node, "A . .", known), tls_port=port) for name, (node, port) in told.items()}
    members = FakeMembers(found=survey(known, **views))
    made = asyncio.run(set_encryption(members, [A], encrypted=True))  # type: ignore[arg-type]
    assert made.encrypted and dict(made.tls_ports) == {A: 5, B: 6, C: 7} and made.version > known.version
    assert members.sent == [made]


def test_all_members_must_answer() -> None:
    known = a_map("AB", "BC", "CA")
    members = FakeMembers(found=survey(known, B=view(B, "", known, error="connection refused")))
    with pytest.raises(ClusterError, match="node-b:11210 does not answer"):
        asyncio.run(set_encryption(members, [A], encrypted=True))  # type: ignore[arg-type]


def test_a_map_tells_ports_and_encryption_to_whoever_reads_it() -> None:
    known = a_map("AB", "BC", "CA").with_tls(PORTS, encrypted=True)
    read = ClusterMap.from_json(known.to_json(A))
    assert (dict(read.tls_ports), read.encrypted) == (PORTS, True)
    plain = a_map("AB", "BC", "CA").to_json(A)
    assert b"SSL" not in plain and b"clusterEncryption" not in plain


@pytest.mark.parametrize("without_tls", ["anywhere", "nobody"])
def test_a_cluster_is_made_grown_and_read_over_tls_alone(tmp_path: Path, without_tls: str) -> None:
    made = Certificates(tmp_path / "ca")
    options = {**made.options, "vbucket_state": "none", "without_tls": without_tls}
    with ExitStack() as stack:
        nodes = [stack.enter_context(testing.node(vbuckets=4, **options)) for _ in range(3)]  # type: ignore[arg-type]
        seeds = [Address(node.host, node.tls_port or 0) for node in nodes]
        url = f"couchbases://{seeds[0]}/default?trust_store={made.trust_store}"

        async def grow() -> ClusterMap | None:
            async with Members(tls=parse(url).tls) as members:
                await found_cluster(members, seeds[:2], 1, encrypted=True)
                await asyncio.to_thread(_fill, url)
                return await Rebalance(members, seeds[:1], add=seeds[2:]).run()

        grown = asyncio.run(grow())
        assert grown is not None and len(grown.servers) == 3 and grown.encrypted
        assert [grown.tls_ports[server] for server in grown.servers] == [node.tls_port for node in nodes]
        with client.connect(url) as bucket:
            assert len(bucket.map.owning) == 3
            assert len(bucket.get_many([b"k%d" % number for number in range(500)])) == 500
        for node in nodes:
            assert "TLS" not in node.log, "nobody was called without it, or by a wrong name"


def _fill(url: str) -> None:
    with client.connect(url) as bucket:
        assert not bucket.set_many({b"k%d" % number: b"v" * 1000 for number in range(500)})


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("by", ["its port for TLS", "its name"])
def test_a_member_that_was_taken_out_joins_again_with_its_port_for_tls(
    tmp_path: Path, encrypted: bool, by: str
) -> None:
    """Its map is that of the others, in which it is not, and so no port of it either."""
    made = Certificates(tmp_path / "ca")
    options = {**made.options, "vbucket_state": "none"}
    with ExitStack() as stack:
        nodes = [stack.enter_context(testing.node(vbuckets=4, **options)) for _ in range(2)]  # type: ignore[arg-type]
        names = [Address(node.host, node.port) for node in nodes]
        ports = [Address(node.host, node.tls_port or 0) for node in nodes]
        url = f"couchbases://{ports[0]}/default?trust_store={made.trust_store}"
        tls = parse(url).tls if by == "its port for TLS" else None
        seeds = ports if tls is not None else names

        async def story() -> ClusterMap | None:
            async with Members(tls=tls) as members:
                await found_cluster(members, seeds, 1, encrypted=encrypted)
                await Failover(members, seeds[:1], seeds[1:], force=True).run()
                await asyncio.to_thread(nodes[1].restart)
            async with Members(tls=tls) as members:
                return await Rebalance(members, seeds[:1], add=seeds[1:]).run()

        again = asyncio.run(story())
        assert again is not None and again.servers == tuple(names) and again.encrypted == encrypted
        assert [again.tls_ports.get(name) for name in names] == [node.tls_port for node in nodes]
        with client.connect(url) as bucket:
            bucket.set("k", "v")
            assert len(bucket.map.owning) == 2


def test_the_port_for_tls_is_the_one_that_a_node_was_started_with_last(tmp_path: Path) -> None:
    made = Certificates(tmp_path / "ca")
    with testing.node(vbuckets=4, vbucket_state="none", **made.options) as node:  # type: ignore[arg-type]

        async def view() -> NodeView:
            async with Members() as members:
                return await members.view(Address(node.host, node.port))

        async def founded() -> None:
            async with Members() as members:
                await found_cluster(members, [Address(node.host, node.port)], 0)
                known = (await members.survey([Address(node.host, node.port)])).map
                await members.send(known.with_tls({known.servers[0]: 1}))  # as before it had another one

        asyncio.run(founded())
        assert asyncio.run(view()).tls_port == node.tls_port
