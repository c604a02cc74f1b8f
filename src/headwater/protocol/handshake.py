"""A client's handshake: HELLO, login, choice of a bucket, cluster map; for DCP, OPEN and its controls.

Handshakes are generators: each `yield` gives a request and receives its response, so the order of the conversation is
the order of the lines, and any driver will do (blocking, asyncio, a test with a list):

    HELLO -> [SASL_LIST_MECHS -> SASL_AUTH -> SASL_STEP] -> [SELECT_BUCKET] -> [GET_CLUSTER_CONFIG]     greet()
    DCP_OPEN -> DCP_CONTROL, one at a time                                                             open_producer()

Old servers know fewer commands. Commands that they do not know are left out (HELLO, SELECT_BUCKET, the map, controls);
a refusal is an error. `expect` checks a response against its request, for all drivers alike; `Handshake` drives a
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
"""Yields requests, is sent their responses, returns the agreement."""

MECHANISMS = tuple(HASHES)
"""Strongest first; the first one that the server also offers is used. None of them shows the password to the server."""
MECHANISMS_KNOWN = (*MECHANISMS, "PLAIN")
"""PLAIN shows the password to the server at that address and to everybody on the way, so it is used only on request."""

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
    """A client's name, credentials and wishes.

    Args:
        agent: the client's name, shown in the server's statistics.
        bucket: the bucket to select.
        user, password: None for servers without logins.
        nonce: text for SCRAM, different for every connection.
        mechanisms: allowed mechanisms, strongest first; with PLAIN the password crosses the network in clear.
        features: features to request in HELLO. Without any there is no HELLO: after an unknown command with a body,
            plain memcached (1.6) loses its place in the bytes and answers no more.
        wants_map: True to fetch the cluster map; some servers close the connection when asked for it.
        binding: the connection to which the proof of the password is bound; None for any.
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
    """The result of a greeting: the granted features, and the map as JSON text (None if the server has none)."""

    features: frozenset[int]
    config: bytes | None


def expect(request: Frame, answer: Frame) -> Frame:
    """Return `answer` if it answers `request`.

    Raises:
        RemoteProtocolError: the answer has another opcode or opaque. With one request in flight this means that the two
            ends disagree about the position in the conversation.
    """
    if not answer.is_response or (answer.opcode, answer.opaque) != (request.opcode, request.opaque):
        raise RemoteProtocolError(
            f"request 0x{request.opcode:02x} with opaque {request.opaque} was answered by opcode 0x{answer.opcode:02x} "
            f"with opaque {answer.opaque}"
        )
    return answer


@dataclass(frozen=True, slots=True)
class Agreed(Generic[Result]):
    """The conversation is over; `result` is its return value."""

    result: Result


class Handshake(Generic[Result]):
    """A conversation, driven by bytes and the time.

    Args:
        conversation: a generator with at least one request; `receive_data` raises its errors.
        now: seconds of a monotonic clock. seconds_max: the longest time for all of it; None for no limit.

    Attributes:
        deadline: time at which to call `tick`; None for never.
        trailing_data: bytes after the last answer: give them to the end that takes the connection over.
    """

    def __init__(
        self, conversation: Conversation[Result], *, now: float = 0.0, seconds_max: float | None = None
    ) -> None:
        self.deadline: float | None = None if seconds_max is None else now + seconds_max
        self.trailing_data: bytes = b""
        self._seconds_max = seconds_max
        self._conversation = conversation
        self._buffer, self._out = bytearray(), bytearray()
        self._opaque = 0
        self._request = self._ask(next(conversation))

    def receive_data(self, data: bytes, now: float) -> list[Agreed[Result] | PeerGone]:
        """Take received bytes; return `Agreed` once the last answer has come.

        Raises:
            RemoteProtocolError: a frame does not answer the request. The conversation's own errors as well.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES and (size := lengths(self._buffer).frame) <= len(self._buffer):
            frame = Frame.decode(self._buffer[:size])
            del self._buffer[:size]
            try:
                self._take(frame)
            except StopIteration as stop:
                self.trailing_data = bytes(self._buffer)
                return [Agreed(stop.value)]
        return []

    def _take(self, frame: Frame) -> None:
        if not frame.is_response and frame.opcode == Opcode.DCP_NOOP:  # its interval may begin while we still ask
            self._out += response(frame).encode()
        else:
            self._request = self._ask(self._conversation.send(expect(self._request, frame)))

    def _ask(self, request: Frame) -> Frame:
        self._opaque += 1
        numbered = replace(request, opaque=self._opaque)
        self._out += numbered.encode()
        return numbered

    def receive_eof(self) -> list[Agreed[Result] | PeerGone]:
        """Report that the server closed the connection before the conversation was over."""
        return [PeerGone(waited_for=name_of(self._request.opcode))]

    def tick(self, now: float) -> list[Agreed[Result] | PeerGone]:
        """Act on the deadline."""
        if self._seconds_max is None or self.deadline is None or now < self.deadline:
            return []
        return [PeerGone(self._seconds_max, name_of(self._request.opcode))]

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and forget them."""
        data = bytes(self._out)
        self._out.clear()
        return data


