"""The requests that are the administrator's alone, the limits of maps and names, and who is given a password."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from struct import pack

import pytest

from headwater import client, testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.errors import OptionError
from headwater.node.config import config_from
from headwater.node.users.file import UsersFile
from headwater.testing.node import Node
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.replication.support import Line, until

PRODUCER = pack(">II", 0, 1)


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return private(tmp_path / "users", "alice:alice-s3cret\nbob:bob-s3cret\n")


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def node(users: Path) -> Iterator[Node]:
    with testing.node(vbuckets=4, users_file=users) as running:
        yield running


def login(node: Node, name: str, password: str = "") -> Line:
    line = Line(node.port)
    line.call(Opcode.HELLO, b"guest", pack(">H", 7))
    told = b"\0" + name.encode() + b"\0" + (password or f"{name}-s3cret").encode()
    assert line.call(Opcode.SASL_AUTH, b"PLAIN", told).status == 0
    return line


def as_member(node: Node, secret: str) -> Line:
    line = Line(node.port)
    line.call(Opcode.HELLO, b"guest", pack(">H", 7))
    line.log_in_as_member(secret)
    return line


def a_map(*servers: str, rev: int = 0, epoch: int = 1, this: int | None = 0, chain: tuple[int, ...] = (0,)) -> bytes:
    entries = [
        {"services": {"kv": 1}, **({"thisNode": True} if index == this else {})} for index in range(len(servers))
    ]
    replicas, rows = len(chain) - 1, [list(chain)] * 4
    table = {"hashAlgorithm": "CRC", "numReplicas": replicas, "serverList": servers, "vBucketMap": rows}
    told = {"rev": rev, "revEpoch": epoch, "name": "default", "nodesExt": entries, "vBucketServerMap": table}
    return json.dumps(told).encode()


def give(line: Line, config: bytes, rev: int, epoch: int = 1) -> int:
    return line.call(Opcode.SET_CLUSTER_CONFIG, b"default", config, pack(">qq", epoch, rev)).status


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Listener(threading.Thread):
    """Waits to be called; offers PLAIN and nothing else, and keeps all that it hears."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.calls, self.heard = 0, b""
        self.start()

    def run(self) -> None:
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            self.calls += 1
            with peer, peer.makefile("rb") as file, suppress(OSError):
                while len(header := file.read(24)) == 24:
                    body = file.read(int.from_bytes(header[8:12]))
                    self.heard += body
                    value = b"PLAIN" if header[1] == Opcode.SASL_LIST_MECHS else b""
                    peer.sendall(Frame(0x81, header[1], value=value, opaque=int.from_bytes(header[12:16])).encode())

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def test_maps_and_whom_a_node_follows_are_the_administrators_to_say(node: Node) -> None:
    with Listener() as stranger, login(node, "bob") as bob, login(node, "alice") as alice:
        rev = now_ms() + 60_000
        config = a_map(node.address, stranger.address, rev=rev)
        assert give(bob, config, rev) == Status.EACCESS
        follow = json.dumps({"from": stranger.address, "vbuckets": "0"}).encode()
        assert bob.call(Opcode.IOCTL_SET, b"replicate", follow).status == Status.EACCESS
        assert bob.call(Opcode.SET, b"k", b"v", bytes(8)).status == 0
        assert stranger.calls == 0
        assert give(alice, config, rev) == 0
        until(lambda: stranger.calls > 0, "the map's other node is called")


def test_who_administers_one_bucket_names_no_members_and_gives_no_map() -> None:
    """A map says who is called, and whose users the node has: with one of his own he was administrator of all."""
    with testing.node(vbuckets=4) as node, Listener() as stranger:
        node.stop()
        with UsersFile(node.data).editing() as accounts:
            for name, roles in (("root", "administer"), ("bob", "administer[default]")):
                accounts[name] = Account.create(f"{name}-s3cret", read_grants(roles))
        node.start()
        with login(node, "bob") as bob:
            for index, servers in enumerate([(node.address, stranger.address), (stranger.address,), (node.address,)]):
                rev = now_ms() + 60_000 + index
                assert give(bob, a_map(*servers, rev=rev), rev) == Status.EACCESS
            assert bob.call(Opcode.FLUSH).status == 0, "he administers what is his"
        with login(node, "root") as root:
            rev = now_ms() + 60_000
            assert give(root, a_map(node.address, stranger.address, rev=rev), rev) == 0
            until(lambda: stranger.calls > 0, "the member is called")


