"""What a client says before the work begins: greet, log in, choose a bucket, fetch the map; for DCP, open and set up.

Handshakes are generators: each `yield` hands out a request and receives its response, so the order of the conversation
is the order of the lines, and whoever has a connection (blocking, asyncio, a test with a list) can drive one:

    HELLO -> [SASL_LIST_MECHS -> SASL_AUTH -> SASL_STEP] -> [SELECT_BUCKET] -> [GET_CLUSTER_CONFIG]     greet()
    DCP_OPEN -> DCP_CONTROL, one at a time                                                             open_producer()

Old servers know less than new ones. What they do not know is left out (HELLO, SELECT_BUCKET, the map, controls);
what they refuse is an error. `expect` holds a response against its request, for all drivers alike.

Source: kv.md 1 and 5, dcp.md 1, 2.1 and 4.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TypeAlias, TypeVar

from headwater.errors import OptionError, RemoteProtocolError, StatusError, error_for
from headwater.protocol.scram import HASHES, Scram, plain
from headwater.wire.features import Feature
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

Result = TypeVar("Result")
Conversation: TypeAlias = Generator[Frame, Frame, Result]
"""Yields requests, is sent their responses, returns what was agreed."""

MECHANISMS = (*HASHES, "PLAIN")
"""Strongest first; the first one that the server offers as well is used."""

KV_FEATURES = (Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON, Feature.MUTATION_SEQNO)
DCP_FEATURES = (Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON)
CONTEXT_CHARACTERS_MAX = 200

_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})
_NO_MAP = _UNKNOWN | {Status.KEY_ENOENT, Status.EACCESS, Status.NO_BUCKET}
_OPEN = Struct(">II")


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are and what we want.

    Args:
        agent: how we call ourselves, shown by the server's statistics.
        bucket: the bucket to select.
        user, password: None for servers that let everybody in.
        nonce: for SCRAM, new for every connection.
        mechanisms: which may be used, strongest first; leave PLAIN out where the password must not cross the network.
        features: what to ask for in HELLO.
    """

    agent: str
    bucket: str = ""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    nonce: str = field(default="", repr=False)
    mechanisms: tuple[str, ...] = MECHANISMS
    features: tuple[int, ...] = KV_FEATURES


@dataclass(frozen=True, slots=True)
class Greeting:
    """What came of it: the features granted, and the map as JSON text (None when the server has none)."""

    features: frozenset[int]
    config: bytes | None


def request(opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"", vbucket: int = 0) -> Frame:
    """Return a request; its opaque is given by whoever sends it."""
    return Frame(Magic.CLIENT_REQUEST, opcode, key, extras, value, vbucket=vbucket)


def expect(asked: Frame, answer: Frame) -> Frame:
    """Return `answer` if it answers `asked`.

    Raises:
        RemoteProtocolError: another opcode or opaque. On a connection with one request in flight that is no answer
            to something else: the two ends no longer agree where they are.
    """
    if not answer.is_response or (answer.opcode, answer.opaque) != (asked.opcode, asked.opaque):
        raise RemoteProtocolError(
            f"request 0x{asked.opcode:02x} with opaque {asked.opaque} was answered by opcode 0x{answer.opcode:02x} "
            f"with opaque {answer.opaque}"
        )
    return answer


def refused(asked: str, answer: Frame) -> StatusError:
    """Return the error for a response that is not a success, with what the server wrote to explain it."""
    said = answer.value[:CONTEXT_CHARACTERS_MAX].decode(errors="replace")
    return error_for(answer.status, f"{asked} ({said})" if said else asked)


def greet(login: Login) -> Conversation[Greeting]:
    """Say hello, log in, select the bucket, fetch the map.

    Raises:
        StatusError: the server refused (AuthError, NoAccess, KeyNotFound for an unknown bucket, ...).
        RemoteProtocolError: the server broke SCRAM or the HELLO answer.
        OptionError: a password is needed and none of the server's mechanisms may be used.
    """
    features = yield from _hello(login)
    if login.user is not None:
        yield from _authenticate(login)
    # A server that does not grant SELECT_BUCKET has one bucket, or chose it by the user's name (kv.md 1.2).
    if login.bucket and Feature.SELECT_BUCKET in features:
        answer = yield request(Opcode.SELECT_BUCKET, login.bucket.encode())
        if answer.status and answer.status not in _UNKNOWN:
            raise refused(f'select bucket "{login.bucket}"', answer)
    answer = yield request(Opcode.GET_CLUSTER_CONFIG)
    if answer.status and answer.status not in _NO_MAP:
        raise refused("fetch the cluster map", answer)
    return Greeting(features, None if answer.status else answer.value or None)


