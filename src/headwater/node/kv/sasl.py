"""SASL: PLAIN and SCRAM with the users of the node (node/users/; kv.md 1.2).

Without users no login is needed, and PLAIN accepts any name and password. In SCRAM, which most Couchbase clients
require, the node must also prove that it knows the password; so without users the password is that of Couchbase's own
examples, `password`, for clients on the same machine. With users the key derivation runs in a thread, so that no other
client waits for it. Answers to an address with many failed logins are delayed, so that guessing is slow without locking
out the account's owner (node/users/failures.py). PLAIN, which sends the password in clear text, is accepted over TLS
and from the same machine, unless the options differ. Members of a cluster must log in by SCRAM with a proof that is
bound to the connection (node/users/binding.py). A client with a user's certificate is logged in at once, and may log in
as another user.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headwater.accounts.roles import CLUSTER_USER
from headwater.node.connections.loopback import is_local
from headwater.node.kv.answering import is_held_back, settle
from headwater.node.kv.command import handles
from headwater.node.refused import CommandRefused
from headwater.node.users import scram
from headwater.node.users.binding import sees, why_for_another
from headwater.node.users.failures import TooManyWait
from headwater.node.users.logins import OPEN_PASSWORD
from headwater.protocol.scram import BOUND, HASHES
from headwater.wire.bootstrap import (
    SaslAuth,
    SaslContinue,
    SaslListMechs,
    SaslListMechsResponse,
    SaslResponse,
    SaslStep,
)
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Session

MECHANISMS = (*HASHES, "PLAIN")


@handles(SaslListMechs)
def list_mechanisms(session: Session, request: SaslListMechs) -> SaslListMechsResponse:
    """Return the mechanisms that this client may use, strongest first."""
    return SaslListMechsResponse(value=" ".join(_offered_mechanisms(session)).encode())


@handles(SaslAuth)
async def auth(session: Session, request: SaslAuth) -> SaslResponse | SaslContinue:
    """Answer SASL_AUTH, the first message of a login. The connection is logged out until the login succeeds."""
    # First of all, before anything can fail: a connection must not keep the rights of its former user.
    session.login = session.user = None
    session.refresh_access()
    mechanism = request.key.decode("ascii", "replace")
    if mechanism.removesuffix(BOUND) not in _offered_mechanisms(session) or mechanism == f"PLAIN{BOUND}":
        raise await _refused(session, _why_not_offered(mechanism))
    try:
        if mechanism == "PLAIN":
            return await _plain(session, request.value)
        return await _begin_scram(session, mechanism, request.value)
    except scram.Malformed as problem:
        raise await _refused(session, str(problem)) from None


@handles(SaslStep)
async def step(session: Session, request: SaslStep) -> SaslResponse:
    """Answer SASL_STEP, the second message of SCRAM; refuse it with EINVAL without a preceding SASL_AUTH."""
    login, session.login = session.login, None
    if not isinstance(login, tuple) or request.key.decode("ascii", "replace") != login[0]:
        raise CommandRefused(Status.EINVAL, "no exchange of this mechanism is in progress")
    _, user, exchange = login
    outcome: bytes | None = None

    async def judge() -> bool:
        nonlocal outcome
        outcome = exchange.finish(request.value)
        # The challenge may be hours old: a password that was taken away since is as wrong as any.
        return outcome is not None and await session.server.users.has_keys(exchange.hash_name, user, exchange.keys)

    try:
        is_right = await _is_right_attempt(session, user, judge)
    except scram.Malformed as problem:
        raise await _refused(session, str(problem), user) from None
    if not is_right:
        raise _wrong(session, _why_not(session, exchange), user)
    await _succeed(session, user)
    return SaslResponse(value=outcome or b"")


def _offered_mechanisms(session: Session) -> tuple[str, ...]:
    """Return the mechanisms that a client may use.

    PLAIN is missing if the client must not send a password in clear text. SCRAM is missing if the node has no users and
    the client may use PLAIN from another machine, because everybody knows the password of a node without users.
    """
    server, peer = session.server, session.connection.peer
    if server.hears_passwords(session.connection):
        return MECHANISMS if server.users.required or is_local(peer) else ("PLAIN",)
    return tuple(HASHES)


def _why_not_offered(mechanism: str) -> str:
    if mechanism == "PLAIN":
        return "PLAIN from another machine, without TLS, tells the network the password; --plain anywhere takes it"
    return f"mechanism {mechanism!r} is not offered"


def _why_not(session: Session, exchange: scram.Exchange) -> str:
    if exchange.is_for_another:
        here = session.connection
        return why_for_another(here.tls, here.called_at, _names(session), exchange.bound_to)
    if session.server.users.required:
        return "wrong name or password"
    return f"on a node without users SCRAM needs the password {OPEN_PASSWORD!r}; or start it with --user"


async def _plain(session: Session, value: bytes) -> SaslResponse:
    """Check a PLAIN message, `[authzid] 00 user 00 password`, and log the user in."""
    parts = value.split(b"\0")
    if len(parts) != 3:
        raise scram.Malformed("PLAIN needs three parts")
    user, password = (part.decode("utf-8", "replace") for part in parts[1:])
    users = session.server.users
    if users.was_refused(user, password) or not await _is_right_attempt(
        session, user, lambda: users.is_right(user, password)
    ):
        raise _wrong(session, "wrong name or password", user)
    await _succeed(session, user)
    return SaslResponse()


async def _begin_scram(session: Session, mechanism: str, value: bytes) -> SaslContinue:
    first = scram.read_first(value)
    users, hash_name = session.server.users, HASHES[mechanism.removesuffix(BOUND)]
    if bool(first.binding) is not mechanism.endswith(BOUND):
        raise scram.Malformed("a mechanism is -PLUS if its proof is bound to the connection, and only then")
    # Whoever gets an unbound proof could pass it on to another member, and log in there.
    if first.user == CLUSTER_USER and not first.binding:
        raise scram.Malformed("the members' secret is proved for one connection alone, and this proof is for any")
    try:
        keys = await users.keys_for(hash_name, first.user)
    except TooManyWait as why:
        raise _dropped(session, why, first.user) from None
    nonce = secrets.token_urlsafe(18)
    exchange = scram.Exchange(hash_name, first, keys, nonce, lambda proof: _is_here(session, first.binding, proof))
    session.login = (mechanism, first.user, exchange)
    return SaslContinue(value=exchange.challenge())


def _is_here(session: Session, kind: str, proof: bytes) -> bool:
    """Return True if a proof is bound to this node: to its certificate, or to one of its addresses."""
    return sees(session.connection.tls, session.connection.called_at, _names(session), kind, proof)


def _names(session: Session) -> set[str]:
    """Return the addresses of this node in cluster maps."""
    maps = (bucket.membership.map for bucket in session.server.buckets.values())
    return {str(each.here) for each in maps if each is not None and each.here is not None}


async def _is_right_attempt(session: Session, user: str, attempt: Callable[[], Awaitable[bool]]) -> bool:
    """Return True if a login attempt is correct. Attempts with one name from one address are checked one after
    another.
    """
    server = session.server
    try:
        return await server.failures.judge(_address(session), user, server.loop.time, attempt)
    except TooManyWait as why:
        raise _dropped(session, why, user) from None


def _address(session: Session) -> str:
    return session.connection.peer.rpartition(":")[0]


async def _refused(session: Session, why: str, user: str = "") -> CommandRefused:
    """Return the refusal of a malformed login attempt. The attempt counts as a failed login, and the answer is delayed
    like that of a failed login.
    """
    failures, now = session.server.failures, session.server.loop.time()
    failures.add(_address(session), now)
    refusal = _wrong(session, why, user)
    if delay := failures.delay(_address(session), now):
        await asyncio.sleep(delay)
    return refusal


def _wrong(session: Session, why: str, user: str = "") -> CommandRefused:
    """Log a refused login, and return the refusal, which is the same for every reason."""
    session.server.login_refused(session.connection.peer, user, why)
    return CommandRefused(Status.AUTH_ERROR)


def _dropped(session: Session, why: TooManyWait, user: str) -> CommandRefused:
    """Close the connection, because too many logins wait already (`why`); return the refusal."""
    refusal = _wrong(session, str(why), user)
    session.connection.drop(f"login refused: {why}", fault=False)
    return refusal


async def _succeed(session: Session, user: str) -> None:
    """Log the client in, and select a bucket: the one with the user's name, otherwise the node's first. Old clients
    (spymemcached) expect this. A bucket without rights for the user is not selected.
    """
    session.user = user
    buckets = session.server.buckets
    bucket = buckets.get(user) or next(iter(buckets.values()))
    if bucket is not session.server and is_held_back(session):
        await settle(session)
    session.select(bucket)
