"""SCRAM, the client's end: both sides prove that they know the password, and neither sends it.

    C: n,,n=user,r=CNONCE
    S: r=CNONCE SNONCE,s=SALT,i=ITERATIONS
    C: c=biws,r=CNONCE SNONCE,p=PROOF
    S: v=SIGNATURE

The module does no I/O and draws no random numbers: the nonce is an argument. The server's messages are checked before
the costly computation: the nonce must begin with the client's, and the number of iterations has bounds.

A proof may be bound to its connection, as those of nodes are (`Binding`): the header is then "p=KIND,," instead of
"n,,", followed by data that both ends know about the connection. A server refuses a bound proof that a man in the
middle forwards over another connection.

Source: RFC 5802 (SHA-1), RFC 7677 (SHA-256), the same with SHA-512. kv.md 1.2.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field

from headwater.errors import RemoteProtocolError

HASHES = {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}
"""Mechanism name to hash name, strongest first."""

ITERATIONS_MAX = 1_000_000
"""A server that asks for more is refused: each iteration costs us time, and servers use 4,000 to 15,000."""
ITERATIONS_MIN = 4000
"""A server that asks for fewer is refused: with one iteration a false server could guess the password from the proof.
4000 is the least number that Couchbase's servers used (memcached_password_hash_iterations) before 15,000; RFC 7677, 4,
says "at least 4096".
"""
BOUND = "-PLUS"
"""RFC 5802, 4: the suffix of a mechanism whose proof is bound to its connection."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The channel binding of a proof: the kind, and data about the connection that both ends know (RFC 5802, 6)."""

    kind: str
    data: bytes = field(repr=False)


class Scram:
    """One SCRAM exchange: `first()`, then `final(challenge)`, then `verify(outcome)`.

    Args:
        mechanism: a key of `HASHES`.
        user, password: as the server knows them.
        nonce: printable ASCII without commas, new for every exchange; at least 18 random bytes' worth.
        binding: the connection to which the proof is bound; None for a proof that is valid on any. With it, the
            mechanism's name ends with `BOUND`.
    """

    def __init__(self, mechanism: str, user: str, password: str, nonce: str, binding: Binding | None = None) -> None:
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        # A comma would end the attribute, an equals sign start an escape: RFC 5802 section 5.1.
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._nonce = nonce
        self._client_first_bare = f"n={escaped},r={nonce}"
        self._header = "n,," if binding is None else f"p={binding.kind},,"
        self._channel = base64.b64encode(self._header.encode() + (b"" if binding is None else binding.data)).decode()
        self._signature = b""

    def first(self) -> bytes:
        """Return the message of SASL_AUTH; it begins with "n,," if the proof is not bound to a connection."""
        return f"{self._header}{self._client_first_bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the message of SASL_STEP: the proof.

        Raises:
            RemoteProtocolError: the challenge is malformed, has another nonce, or demands too much work or too little.
        """
        nonce, salt, iterations = self._read(challenge)
        without_proof = f"c={self._channel},r={nonce}"
        auth_message = f"{self._client_first_bare},{challenge.decode()},{without_proof}".encode()
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), auth_message)
        proof = bytes(a ^ b for a, b in zip(client_key, self._hmac(stored_key, auth_message), strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, outcome: bytes) -> None:
        """Check the server's signature, which only a server that knows the password (or its salted form) can compute.

        Raises:
            RemoteProtocolError: the signature is missing or wrong.
        """
        signature = _attributes(outcome).get("v", "")
        # Without `final` there is no signature to compare with, and an empty one would equal an empty answer.
        if not self._signature or not hmac.compare_digest(_base64(signature), self._signature):
            raise RemoteProtocolError("SCRAM: the server could not prove that it knows the password; do not trust it")

    def _read(self, challenge: bytes) -> tuple[str, bytes, int]:
        attributes = _attributes(challenge)
        nonce, salt, iterations = attributes.get("r", ""), _base64(attributes.get("s", "")), attributes.get("i", "")
        # A server nonce that adds nothing lets an old exchange be played again (RFC 5802, 5.1).
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise RemoteProtocolError("SCRAM: the server's nonce does not continue ours")
        if not salt:
            raise RemoteProtocolError("SCRAM: the server sent no salt")
        # The length is checked before int(), which takes seconds for megabytes of digits.
        if not (iterations.isascii() and iterations.isdecimal() and len(iterations) <= len(str(ITERATIONS_MAX))):
            raise RemoteProtocolError(f"SCRAM: {iterations[:20]!r} is no iteration count up to {ITERATIONS_MAX:,}")
        if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
            raise RemoteProtocolError(
                f"SCRAM: {iterations} iterations asked, {ITERATIONS_MIN:,} to {ITERATIONS_MAX:,} accepted"
            )
        return nonce, salt, int(iterations)

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def plain(user: str, password: str) -> bytes:
    """Return the message of the PLAIN mechanism: no authorisation id, user, password."""
    return b"\x00".join((b"", user.encode(), password.encode()))


def _attributes(message: bytes) -> dict[str, str]:
    try:
        pairs = (part.partition("=") for part in message.decode().split(","))
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"SCRAM: the server's message is not text ({len(message)} bytes)") from None
    return {name: value for name, _, value in pairs}


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RemoteProtocolError(f"SCRAM: {text[:40]!r} is not base64") from None
