"""Clients that send one request after the other and record each: the request, its times and its outcome.

They send frames and know the cluster map; no request is retried silently, since each attempt is an operation. Keys are
of two sorts. All changes of keys that begin with `d` are durable writes, so none of them may ever be lost; other keys
get plain and durable writes.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from random import Random
from threading import Event, Lock, Thread

from harness.linearizability.record import (
    UNANSWERED,
    Argument,
    Kind,
    Level,
    Outcome,
    Recorder,
    Result,
)
from harness.linearizability.requests import frame_of, result_in
from headwater.errors import RemoteProtocolError
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.features import Feature
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

__all__ = ["Client", "is_durable_key"]

ANSWER_SECONDS = 3.0
CONNECT_SECONDS = 1.0
DURABLE_MS = (200, 1000, 2000)
PAUSE_SECONDS = (0.0, 0.002, 0.01)
AGAIN_SECONDS = 0.05
FEATURES = (Feature.MUTATION_SEQNO, Feature.XERROR, Feature.ALT_REQUEST_SUPPORT, Feature.SYNC_REPLICATION)
KINDS: Mapping[Kind, int] = {
    Kind.GET: 34,
    Kind.SET: 22,
    Kind.ADD: 6,
    Kind.REPLACE: 6,
    Kind.DELETE: 7,
    Kind.APPEND: 2,
    Kind.INCREMENT: 9,
    Kind.DECREMENT: 3,
    Kind.TOUCH: 3,
    Kind.GET_AND_TOUCH: 3,
    Kind.GET_AND_LOCK: 1,
    Kind.UNLOCK: 2,
}
PLAIN_ALWAYS = {Kind.TOUCH, Kind.GET_AND_TOUCH}
"""Changes that these clients can't request as durable writes."""
WITHOUT_LEVEL = {*PLAIN_ALWAYS, Kind.GET, Kind.GET_AND_LOCK, Kind.UNLOCK}
WITH_VALUE = {Kind.SET, Kind.ADD, Kind.REPLACE, Kind.APPEND}
WITH_CAS = {Kind.SET, Kind.REPLACE, Kind.DELETE, Kind.APPEND}
COUNTERS = {Kind.INCREMENT, Kind.DECREMENT}
KNOWN_MAX = 4


def is_durable_key(key: str) -> bool:
    """Return True if all changes of a key are durable writes."""
    return key.startswith("d")


class Connection:
    """A connection to one node; OSError when it is lost, or no answer came in time."""

    def __init__(self, address: Address) -> None:
        self._sock = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
        self._sock.settimeout(ANSWER_SECONDS)
        self._frames = FrameBuffer()
        self._waiting: list[Frame] = []
        hello = b"".join(int(feature).to_bytes(2) for feature in FEATURES)
        try:
            self.ask(Frame(Magic.CLIENT_REQUEST, Opcode.HELLO, value=hello))
        except OSError:
            self.close()
            raise

    def ask(self, frame: Frame) -> Frame:
        """Send a request, and return its answer."""
        self._sock.sendall(frame.encode())
        give_up = time.monotonic() + ANSWER_SECONDS
        while not self._waiting:
            data = self._sock.recv(1 << 16)
            if not data or time.monotonic() > give_up:
                raise ConnectionError("the node hung up, or takes too long")
            self._waiting += self._frames.receive_data(data)
        return self._waiting.pop(0)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()