def test_what_an_administrator_changes_is_written_down_with_who_and_from_where(node: Node) -> None:
    """At the level that the log has when nobody asks for more."""
    with login(node, "alice") as alice:
        peer = "{}:{}".format(*alice.sock.getsockname())
        assert alice.call(Opcode.CREATE_BUCKET, b"orders", b"x\0vbuckets=1").status == 0
        assert alice.call(Opcode.FLUSH).status == 0
        rev = now_ms() + 60_000
        assert give(alice, a_map(node.address, rev=rev), rev) == 0
        for _ in range(30):
            assert alice.call(Opcode.SET_VBUCKET, extras=b"\1", vbucket=3).status == 0
        assert alice.call(Opcode.DELETE_BUCKET, b"orders").status == 0
        told = [line for line in node.log.splitlines() if f"{peer}: user 'alice'" in line]
    for what in (
        "made bucket 'orders'",
        "flushed bucket 'default'",
        f"gave the cluster map 1:{rev} of bucket 'default'",
    ):
        assert any(what in line for line in told), what
    assert "dropped bucket 'orders'" in told[-1]
    assert 0 < sum("set vbucket 3 active" in line for line in told) < 12, "a thousand are ten lines a minute"


def test_a_node_is_no_user_where_it_calls(tmp_path: Path) -> None:
    """Its first user administers it, and whoever is called could pass the login on."""
    config = config_from({"users_file": private(tmp_path / "users", "alice:alice-s3cret\n")}, {})
    same = config_from({"user": "alice"}, {"HEADWATER_PASSWORD": "alice-s3cret"})
    member, secret = config.account
    assert member == "@cluster" and secret is not None and "alice" not in secret
    assert config.account == same.account, "members that were given the same user let each other in"
    assert [each.role for each in config.roles["@cluster"]] == ["replicate", "monitor"]
    assert not config.has_secret, "it is made of what people know: no list of users is taken for its sake"


def test_no_password_goes_in_clear_to_whoever_asks_for_it(node: Node) -> None:
    with Listener() as rogue, login(node, "alice") as alice:
        rev = now_ms() + 60_000
        assert give(alice, a_map(node.address, rogue.address, rev=rev), rev) == 0
        until(lambda: rogue.calls > 2, "it is called, again and again")
        with pytest.raises(OptionError, match="PLAIN"):
            client.connect(f"couchbase://{rogue.address}/default", "alice", "alice-s3cret").close()
        assert b"s3cret" not in rogue.heard


def test_administrators_can_be_named(users: Path) -> None:
    with testing.node(vbuckets=4, users_file=users, administrators="bob") as node:
        rev = now_ms() + 60_000
        with login(node, "bob") as bob, login(node, "alice") as alice:
            assert give(alice, a_map(node.address, rev=rev), rev) == Status.EACCESS
            assert give(bob, a_map(node.address, rev=rev), rev) == 0


@pytest.mark.parametrize(
    "text", [b"{}", b'{"nodesExt":5}', b'{"rev":1}', b"[]", b'{"vBucketServerMap":{"serverList":[]}}']
)
def test_what_is_no_whole_map_is_handed_to_nobody(text: bytes) -> None:
    with testing.node(vbuckets=4) as node, Line(node.port) as line:
        before = line.call(Opcode.GET_CLUSTER_CONFIG).value
        assert give(line, text, now_ms() + 60_000) == Status.EINVAL
        assert line.call(Opcode.GET_CLUSTER_CONFIG).value == before


def test_a_revision_grows_by_bounded_steps_so_that_the_next_map_has_one() -> None:
    with testing.node(vbuckets=4) as node, Line(node.port) as line:
        for epoch, rev in ((1, (1 << 63) - 1), ((1 << 63) - 1, 1), (2, (1 << 63) - 1)):
            config = a_map(node.address, rev=rev, epoch=epoch)
            assert give(line, config, rev, epoch) == Status.EINVAL
        rev = now_ms() + 60_000
        assert give(line, a_map(node.address, rev=rev), rev) == 0


def test_the_name_of_a_dcp_connection_is_taken_over_by_its_own_user_or_the_administrator(node: Node) -> None:
    with login(node, "alice") as alice, login(node, "bob") as bob, login(node, "bob") as again:
        assert alice.call(Opcode.DCP_OPEN, b"replication:a->b", b"", PRODUCER).status == 0
        assert bob.call(Opcode.DCP_OPEN, b"replication:a->b", b"", PRODUCER).status == Status.EACCESS
        assert alice.call(Opcode.NOOP).status == 0
        assert bob.call(Opcode.DCP_OPEN, b"bobs", b"", PRODUCER).status == 0
        assert again.call(Opcode.DCP_OPEN, b"bobs", b"", PRODUCER).status == 0
        with login(node, "alice") as administrator:
            assert administrator.call(Opcode.DCP_OPEN, b"bobs", b"", PRODUCER).status == 0


