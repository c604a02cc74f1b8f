"""The map that a node hands out: its own, then the newest that it was given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.node.ownership.cluster_map import EPOCH_STEP_MAX, REVISION_STEP_MAX, ServedMap
from headwater.node.refused import CommandRefused
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.support import NOON, Desk, desk


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as made:
        yield made


def refused(call: object, *arguments: object) -> int:
    with pytest.raises(CommandRefused) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value.status


def test_its_own_map_names_this_node_and_gets_a_higher_revision_with_every_change(one: Desk) -> None:
    cluster = ServedMap(11210, one.bucket)
    assert cluster.version == (1, NOON * 1000 + one.bucket.map_changes)
    table = json.loads(cluster.config())["vBucketServerMap"]
    assert table["serverList"] == ["$HOST:11210"] and table["vBucketMap"] == [[0]] * 4
    before = cluster.version
    one.bucket.vbuckets[2].set_state(State.DEAD)
    assert cluster.version > before
    assert json.loads(cluster.config())["vBucketServerMap"]["vBucketMap"] == [[0], [0], [-1], [0]]
    assert not cluster.map_in_refusals, "a client that we send to ourselves asks for ever"


def test_a_map_that_was_given_takes_its_place_and_an_older_one_is_refused(one: Desk) -> None:
    cluster = ServedMap(11210, one.bucket)
    cluster.replace(1, 5, b"first")
    assert cluster.config() == b"first" and cluster.is_set and cluster.map_in_refusals
    cluster.replace(1, 6, b"second")
    assert refused(cluster.replace, 1, 5, b"third") == Status.KEY_EEXISTS
    assert (cluster.version, cluster.config()) == ((1, 6), b"second")


def test_a_version_after_which_hardly_any_would_be_left_is_refused(one: Desk) -> None:
    cluster = ServedMap(11210, one.bucket)
    epoch, revision = cluster.version
    cluster.check_step(epoch + EPOCH_STEP_MAX, revision + REVISION_STEP_MAX)
    assert refused(cluster.check_step, epoch + EPOCH_STEP_MAX + 1, revision) == Status.EINVAL
    assert refused(cluster.check_step, epoch, revision + REVISION_STEP_MAX + 1) == Status.EINVAL


def test_the_owner_of_a_vbucket_is_told_by_a_map_that_was_given_and_by_the_newest(one: Desk) -> None:
    served = ServedMap(11210, one.bucket)
    assert served.owner(0) is None, "the map of a node alone knows of nobody else"
    told = {"serverList": ["a:1", "b:2"], "vBucketMap": [[1, 0], [-1, 0]]}
    served.take((2, 1), json.dumps({"vBucketServerMap": told}).encode())
    assert [str(served.owner(vbucket)) for vbucket in (0, 1, 2)] == ["b:2", "None", "None"]
    served.take((2, 2), json.dumps({"vBucketServerMap": told | {"vBucketMap": [[0]]}}).encode())
    assert str(served.owner(0)) == "a:1"
    served.take((2, 3), b'{"vBucketServerMap": 7}')
    assert served.owner(0) is None, "a map that nobody can read costs an answer nothing but the owner"
