"""Couchbase's own Python SDK over TLS: by a password and by a certificate; and curl and openssl as simple witnesses."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from couchbase.auth import Authenticator, CertificateAuthenticator, PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions

from headwater import testing
from headwater.testing.certificates import Certificates
from headwater.testing.node import Node

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    users = tmp_path_factory.mktemp("users") / "users"
    users.write_text("ann:first\n")
    users.chmod(0o600)
    with testing.node(vbuckets=64, tls=True, users_file=users, without_tls="nobody") as running:
        yield running


def trust_store(node: Node) -> str:
    assert node.certificates is not None
    return node.certificates.trust_store


def by_password(node: Node) -> Authenticator:
    return PasswordAuthenticator("ann", "first", cert_path=trust_store(node))


def by_certificate(node: Node) -> Authenticator:
    assert node.certificates is not None
    files = node.certificates.user("ann")
    return CertificateAuthenticator(
        cert_path=str(files.certificate), key_path=str(files.key), trust_store_path=trust_store(node)
    )


@pytest.mark.parametrize("login", [by_password, by_certificate], ids=["password", "certificate"])
def test_the_sdk_stores_and_reads_over_tls(node: Node, login) -> None:  # type: ignore[no-untyped-def]
    cluster = Cluster.connect(f"couchbases://127.0.0.1:{node.tls_port}", ClusterOptions(login(node)))
    try:
        cluster.wait_until_ready(timedelta(seconds=60))
        documents = cluster.bucket("default").default_collection()
        for number in range(200):
            documents.upsert(f"{login.__name__}-{number}", {"number": number, "text": "x" * number * 50})
        assert documents.get(f"{login.__name__}-150").content_as[dict] == {"number": 150, "text": "x" * 7500}
        documents.remove(f"{login.__name__}-150")
        assert not documents.exists(f"{login.__name__}-150").exists
    finally:
        cluster.close()


def test_curl_reads_pages_and_verifies_the_node(node: Node, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    page = f"https://localhost:{node.tls_port}/pools/default/b/default"
    to = ["--connect-to", f"localhost:{node.tls_port}:127.0.0.1:{node.tls_port}", "-sS", "-u", "ann:first"]
    read = subprocess.run(["curl", *to, "--cacert", trust_store(node), page], capture_output=True, check=True)
    assert json.loads(read.stdout)["nodesExt"][0]["services"] == {"kvSSL": node.tls_port, "mgmtSSL": node.tls_port}
    empty = tmp_path / "nobody.pem"
    empty.write_text(Certificates(tmp_path / "other").node.certificate.read_text())
    refused = subprocess.run(["curl", *to, "--cacert", str(empty), page], capture_output=True, check=False)
    assert refused.returncode == 60, "curl: the peer's certificate cannot be authenticated"


def test_openssl_sees_the_version_and_a_chain_that_is_whole(node: Node) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl(1) is not installed")
    whom = ["-connect", f"127.0.0.1:{node.tls_port}", "-CAfile", trust_store(node), "-verify_ip", "127.0.0.1"]
    line = ["openssl", "s_client", *whom, "-verify_return_error"]
    seen = subprocess.run(line, input=b"", capture_output=True, check=False)
    assert b"TLSv1.3" in seen.stdout and b"Verify return code: 0 (ok)" in seen.stdout