def test_a_tap_session_is_taken_over_by_its_own_user_or_the_administrator(node: Node) -> None:
    with login(node, "alice") as alice, login(node, "bob") as bob, login(node, "bob") as again:
        for line, name in ((alice, b"hers"), (bob, b"his")):
            line.send(Frame(0x80, Opcode.TAP_CONNECT, name))
        until(lambda: tap_sessions(node) == {"hers", "his"}, "both are there")
        assert again.call(Opcode.TAP_CONNECT, b"hers").status == Status.EACCESS
        again.send(Frame(0x80, Opcode.TAP_CONNECT, b"his"))
        until(lambda: is_hung_up(bob), "his older connection made way")
        with login(node, "alice") as administrator:
            administrator.send(Frame(0x80, Opcode.TAP_CONNECT, b"his"))
            until(lambda: is_hung_up(again), "and so did the later one")
        assert not is_hung_up(alice)


def tap_sessions(node: Node) -> set[str]:
    with login(node, "alice") as line:
        line.send(Frame(0x80, Opcode.STAT, b"tap"))
        told = iter(line.read, None)
        return {each.key.split(b":")[1].decode() for each in takewhile(lambda each: each.key, told) if b":" in each.key}


def is_hung_up(line: Line) -> bool:
    line.sock.settimeout(0.05)
    try:
        while line.sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_nodes_of_a_cluster_prove_their_own_secret_to_each_other(tmp_path: Path) -> None:
    mine = private(tmp_path / "one", "alice:alice-s3cret\n")
    theirs = private(tmp_path / "two", "carol:carol-s3cret\n")
    secret = private(tmp_path / "secret", "only the nodes know this\n")
    options = {"vbuckets": 4, "cluster_secret_file": secret}
    with (
        testing.node(users_file=mine, **options) as one,  # type: ignore[arg-type]
        testing.node(users_file=theirs, vbucket_state="none", **options) as two,  # type: ignore[arg-type]
    ):
        rev = now_ms() + 60_000
        with login(one, "alice") as alice:
            assert alice.call(Opcode.SET, b"k", b"v", bytes(8)).status == 0
            assert give(alice, a_map(one.address, two.address, rev=rev), rev) == 0
            told: dict[bytes, bytes] = {}

            def is_heard() -> bool:
                alice.send(Frame(0x80, Opcode.STAT, b"cluster"))
                while (answer := alice.read()).key:
                    told[answer.key] = answer.value
                return any(b"map" in value for key, value in told.items() if key.endswith(b"problem"))

            until(is_heard, "the other node let it in, and has no map")
        with login(two, "carol") as carol:
            assert carol.call(Opcode.NOOP).status == 0


def test_the_secret_of_a_cluster_is_good_for_replication_and_for_nothing_else(tmp_path: Path) -> None:
    mine = private(tmp_path / "one", "alice:alice-s3cret\n")
    theirs = private(tmp_path / "two", "carol:carol-s3cret\n")
    secret = private(tmp_path / "secret", "only the nodes know this\n")
    options = {"vbuckets": 4, "cluster_secret_file": secret}
    with (
        testing.node(users_file=mine, **options) as one,  # type: ignore[arg-type]
        testing.node(users_file=theirs, vbucket_state="none", **options) as two,  # type: ignore[arg-type]
        login(one, "alice") as alice,
        login(two, "carol") as carol,
    ):
        assert alice.call(Opcode.SET, b"k", b"v", bytes(8)).status == 0
        rev = now_ms() + 60_000
        servers = (one.address, two.address)
        for line, this in ((alice, 0), (carol, 1)):
            config = a_map(*servers, rev=rev, this=this, chain=(0, 1))
            assert give(line, config, rev) == 0
        until(lambda: carol.call(Opcode.GET_REPLICA, b"k").value == b"v", "the replica has followed by the secret")
        assert alice.call(Opcode.SET, b"k", b"later", bytes(8)).status == 0
        until(lambda: carol.call(Opcode.GET_REPLICA, b"k").value == b"later", "and goes on")
        with as_member(one, "only the nodes know this") as node:
            for opcode in (Opcode.GET, Opcode.DELETE, Opcode.DELQ_WITH_META):
                assert node.call(opcode, b"k").status == Status.EACCESS
            assert give(node, a_map(*servers, rev=rev + 1, chain=(0, 1)), rev + 1) == Status.EACCESS
