"""SCRAM against the vectors of RFC 5802 and RFC 7677 (SHA-512: the same nonces), and against servers that lie."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import RemoteProtocolError
from headwater.protocol.scram import ITERATIONS_MAX, Binding, Scram, plain

NONCE = "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
BEGINNING = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p="
SHA1_NONCE = "fyko+d2lbbFgONRv9qkxdawL"
SHA1_CHALLENGE = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
SHA1_FINAL = b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
PROOF_256 = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
PROOF_512 = "gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ=="
OUTCOME_512 = b"v=ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw=="


def test_the_exchange_of_sha1():
    scram = Scram("SCRAM-SHA1", "user", "pencil", SHA1_NONCE)
    assert scram.first() == b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    assert scram.final(SHA1_CHALLENGE) == SHA1_FINAL
    scram.verify(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")


def test_a_bound_exchange_names_its_kind_and_has_the_connection_in_what_is_proved():
    scram = Scram("SCRAM-SHA1", "user", "pencil", SHA1_NONCE, Binding("tls-server-end-point", b"\1\2"))
    assert scram.first() == b"p=tls-server-end-point,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    channel = b64encode(b"p=tls-server-end-point,,\1\2")
    final = scram.final(SHA1_CHALLENGE)
    assert final.startswith(b"c=" + channel + b",r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=")
    assert final[-28:] != SHA1_FINAL[-28:], "the proof is another one"


@pytest.mark.parametrize(
    ("mechanism", "proof", "outcome"),
    [
        ("SCRAM-SHA256", PROOF_256, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="),
        ("SCRAM-SHA512", PROOF_512, OUTCOME_512),
    ],
)
def test_the_exchange_of_sha256_and_sha512(mechanism: str, proof: str, outcome: bytes):
    scram = Scram(mechanism, "user", "pencil", NONCE)
    assert scram.final(CHALLENGE) == (BEGINNING + proof).encode()
    scram.verify(outcome)


def test_commas_and_equals_signs_in_a_name_are_escaped():
    assert Scram("SCRAM-SHA1", "a,b=c", "", "n").first() == b"n,,n=a=2Cb=3Dc,r=n"


def test_plain_is_two_names_and_a_password():
    assert plain("user", "pencil") == b"\x00user\x00pencil"


def test_the_4000_iterations_of_couchbases_servers_are_enough():
    """Their default for years, and what the users that were made then have still."""
    proof = Scram("SCRAM-SHA256", "user", "pencil", NONCE).final(CHALLENGE.replace(b"i=4096", b"i=4000"))
    assert proof.startswith(b"c=biws,r=")


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        CHALLENGE.replace(b"i=4096", b"i=%d" % (ITERATIONS_MAX + 1)),
        CHALLENGE.replace(b"i=4096", b"i=999999999999999999999"),
        CHALLENGE.replace(b"i=4096", b"i=0"),
        CHALLENGE.replace(b"i=4096", b"i=1"),
        CHALLENGE.replace(b"i=4096", b"i=3999"),
        CHALLENGE.replace(b"i=4096", "i=٤".encode()),
        CHALLENGE.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="),
        CHALLENGE.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=*"),
        b"\xff\xfe",
        b"",
    ],
)
def test_a_challenge_that_is_not_for_us_or_asks_too_much_is_refused(challenge: bytes):
    with pytest.raises(RemoteProtocolError):
        Scram("SCRAM-SHA256", "user", "pencil", NONCE).final(challenge)


@pytest.mark.parametrize("outcome", [b"", b"v=", b"v=AAAA", b"e=other-error", b"v=jnZJ2d0Ms4dnENnHwPaqVfNn7DY="])
def test_a_server_that_can_not_sign_does_not_know_the_password(outcome: bytes):
    scram = Scram("SCRAM-SHA1", "user", "pencil", SHA1_NONCE)
    scram.final(SHA1_CHALLENGE)
    with pytest.raises(RemoteProtocolError):
        scram.verify(outcome)


def test_a_signature_before_the_proof_proves_nothing():
    with pytest.raises(RemoteProtocolError):
        Scram("SCRAM-SHA1", "user", "pencil", "n").verify(b"v=")


@given(st.binary(max_size=80))
def test_whatever_the_server_says_is_understood_or_refused(said: bytes):
    with pytest.raises(RemoteProtocolError):
        Scram("SCRAM-SHA1", "user", "pencil", NONCE).final(said)
