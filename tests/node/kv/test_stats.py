"""STAT groups."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.node.buckets.scans import ScanPlan
from headwater.node.rest.metrics import METRICS
from headwater.wire.dcp import Prepare
from headwater.wire.header import Frame
from tests.node.support import Talk

STAT = 0x10


def stats(talk: Talk, group: str = "") -> dict[str, str]:
    *pairs, last = talk.ask(STAT, key=group.encode(), opaque=77)
    assert (last.key, last.value, last.status) == (b"", b"", 0) and all(pair.opaque == 77 for pair in pairs)
    return {pair.key.decode(): pair.value.decode() for pair in pairs}


def test_the_general_group_counts(talk: Talk) -> None:
    talk.one(1, key=b"k", extras=bytes(8))
    talk.one(0, key=b"k")
    talk.one(0, key=b"x")
    found = stats(talk)
    assert found["curr_items"] == "1" and found["uptime"] == "12", "the node's own figures are among them"
    assert (found["cmd_get"], found["get_hits"], found["get_misses"], found["cmd_set"]) == ("2", "1", "1", "1")
    stats(talk, "reset")
    assert stats(talk)["cmd_get"] == "0"


def test_groups_about_vbuckets(talk: Talk) -> None:
    for _ in range(2):
        talk.one(1, key=b"k", extras=bytes(8), vbucket=1)
    talk.desk.committer.commit()
    talk.one(0x3D, extras=b"\2", vbucket=3)
    assert stats(talk, "vbucket") == {"vb_0": "active", "vb_1": "active", "vb_2": "active", "vb_3": "replica"}
    found = stats(talk, "vbucket-seqno 1")
    assert found["vb_1:high_seqno"] == "2" and found["vb_1:uuid"] == found["vb_1:vb_uuid"] == "2"
    assert len(stats(talk, "vbucket-seqno")) == 4 * len(found)
    assert stats(talk, "vbucket-details 1")["vb_1:num_items"] == "1"
    assert stats(talk, "failovers 1") == {
        "vb_1:num_entries": "1",
        "vb_1:num_erroneous_entries_erased": "0",
        "vb_1:0:id": "2",
        "vb_1:0:seq": "0",
    }


def metrics(talk: Talk, name: str) -> float:
    node: Any = SimpleNamespace(bucket=talk.desk.bucket)
    (metric,) = [each for each in METRICS if each.name == name]
    ((labels, value),) = metric.read(node)
    assert labels == ()
    return float(value)


def test_durable_writes_that_wait_are_told_with_how_far_each_replica_is(talk: Talk) -> None:
    bucket = talk.desk.bucket
    assert stats(talk, "durability-monitor") == {} and stats(talk)["ep_prepares_waiting"] == "0"
    for key in (b"\0a", b"\0b"):
        bucket.vbuckets[1].prepares.add(Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=key, cas=9))
    bucket.durable_writes.acknowledged(1, "10.0.0.9:11210", 1)
    told = {
        "vb_1:state": "active",
        "vb_1:num_tracked": "2",
        "vb_1:oldest_prepared_seqno": "1",
        "vb_1:high_prepared_seqno": "2",
        "vb_1:10.0.0.9:11210:acknowledged_seqno": "1",
    }
    assert stats(talk, "durability-monitor") == stats(talk, "durability-monitor 1") == told
    assert stats(talk, "durability-monitor 2")["vb_2:num_tracked"] == "0"
    assert stats(talk)["ep_prepares_waiting"] == "2" and metrics(talk, "prepares_waiting") == 2


def test_durable_writes_are_counted_by_the_level_that_they_ask_for(talk: Talk) -> None:
    node: Any = SimpleNamespace(bucket=talk.desk.bucket)
    (metric,) = [each for each in METRICS if each.name == "durable_writes_total"]

    async def begin(level: int, key: bytes) -> None:
        prepare = Prepare(by_seqno=0, rev_seqno=1, durability_level=level, key=key, cas=9)
        talk.desk.bucket.durable_writes.begin(1, prepare, 60_000)

    for level, key in ((3, b"\0a"), (1, b"\0b"), (3, b"\0c")):
        asyncio.run(begin(level, key))
    names = ("majority", "majority-and-persist-to-active", "persist-to-majority")
    assert dict(metric.read(node)) == dict(zip([(name,) for name in names], (1, 0, 2), strict=True))


def test_range_scans_that_are_open_are_told_until_they_are_over(talk: Talk) -> None:
    talk.desk.loop = SimpleNamespace(time=lambda: 105.0)  # type: ignore[assignment]
    bucket = talk.desk.bucket
    scan = bucket.scans.create(bucket.vbuckets[1], ScanPlan(collection=8, key_only=True), 100.0)
    name = f"vb_1:{scan.name[0]:016x}{scan.name[1]:016x}"
    told = {f"{name}:collection": "0x8", f"{name}:key_only": "true", f"{name}:state": "idle"}
    assert stats(talk, "range-scans") == stats(talk, "range-scans 1") == told | {f"{name}:idle_seconds": "5"}
    assert stats(talk, "range-scans 2") == {}
    assert stats(talk)["ep_range_scans"] == "1" and metrics(talk, "range_scans") == 1
    scan.cancel()
    assert stats(talk, "range-scans") == {} and metrics(talk, "range_scans") == 0


def test_wrong_arguments_and_unknown_groups(talk: Talk) -> None:
    assert talk.one(STAT, key=b"vbucket-seqno 9").status == 7
    for argument in (b"x", b"-1", b"1 2", b"99999999999"):
        assert talk.one(STAT, key=b"vbucket-seqno " + argument).status == 4
    assert talk.one(STAT, key=b"nonsense").status == 1
    assert talk.one(STAT, extras=b"x").status == 4


@pytest.mark.parametrize("group", ["uuid", "prev-vbucket", "checkpoint", "config", "timings", "tap", "dcp", "dcpagg :"])
def test_every_other_group_ends_as_it_should(talk: Talk, group: str) -> None:
    stats(talk, group)


def test_other_parts_of_the_node_put_their_groups_in(talk: Talk) -> None:
    talk.desk.bucket.stat_groups["more"] = lambda arguments: [("arguments", ",".join(arguments))]
    assert stats(talk, "more a b") == {"arguments": "a,b"}


def test_whoever_asks_is_told_who_he_is_and_what_he_may_do(talk: Talk) -> None:
    found = stats(talk, "rights")
    assert found.pop("user") == ""
    names = {"login", "read", "write", "stream", "replicate", "monitor", "administer"}
    assert set(found) == names | {f"{name}_somewhere" for name in names}
    assert set(found.values()) == {"true"}, "where there are no users everybody may do everything"


def test_timings_tell_how_long_commits_took(talk: Talk) -> None:
    found = stats(talk, "timings")
    bounds = [tuple(map(int, name.removeprefix("disk_commit_").split(","))) for name in found]
    assert all(low < high for low, high in bounds)
    assert [low for low, _ in bounds[1:]] == [high for _, high in bounds[:-1]]
    assert (bounds[0][0], bounds[-1][1]) == (0, (1 << 64) - 1)


def test_copies_are_one_statistic_each_and_those_that_are_not_here_are_left_out(talk: Talk) -> None:
    talk.one(1, key=b"k", extras=bytes(8), vbucket=1)
    talk.desk.committer.commit()
    talk.one(0x3D, extras=b"\2", vbucket=3)
    talk.desk.committer.commit()
    found = stats(talk, "vbucket-copies 1,3")
    assert found["vb_3"].split()[:5] == ["replica", "0", "0", "0", "0"]
    state, high, complete, refused, damaged, size, branch = found["vb_1"].split()
    assert (state, high, complete, refused, damaged, branch) == ("active", "1", "1", "0", "0", "2:0") and int(size) > 0
    assert stats(talk, "vbucket-copies").keys() == {f"vb_{vb}" for vb in range(4)}
    talk.one(0x3F, vbucket=3)
    talk.desk.committer.commit()
    assert stats(talk, "vbucket-copies 1-3").keys() == {"vb_1", "vb_2"}
    for argument in (b"x", b"1-", b"9999", b"1 2"):
        assert talk.one(STAT, key=b"vbucket-copies " + argument).status == 4


def test_a_copy_is_told_once_its_state_is_on_disk(talk: Talk) -> None:
    """Who was told of it would go by what never was, if the batch is lost."""
    talk.one(0x3D, extras=b"\2", vbucket=3)
    other = talk.desk.session()
    other.give(Frame(0x80, STAT, key=b"vbucket-copies 3").encode())
    assert {gate for _, gate in other.connection.sent} == {talk.desk.committer.open}
