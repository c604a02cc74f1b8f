"""SCRAM by the vectors of RFC 5802, RFC 7677 and kv.md 1.2, and against our own client."""

import base64

import pytest

from headwater.accounts.keys import derive
from headwater.node.users.scram import Exchange, Malformed, read_first
from headwater.protocol.scram import Binding, Scram

NONCE, MORE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
VECTORS = [
    (
        "sha1",
        "fyko+d2lbbFgONRv9qkxdawL",
        "3rfcNHYJY1ZVvWVs7j",
        base64.b64decode("QSXCR+Q6sek8bf92"),
        4096,
        "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    (
        "sha256",
        NONCE,
        MORE,
        SALT,
        4096,
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
    (
        "sha512",
        NONCE,
        MORE,
        SALT,
        4096,
        "gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ==",
        "ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw==",
    ),
]


@pytest.mark.parametrize(("hash_name", "nonce", "more", "salt", "rounds", "proof", "signature"), VECTORS)
def test_the_published_exchange(
    hash_name: str, nonce: str, more: str, salt: bytes, rounds: int, proof: str, signature: str
) -> None:
    exchange = Exchange(
        hash_name, read_first(f"n,,n=user,r={nonce}".encode()), derive(hash_name, "pencil", salt, rounds), more
    )
    assert exchange.challenge() == f"r={nonce}{more},s={base64.b64encode(salt).decode()},i={rounds}".encode()
    final = f"c=biws,r={nonce}{more},p="
    assert exchange.finish((final + proof).encode()) == b"v=" + signature.encode()
    wrong = base64.b64encode(bytes(len(base64.b64decode(proof)))).decode()
    assert exchange.finish((final + wrong).encode()) is None
    assert exchange.finish((final + "AAAA").encode()) is None


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA1", "SCRAM-SHA256", "SCRAM-SHA512"])
def test_our_client_and_our_server_understand_each_other(mechanism: str) -> None:
    hash_name = mechanism.removeprefix("SCRAM-").lower()
    client = Scram(mechanism, "a,b=c", "pässword", "clientnonce")
    first = read_first(client.first())
    assert first.user == "a,b=c"
    server = Exchange(hash_name, first, derive(hash_name, "pässword", b"salt", 4096), "more")
    outcome = server.finish(client.final(server.challenge()))
    assert outcome is not None
    client.verify(outcome)


def outcome_of(binding: Binding | None, seen: bytes) -> tuple[bytes | None, Exchange]:
    """Return the answer of a server that sees `seen` of the connection, and its end of the exchange."""
    client = Scram("SCRAM-SHA256", "@cluster", "secret", "clientnonce", binding)
    first = read_first(client.first())
    keys = derive("sha256", "secret", b"salt", 4096)
    server = Exchange("sha256", first, keys, "more", lambda told: told == seen)
    outcome = server.finish(client.final(server.challenge()))
    if outcome is not None:
        client.verify(outcome)
    return outcome, server


def test_a_bound_proof_is_good_on_its_own_connection_and_on_no_other() -> None:
    here = Binding("headwater-address", b"db1:11210 10.0.0.1:11210")
    outcome, server = outcome_of(here, here.data)
    assert outcome is not None and not server.is_for_another
    outcome, server = outcome_of(here, b"db2:11210 10.0.0.2:11210")
    assert outcome is None and server.is_for_another


def test_what_a_proof_is_bound_to_can_not_be_exchanged_on_the_way() -> None:
    client = Scram("SCRAM-SHA256", "u", "secret", "nonce", Binding("headwater-address", b"there"))
    server = Exchange("sha256", read_first(client.first()), derive("sha256", "secret", b"s", 4096), "m", b"here".__eq__)
    final = client.final(server.challenge())
    channel = base64.b64encode(b"p=headwater-address,,here")
    passed_on = b"c=" + channel + final[final.index(b",r=") :]
    assert server.finish(passed_on) is None and not server.is_for_another, "the proof is about what was said"
    unbound = b"c=biws" + final[final.index(b",r=") :]
    with pytest.raises(Malformed):
        server.finish(unbound)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,r=x",
        b"n,,n=u",
        b"p=,,n=u,r=x",
        b"q=tls,,n=u,r=x",
        b"n=tls,,n=u,r=x",
        b"n,a=v,n=u,r=x",
        b"\xff\xfe",
        b"n,,n=u,r=x" + b"y" * 5000,
    ],
)
def test_malformed_first_messages_are_refused(message: bytes) -> None:
    with pytest.raises(Malformed):
        read_first(message)


@pytest.mark.parametrize("message", [b"", b"c=biws,r=other,p=AAAA", b"c=xxxx,r=nm,p=AAAA", b"c=biws,r=nm,p=*", b"\xff"])
def test_malformed_final_messages_are_refused(message: bytes) -> None:
    exchange = Exchange("sha1", read_first(b"n,,n=u,r=n"), derive("sha1", "p", b"s", 1), "m")
    with pytest.raises(Malformed):
        exchange.finish(message)
