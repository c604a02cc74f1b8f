"""The keys of a password that a server stores: enough to check a proof, not enough to log in elsewhere.

Source: RFC 5802, 3; kv.md 1.2.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from headwater.protocol.scram import HASHES as MECHANISMS

HASHES = tuple(dict.fromkeys(MECHANISMS.values()))
ITERATIONS = 15_000
"""As many as Couchbase's servers ask for: some ten milliseconds for whoever knows the password, and for each guess."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that a server stores for a password: enough to check a proof, not enough to log in elsewhere."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def derive(hash_name: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Keys:
    """Derive the keys of a password. SaltedPassword = PBKDF2; StoredKey = H(HMAC(., "Client Key")); ServerKey = HMAC(.,
    "Server Key"). This takes some milliseconds.
    """
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    return Keys(
        salt, iterations, hashlib.new(hash_name, client_key).digest(), hmac.digest(salted, b"Server Key", hash_name)
    )
