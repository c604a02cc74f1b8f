"""A node of several processes is founded, is there again, and goes on when one of them, or all, are gone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.nodes import until
from headwater import testing
from headwater.client import Client
from headwater.errors import StorageError
from headwater.node.workers.layout import load
from headwater.node.workers.supervising import _relay_folder as relay_folder
from headwater.testing.node import Node, NodeError
from headwater.wire.opcodes import Opcode
from tests.cluster.nodes import command
from tests.node.wire import Client as RawClient

VBUCKETS = 16
DOCUMENTS = {f"key-{number}".encode(): b"value" for number in range(200)}


def workers_of(node: Node) -> list[int]:
    """The processes of a node's workers, the first of them first."""
    return [int(each) for each in Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()]


def check(bucket: Client) -> None:
    """All documents are there."""
    assert {key: each.value for key, each in bucket.get_many(DOCUMENTS).items()} == DOCUMENTS


@contextmanager
def unstarted(**options: object) -> Iterator[Node]:
    """A node that was never started."""
    with TemporaryDirectory(prefix="headwater-workers-") as folder:
        node = Node(Path(folder) / "data", {"vbuckets": VBUCKETS, "workers": 2, **options})
        try:
            yield node
        finally:
            if node.is_running:
                node.kill()
            node.let_go()


def test_workers_are_members_of_a_cluster_that_is_there_again_after_each_start() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        with node.client() as bucket:
            first = bucket.map
            assert len(first.servers) == 2 and {len(first.held_by(server)[0]) for server in first.servers} == {8}
            assert len(set(first.groups.values())) == 1 and len(first.groups) == 2
            assert not bucket.set_many(DOCUMENTS.items())
        assert command("cluster", "status", node.address)[0] == 0
        assert command("cluster", "rebalance", node.address, "--yes")[0] == 0
        assert node.restart().stop() == 0
        node.start().kill()  # all of them at once: none can hear from one that ran
        with node.start().client() as bucket:
            assert bucket.map.servers == first.servers and bucket.map.chains == first.chains
            check(bucket)


def test_a_worker_that_dies_is_started_again_alone() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, node.client() as bucket:
        assert not bucket.set_many(DOCUMENTS.items())
        stays, dies = workers_of(node)
        os.kill(dies, signal.SIGKILL)
        until(lambda: len(workers_of(node)) == 2 and dies not in workers_of(node), "another worker")
        assert stays in workers_of(node) and "worker 1 ended by signal 9; it is started again" in node.log
        check(bucket)


def test_a_worker_that_is_away_leaves_the_others_serving() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, node.client() as bucket:
        assert not bucket.set_many(DOCUMENTS.items())
        known = bucket.map
        os.kill(workers_of(node)[1], signal.SIGSTOP)
        theirs = [key for key in DOCUMENTS if known.owner(known.vbucket_of(key)) == known.servers[0]]
        assert len(bucket.get_many(theirs)) == len(theirs) > 50
        with RawClient(node.port) as client:  # whoever is free takes a connection
            assert client.ask(Opcode.NOOP).status == 0
        os.kill(workers_of(node)[1], signal.SIGCONT)
        check(bucket)


@pytest.mark.parametrize("failpoint", ["cluster.before_rename", "cluster.after_rename", "log.append", "log.after_sync"])
def test_founding_that_was_cut_short_is_finished_by_the_next_start(failpoint: str) -> None:
    with unstarted() as node:
        node.environment = {"HEADWATER_FAILPOINTS": f"{failpoint}=kill"}
        with pytest.raises(NodeError):
            node.start()
        node.environment = {}
        with node.start().client() as bucket:
            assert not bucket.set_many(DOCUMENTS.items())
            assert {len(bucket.map.held_by(server)[0]) for server in bucket.map.servers} == {8}
            check(bucket)


def test_a_worker_whose_folder_is_gone_is_missed_and_not_made_anew() -> None:
    with unstarted() as node:
        with node.start().client() as bucket:
            assert not bucket.set_many(DOCUMENTS.items())
        node.stop()
        (node.data / "worker-1").rename(node.data / "away")
        with pytest.raises(NodeError, match=r"worker-1/MANIFEST.*put it back"):
            node.start()
        (node.data / "away").rename(node.data / "worker-1")
        with node.start().client() as bucket:
            check(bucket)


