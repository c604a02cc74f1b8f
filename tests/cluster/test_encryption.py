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
from headwater.cluster.founding import found
from headwater.cluster.members import Members
from headwater.cluster.rebalance import Rebalance
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
                await found(members, seeds[:2], 1, encrypted=True)
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
