"""Load for fault tests: writers that remember their acknowledged writes, and a follower of the stream.

    ledger = Ledger()
    writer = Writer(ledger, 1, node.port, vbuckets=8, random=Random(1)); writer.start()
    follower = Follower(ledger, node.url); follower.start()
    ... kill the node; writer.join() ...
    ledger.settle(everything(node.url))

A writer sends bursts of sets and deletes in one piece and reads the answers, so that many are in flight when the node
dies. It ends when its connection does. A follower continues through crashes, by the client's own reconnecting, until it
is stopped; a new one may begin where it stopped.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator, Mapping
from random import Random
from threading import Event, Thread
from typing import Any

from harness.checker import GONE, Ledger, Operation, Shown, Violation, digest
from headwater import client
from headwater.client.changes import ChangeBatch
from headwater.client.feeds import Batches
from headwater.errors import HeadwaterError, RollbackRequired, TransportError
from headwater.protocol.dcp import position
from headwater.protocol.dcp.position import Position
from headwater.wire.features import Feature
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

TIMEOUT_SECONDS = 120.0
BURST_MAX = 64
DELETES = 0.2
LARGE = 1 / 40
NOTHING_NEW_SECONDS = 0.1
AGAIN_SECONDS = 0.1
WINDOW_BYTES, BATCH_BYTES = 10 << 20, 1 << 20


class Writer(Thread):
    """A thread that writes until its connection ends, with keys and values of its own.

    Attributes:
        refusals: the number of temporary refusals. error: another failure; None for none.
    """

    def __init__(self, ledger: Ledger, number: int, port: int, *, vbuckets: int, random: Random, keys: int = 200):
        super().__init__(daemon=True)
        self.refusals = 0
        self.error: BaseException | None = None
        self.stopping = Event()
        self._ledger, self._number, self._port, self._random = ledger, number, port, random
        self._places = [(at % vbuckets, b"w%d-%d" % (number, at)) for at in range(keys)]
        self._live = {place for place, value in ledger.state_of(number).items() if value is not GONE}
        self._count = itertools.count(1)

    def run(self) -> None:
        """Write until the connection ends; any other error is kept in `error`."""
        try:
            with contextlib.suppress(OSError, EOFError), socket.create_connection(("127.0.0.1", self._port)) as sock:
                sock.settimeout(TIMEOUT_SECONDS)
                self._write(sock)
        except BaseException as error:  # the test's own thread raises it again
            self.error = error

    def end(self, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until the thread has ended; raise its error, if there is one."""
        self.join(seconds)
        if self.error is not None:
            raise self.error
        if self.is_alive():
            raise Violation(f"writer {self._number} hangs")

    def _write(self, sock: socket.socket) -> None:
        features = b"".join(feature.to_bytes(2, "big") for feature in (Feature.MUTATION_SEQNO, Feature.XERROR))
        sock.sendall(Frame(Magic.CLIENT_REQUEST, Opcode.HELLO, b"workload", value=features).encode())
        answers = _answers(sock)
        next(answers)
        while not self.stopping.is_set():
            burst = self._burst()
            for operation, _ in burst:
                self._ledger.sent(self._number, operation)
            sock.sendall(b"".join(frame.encode() for _, frame in burst))
            for operation, _ in burst:
                self._answered(operation, next(answers))

    def _burst(self) -> list[tuple[Operation, Frame]]:
        return [self._next() for _ in range(self._random.randint(1, BURST_MAX))]

    def _next(self) -> tuple[Operation, Frame]:
        vbucket, key = place = self._random.choice(self._places)
        number = next(self._count)
        if place in self._live and self._random.random() < DELETES:
            self._live.discard(place)
            frame = Frame(Magic.CLIENT_REQUEST, Opcode.DELETE, key, vbucket=vbucket, opaque=number)
            return Operation(number, vbucket, key, GONE), frame
        self._live.add(place)
        size = self._random.randint(64 << 10, 256 << 10) if self._random.random() < LARGE else 16
        value = self._random.randbytes(16 + self._random.randint(0, size))
        frame = Frame(Magic.CLIENT_REQUEST, Opcode.SET, key, bytes(8), value, vbucket=vbucket, opaque=number)
        return Operation(number, vbucket, key, digest(value)), frame

    def _answered(self, operation: Operation, answer: Frame) -> None:
        if answer.opaque != operation.number:
            raise Violation(f"{answer} answers operation {operation.number}")
        place = operation.vbucket, operation.key
        if answer.status == Status.SUCCESS:
            self._ledger.acked(operation, int.from_bytes(answer.extras[8:16], "big"), answer.cas)
        elif answer.status == Status.ETMPFAIL or (answer.status == Status.KEY_ENOENT and self.refusals):
            self.refusals += 1  # and a delete of what could not be set finds nothing
            self._ledger.refused(self._number, operation)
            self._live.discard(place)
        else:
            raise Violation(f"{operation} was answered {answer}")


def _answers(sock: socket.socket) -> Iterator[Frame]:
    frames = FrameBuffer()
    while data := sock.recv(1 << 20):
        yield from frames.receive_data(data)
    raise EOFError("the node closed the connection")


