"""A client's handshake: greet, log in, choose a bucket, fetch the map; for DCP, open and set up.

Handshakes are generators: each `yield` hands out a request and receives its response, so the order of the conversation
is the order of the lines, and whoever has a connection (blocking, asyncio, a test with a list) can drive one:

    HELLO -> [SASL_LIST_MECHS -> SASL_AUTH -> SASL_STEP] -> [SELECT_BUCKET] -> [GET_CLUSTER_CONFIG]     greet()
    DCP_OPEN -> DCP_CONTROL, one at a time                                                             open_producer()

Old servers know less than new ones. What they do not know is left out (HELLO, SELECT_BUCKET, the map, controls);
what they refuse is an error. `expect` holds a response against its request, for all drivers alike; `Handshake` drives a
conversation by bytes, as all ends are driven (protocol/end.py).

Source: kv.md 1 and 5, dcp.md 1, 2.1 and 4.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

from headwater.errors import BucketNotFound, OptionError, RemoteProtocolError, StatusError, error_for
from headwater.protocol.end import PeerGone
from headwater.protocol.scram import BOUND, HASHES, Binding, Scram, plain
from headwater.wire import bootstrap, dcp
from headwater.wire.features import Feature
from headwater.wire.header import HEADER_BYTES, Frame, lengths, response
from headwater.wire.json_text import context_of
from headwater.wire.opcodes import Opcode, name_of
from headwater.wire.status import Status

Result = TypeVar("Result")
Conversation: TypeAlias = Generator[Frame, Frame, Result]
"""Yields requests, is sent their responses, returns what was agreed."""

MECHANISMS = tuple(HASHES)
"""Strongest first; the first one that the server offers as well is used. By none of them it learns the password."""
MECHANISMS_KNOWN = (*MECHANISMS, "PLAIN")
"""PLAIN tells the password to whoever answers at that address, and all on the way: only where it is asked for."""

KV_FEATURES = (
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.JSON,
    Feature.MUTATION_SEQNO,
    Feature.COMPLETE_SEQNOS,
)
DCP_FEATURES = (Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON)

_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})
NO_MAP = _UNKNOWN | {Status.KEY_ENOENT, Status.EACCESS, Status.NO_BUCKET}


@dataclass(frozen=True, slots=True)
class Login:
    """The client's name, credentials and wishes.

    Args:
        agent: how we call ourselves, shown by the server's statistics.
        bucket: the bucket to select.
        user, password: None for servers that let everybody in.
        nonce: for SCRAM, new for every connection.
        mechanisms: which may be used, strongest first; with PLAIN the password crosses the network as it is.
        features: what to ask for in HELLO. With none there is no HELLO: plain memcached (1.6) loses its place at a
            command that it does not know and that has a body, and answers no more.
        wants_map: whether to fetch the cluster map; who needs none should not ask, for some servers hang up on that.
        binding: the connection that the proof of the password is for; None for any.
    """

    agent: str
    bucket: str = ""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    nonce: str = field(default="", repr=False)
    mechanisms: tuple[str, ...] = MECHANISMS
    features: tuple[int, ...] = KV_FEATURES
    wants_map: bool = True
    binding: Binding | None = None


@dataclass(frozen=True, slots=True)
class Greeting:
    """The result of a greeting: the features granted, and the map as JSON text (None when the server has none)."""

    features: frozenset[int]
    config: bytes | None


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


@dataclass(frozen=True, slots=True)
class Agreed(Generic[Result]):
    """The conversation is over; `result` is what it returned."""

    result: Result


class Handshake(Generic[Result]):
    """A conversation, driven by bytes and the time.

    Args:
        conversation: one that asks at least once; what it raises comes out of `receive_data`.
        now: seconds of a monotonic clock. seconds_max: how long all of it may take; None for ever.

    Attributes:
        deadline: when to call `tick`; None for never.
        trailing_data: what came behind the last answer: give it to the end that takes the connection over.
    """

    def __init__(
        self, conversation: Conversation[Result], *, now: float = 0.0, seconds_max: float | None = None
    ) -> None:
        self.deadline: float | None = None if seconds_max is None else now + seconds_max
        self.trailing_data: bytes = b""
        self._seconds_max = seconds_max
        self._conversation = conversation
        self._kept, self._out = bytearray(), bytearray()
        self._opaque = 0
        self._asked = self._ask(next(conversation))

    def receive_data(self, data: bytes, now: float) -> list[Agreed[Result] | PeerGone]:
        """Take received bytes; `Agreed` when the last answer is here.

        Raises:
            RemoteProtocolError: no answer to what was asked. And what the conversation raises.
        """
        self._kept += data
        while len(self._kept) >= HEADER_BYTES and (size := lengths(self._kept).frame) <= len(self._kept):
            frame = Frame.decode(self._kept[:size])
            del self._kept[:size]
            try:
                self._take(frame)
            except StopIteration as stop:
                self.trailing_data = bytes(self._kept)
                return [Agreed(stop.value)]
        return []

    def _take(self, frame: Frame) -> None:
        if not frame.is_response and frame.opcode == Opcode.DCP_NOOP:  # its interval may begin while we still ask
            self._out += response(frame).encode()
        else:
            self._asked = self._ask(self._conversation.send(expect(self._asked, frame)))

    def _ask(self, asked: Frame) -> Frame:
        self._opaque += 1
        numbered = replace(asked, opaque=self._opaque)
        self._out += numbered.encode()
        return numbered

    def receive_eof(self) -> list[Agreed[Result] | PeerGone]:
        """The server closed the connection before all was said."""
        return [PeerGone(waited_for=name_of(self._asked.opcode))]

    def tick(self, now: float) -> list[Agreed[Result] | PeerGone]:
        """The deadline has come."""
        if self._seconds_max is None or self.deadline is None or now < self.deadline:
            return []
        return [PeerGone(self._seconds_max, name_of(self._asked.opcode))]

    def data_to_send(self) -> bytes:
        """Take the bytes that wait to be sent."""
        data = bytes(self._out)
        self._out.clear()
        return data


def refused(asked: str, answer: Frame) -> StatusError:
    """Return the error for a response that is not a success, with what the server wrote to explain it."""
    said = context_of(answer.value)
    return error_for(answer.status, f"{asked} ({said})" if said else asked)


def greet(login: Login) -> Conversation[Greeting]:
    """Say hello, log in, select the bucket, fetch the map.

    Raises:
        StatusError: the server refused (AuthError, NoAccess, BucketNotFound, ...).
        RemoteProtocolError: the server broke SCRAM or the HELLO answer.
        OptionError: a password is needed and none of the server's mechanisms may be used.
    """
    features = yield from _hello(login)
    if login.user is not None:
        yield from _authenticate(login)
    # A server that does not grant SELECT_BUCKET has one bucket, or chose it by the user's name (kv.md 1.2); for an
    # administrator, whose name is no bucket's, it has chosen none, and takes the command though it does not grant it.
    if login.bucket and (Feature.SELECT_BUCKET in features or login.user not in (None, login.bucket)):
        answer = yield bootstrap.SelectBucket(key=login.bucket.encode()).frame()
        if answer.status and answer.status not in _UNKNOWN:
            if answer.status == Status.KEY_ENOENT:
                raise BucketNotFound(f'select bucket "{login.bucket}"')
            raise refused(f'select bucket "{login.bucket}"', answer)
    if not login.wants_map:
        return Greeting(features, None)
    answer = yield bootstrap.GetClusterConfig().frame()
    if answer.status and answer.status not in NO_MAP:
        raise refused("fetch the cluster map", answer)
    return Greeting(features, None if answer.status else answer.value or None)


def _hello(login: Login) -> Conversation[frozenset[int]]:
    if not login.features:
        return frozenset()
    answer = yield bootstrap.Hello(key=login.agent.encode(), features=list(login.features)).frame()
    if answer.status in _UNKNOWN:
        return frozenset()
    if answer.status:
        raise refused("HELLO", answer)
    return frozenset(bootstrap.HelloResponse.decode(answer).features)


def _authenticate(login: Login) -> Conversation[None]:
    answer = yield bootstrap.SaslListMechs().frame()
    if answer.status:
        raise refused("list the ways to log in", answer)
    mechanism = choose(login.mechanisms, answer.value.decode(errors="replace").split())
    user, password = login.user or "", login.password or ""
    if mechanism == "PLAIN":
        answer = yield bootstrap.SaslAuth(key=b"PLAIN", value=plain(user, password)).frame()
    else:
        scram = Scram(mechanism, user, password, login.nonce, login.binding)
        name = (mechanism + BOUND * (login.binding is not None)).encode()
        answer = yield bootstrap.SaslAuth(key=name, value=scram.first()).frame()
        if answer.status == Status.AUTH_CONTINUE:
            answer = yield bootstrap.SaslStep(key=name, value=scram.final(answer.value)).frame()
        if not answer.status:
            scram.verify(answer.value)
    if answer.status:
        raise refused(f'log in as "{user}" by {mechanism}{_bound_to(login)}', answer)


def _bound_to(login: Login) -> str:
    """Say whom a proof counts for, and who knows why it was refused: with the right password it may be the address."""
    if login.binding is None:
        return ""
    data = login.binding.data
    whom = f'"{data.decode()}"' if data.isascii() and data.decode().isprintable() else "the certificate that was shown"
    return f", for {whom} (if the secret is right the node says in its log whom it takes itself for)"


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
    name = opening.name.encode()
    answer = yield dcp.Open(key=name, flags=opening.flags | opening.optional_flags).frame()
    if answer.status == Status.EINVAL and opening.optional_flags:
        answer = yield dcp.Open(key=name, flags=opening.flags).frame()
    if answer.status:
        raise refused(f'open the DCP connection "{opening.name}"', answer)
    accepted = []
    for key, value in opening.required + opening.optional:
        answer = yield dcp.Control(key=key.encode(), value=value.encode()).frame()
        if not answer.status:
            accepted.append(key)
        elif (key, value) in opening.required:
            raise refused(f"control {key}={value}", answer)
    return frozenset(accepted)
