"""A real node's port for TLS: who comes in, as whom, by which certificate, and everything that is no TLS."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from headwater import client, testing
from headwater.client import TlsSettings
from headwater.errors import AuthError, CertificateRefused, NoAccess, OptionError, TlsError
from headwater.node.config import NodeConfig
from headwater.node.connections.tls import ENGINE_BYTES, NameRule, NodeTls, name_rules
from headwater.testing.certificates import HOSTS, Certificates
from headwater.tls.certificates import read_pem
from headwater.tls.making import Pair
from headwater.wire.header import Frame

NOOP = Frame(0x80, 0x0A, opaque=9).encode()
WAIT_SECONDS = 60.0


def until(reached: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("users") / "users"
    made.write_text("ann:first\nbob:second\n")
    made.chmod(0o600)
    return made


@pytest.fixture(scope="module")
def node(users_file: Path) -> Iterator[testing.Node]:
    """A node with users, for whom certificates may stand."""
    with testing.node(vbuckets=16, tls=True, users_file=users_file) as running:
        yield running


def certificates(node: testing.Node) -> Certificates:
    assert node.certificates is not None
    return node.certificates


def port(node: testing.Node) -> int:
    assert node.tls_port is not None
    return node.tls_port


def wrapped(node: testing.Node, context: ssl.SSLContext, host: str = "localhost") -> ssl.SSLSocket:
    return context.wrap_socket(socket.create_connection((node.host, port(node)), 60), server_hostname=host)


def trusting(node: testing.Node) -> ssl.SSLContext:
    return TlsSettings(trust_store=certificates(node).trust_store).context()


def as_user(node: testing.Node, files: Pair) -> TlsSettings:
    return TlsSettings(certificates(node).trust_store, str(files.certificate), str(files.key))


def connect(
    node: testing.Node, tls: TlsSettings, user: str | None = None, password: str | None = None
) -> client.Client:
    return client.connect(f"couchbases://{node.host}:{port(node)}/default", user, password, tls=tls)


def closed_with(sock: socket.socket) -> bytes:
    """Return all that a node had to say before it closed the connection."""
    found = b""
    sock.settimeout(WAIT_SECONDS)
    with suppress(ConnectionResetError, ssl.SSLError):
        while data := sock.recv(4096):
            found += data
    return found


# --- documents, and who brings them -----------------------------------------------------------------------------------


def test_documents_and_their_changes_go_over_tls(node: testing.Node) -> None:
    with node.client("ann", "first", tls=True) as bucket:
        wanted = {b"doc-%d" % number: os.urandom(number * 37 % 50_000) for number in range(200)}
        assert not bucket.set_many(wanted)
        large = os.urandom(5 << 20)
        bucket.set(b"large", large)
        assert bucket.get(b"large").value == large
        with bucket.changes(until="now") as changes:
            found = {event.key: event.value for event in changes if isinstance(event, client.Mutation)}
    assert found == {**wanted, b"large": large}


def test_a_password_as_it_is_may_come_over_tls(node: testing.Node) -> None:
    address = f"couchbases://{node.host}:{port(node)}/default?trust_store={certificates(node).trust_store}"
    with client.connect(address, "ann", "first", mechanisms=("PLAIN",)) as bucket:
        bucket.set(b"told", b"1")
    with pytest.raises(AuthError):
        client.connect(address, "ann", "wrong", mechanisms=("PLAIN",))


def test_a_certificate_stands_for_the_user_that_it_names(node: testing.Node) -> None:
    with connect(node, as_user(node, certificates(node).user("bob"))) as bucket:
        bucket.set(b"bobs", b"1")


def test_a_certificate_of_nobody_logs_nobody_in_and_a_password_still_does(node: testing.Node) -> None:
    stranger = as_user(node, certificates(node).user("carol"))
    with pytest.raises((NoAccess, AuthError)):
        connect(node, stranger).get(b"bobs")
    assert "its certificate is for 'carol', who is no user here" in node.log
    with connect(node, stranger, "ann", "first") as bucket:
        bucket.set(b"anns", b"1")


def test_no_certificate_stands_for_the_members_of_the_cluster(node: testing.Node) -> None:
    """Their name is no person's, and they prove their secret."""
    member = as_user(node, certificates(node).user("@cluster"))
    with pytest.raises((NoAccess, AuthError)):
        connect(node, member).get(b"bobs")
    assert "its certificate is for '@cluster', who is no user here" in node.log


