"""Pages made of a map that was given to the node."""

from __future__ import annotations

import json
from pathlib import Path

from headwater.node.rest import pages
from tests.node.support import desk


def test_the_nodes_are_those_of_the_map_with_what_each_listens_on(tmp_path: Path) -> None:
    nodes = [
        {"services": {"kv": 1, "mgmt": 8091}, "thisNode": True},
        {"services": {"kv": 2, "mgmt": 8092}, "hostname": "b"},
        {"services": {"n1ql": 3}, "hostname": "c"},
    ]
    with desk(tmp_path / "s") as counter:
        counter.cluster.replace(1, 2, json.dumps({"nodesExt": nodes}).encode())
        told = json.loads(pages.page(counter, "/pools/default", "") or b"")  # type: ignore[arg-type]
    assert [node["hostname"] for node in told["nodes"]] == ["$HOST:8091", "b:8092"]


def test_only_the_buckets_own_streams_are_streams(tmp_path: Path) -> None:
    with desk(tmp_path / "s") as counter:
        for path in ("/pools/default/bs/default", "/pools/default/bucketsStreaming/default"):
            assert pages.is_stream(counter, path)  # type: ignore[arg-type]
        assert not pages.is_stream(counter, "/pools/default/bs/other")  # type: ignore[arg-type]
