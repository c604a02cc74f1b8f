"""Members that were away: the fence, maps that were missed, crashes in between."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import iter_unpack, pack

import pytest

from headwater.node.membership.file import MapFile
from headwater.node.storage.disk import RealDisk
from headwater.testing.node import Node, NodeError, node
from headwater.wire import dcp
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.faults.test_old_stores import unpacked
from tests.node.membership.support import (
    ALL_ON_FIRST,
    EPOCH,
    ETMPFAIL,
    NOT_MY_VBUCKET,
    VBUCKETS,
    cluster_map,
    follows,
    known_map,
    nodes,
    send_map,
    spread,
    stats,
)
from tests.node.replication.support import (
    Line,
    call,
    content,
    failover_log,
    put,
    set_state,
    state,
    until,
)


def test_an_old_owner_that_comes_back_with_an_old_map_never_serves_and_follows_the_new_one() -> None:
    with nodes(3) as (old, new, third):
        put(old, 0, "shared", b"1")
        spread(1, [old, new, third], [[0, 1]] * 4)
        until(lambda: follows(old, new, 0), "the replica is there")
        new.kill()
        put(old, 0, "shared", b"lost")
        put(old, 0, "lost", b"2")
        old.kill()
        new.start()
        assert call(new, Opcode.GET, b"shared", vbucket=0).status == NOT_MY_VBUCKET
        spread(2, [old, new, third], [[1, 0]] * 4, to=[third, new])
        for vb in range(4):
            set_state(new, vb, State.ACTIVE)
        put(new, 0, "kept", b"3")
        old.start()
        for opcode, extras in ((Opcode.GET, b""), (Opcode.SET, bytes(8))):
            value = b"no" if extras else b""
            assert call(old, opcode, b"shared", value, extras, 0).status in (ETMPFAIL, NOT_MY_VBUCKET)
        until(lambda: state(old, 0) is State.REPLICA, "the new map has found it")
        until(lambda: failover_log(old, 0) == failover_log(new, 0) and follows(new, old, 0), "it follows")
        assert content(old, 0) == content(new, 0)
        assert content(old, 0)[b"shared"][3] == b"1" and b"lost" not in content(old, 0)
        assert known_map(old)["rev"] == 2
        entries = known_map(old)["nodesExt"]
        assert isinstance(entries, list) and [bool(entry.get("thisNode")) for entry in entries] == [True, False, False]


def test_of_two_nodes_one_that_is_alone_serves_only_what_an_operator_says() -> None:
    with nodes(2) as (owner, other):
        put(owner, 0, "k", b"v")
        spread(1, [owner, other], ALL_ON_FIRST)
        other.kill()
        owner.restart()
        assert call(owner, Opcode.SET, b"k", b"no", bytes(8), 0).status == ETMPFAIL
        assert call(owner, Opcode.GET, b"k", vbucket=0).status == ETMPFAIL
        assert stats(owner, "cluster")["fence"] == "closed"
        assert asked_for_a_stream(owner, 0) == ETMPFAIL and read_up_to(owner) is None
        set_state(owner, 0, State.ACTIVE)
        assert asked_for_a_stream(owner, 0) == 0 and read_up_to(owner) is None, "1 to 3 wait"
        put(owner, 0, "k", b"yes")
        assert call(owner, Opcode.SET, b"k", b"no", bytes(8), 1).status == ETMPFAIL
        spread(1, [owner, other], ALL_ON_FIRST, to=[owner])
        put(owner, 1, "k", b"yes")
        assert stats(owner, "cluster")["fence"] == "open" and (read_up_to(owner) or {}).keys() == set(range(VBUCKETS))


def read_up_to(node: Node) -> dict[int, int] | None:
    """The active vbuckets and their seqnos, as a reader up to "now" asks for them; None if it is to ask again."""
    answer = call(node, Opcode.GET_ALL_VB_SEQNOS, extras=pack(">I", State.ACTIVE))
    return None if answer.status == ETMPFAIL else dict(iter_unpack(">HQ", answer.value))


def asked_for_a_stream(node: Node, vbucket: int) -> int:
    """The status of a stream request."""
    with Line(node.port) as line:
        line.send(dcp.Open(key=b"reader", flags=int(dcp.OpenFlag.PRODUCER)).frame())
        assert line.read().status == 0
        ask = dcp.StreamRequest(vbucket=vbucket, start_seqno=0, snap_start_seqno=0, snap_end_seqno=0)
        line.send(ask.frame())
        return line.read().status


def test_the_fence_opens_when_the_other_node_answers() -> None:
    with nodes(2) as (owner, other):
        put(owner, 0, "k", b"v")
        spread(1, [owner, other], ALL_ON_FIRST)
        other.kill()
        owner.restart()
        assert call(owner, Opcode.GET, b"k", vbucket=0).status == ETMPFAIL
        other.start()
        until(lambda: call(owner, Opcode.GET, b"k", vbucket=0).value == b"v", "both have been heard")
        until(lambda: follows(owner, other, 0), "the replica follows")


def test_what_was_taken_over_before_the_next_map_is_not_served_after_a_restart_until_that_comes() -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], [[0]] * 4)
        set_state(one, 0, State.DEAD)
        set_state(two, 0, State.ACTIVE)
        put(two, 0, "k", b"v")
        two.restart()
        until(lambda: stats(two, "cluster")["fence"] == "open", "the other node was heard")
        assert state(two, 0) is State.ACTIVE
        assert call(two, Opcode.GET, b"k", vbucket=0).status == ETMPFAIL
        assert stats(two, "cluster")["fenced"] == "1"
        spread(2, [one, two], [[1], [0], [0], [0]], to=[two])
        assert call(two, Opcode.GET, b"k", vbucket=0).value == b"v"


@pytest.mark.parametrize("point", ["cluster.before_rename", "cluster.after_rename"])
def test_a_crash_while_a_map_is_taken_forgets_nothing_that_was_promised(point: str) -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], ALL_ON_FIRST)
        one.stop()
        one.environment = {"HEADWATER_FAILPOINTS": f"{point}=kill"}
        one.start()
        with pytest.raises(ConnectionError):
            spread(2, [one, two], [[1], [1, 0], [0, 1], [0, 1]], to=[one])
        one.wait()
        one.environment = {}
        one.start()
        if point == "cluster.before_rename":
            until(lambda: call(one, Opcode.GET, b"k", vbucket=0).status == 1, "it still owns everything")
            spread(2, [one, two], [[1], [1, 0], [0, 1], [0, 1]], to=[one])
        assert [state(one, vb) for vb in range(4)] == [State.DEAD, State.REPLICA, State.ACTIVE, State.ACTIVE]


def test_a_map_that_was_refused_is_not_obeyed_after_a_restart() -> None:
    """Its sender was told that it is not in force, and may have given it up; the others never had it."""
    with nodes(2) as (one, two):
        spread(1, [one, two], ALL_ON_FIRST)
        one.stop()
        one.environment = {"HEADWATER_FAILPOINTS": "cluster.after_rename=eio"}
        one.start()
        moved = cluster_map(2, [one.address, two.address], [[1, 0]] * 4, 0)
        assert send_map(one, 2, moved) == ETMPFAIL
        one.environment = {}
        one.restart()
        until(lambda: stats(one, "cluster")["fence"] == "open", "the other node was heard")
        assert known_map(one)["rev"] == 1
        assert [state(one, vb) for vb in range(4)] == [State.ACTIVE] * 4


def test_a_node_of_another_cluster_is_not_believed() -> None:
    with nodes(2) as (one, two), node(vbuckets=VBUCKETS) as stranger:
        put(one, 0, "k", b"v")
        spread(1, [one, two], ALL_ON_FIRST)
        two.kill()
        one.stop()
        path = one.data / "CLUSTER_MAP"
        config = path.read_bytes().split(b"\n")[2].replace(two.address.encode(), stranger.address.encode())
        MapFile(RealDisk(), one.data).save(config, [])
        one.start()
        problem = f"{stranger.address}:problem"
        until(lambda: "belongs to another cluster" in stats(one, "cluster")[problem], "it was asked")
        assert stats(one, "cluster")["fence"] == "closed"
        assert call(one, Opcode.GET, b"k", vbucket=0).status == ETMPFAIL


def test_members_with_users_log_in_at_each_other() -> None:
    users = {"user": "ann", "environment": {"HEADWATER_PASSWORD": "secret"}, "vbuckets": VBUCKETS}
    with node(**users) as one, node(vbucket_state="none", **users) as two:  # type: ignore[arg-type]
        with login(one, "ann", "secret") as first, login(two, "ann", "secret") as second:
            assert first.call(Opcode.SET, b"k", b"v", bytes(8), 0).status == 0
            for index, line in enumerate((first, second)):
                config = cluster_map(1, [one.address, two.address], ALL_ON_FIRST, index)
                version = pack(">qq", EPOCH, 1)
                assert line.call(Opcode.SET_CLUSTER_CONFIG, b"default", config, version).status == 0
            until(lambda: second.call(Opcode.GET_REPLICA, b"k").value == b"v", "the replica is there")
        two.kill()
        one.restart()
        two.start()
        with login(one, "ann", "secret") as line:
            until(lambda: line.call(Opcode.GET, b"k").value == b"v", "the other one has answered")


def login(to: Node, user: str, password: str) -> Line:
    made = Line(to.port)
    assert made.call(Opcode.SASL_AUTH, b"PLAIN", f"\0{user}\0{password}".encode()).status == 0
    assert made.call(Opcode.SELECT_BUCKET, b"default").status == 0
    return made


def test_a_member_whose_map_is_gone_does_not_start_as_an_owner() -> None:
    """Failed over while it was away: with its map it stays behind the fence, without one it served as if alone."""
    with nodes(2) as (old, new):
        put(old, 0, "shared", b"1")
        spread(1, [old, new], ALL_ON_FIRST)
        until(lambda: follows(old, new, 0), "the replica is there")
        old.kill()
        (old.data / "CLUSTER_MAP").unlink()
        for _ in range(2):
            with pytest.raises(NodeError, match="CLUSTER_MAP: byte 0: the file is missing, though this node is one of"):
                old.start()


def test_a_member_of_before_is_known_as_one_from_its_next_start_on(tmp_path: Path) -> None:
    member = Node(unpacked("format-1-stopped", tmp_path), {"vbuckets": 2, "segment_mib": 48})
    member.start().stop()
    (member.data / "CLUSTER_MAP").unlink()
    with pytest.raises(NodeError, match="the file is missing, though this node is one of"):
        member.start()


def test_a_damaged_map_stops_the_start_and_names_its_file() -> None:
    with nodes(2) as (one, two):
        spread(1, [one, two], ALL_ON_FIRST)
        one.stop()
        path = one.data / "CLUSTER_MAP"
        path.write_bytes(path.read_bytes()[:-10])
        try:
            one.start()
        except AssertionError as error:
            assert str(path) in str(error) and "checksum" in str(error) and "Traceback" not in str(error)
        else:
            raise AssertionError("it started")


@contextmanager
def started(folder: Path) -> Iterator[Node]:
    made = Node(folder, {"vbuckets": VBUCKETS})
    try:
        yield made.start()
    finally:
        made.kill()


def is_copy_of(copy: Node, member: Node) -> bool:
    return stats(copy, "cluster").get("copy_of") == member.address


def refuses(copy: Node) -> bool:
    answers = {call(copy, opcode, b"k", b"", extras, 0).status for opcode, extras in ((0x00, b""), (0x01, bytes(8)))}
    return answers == {ETMPFAIL}


@pytest.mark.battery
def test_a_copy_of_a_members_folder_that_is_started_beside_it_owns_nothing(tmp_path: Path) -> None:
    with nodes(3) as (one, two, three):
        put(one, 0, "k", b"v")
        spread(1, [one, two, three], [[0, 1]] * 4)
        one.stop()
        shutil.copytree(one.data, tmp_path / "copy")
        one.start()
        with started(tmp_path / "copy") as copy:
            assert refuses(copy)
            until(lambda: is_copy_of(copy, one), "it finds its original at the address that the map has for both")
            assert refuses(copy) and stats(copy, "cluster")["fence"] == "closed"
            assert f"another node answers at {one.address}" in copy.log
            assert send_map(copy, 1, cluster_map(1, [each.address for each in (one, two, three)], [[0, 1]] * 4, 0)) == 0
            until(lambda: is_copy_of(copy, one) and refuses(copy), "an operator's map does not make it the member")
        put(one, 0, "k", b"w")
        assert stats(one, "cluster")["fence"] == "open"


def test_a_copy_that_is_started_while_its_original_is_down_stops_serving_when_that_comes(tmp_path: Path) -> None:
    with nodes(3) as (one, two, three):
        put(one, 0, "k", b"v")
        spread(1, [one, two, three], [[0, 1]] * 4)
        one.stop()
        shutil.copytree(one.data, tmp_path / "copy")
        with started(tmp_path / "copy") as copy:
            until(
                lambda: call(copy, Opcode.GET, b"k", vbucket=0).status == 0, "nobody can tell it from a node that moved"
            )
            one.start()
            until(lambda: is_copy_of(copy, one) and refuses(copy), "the member is back")
        until(lambda: call(one, Opcode.GET, b"k", vbucket=0).status == 0, "the member serves")


def test_a_node_that_started_again_waits_while_its_peer_has_another_map_of_the_same_version() -> None:
    """Two operators made them: as neither was newer, both nodes served the vbuckets that each had by its own."""
    with nodes(2) as (one, two):
        spread(1, [one, two], ALL_ON_FIRST)
        spread(2, [one, two], [[0]] * 4, to=[one])
        spread(2, [one, two], [[1]] * 4, to=[two])
        one.restart()
        until(lambda: "another map of version" in stats(one, "cluster")[f"{two.address}:problem"], "it has heard of it")
        assert call(one, Opcode.GET, b"k").status == ETMPFAIL
        spread(3, [one, two], ALL_ON_FIRST)
        assert call(one, Opcode.GET, b"k").status == Status.KEY_ENOENT
