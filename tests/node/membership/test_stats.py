"""STAT cluster: what a node tells of itself without a map, with one, and of the others it has heard from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwater.node.membership.fence import Fence
from headwater.node.membership.map import read_map
from headwater.node.membership.stats import stats
from headwater.wire.address import Address
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State
from tests.node.membership.support import EPOCH, UUID, cluster_map
from tests.node.streams.support import StreamDesk

CHAINS = [[0, 1], [1, 0], [0], [0]]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[StreamDesk]:
    made = StreamDesk(tmp_path / "store")
    yield made
    made.close()


def told(desk: StreamDesk) -> dict[str, str]:
    return dict(stats(desk, desk.membership))  # type: ignore[arg-type]


def give_map(desk: StreamDesk, this: int | None) -> None:
    config = cluster_map(7, ["a:1", "b:2"], CHAINS, this)
    desk.membership.map = read_map(config, bucket="default", vbuckets=4)
    desk.cluster.take((EPOCH, 7), config)


def test_a_node_that_was_given_no_map_tells_of_its_vbuckets_only(desk: StreamDesk) -> None:
    desk.bucket.vbuckets[3].set_state(State.REPLICA)
    found = told(desk)
    assert {name: found[name] for name in found if name.startswith("vb_")} == {
        "vb_active": "3",
        "vb_replica": "1",
        "vb_pending": "0",
        "vb_dead": "0",
    }
    assert (found["member"], found["fence"], found["fenced"]) == ("false", "open", "0")
    assert found["damaged_batches"] == "0"
    assert "uuid" not in found and "nodes" not in found


def test_a_node_tells_its_group_where_it_has_one(desk: StreamDesk) -> None:
    assert "group" not in told(desk)
    desk.config = replace(desk.config, group="rack 1")
    assert told(desk)["group"] == "rack 1"


def test_a_member_tells_what_its_map_gives_it(desk: StreamDesk) -> None:
    give_map(desk, this=0)
    found = told(desk)
    assert (found["epoch"], found["revision"], found["uuid"]) == (str(EPOCH), "7", UUID)
    assert (found["member"], found["this_node"], found["nodes"]) == ("true", "a:1", "2")
    assert (found["map_active"], found["map_replica"]) == ("3", "1")
    assert (found["following"], found["held"], found["moving"]) == ("0", "0", "0")


def test_one_that_the_map_leaves_out_is_no_member(desk: StreamDesk) -> None:
    give_map(desk, this=None)
    found = told(desk)
    assert (found["member"], found["this_node"], found["map_active"], found["map_replica"]) == ("false", "", "0", "0")


def test_a_closed_fence_tells_how_many_answers_it_waits_for(desk: StreamDesk) -> None:
    give_map(desk, this=0)
    assert desk.membership.map is not None
    desk.membership.fence = Fence(desk.membership.map)
    desk.bucket.fenced.update((0, 2))
    found = told(desk)
    assert (found["fence"], found["fenced"], found["answers_missing"]) == ("closed", "2", "1")


def test_of_each_peer_it_tells_when_it_was_heard_and_what_was_wrong(desk: StreamDesk) -> None:
    give_map(desk, this=0)
    desk.membership.peers.known = {
        Address("b", 2): SimpleNamespace(heard_at=desk.time.now - 2.5, problem=""),  # type: ignore[dict-item]
        Address("::1", 3): SimpleNamespace(heard_at=None, problem="connection refused"),  # type: ignore[dict-item]
    }
    found = told(desk)
    assert (found["b:2:heard"], found["b:2:problem"]) == ("2.5", "")
    assert (found["[::1]:3:heard"], found["[::1]:3:problem"]) == ("never", "connection refused")


def test_a_client_asks_for_the_group_by_its_name(desk: StreamDesk) -> None:
    pairs = {frame.key: frame.value for frame in desk.session().ask(Opcode.STAT, key=b"cluster")}
    assert pairs[b"vb_active"] == b"4" and pairs[b""] == b""