def test_pages_are_read_over_https_by_certificate_and_by_password(node: testing.Node) -> None:
    for context, headers, status in (
        (as_user(node, certificates(node).user("ann")).context(), {}, 200),
        # gocbcore's client, which logs in by certificate, names nobody here.
        (as_user(node, certificates(node).user("ann")).context(), {"Authorization": "Basic Og=="}, 200),
        (trusting(node), {"Authorization": "Basic Og=="}, 401),
        (trusting(node), {"Authorization": "Basic YW5uOmZpcnN0"}, 200),
        (trusting(node), {}, 401),
    ):
        page = http.client.HTTPSConnection("localhost", port(node), timeout=60, context=context)
        page.connect = lambda page=page: setattr(  # type: ignore[method-assign, misc]
            page,
            "sock",
            wrapped(node, page._context),  # type: ignore[attr-defined]
        )
        with closing(page):
            page.request("GET", "/pools/default/b/default", headers=headers)
            answer = page.getresponse()
            body = answer.read()
        assert answer.status == status
        assert status != 200 or b'"kvSSL":%d,"mgmtSSL":%d' % (port(node), port(node)) in body.replace(b" ", b"")


# --- who is not believed ----------------------------------------------------------------------------------------------


def test_a_client_certificate_of_a_strange_ca_is_refused(node: testing.Node, tmp_path: Path) -> None:
    strange = Certificates(tmp_path / "strange").user("ann")
    with pytest.raises(TlsError, match="it does not know the CA of our certificate"):
        connect(node, as_user(node, strange))
    until(lambda: "its certificate is refused: " in node.log, node.log)


def test_a_client_certificate_that_has_expired_is_refused(node: testing.Node) -> None:
    with pytest.raises(TlsError, match="it takes our certificate for expired"):
        connect(node, as_user(node, certificates(node).expired("ann-of-old", ())))
    until(lambda: "certificate has expired" in node.log, node.log)


def test_a_node_of_an_unknown_ca_is_refused_by_name_issuer_and_date(node: testing.Node, tmp_path: Path) -> None:
    store = Certificates(tmp_path / "other").trust_store
    with pytest.raises(CertificateRefused) as refused:
        connect(node, TlsSettings(trust_store=store), "ann", "first")
    told = read_pem(certificates(node).node.certificate.read_bytes())
    assert f"it is {told}" in str(refused.value) and "trust_store=FILE names" in str(refused.value)


def test_a_node_of_another_name_is_refused_unless_that_is_switched_off(users_file: Path, tmp_path: Path) -> None:
    made = Certificates(tmp_path / "ca")
    files = made.issue("elsewhere", ("elsewhere.example",))
    options = {"tls_certificate": files.certificate, "tls_key": files.key, "tls_port": 0}
    with testing.node(vbuckets=4, users_file=users_file, **options) as running:
        with pytest.raises(CertificateRefused, match=r"127\.0\.0\.1.*for elsewhere\.example;.*Connect by a name"):
            connect(running, TlsSettings(trust_store=made.trust_store), "ann", "first")
        with connect(running, TlsSettings(trust_store=made.trust_store, verify="chain"), "ann", "first") as bucket:
            bucket.set(b"k", b"v")


def test_a_drain_ends_when_the_node_that_comes_back_is_not_believed(users_file: Path, tmp_path: Path) -> None:
    made, strange = Certificates(tmp_path / "ca"), Certificates(tmp_path / "strange")
    options = {"tls_certificate": made.node.certificate, "tls_key": made.node.key, "tls_port": 0}
    with (
        testing.node(vbuckets=4, users_file=users_file, **options) as running,
        connect(running, TlsSettings(trust_store=made.trust_store), "ann", "first") as bucket,
    ):
        bucket.set(b"k", b"v")
        with bucket.changes(max_wait_seconds=WAIT_SECONDS) as changes:
            until(lambda: isinstance(next(iter(changes)), client.Mutation), "its first change")
            running.kill()
            running.options |= {"tls_certificate": strange.node.certificate, "tls_key": strange.node.key}
            running.restart()
            with pytest.raises(CertificateRefused):
                list(changes)