def _hello(login: Login) -> Conversation[frozenset[int]]:
    wanted = b"".join(int(feature).to_bytes(2) for feature in login.features)
    answer = yield request(Opcode.HELLO, login.agent.encode(), wanted)
    if answer.status in _UNKNOWN:
        return frozenset()
    if answer.status:
        raise refused("HELLO", answer)
    if len(answer.value) % 2:
        raise RemoteProtocolError(f"HELLO (opcode 0x1f): {len(answer.value)} bytes of features, an odd number")
    codes = (int.from_bytes(answer.value[at : at + 2]) for at in range(0, len(answer.value), 2))
    return frozenset(codes)


def _authenticate(login: Login) -> Conversation[None]:
    answer = yield request(Opcode.SASL_LIST_MECHS)
    if answer.status:
        raise refused("list the ways to log in", answer)
    mechanism = choose(login.mechanisms, answer.value.decode(errors="replace").split())
    user, password = login.user or "", login.password or ""
    if mechanism == "PLAIN":
        answer = yield request(Opcode.SASL_AUTH, b"PLAIN", plain(user, password))
    else:
        scram = Scram(mechanism, user, password, login.nonce)
        answer = yield request(Opcode.SASL_AUTH, mechanism.encode(), scram.first())
        if answer.status == Status.AUTH_CONTINUE:
            answer = yield request(Opcode.SASL_STEP, mechanism.encode(), scram.final(answer.value))
        if not answer.status:
            scram.verify(answer.value)
    if answer.status:
        raise refused(f'log in as "{user}" by {mechanism}', answer)


def choose(allowed: Sequence[str], offered: Iterable[str]) -> str:
    """Return the first mechanism of `allowed` that the server offers.

    Raises:
        OptionError: there is none.
    """
    known = set(offered)
    for mechanism in allowed:
        if mechanism in known:
            return mechanism
    raise OptionError("mechanisms", ", ".join(allowed), f"among those the server offers: {', '.join(sorted(known))}")


def _open(name: str, flags: int) -> Frame:
    return request(Opcode.DCP_OPEN, name.encode(), extras=_OPEN.pack(0, flags))


@dataclass(frozen=True, slots=True)
class Opening:
    """A DCP connection to be opened, the peer being the producer.

    Args:
        name: unique among the connections of the bucket: a second one of the same name ends the first (dcp.md 2.1).
        flags: of DCP_OPEN.
        optional_flags: flags that a server may not know; left out if it refuses them.
        required: controls that must succeed, as (key, value), in the order to send them.
        optional: controls that may be refused; a refusal means "feature absent" (dcp.md 4).
    """

    name: str
    flags: int
    optional_flags: int = 0
    required: tuple[tuple[str, str], ...] = ()
    optional: tuple[tuple[str, str], ...] = ()


def open_producer(opening: Opening) -> Conversation[frozenset[str]]:
    """Open the connection and negotiate; returns the keys of the controls that were accepted.

    Raises:
        StatusError: the open or a required control was refused.
    """
    answer = yield _open(opening.name, opening.flags | opening.optional_flags)
    if answer.status == Status.EINVAL and opening.optional_flags:
        answer = yield _open(opening.name, opening.flags)
    if answer.status:
        raise refused(f'open the DCP connection "{opening.name}"', answer)
    accepted = []
    for key, value in opening.required + opening.optional:
        answer = yield request(Opcode.DCP_CONTROL, key.encode(), value.encode())
        if not answer.status:
            accepted.append(key)
        elif (key, value) in opening.required:
            raise refused(f"control {key}={value}", answer)
    return frozenset(accepted)
