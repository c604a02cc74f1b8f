"""The members' login counts for the node that was called, and is worth nothing to whoever passes it on."""

from __future__ import annotations

import hashlib
import socket
import ssl
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import cast

import pytest

from headwater import testing
from headwater.node.users.binding import ADDRESS, END_POINT, bound, sees, why_for_another
from headwater.protocol.handshake import Login
from headwater.protocol.scram import Binding
from headwater.testing.certificates import Certificates
from headwater.testing.node import Node
from headwater.testing.proxy import Fault, FaultProxy, Way
from headwater.tls.certificates import read_pem
from headwater.tls.socket import TlsSocket
from headwater.wire.address import Address
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.membership.support import ALL_ON_FIRST, EPOCH, VBUCKETS, cluster_map
from tests.node.replication.support import Line, until

SECRET = "only the members know this"


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    users = private(tmp_path / "users", "root:r00t\n")
    return {"vbuckets": VBUCKETS, "users_file": users, "cluster_secret_file": private(tmp_path / "secret", SECRET)}


def login(node: Node) -> Line:
    line = Line(node.port)
    assert line.call(Opcode.SASL_AUTH, b"PLAIN", b"\0root\0r00t").status == 0
    return line


def test_a_members_login_that_is_passed_on_lets_nobody_in(options: dict[str, object]) -> None:
    with testing.node(**options) as one, testing.node(**options) as two:  # type: ignore[arg-type]
        by_map = f"by its map this node is {one.address}"
        # Back to the member that called, and on to another one.
        for rev, victim, known in ((10, one, by_map), (11, two, "this node has no map")):
            steps: list[int] = []

            def read_along(way: Way, frame: Frame, steps: list[int] = steps) -> Fault:
                if way is Way.DOWN and frame.opcode == Opcode.SASL_STEP:
                    steps.append(frame.status)
                return Fault.NONE

            with FaultProxy(victim.address, read_along) as relay, login(one) as root:
                config = cluster_map(rev, [one.address, relay.address], ALL_ON_FIRST, 0)
                assert root.call(Opcode.SET_CLUSTER_CONFIG, b"default", config, pack(">qq", EPOCH, rev)).status == 0
                until(lambda steps=steps: len(steps) > 1, "the member has called, and was passed on")
            assert set(steps) == {Status.AUTH_ERROR}
            assert f'it is for "{relay.address} {relay.address}", and {known}, called at' in victim.log
            assert "behind a translation of addresses give it the members' map, or call it by TLS" in victim.log


@pytest.mark.parametrize("by_tls", [False, True])
def test_members_follow_each_other_by_a_login_that_is_bound(
    options: dict[str, object], tmp_path: Path, *, by_tls: bool
) -> None:
    made = Certificates(tmp_path / "ca").options if by_tls else {}
    options = {**options, **made}
    with testing.node(**options) as one, testing.node(vbucket_state="none", **options) as two:  # type: ignore[arg-type]
        addresses = [one.address, two.address]
        with login(one) as first, login(two) as second:
            assert first.call(Opcode.SET, b"k", b"v", bytes(8), 0).status == 0
            for index, line in enumerate((first, second)):
                config = cluster_map(1, addresses, ALL_ON_FIRST, index)
                if by_tls:
                    for node in (one, two):
                        plain, both = f'"kv":{node.port}', f'"kv":{node.port},"kvSSL":{node.tls_port}'
                        config = config.replace(plain.encode(), both.encode())
                    config = config.replace(b'"rev":1,', b'"rev":1,"clusterEncryption":true,')
                assert line.call(Opcode.SET_CLUSTER_CONFIG, b"default", config, pack(">qq", EPOCH, 1)).status == 0
            until(lambda: second.call(Opcode.GET_REPLICA, b"k").value == b"v", "the replica is there")


def test_the_secret_is_taken_by_a_bound_proof_alone(options: dict[str, object]) -> None:
    with testing.node(**options) as node, Line(node.port) as line:  # type: ignore[arg-type]
        line.call(Opcode.HELLO, b"test", b"\0\7")
        plain = f"\0@cluster\0{SECRET}".encode()
        assert line.call(Opcode.SASL_AUTH, b"PLAIN", plain).status == Status.AUTH_ERROR
        unbound = b"n,,n=@cluster,r=abcdefabcdefabcdef"
        assert line.call(Opcode.SASL_AUTH, b"SCRAM-SHA256", unbound).status == Status.AUTH_ERROR
        assert line.call(Opcode.SASL_AUTH, b"SCRAM-SHA256-PLUS", unbound).status == Status.AUTH_ERROR


@pytest.mark.parametrize(
    ("data", "is_seen"),
    [
        (b"db1:11210 10.0.0.1:11210", True),
        (b"db1:11210 172.17.0.9:31210", True),  # behind a translation of addresses
        (b"other:11210 10.0.0.1:11210", True),  # before it has a map
        (b"db2:11210 10.0.0.2:11210", False),
        (b"db1:11210", True),
        (b" ", False),
        (b"", False),
    ],
)
def test_without_tls_one_of_both_addresses_has_to_be_the_nodes_own(data: bytes, *, is_seen: bool) -> None:
    assert sees(None, ("10.0.0.1", 11210), {"db1:11210"}, ADDRESS, data) is is_seen


def test_over_tls_the_reason_is_the_certificate() -> None:
    told = why_for_another(cast("TlsSocket", SimpleNamespace()), None, (), b"")
    assert "not for the certificate of this node" in told


def test_what_a_stranger_says_is_cut_off_in_the_reason() -> None:
    assert len(why_for_another(None, "", {"db1:11210"}, b"\xff" * 100_000)) < 1000


def test_one_form_of_an_address_is_as_good_as_the_other() -> None:
    assert sees(None, ("::ffff:10.0.0.1", 11210, 0, 0), (), ADDRESS, b"x:1 10.0.0.1:11210") is True
    assert sees(None, "", (), ADDRESS, b"db2:1 ") is False, "a socket that has no address is nobody's"


def test_over_tls_the_certificate_counts_and_no_address() -> None:
    here, names = ("10.0.0.1", 11210), {"db1:11210"}
    own = cast("TlsSocket", SimpleNamespace(engine=SimpleNamespace(end_point=b"own")))
    assert sees(own, here, names, END_POINT, b"own") is True
    assert sees(own, here, names, END_POINT, b"another's") is False
    assert sees(own, here, names, ADDRESS, b"db1:11210 10.0.0.1:11210") is False
    assert sees(None, here, names, END_POINT, b"own") is False
    unknown = cast("TlsSocket", SimpleNamespace(engine=SimpleNamespace(end_point=b"")))
    assert sees(unknown, here, names, END_POINT, b"") is False


def test_the_end_point_of_a_certificate_is_its_hash(tmp_path: Path) -> None:
    pair = Certificates(tmp_path / "ca").node
    text = Path(pair.certificate).read_text()
    der = ssl.PEM_cert_to_DER_cert(text[: text.index("-----END") + len("-----END CERTIFICATE-----") + 1])
    assert read_pem(text.encode()).end_point == hashlib.sha256(der).digest()


def test_only_the_members_own_login_is_bound() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        user = Login("test", user="ann", password="secret")
        assert bound(user, ours, Address("db1", 11210)) == user
        member = bound(Login("test", user="@cluster", password="secret"), ours, Address("db1", 11210))
        assert member.binding == Binding(ADDRESS, b"db1:11210 ")