# --- what is no TLS, and TLS where none is spoken ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (NOOP, "it speaks no TLS (its first byte is 0x80) on the port for TLS"),
        (b"get key\r\n", "it speaks no TLS (its first byte is 0x67) on the port for TLS"),
        (b"GET /pools HTTP/1.1\r\n\r\n", "it speaks HTTP without TLS on the port for TLS: https:// here"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", "TLS failed"),
        (b"\x16" + bytes(range(255)), "what it sends is no TLS"),
    ],
)
def test_what_is_no_tls_is_told_in_one_line_and_cut_off(node: testing.Node, sent: bytes, told: str) -> None:
    with socket.create_connection((node.host, port(node))) as sock:
        sock.sendall(sent)
        closed_with(sock)
        name = "{}:{}".format(*sock.getsockname())
    until(lambda: f"{name}: {told}" in node.log, node.log)


def test_tls_on_the_port_without_it_is_told_where_it_is_spoken(node: testing.Node) -> None:
    with pytest.raises(TlsError, match="is this its port for TLS"):
        client.connect(f"couchbases://{node.host}:{node.port}", "ann", "first")
    assert f"it speaks TLS on the port without it: that is on port {port(node)}" in node.log


def test_who_stalls_in_the_handshake_or_says_nothing_after_it_is_let_go_in_the_time_of_a_login() -> None:
    with testing.node(vbuckets=4, tls=True, login_seconds=2) as node:
        with socket.create_connection((node.host, port(node))) as stalled, wrapped(node, trusting(node)) as silent:
            stalled.sendall(b"\x16\x03\x01\x02")
            names = ["{}:{}".format(*each.getsockname()) for each in (stalled, silent)]
            assert [closed_with(each) for each in (stalled, silent)] == [b"", b""]
        for name in names:
            until(lambda name=name: f"{name}: did not log in within 2 s" in node.log, node.log)  # type: ignore[misc]


def test_those_in_the_handshake_hold_no_more_memory_together_than_strangers_may(users_file: Path) -> None:
    allowed = (32 << 20) // ENGINE_BYTES
    with testing.node(vbuckets=4, tls=True, users_file=users_file) as running:
        lines = [socket.create_connection((running.host, port(running))) for _ in range(allowed + 20)]
        try:
            until(lambda: "all that have not logged in hold more than" in running.log, running.log)
            with running.client("ann", "first", tls=True) as bucket:
                bucket.set(b"still", b"served")
        finally:
            for line in lines:
                line.close()


def test_an_old_version_is_refused_and_told(node: testing.Node) -> None:
    """A ClientHello of TLS 1.1, by hand: libraries do not send one any more."""
    suites, compression = bytes.fromhex("0004 002f c014"), bytes.fromhex("0100")
    hello = b"\x03\x02" + bytes(32) + b"\0" + suites + compression
    message = b"\x01" + len(hello).to_bytes(3) + hello
    with socket.create_connection((node.host, port(node))) as sock:
        sock.sendall(b"\x16\x03\x01" + len(message).to_bytes(2) + message)
        assert closed_with(sock)[:1] == b"\x15", "an alert"
        name = "{}:{}".format(*sock.getsockname())
    until(lambda: f"{name}: it offers a version of TLS that is too old here" in node.log, node.log)