def refused(action: str, answer: Frame) -> StatusError:
    """Return the StatusError for a refused action, with the server's explanation."""
    explanation = context_of(answer.value)
    return error_for(answer.status, f"{action} ({explanation})" if explanation else action)


def greet(login: Login) -> Conversation[Greeting]:
    """Send HELLO, log in, select the bucket, fetch the map.

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
        # Verified before anything is sent to it: a server that can't sign does not know the password, and may be
        # anybody.
        if not answer.status:
            scram.verify(answer.value)
    if answer.status:
        raise refused(f'log in as "{user}" by {mechanism}{_bound_to(login)}', answer)


def _bound_to(login: Login) -> str:
    """Return the end of an error message that names the node to which the proof is bound; empty for an unbound proof.

    A wrong address or certificate is a possible reason of the refusal.
    """
    if login.binding is None:
        return ""
    data = login.binding.data
    peer = f'"{data.decode()}"' if data.isascii() and data.decode().isprintable() else "the certificate that was shown"
    return f", for {peer} (if the secret is right the node says in its log whom it takes itself for)"


def choose(allowed: Sequence[str], offered: Iterable[str]) -> str:
    """Return the first mechanism of `allowed` that the server offers.

    Raises:
        OptionError: it offers none of them.
    """
    offered_set = set(offered)
    for mechanism in allowed:
        if mechanism in offered_set:
            return mechanism
    raise OptionError(
        "mechanisms", ", ".join(allowed), f"among those the server offers: {', '.join(sorted(offered_set))}"
    )


@dataclass(frozen=True, slots=True)
class Opening:
    """A DCP connection to open, with the peer as producer.

    Args:
        name: unique among the connections of the bucket: a second one of the same name ends the first (dcp.md 2.1).
        flags: flags of DCP_OPEN.
        optional_flags: flags that a server may not know; after each refusal the highest of them (the most recent one)
            is dropped, and the request sent again.
        required: controls that must succeed, as (key, value), in the order to send them.
        optional: controls that may be refused; a refusal means "feature absent" (dcp.md 4).
    """

    name: str
    flags: int
    optional_flags: int = 0
    required: tuple[tuple[str, str], ...] = ()
    optional: tuple[tuple[str, str], ...] = ()


def open_producer(opening: Opening) -> Conversation[frozenset[str]]:
    """Open the connection and negotiate; return the keys of the accepted controls.

    Raises:
        StatusError: the open or a required control was refused.
    """
    name, optional = opening.name.encode(), opening.optional_flags
    answer = yield dcp.Open(key=name, flags=opening.flags | optional).frame()
    while answer.status == Status.EINVAL and optional:
        # One flag at a time: left out together, a producer that lacks the youngest would not send delete times either.
        optional ^= 1 << (optional.bit_length() - 1)
        answer = yield dcp.Open(key=name, flags=opening.flags | optional).frame()
    if answer.status:
        raise refused(f'open the DCP connection "{opening.name}"', answer)
    accepted_keys = []
    for key, value in opening.required + opening.optional:
        answer = yield dcp.Control(key=key.encode(), value=value.encode()).frame()
        if not answer.status:
            accepted_keys.append(key)
        elif (key, value) in opening.required:
            raise refused(f"control {key}={value}", answer)
    return frozenset(accepted_keys)
