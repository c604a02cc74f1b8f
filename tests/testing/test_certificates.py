"""The throw-away CA: a node and a client that believe each other by it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from headwater import testing
from headwater.testing.certificates import Certificates
from headwater.tls.certificates import read_pem


def test_a_node_with_tls_is_one_word_away() -> None:
    with testing.node(vbuckets=4, tls=True) as node:
        assert node.tls_url.startswith("couchbases://127.0.0.1:") and node.tls_port != node.port
        with node.client(tls=True) as bucket:
            bucket.set(b"k", b"v")
        first = node.tls_port
        node.restart()
        assert node.tls_port == first
        with node.client(tls=True) as bucket:
            assert bucket.get(b"k").value == b"v"


def test_what_has_expired_has_expired(tmp_path: Path) -> None:
    made = Certificates(tmp_path / "ca").expired("old")
    assert read_pem(made.certificate.read_bytes()).problem(datetime.now(UTC))
