"""SASL: PLAIN and SCRAM with the users of the settings (kv.md 1.2).

Without configured users no login is needed, and PLAIN lets any name and password in. SCRAM, which most Couchbase
clients insist on, wants a proof from the node, too, that it knows the password; so there it is the one of Couchbase's
own examples, `password`. With users: an unknown user gets a challenge like any other (its salt is made from the name
and a secret of this process) and fails in the last step; the key derivation runs in a thread, so nobody else waits for
it; and an address that fails often waits longer for each answer, so that guessing is slow without locking the account's
owner out.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.node.kv import scram
from headwater.node.kv.command import Answer, Needs, Part, Refused, Reply, command
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.session import KvSession

MECHANISMS = (*scram.HASHES, "PLAIN")
OPEN_PASSWORD = "password"  # noqa: S105 - for SCRAM on a node that lets everybody in
FAILURES_FREE = 5  # wrong logins of one address before its answers are delayed
FAILURE_MEMORY_SECONDS = 60.0
DELAY_SECONDS_MAX = 2.0
ADDRESSES_MAX = 4096


@dataclass(slots=True)
class Users:
    """Names, passwords and the SCRAM keys derived from them (once a user and mechanism)."""

    passwords: Mapping[str, str]
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _keys: dict[tuple[str, str], scram.Keys] = field(default_factory=dict)

    def is_right(self, user: str, password: str) -> bool:
        """Compare in constant time; an unknown user takes as long."""
        known = self.passwords.get(user)
        same = hmac.compare_digest((known or "").encode(), password.encode())
        return (same and known is not None) or not self.passwords

    def salt(self, hash_name: str, user: str) -> bytes:
        """The same salt for the same name while this process lives, whether the user exists or not."""
        return hmac.digest(self.secret, f"{hash_name}/{user}".encode(), "sha256")[:16]

    def keys(self, hash_name: str, user: str) -> scram.Keys:
        """The SCRAM keys of a user; for an unknown one keys that no proof fits. Some milliseconds the first time."""
        password = self.passwords.get(user)
        if not self.passwords:
            user, password = "", OPEN_PASSWORD  # the same for all names, so nobody fills the table of keys
        if password is None:
            size = hashlib.new(hash_name).digest_size
            random = secrets.token_bytes(2 * size)
            return scram.Keys(self.salt(hash_name, user), scram.ITERATIONS, random[:size], random[size:])
        found = self._keys.get((hash_name, user))
        if found is None:
            found = self._keys[hash_name, user] = scram.derive(hash_name, password, self.salt(hash_name, user))
        return found


class Failures:
    """Wrong logins by address, to slow guessing down; the time is an argument."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def add(self, address: str, now: float) -> None:
        """One more wrong login."""
        count, at = self._seen.pop(address, (0, now))
        self._seen[address] = (count + 1 if now - at < FAILURE_MEMORY_SECONDS else 1, now)
        if len(self._seen) > ADDRESSES_MAX:
            self._seen.popitem(last=False)

    def delay(self, address: str, now: float) -> float:
        """How long the next answer to this address waits, seconds."""
        count, at = self._seen.get(address, (0, now))
        if count <= FAILURES_FREE or now - at >= FAILURE_MEMORY_SECONDS:
            return 0.0
        return min(DELAY_SECONDS_MAX, 0.05 * (1 << min(count - FAILURES_FREE, 10)))


@command(Opcode.SASL_LIST_MECHS, needs=Needs.NOTHING)
def list_mechanisms(session: KvSession, frame: Frame) -> Reply:
    """Strongest first."""
    return Reply(value=" ".join(MECHANISMS).encode())


@command(Opcode.SASL_AUTH, key=Part.REQUIRED, value=Part.ANY, needs=Needs.NOTHING)
async def auth(session: KvSession, frame: Frame) -> Answer:
    """The first message. Whoever tries again is nobody until it succeeds."""
    session.login = session.user = None
    if session.server.config.users:
        session.bucket = None
    session.changed()
    mechanism = frame.key.decode("ascii", "replace")
    if mechanism not in MECHANISMS:
        return await _fail(session, f"mechanism {mechanism!r} is not offered")
    try:
        if mechanism == "PLAIN":
            return await _plain(session, frame.value)
        return await _begin_scram(session, mechanism, frame.value)
    except scram.Malformed as problem:
        return await _fail(session, str(problem))


@command(Opcode.SASL_STEP, key=Part.REQUIRED, value=Part.ANY, needs=Needs.NOTHING)
async def step(session: KvSession, frame: Frame) -> Answer:
    """The second message of SCRAM; without SASL_AUTH before it: EINVAL."""
    login, session.login = session.login, None
    if not isinstance(login, tuple) or frame.key.decode("ascii", "replace") != login[0]:
        raise Refused(Status.EINVAL, "no exchange of this mechanism is in progress")
    _, user, exchange = login
    try:
        outcome = exchange.finish(frame.value)
    except scram.Malformed as problem:
        return await _fail(session, str(problem))
    if outcome is None:
        return await _fail(session, _why_not(session))
    _succeed(session, user)
    return Reply(value=outcome)


def _why_not(session: KvSession) -> str:
    if session.server.config.users:
        return "wrong name or password"
    return f"on a node without users SCRAM needs the password {OPEN_PASSWORD!r}; or start it with --user"


async def _plain(session: KvSession, value: bytes) -> Answer:
    """`[authzid] 00 user 00 password`."""
    parts = value.split(b"\0")
    if len(parts) != 3:
        raise scram.Malformed("PLAIN needs three parts")
    user, password = (part.decode("utf-8", "replace") for part in parts[1:])
    if not session.server.users.is_right(user, password):
        return await _fail(session, "wrong name or password")
    _succeed(session, user)
    return Reply()


async def _begin_scram(session: KvSession, mechanism: str, value: bytes) -> Answer:
    first = scram.read_first(value)
    users, hash_name = session.server.users, scram.HASHES[mechanism]
    keys = await asyncio.to_thread(users.keys, hash_name, first.user)
    exchange = scram.Exchange(hash_name, first, keys, secrets.token_urlsafe(18))
    session.login = (mechanism, first.user, exchange)
    return Reply(Status.AUTH_CONTINUE, value=exchange.challenge())


async def _fail(session: KvSession, why: str) -> Answer:
    """One refusal for every reason; only the log tells them apart."""
    connection, failures = session.connection, session.server.failures
    address, now = connection.peer.rpartition(":")[0], session.server.loop.time()
    failures.add(address, now)
    session.server.warn(connection.peer, f"login refused: {why}")
    if delay := failures.delay(address, now):
        await asyncio.sleep(delay)
    raise Refused(Status.AUTH_ERROR)


def _succeed(session: KvSession, user: str) -> None:
    """The node has one bucket, so whoever is let in has it selected (spymemcached and old clients expect that)."""
    session.user = user
    session.bucket = session.server.bucket
    session.changed()