class Follower(Thread):
    """A thread that follows all changes of a bucket, through crashes of its node.

    Args:
        saved, held: those of an earlier follower, which this one continues.
        pace_seconds: the pause after each batch. window_bytes: the most unacknowledged bytes.
        goes_back: True to begin a vbucket anew when the node demands a rollback, rather than to end: a follower that
            was cut off inside a snapshot in which a crash lies has no other position to continue from.

    Attributes:
        went_back: the number of vbuckets that were begun anew.
        saved: the positions after the last batch, as a text, as a consumer would keep them with its data.
        held: the newest change of each key that it received, by (vbucket, key).
        error: the error that ended it; None for none.
    """

    def __init__(
        self,
        ledger: Ledger,
        url: str,
        saved: str = "[]",
        held: Mapping[tuple[int, bytes], Shown] | None = None,
        *,
        pace_seconds: float = 0.0,
        window_bytes: int = WINDOW_BYTES,
        goes_back: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self.went_back = 0
        self._goes_back = goes_back
        self.saved, self.held = saved, dict(held or {})
        self.error: BaseException | None = None
        self._ledger, self._url = ledger, url
        self._pace_seconds, self._window_bytes = pace_seconds, window_bytes
        self._stopping = Event()

    def run(self) -> None:
        """Follow until `stop`."""
        try:
            while not self._is_through(None):
                pass
        except BaseException as error:  # `stop` raises it again
            self.error = error

    def stop(self) -> None:
        """End the thread; raise the error that ended it before, if there is one."""
        self._stopping.set()
        self.join(TIMEOUT_SECONDS)
        if self.error is not None:
            raise self.error
        if self.is_alive():
            raise Violation("the follower hangs")

    def catch_up(self) -> None:
        """Read all present changes, in the caller's thread."""
        self._stopping.clear()
        while not self._is_through("now"):
            pass

    def _is_through(self, until: Any) -> bool:
        """Follow; return False when a vbucket has to begin anew."""
        try:
            self._follow(until)
        except RollbackRequired as told:
            if not self._goes_back:
                raise
            self.went_back += 1
            self.held = {place: change for place, change in self.held.items() if place[0] != told.vbucket}
            kept = position.load_positions(self.saved)
            self.saved = position.save_positions({vb: at for vb, at in kept.items() if vb != told.vbucket})
            return False
        return True

    def _follow(self, until: Any) -> None:
        while (batches := self._begin(until)) is None:
            if self._stopping.wait(AGAIN_SECONDS):
                return
        with batches:
            for batch in batches:
                self._take(batch)
                if self._stopping.is_set():
                    return

    def _begin(self, until: Any) -> Batches | None:
        """Begin a drain where the last one ended; return None while the node does not answer.

        A running drain does not end for that: it connects again by itself.
        """
        options: dict[str, Any] = {
            "patience_seconds": None,
            "max_wait_seconds": NOTHING_NEW_SECONDS,
            "window_bytes": self._window_bytes,
            "batch_bytes": min(self._window_bytes, BATCH_BYTES),
        }
        try:
            with client.connect(self._url) as bucket:
                places = {vbucket: Position.beginning(vbucket) for vbucket in bucket.seqnos()}
                return bucket.batches(places | position.load_positions(self.saved), until=until, **options)
        except TransportError:
            return None

    def _take(self, batch: ChangeBatch) -> None:
        for change in rows(batch):
            self._ledger.shown(change)
            last = self.held.get((change.vbucket, change.key))
            if last is not None and last.seqno >= change.seqno:
                raise Violation(f"{change} came after {last}")
            self.held[change.vbucket, change.key] = change
        self.saved = position.save_positions(batch.positions)
        self._stopping.wait(self._pace_seconds)


def rows(batch: ChangeBatch) -> Iterator[Shown]:
    """Yield the rows of a batch, for the ledger."""
    columns = (batch.records.column(name).to_pylist() for name in ("vbucket", "seqno", "key", "opcode", "value", "cas"))
    for vbucket, seqno, key, opcode, value, cas in zip(*columns, strict=True):
        is_set = opcode == Opcode.DCP_MUTATION
        yield Shown(vbucket, seqno, key, digest(value) if is_set else GONE, cas)


def everything(url: str) -> Iterator[Shown]:
    """Yield the newest change of every key of a bucket, from a stream from the beginning."""
    with client.connect(url) as bucket, bucket.batches(until="now") as batches:
        for batch in batches:
            yield from rows(batch)


def read_back(url: str, changes: Mapping[tuple[int, bytes], Shown]) -> None:
    """Read each key by itself, and compare it with its change.

    Raises:
        Violation: a document differs. HeadwaterError: no answer came.
    """
    port = int(url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as sock:
        answers = _answers(sock)
        for (vbucket, key), change in changes.items():
            sock.sendall(Frame(Magic.CLIENT_REQUEST, Opcode.GET, key, vbucket=vbucket).encode())
            answer = next(answers, None)
            if answer is None:
                raise HeadwaterError("the node hung up on a GET")
            checksum = digest(answer.value) if answer.status == Status.SUCCESS else GONE
            if checksum != change.digest:
                raise Violation(f"GET answers {answer.status}, {len(answer.value)} bytes for {change}")
