"""Settings of a client, and files that are not what they should be."""

from __future__ import annotations

import os
import pickle
import ssl
from pathlib import Path

import pytest

from headwater.errors import OptionError
from headwater.testing.certificates import Certificates
from headwater.tls.settings import TlsSettings


def test_by_default_everything_is_verified_and_nothing_old_is_spoken() -> None:
    made = TlsSettings().context()
    assert (made.check_hostname, made.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert made.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("verify", "names", "chain"), [("chain", False, ssl.CERT_REQUIRED), ("none", False, ssl.CERT_NONE)]
)
def test_less_is_verified_only_where_that_is_said(verify: str, names: bool, chain: ssl.VerifyMode) -> None:
    settings = TlsSettings(verify=verify)
    made = settings.context()
    assert (made.check_hostname, made.verify_mode, settings.is_verified) == (names, chain, False)


def test_the_parameters_of_a_connection_string_come_back_from_it() -> None:
    told = {"trust_store": "/a b/ca.pem", "client_certificate": "c", "client_key": "k", "tls_verify": "chain"}
    made = TlsSettings.from_query({**told, "timeout": "7"})
    assert made == TlsSettings("/a b/ca.pem", "c", "k", "chain") == pickle.loads(pickle.dumps(made))
    assert made.query == "trust_store=/a%20b/ca.pem&client_certificate=c&client_key=k&tls_verify=chain"
    assert TlsSettings().query == ""


def test_what_can_not_be_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    node = certificates.node
    other = certificates.user("other")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for made, told in (
        (lambda: TlsSettings(verify="maybe"), "one of full, chain, none"),
        (lambda: TlsSettings(key="k.pem"), "give client_certificate"),
        (lambda: TlsSettings(trust_store="missing.pem").context(), 'option "trust_store": "missing.pem"'),
        (lambda: TlsSettings(trust_store=str(text)).context(), "no certificate or crl found"),
        (lambda: TlsSettings(certificate="missing.pem").context(), 'option "client_certificate": "missing.pem"'),
        (lambda: TlsSettings(certificate=str(text)).context(), "a PEM certificate with its key"),
        (lambda: TlsSettings(certificate=str(node.certificate)).context(), "a PEM certificate with its key"),
        (lambda: TlsSettings(certificate=str(node.certificate), key="gone").context(), 'option "client_key": "gone"'),
        (
            lambda: TlsSettings(certificate=str(node.certificate), key=str(other.key)).context(),
            "key values mismatch",
        ),
    ):
        with pytest.raises(OptionError, match=told):
            made()


def test_files_are_read_again_when_they_have_changed(tmp_path: Path) -> None:
    made = Certificates(tmp_path / "ca")
    settings = TlsSettings(trust_store=made.trust_store)
    before = settings.context()
    assert settings.context() is before
    os.utime(made.trust_store, ns=(1, 1))
    assert settings.context() is not before