class Client(Thread):
    """A client that sends requests until `stopping` is set.

    Args:
        seeds: the nodes that are asked for the map.
        lock: held while the recorder is called.
        keys: the keys to work on; a key that is listed twice is used twice as often.
        lock_seconds: how long its locks last. The judges never know whether a lock holds that lasts less than twice the
            error of the history's clock.

    Attributes:
        error: an error of the client itself, not of a node; None for none.
    """

    def __init__(
        self,
        number: int,
        recorder: Recorder,
        lock: Lock,
        seeds: Sequence[Address],
        *,
        keys: Sequence[str],
        random: Random,
        lock_seconds: Sequence[int] = (1, 2),
    ) -> None:
        super().__init__(daemon=True)
        self.stopping = Event()
        self.error: BaseException | None = None
        self._number, self._recorder, self._lock, self._seeds = number, recorder, lock, tuple(seeds)
        self._keys, self._random = tuple(keys), random
        self._lock_seconds = tuple(lock_seconds)
        self._map: ClusterMap | None = None
        self._connections: dict[Address, Connection] = {}
        self._cas: dict[str, list[int]] = {key: [] for key in keys}
        self._tokens: dict[str, list[int]] = {key: [] for key in keys}
        self._count = 0

    def run(self) -> None:
        """Send one request after the other."""
        try:
            while not self.stopping.is_set():
                key = self._random.choice(self._keys)
                kind = self._random.choices(tuple(KINDS), tuple(KINDS.values()))[0]
                if is_durable_key(key) and kind in PLAIN_ALWAYS:
                    kind = Kind.GET
                self.do(kind, key, self._argument(kind, key))
                self.stopping.wait(self._random.choice(PAUSE_SECONDS))
        except BaseException as error:  # whoever joins looks at it
            self.error = error
        finally:
            self.close()

    def close(self) -> None:
        """Close all connections."""
        for address in tuple(self._connections):
            self._hang_up(address)

    def read_all(self) -> bool:
        """Read every key once; return True if all reads were answered."""
        answers = [self.do(Kind.GET, key, Argument()) for key in self._keys]
        return not any(answer.outcome in {Outcome.REFUSED, Outcome.MAYBE} for answer in answers)

    def do(self, kind: Kind, key: str, argument: Argument) -> Result:
        """Send one request, and record it with its outcome."""
        with self._lock:
            number = self._recorder.asked(self._number, key, kind, argument, called=time.time())
        result = self._attempt(kind, key, argument)
        with self._lock:
            self._recorder.answered(number, result, at=time.time())
        if result.outcome in {Outcome.REFUSED, Outcome.MAYBE}:
            time.sleep(AGAIN_SECONDS)
        elif result.cas:
            known = self._tokens if kind is Kind.GET_AND_LOCK else self._cas
            known[key] = [*known.get(key, ()), result.cas][-KNOWN_MAX:]
        return result

    def _argument(self, kind: Kind, key: str) -> Argument:
        """Return random arguments. Few documents expire and few locks last; otherwise most requests would be
        refused.
        """
        random = self._random
        self._count += 1
        level = random.choice(tuple(Level)[1:]) if is_durable_key(key) or random.random() < 0.3 else Level.NONE
        is_number = random.random() < 0.45
        value = str(random.randrange(1000)) if is_number else f"{self._number}.{self._count}"
        tokens, cas = self._tokens[key], self._cas[key]
        given = tokens if kind is Kind.UNLOCK or random.random() < 0.2 else cas
        wants_cas = kind is Kind.UNLOCK or (kind in WITH_CAS and random.random() < 0.5)
        soon = int(time.time()) + random.randrange(2, 6)
        takes_expiry = kind in {Kind.SET, Kind.ADD, Kind.TOUCH, Kind.GET_AND_TOUCH} and not is_durable_key(key)
        return Argument(
            value=value if kind in WITH_VALUE else "",
            cas=random.choice(given or [1]) if wants_cas else 0,
            expiry=soon if takes_expiry and random.random() < 0.15 else 0,
            delta=random.randrange(1, 4) if kind in COUNTERS else 0,
            initial=random.choice((None, 0, 100)) if kind in COUNTERS else None,
            seconds=random.choice(self._lock_seconds) if kind is Kind.GET_AND_LOCK else 0,
            level=Level.NONE if kind in WITHOUT_LEVEL else level,
        )

    # --- on the wire ------------------------------------------------------------------------------------------------

    def _attempt(self, kind: Kind, key: str, argument: Argument) -> Result:
        """Return the outcome of one attempt: a refusal if nothing can have been sent, a "maybe" if no answer came."""
        try:
            owner, connection = self._owner(key.encode())
        except (OSError, RemoteProtocolError) as error:
            self._map = None
            return Result(Outcome.REFUSED, text=f"not sent: {error}")
        try:
            answer = connection.ask(self._frame(kind, key.encode(), argument))
        except OSError:
            self._hang_up(owner)
            self._map = None
            return UNANSWERED
        if answer.status == Status.NOT_MY_VBUCKET:
            self._map = None
            with contextlib.suppress(RemoteProtocolError):
                self._learn(answer.value, owner)
        return result_in(kind, answer, str(owner))

    def _owner(self, key: bytes) -> tuple[Address, Connection]:
        if self._map is None:
            self._look_around()
        if self._map is None:
            raise ConnectionError("nobody tells the map")
        owner = self._map.owner(self._map.vbucket_of(key))
        if owner is None:
            raise ConnectionError("the vbucket has no owner")
        return owner, self._connection(owner)

    def _connection(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(address)
        return self._connections[address]

    def _hang_up(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def _look_around(self) -> None:
        """Take over the newest map of all nodes."""
        for seed in self._random.sample(self._seeds, len(self._seeds)):
            try:
                request = Frame(Magic.CLIENT_REQUEST, Opcode.GET_CLUSTER_CONFIG)
                self._learn(self._connection(seed).ask(request).value, seed)
            except (OSError, RemoteProtocolError):
                self._hang_up(seed)

    def _learn(self, text: bytes, source: Address) -> None:
        newer = ClusterMap.from_json(text, source)
        if self._map is None or newer.version > self._map.version:
            self._map = newer

    def _frame(self, kind: Kind, key: bytes, argument: Argument) -> Frame:
        assert self._map is not None  # noqa: S101
        timeout = self._random.choice(DURABLE_MS) if argument.level else 0
        return frame_of(kind, key, argument, self._map.vbucket_of(key), durable_ms=timeout)
