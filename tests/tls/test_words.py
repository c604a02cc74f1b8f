"""Sentences about errors of OpenSSL."""

from __future__ import annotations

import ssl

import pytest

from headwater.tls.words import hung_up, in_words, next_step, not_tls


def error(reason: str) -> ssl.SSLError:
    made = ssl.SSLError(1, f"[SSL: {reason}] something")
    made.reason = reason
    return made


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("TLSV1_ALERT_UNKNOWN_CA", "it does not know the CA of our certificate"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "it takes our certificate for expired"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "it wants a client certificate, and was shown none"),
        ("UNSUPPORTED_PROTOCOL", "it offers a version of TLS that is too old here"),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "it shows no client certificate, and one is required"),
        ("BAD_RECORD_TYPE", "TLS failed: bad record type"),
    ],
)
def test_a_reason_becomes_a_sentence(reason: str, told: str) -> None:
    assert in_words(error(reason)) == told


def test_it_is_said_what_to_do_where_anything_can_be_done() -> None:
    assert next_step(19, "a") == ". trust_store=FILE names a PEM file of the CA that signed it"
    assert next_step(62, "a") == ". Connect by a name that it has, or have one made for a"
    assert next_step(10, "a") == ""


def test_each_end_hears_where_the_other_would_be_right() -> None:
    assert not_tls(b"\x80", 7, is_server=True).endswith("couchbases:// here, or port 7, where no TLS is spoken")
    assert not_tls(b"POST ", None, is_server=True) == "it speaks HTTP without TLS on the port for TLS: https:// here"
    assert "couchbase:// for this one" in not_tls(b"\x81", None, is_server=False)
    assert hung_up(is_server=False).endswith("is this its port for TLS?")