def test_nobody_renegotiates(node: testing.Node) -> None:
    """`openssl s_client` asks for it with a line R; the node answers no_renegotiation, and serves others."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl(1) is not installed")
    line = ["openssl", "s_client", "-connect", f"{node.host}:{port(node)}", "-tls1_2"]
    ended = subprocess.run(line, input=b"R\n", capture_output=True, timeout=WAIT_SECONDS, check=False)
    assert b"no renegotiation" in ended.stdout + ended.stderr
    with node.client("ann", "first", tls=True) as bucket:
        bucket.set(b"after", b"that")


# --- the node's own certificate ---------------------------------------------------------------------------------------


def serial(running: testing.Node) -> str:
    with wrapped(running, trusting(running)) as sock:
        return str((sock.getpeercert() or {})["serialNumber"])


def test_a_new_certificate_is_taken_up_without_a_restart_and_a_broken_one_is_refused() -> None:
    with testing.node(vbuckets=4, tls=True) as running:
        files, before = certificates(running).node, serial(running)
        with running.client(tls=True) as bucket:
            bucket.set(b"k", b"v")
            certificates(running).issue("node", HOSTS)
            until(lambda: serial(running) != before, "the new one is not used")
            assert bucket.get(b"k").value == b"v", "a connection of before goes on"
        second = serial(running)
        files.certificate.write_text("not a certificate any more")
        until(lambda: "the one of before goes on" in running.log, running.log)
        os.kill(running.pid, signal.SIGHUP)
        until(lambda: running.log.count("the one of before goes on") >= 2, running.log)
        assert serial(running) == second
        certificates(running).expired("node")
        until(lambda: "it has expired on" in running.log, running.log)
        assert serial(running) == second


def test_sighup_reads_the_files_anew_and_ends_nothing() -> None:
    with testing.node(vbuckets=4, tls=True) as running:
        os.kill(running.pid, signal.SIGHUP)
        until(lambda: "the TLS certificate is now" in running.log, running.log)
        assert running.is_running and serial(running)


def test_the_port_without_tls_can_be_this_machines_only_or_not_be_there() -> None:
    with testing.node(vbuckets=4, tls=True, host="0.0.0.0", insecure=True, without_tls="loopback") as running:
        with running.client() as bucket:
            bucket.set(b"k", b"v")
        listening = Path("/proc/net/tcp").read_text() if Path("/proc/net/tcp").exists() else ""
        assert not listening or f"0100007F:{running.port:04X} 00000000:0000 0A" in listening
    with testing.node(vbuckets=4, tls=True, without_tls="nobody") as running:
        assert running.port == 0
        with running.client(tls=True) as bucket:
            bucket.set(b"k", b"v")
            assert bucket.get(b"k").value == b"v"


def test_a_node_does_not_start_with_files_that_can_not_be_used(tmp_path: Path) -> None:
    made = Certificates(tmp_path / "ca")
    good = {"tls_certificate": str(made.node.certificate), "tls_key": str(made.node.key)}
    other = made.user("other")
    for options, told in (
        ({**good, "tls_key": str(other.key)}, "key values mismatch"),
        ({**good, "tls_key": str(tmp_path / "none")}, "a file that can be read"),
        ({**good, "tls_ca": str(tmp_path / "none")}, "a PEM file of CA certificates"),
        ({**good, "tls_user": "san.phone"}, "one of subject.cn"),
    ):
        with pytest.raises(OptionError, match=told):
            NodeTls(NodeConfig(**options))  # type: ignore[arg-type]
    made.node.key.chmod(0o644)
    with pytest.raises(OptionError, match="private: others may read it"):
        NodeTls(NodeConfig(**good))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tls_clients": "required", "tls_certificate": "c"}, "tls-ca"),
        ({"tls_clients": "sometimes"}, "one of off, optional, required"),
        ({"without_tls": "nobody"}, "possible without --tls-certificate"),
        ({"tls_key": "k"}, "possible without --tls-certificate"),
        ({"tls_minimum": "1.1"}, "is not 1.2 or 1.3"),
        ({"tls_port": 70000}, "is not a whole number, 0 to 65535"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        NodeConfig(**options)  # type: ignore[arg-type]


def test_a_certificate_that_ends_soon_is_told_of(tmp_path: Path) -> None:
    made = Certificates(tmp_path / "ca")
    ends = read_pem(made.node.certificate.read_bytes()).ends.timestamp()
    now = [ends - 30 * 86_400]
    files = made.node
    tls = NodeTls(NodeConfig(tls_certificate=str(files.certificate), tls_key=str(files.key)), lambda: now[0])
    assert tls.warning() == ""
    now[0] = ends - 3 * 86_400
    assert tls.warning().endswith("expires in 3 days")
    now[0] = ends + 1
    assert "clients will refuse it" in tls.warning()


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("subject.cn", "ann.smith"),
        ("subject.cn until=.", "ann"),
        ("san.email until=@", "ann"),
        ("san.uri prefix=urn:app: until=/:", "orders"),
        ("san.dns prefix=www., san.dns", "app.example"),
        ("san.dns prefix=www.", None),
    ],
)
def test_the_user_is_where_the_rules_say(rules: str, name: str | None, tmp_path: Path) -> None:
    made = Certificates(tmp_path / "ca")
    emails, uris = ("ann@example.com",), ("urn:other:x", "urn:app:orders/1")
    files = made.issue("ann.smith", ("app.example",), emails=emails, uris=uris)
    told = read_pem(files.certificate.read_bytes())
    assert next((found for rule in name_rules(rules) if (found := rule.name(told))), None) == name
    assert name_rules("subject.cn") == (NameRule("subject.cn"),)
