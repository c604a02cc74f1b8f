"""Keys of passwords, by the published example of RFC 5802."""

from __future__ import annotations

import base64

from headwater.accounts.keys import HASHES, ITERATIONS, derive

SALT = base64.b64decode("QSXCR+Q6sek8bf92")


def test_the_keys_of_the_published_example() -> None:
    keys = derive("sha1", "pencil", SALT, 4096)
    assert keys.stored_key.hex() == "e9d94660c39d65c38fbad91c358f14da0eef2bd6"
    assert keys.server_key.hex() == "0fe09258b3ac852ba502cc62ba903eaacdbf7d31"


def test_another_salt_gives_other_keys_and_each_hash_has_its_own() -> None:
    keys = {derive(name, "pencil", salt).stored_key for name in HASHES for salt in (SALT, b"other")}
    assert (len(keys), len(HASHES)) == (6, 3)
    assert derive("sha256", "pencil", SALT).iterations == ITERATIONS
