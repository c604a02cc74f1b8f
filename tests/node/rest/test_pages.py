"""Pages made of a map that was given to the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headwater.accounts.roles import read_grants
from headwater.node.config import NodeConfig
from headwater.node.rest import pages
from headwater.node.users.logins import Users
from headwater.wire.vbucket import State
from tests.node.support import Desk, desk


def read(counter: Desk, path: str, user: str) -> Any:
    """A page that is there, as it reads."""
    made = pages.page(counter, path, user)  # type: ignore[arg-type]
    assert made is not None and (made.status, made.content_type) == (200, "application/json")
    return json.loads(made.body)


def test_the_nodes_are_those_of_the_map_with_what_each_listens_on(tmp_path: Path) -> None:
    nodes = [
        {"services": {"kv": 1, "mgmt": 8091}, "thisNode": True},
        {"services": {"kv": 2, "mgmt": 8092}, "hostname": "b"},
        {"services": {"n1ql": 3}, "hostname": "c"},
    ]
    with desk(tmp_path / "s") as counter:
        counter.cluster.replace(1, 2, json.dumps({"nodesExt": nodes}).encode())
        told = read(counter, "/pools/default", "")
    assert [node["hostname"] for node in told["nodes"]] == ["$HOST:8091", "b:8092"]


def test_only_the_buckets_own_streams_are_streams(tmp_path: Path) -> None:
    with desk(tmp_path / "s") as counter:
        for path in ("/pools/default/bs/default", "/pools/default/bucketsStreaming/default"):
            assert pages.streamed(counter, path, "ann") is counter  # type: ignore[arg-type,comparison-overlap]
        assert pages.streamed(counter, "/pools/default/bs/other", "ann") is None  # type: ignore[arg-type]


def test_a_cluster_is_told_with_its_buckets_and_each_node_by_a_name_of_its_own(tmp_path: Path) -> None:
    nodes = [{"services": {"kv": 1, "mgmt": 1}}, {"services": {"kv": 2, "mgmt": 2}, "hostname": "b"}]
    with desk(tmp_path / "s") as counter:
        counter.cluster.replace(1, 2, json.dumps({"nodesExt": nodes}).encode())
        told = read(counter, "/pools/default", "")
        assert told["bucketNames"] == [{"bucketName": "default", "uuid": counter.bucket.uuid}]
    assert [node["otpNode"] for node in told["nodes"]] == ["n_1@$HOST", "n_2@b"]


def test_the_users_are_told_with_their_roles_in_the_words_of_the_other_server(tmp_path: Path) -> None:
    with desk(tmp_path / "s") as counter:
        assert read(counter, "/settings/rbac/users", "") == []
        counter.users = Users({"ann": "secret"}, {"ann": read_grants("administer,read:orders")})
        (ann,) = read(counter, "/settings/rbac/users/local", "ann")
        assert (ann["id"], ann["domain"], [role["role"] for role in ann["roles"]]) == (
            "ann",
            "local",
            ["admin", "data_reader"],
        )
        assert ann["roles"][1]["bucket_name"] == "orders"
        assert read(counter, "/settings/rbac/users/local/ann", "ann") == ann
        assert pages.page(counter, "/settings/rbac/users/local/bob", "ann") is None  # type: ignore[arg-type]
    assert "secret" not in json.dumps(ann)


def test_a_node_is_ready_while_its_vbuckets_are_its_own_and_traffic_is_on(tmp_path: Path) -> None:
    with desk(tmp_path / "s") as counter:
        told = read(counter, "/readyz", "")
        assert told.pop("kernels_waiting") >= 0  # of those that this process has imported
        assert told == {
            "ready": True,
            "fenced_vbuckets": 0,
            "traffic_disabled": False,
            "empty": False,
            "disk_full": False,
        }
        counter.bucket.traffic_disabled = True
        made = pages.page(counter, "/readyz", "")  # type: ignore[arg-type]
        assert made is not None and made.status == 503 and json.loads(made.body)["ready"] is False
        assert read(counter, "/healthz", "") == {"alive": True}


def test_a_node_that_has_no_vbucket_and_is_no_member_is_not_ready(tmp_path: Path) -> None:
    """Such a one serves nothing: where a disk was lost it must not count as a copy that is there."""
    with desk(tmp_path / "s", config=NodeConfig(data=tmp_path / "s", vbuckets=4, vbucket_state="none")) as counter:
        made = pages.page(counter, "/readyz", "")  # type: ignore[arg-type]
        assert made is not None and made.status == 503
        told = json.loads(made.body)
        assert (told["ready"], told["empty"]) == (False, True)
        counter.bucket.create_vbucket(0, State.REPLICA)
        assert read(counter, "/readyz", "")["ready"] is True