def test_a_worker_whose_folder_goes_while_it_serves_is_not_made_anew() -> None:
    with unstarted() as node, node.start().client() as bucket:
        assert not bucket.set_many(DOCUMENTS.items())
        dies = workers_of(node)[1]
        os.kill(dies, signal.SIGSTOP)
        (node.data / "worker-1").rename(node.data / "away")
        os.kill(dies, signal.SIGKILL)
        until(lambda: "worker-1/MANIFEST" in node.log and "put it back" in node.log, "it is missed")
        assert not (node.data / "worker-1").exists()
        (node.data / "away").rename(node.data / "worker-1")
        check(bucket)


def test_one_process_for_workers_and_workers_for_a_folder_of_one_are_refused_by_a_line() -> None:
    with unstarted() as node:
        node.start().stop()
        node.options["workers"] = 1
        with pytest.raises(NodeError, match=r'option "workers": 1 is not 2, which .* was made with: give that number'):
            node.start()
        shutil.rmtree(node.data)
        node.start().stop()
        node.options["workers"] = 2
        with pytest.raises(
            NodeError, match=r'option "workers": 2 is not 1, which .* was made with: give another --data'
        ):
            node.start()


def test_a_port_of_a_worker_that_is_taken_is_told_before_anything_is_made() -> None:
    with unstarted() as node, socket.create_server(("127.0.0.1", 0)) as other:
        node.options["worker_port"] = other.getsockname()[1]
        with pytest.raises(NodeError, match=f'"worker-port": "127.0.0.1:{other.getsockname()[1]}" is not an address'):
            node.start()
        assert not node.data.exists()


def test_workers_without_vbuckets_join_a_cluster_of_others_and_have_no_copy_beside_its_owner() -> None:
    with (
        testing.node(vbuckets=VBUCKETS, workers=2, vbucket_state="none") as one,
        testing.node(vbuckets=VBUCKETS, workers=2, vbucket_state="none") as two,
    ):
        addresses = [f"127.0.0.1:{port}" for each in (one, two) for port in ports_of(each)]
        assert command("cluster", "init", *addresses, "--replicas", "1")[0] == 0
        with one.client() as bucket:
            known = bucket.map
            pairs = {frozenset(known.groups[copy] for copy in known.copies(vb)) for vb in range(VBUCKETS)}
            assert len(known.servers) == 4 and {len(pair) for pair in pairs} == {2}
            assert not bucket.set_many(DOCUMENTS.items())
        two.kill()
        two.start()
        with two.client() as bucket:
            check(bucket)


def test_the_sockets_of_workers_are_in_a_folder_that_nobody_else_can_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = relay_folder(tmp_path, "ab" * 16)
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    assert relay_folder(tmp_path, "ab" * 16) == folder, "that of one which was killed"
    folder.chmod(0o755)
    with pytest.raises(StorageError, match="of this user's alone"):
        relay_folder(tmp_path, "ab" * 16)
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{tmp_path}:/run/other")
    assert relay_folder(Path("/nowhere"), "ab" * 16) == tmp_path / ("headwater-" + "ab" * 8)


def ports_of(node: Node) -> list[int]:
    """Where the workers of a node listen."""
    layout = load(node.data)
    assert layout is not None
    return list(layout.ports)


def test_users_of_the_folder_are_users_of_all_workers() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        line = ("user", "add", "ann", "--roles", "administer", "--data", str(node.data), "--password-file")
        secret = node.data.parent / "password"
        secret.write_text("secret")
        secret.chmod(0o600)
        code, _, told = command(*line, str(secret))
        assert code == 0, told
        until(lambda: node.log.count("users changed") == 2, "both workers know her")
        with node.client("ann", "secret") as bucket:
            assert not bucket.set_many(DOCUMENTS.items())
            check(bucket)
        assert not (node.data / "worker-0" / "USERS").exists()
        os.kill(dies := workers_of(node)[1], signal.SIGKILL)
        until(lambda: len(workers_of(node)) == 2 and dies not in workers_of(node), "another worker")
        with node.client("ann", "secret") as bucket:
            check(bucket)  # it was told by the other one that it may serve, which wants a login by now
        node.kill()
        with node.start().client("ann", "secret") as bucket:
            check(bucket)


def test_workers_speak_tls_each_at_its_port_and_all_at_the_common_one() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2, tls=True) as node:
        with node.client(tls=True) as bucket:
            assert not bucket.set_many(DOCUMENTS.items())
        node.kill()
        with node.start().client(tls=True) as bucket:
            check(bucket)
            assert len(bucket.map.servers) == 2 and node.tls_port not in {server.port for server in bucket.map.servers}
