"""The server's side of SCRAM: it checks that the client knows the password, without receiving the password, and proves
that the server knows its keys.

    C: n,,n=user,r=CNONCE
    S: r=CNONCE SNONCE,s=SALT,i=ITERATIONS
    C: c=biws,r=CNONCE SNONCE,p=PROOF
    S: v=SIGNATURE

A client may bind its proof to the connection: then `p=KIND,,` replaces `n,,`, and `c=` contains that, followed by the
client's view of the connection. The node compares it with its own view (node/users/binding.py).

Source: RFC 5802 (SHA-1), RFC 7677 (SHA-256), the same with SHA-512. kv.md 1.2.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headwater.accounts.keys import Keys

MESSAGE_BYTES_MAX = 4096


class Malformed(Exception):  # noqa: N818 - becomes an answer
    """The client's message is not SCRAM."""


@dataclass(frozen=True, slots=True)
class First:
    """The parts of the client's first message.

    Attributes:
        user: the name to log in as.
        nonce: the client's part of the nonce.
        bare: the message without its header, as it arrived.
        header: the part before the name.
        binding: the kind of binding that the header names; empty for none.
    """

    user: str
    nonce: str
    bare: str
    header: str = "n,,"
    binding: str = ""


def read_first(message: bytes) -> First:
    """Parse the client's first message, `n,,n=user,r=nonce`.

    In a name =2C stands for a comma, and =3D for an equals sign.

    Raises:
        Malformed: it is not such a message.
    """
    text = _text(message)
    parts = text.split(",", 2)
    flag, _, binding = parts[0].partition("=")
    if len(parts) != 3 or parts[1] or flag not in ("n", "y", "p") or (flag == "p") is not bool(binding):
        raise Malformed("the first message does not begin with n,, or p=KIND,,")
    bare = parts[2]
    attributes = _attributes(bare)
    user, nonce = attributes.get("n", ""), attributes.get("r", "")
    if not user or not nonce or "m" in attributes:
        raise Malformed("the first message needs a name and a nonce")
    # In this order: a name that contains "=2C" arrives as "=3D2C", and must become "=2C".
    return First(user.replace("=2C", ",").replace("=3D", "="), nonce, bare, f"{parts[0]},,", binding)


def _never(data: bytes) -> bool:
    return False


class Exchange:
    """One login: `challenge` answers the first message, `finish` checks the second.

    Args:
        hash_name: the name of the hash.
        first: the client's first message.
        keys: the user's keys.
        nonce: the server's part of the nonce, new for every exchange.
        sees: returns True if the client's view of the connection agrees with the node's; called only if the proof is
            bound to a connection.

    Attributes:
        hash_name: the name of the hash.
        keys: the user's keys as the exchange began.
        is_for_another: True if the proof was bound to another connection.
        bound_to: the view of that other connection to which it was bound.
    """

    def __init__(
        self, hash_name: str, first: First, keys: Keys, nonce: str, sees: Callable[[bytes], bool] = _never
    ) -> None:
        self.hash_name: Final = hash_name
        self._first = first
        self.keys: Final = keys
        self._sees = sees
        self.is_for_another: bool = False
        self.bound_to: bytes = b""
        self._nonce = first.nonce + nonce
        salt = base64.b64encode(keys.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={keys.iterations}"

    def challenge(self) -> bytes:
        """Return the server's first message."""
        return self._challenge.encode()

    def finish(self, message: bytes) -> bytes | None:
        """Check the client's final message; return the server's, `v=...`, if the proof is right; None otherwise.

        Raises:
            Malformed: the message does not continue this exchange.
        """
        text = _text(message)
        # The signature covers everything before the proof, byte for byte as it arrived.
        without_proof, separator, proof = text.rpartition(",p=")
        attributes = _attributes(without_proof)
        channel, header = _base64(attributes.get("c", "")), self._first.header.encode()
        bound = channel.removeprefix(header)
        is_whole = channel.startswith(header) and bool(bound) is bool(self._first.binding)
        # The nonce binds the proof to this exchange: a proof that was overheard in another one has another nonce.
        if not separator or not is_whole or attributes.get("r") != self._nonce:
            raise Malformed("the final message does not continue this exchange")
        if bound and not self._sees(bound):
            self.is_for_another, self.bound_to = True, bound
            return None
        auth_message = f"{self._first.bare},{self._challenge},{without_proof}".encode()
        signature = hmac.digest(self.keys.stored_key, auth_message, self.hash_name)
        client_proof = _base64(proof)
        if len(client_proof) != len(signature):
            return None
        client_key = bytes(a ^ b for a, b in zip(client_proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self.hash_name, client_key).digest(), self.keys.stored_key):
            return None
        return b"v=" + base64.b64encode(hmac.digest(self.keys.server_key, auth_message, self.hash_name))


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise Malformed(f"a message of {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise Malformed("a message that is not text") from None


def _attributes(text: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("what should be base64 is none") from None
