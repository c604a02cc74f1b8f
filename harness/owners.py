"""Ownership of a vbucket while it changes hands: a writer that follows the owner, a watch for two owners, one history.

    nomad = Nomad(ledger, {"a": a.port, "b": b.port}, vb); nomad.start()
    watch = OwnerWatch(a.port, b.port, vb); watch.start()
    ... move the vbucket, break things ...
    nomad.finish(); watch.finish()
    check_history(log_of_the_owner, nomad.acknowledged, before)

The rules, beside those of the ledger (checker.py), which hold over both nodes together:

    owners     the two nodes are never active at the same time
    branch     a write that was acknowledged with a vb uuid lies on that part of the branch which the last owner's log
               keeps
    log        newest first, seqnos never rise towards the past, uuids differ, the oldest begins at 0 and is still there
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Mapping, Sequence
from threading import Event, Thread

from harness.checker import Ledger, Operation, Violation, digest
from headwater.wire.features import Feature
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

ANSWER_SECONDS_MAX = 120.0
PAUSE_SECONDS = 0.002
FailoverLog = Sequence[tuple[int, int]]


class Line:
    """One connection to one node, opened when it is needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def call(self, frame: Frame) -> Frame | None:
        """Send a request and return its answer; None if the connection could not be opened, or broke."""
        try:
            sock = self._connected()
            sock.sendall(frame.encode())
            return self._read(sock)
        except OSError:
            self.close()
            return None

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def is_open(self) -> bool:
        """True if the last call left a connection."""
        return self._socket is not None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), ANSWER_SECONDS_MAX)
            features = b"".join(feature.to_bytes(2) for feature in (Feature.MUTATION_SEQNO, Feature.XERROR))
            self._socket.sendall(Frame(Magic.CLIENT_REQUEST, Opcode.HELLO, b"owners", value=features).encode())
            self._read(self._socket)
        return self._socket

    @staticmethod
    def _read(sock: socket.socket) -> Frame:
        data = b""
        while len(data) < 24 or len(data) < 24 + int.from_bytes(data[8:12]):
            piece = sock.recv(1 << 16)
            if not piece:
                raise ConnectionError("the node hung up")
            data += piece
        return Frame.decode(data)


class Nomad(Thread):
    """A writer to one vbucket, one document after the other, wherever the vbucket is owned.

    A refusal (NOT_MY_VBUCKET, ETMPFAIL) sends it to the next node. When a connection breaks under a write, the outcome
    is unknown, and later operations are entered as another writer's, for the ledger's rule of prefixes.

    Attributes:
        acknowledged: (vb uuid, seqno) of every successful write.
        by_node: the number of writes that each node accepted. refusals: the number of refusals.
        longest_seconds: the longest time from the first attempt of a write to its success.
    """

    def __init__(self, ledger: Ledger, ports: Mapping[str, int], vb: int, *, keys: int = 40) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[tuple[int, int]] = []
        self.by_node = dict.fromkeys(ports, 0)
        self.refusals = 0
        self.longest_seconds = 0.0
        self.error: BaseException | None = None
        self._ledger, self._vb, self._keys = ledger, vb, keys
        self._lines = {name: Line(port) for name, port in ports.items()}
        self._turns = itertools.cycle(ports)
        self._owner = next(self._turns)
        self._lives = 0
        self._over = Event()

    def run(self) -> None:
        """Write until `finish`."""
        try:
            for number in itertools.count(1):
                if self._over.is_set():
                    return
                self._write(number)
        except BaseException as error:  # `finish` raises it again
            self.error = error

    def finish(self) -> None:
        """Stop; raise the error of the writer, if there is one."""
        self._over.set()
        self.join(ANSWER_SECONDS_MAX)
        for line in self._lines.values():
            line.close()
        if self.error is not None:
            raise self.error
        if self.is_alive():
            raise Violation(f"the writer of vbucket {self._vb} waits for an answer that does not come")

    def wait(self, more: int, seconds: float = ANSWER_SECONDS_MAX, node: str | None = None) -> bool:
        """Wait for so many more acknowledged writes (by that node); return False if they did not come in time."""
        give_up, goal = time.monotonic() + seconds, self._taken(node) + more
        while self._taken(node) < goal and self.error is None and time.monotonic() < give_up:
            self._over.wait(PAUSE_SECONDS)
        return self._taken(node) >= goal

    def _taken(self, node: str | None) -> int:
        return len(self.acknowledged) if node is None else self.by_node[node]

    def _write(self, number: int) -> None:
        key, value = b"n%d-%d-%d" % (self._vb, self._lives, number % self._keys), b"%d-%d" % (self._vb, number)
        operation = Operation(number, self._vb, key, digest(value))
        frame = Frame(Magic.CLIENT_REQUEST, Opcode.SET, key, bytes(8), value, vbucket=self._vb, opaque=number & 0xFFFF)
        self._ledger.sent(self._lives, operation)
        began = time.monotonic()
        while not self._over.is_set():
            line = self._lines[self._owner]
            was_open = line.is_open
            answer = line.call(frame)
            if answer is not None and answer.status == Status.SUCCESS:
                self._acked(operation, answer, time.monotonic() - began)
                return
            if answer is None and was_open:
                self._lives += 1  # it may have happened
                self._owner = next(self._turns)
                return
            if answer is not None and answer.status not in (Status.NOT_MY_VBUCKET, Status.ETMPFAIL):
                raise Violation(f"{operation} was answered {answer}")
            self.refusals += 1
            self._owner = next(self._turns)
            self._over.wait(PAUSE_SECONDS)
        self._ledger.refused(self._lives, operation)

    def _acked(self, operation: Operation, answer: Frame, seconds: float) -> None:
        self.longest_seconds = max(self.longest_seconds, seconds)
        uuid, seqno = int.from_bytes(answer.extras[:8]), int.from_bytes(answer.extras[8:16])
        self._ledger.acked(operation, seqno, answer.cas)
        self.by_node[self._owner] += 1
        self.acknowledged.append((uuid, seqno))


class OwnerWatch(Thread):
    """A poller of the state of a vbucket on two nodes, in turn, almost without a pause.

    The two can't be polled at once. But a node that is active before and after the other is active, was active together
    with it: an owner that stops being one does not come back while another is.

    Attributes:
        samples: the number of polls of one of them. violations: moments with two owners, in words.
    """

    def __init__(self, one: int, other: int, vb: int) -> None:
        super().__init__(daemon=True)
        self.samples = 0
        self.violations: list[str] = []
        self._lines, self._vb = (Line(one), Line(other)), vb
        self._over = Event()

    def run(self) -> None:
        """Watch until `finish`."""
        last: list[bool] = [False, False]  # whether each was active when it was asked last
        for turn in itertools.cycle((0, 1)):
            if self._over.wait(PAUSE_SECONDS / 2):
                return
            is_active = self._is_active(self._lines[turn])
            if is_active and last[turn] and last[1 - turn]:
                self.violations.append(f"both nodes own vbucket {self._vb} (sample {self.samples})")
            last[turn] = is_active
            self.samples += 1

    def wait_samples(self, count: int, seconds: float = ANSWER_SECONDS_MAX) -> bool:
        """Wait until each node was polled about `count` times; return False if that takes longer than `seconds`."""
        give_up = time.monotonic() + seconds
        while self.samples < 2 * count and time.monotonic() < give_up:
            self._over.wait(PAUSE_SECONDS)
        return self.samples >= 2 * count

    def finish(self) -> None:
        """Stop; raise a Violation if there were two owners."""
        self._over.set()
        self.join(ANSWER_SECONDS_MAX)
        for line in self._lines:
            line.close()
        if self.violations:
            raise Violation(self.violations[0])

    def _is_active(self, line: Line) -> bool:
        answer = line.call(Frame(Magic.CLIENT_REQUEST, Opcode.GET_VBUCKET, vbucket=self._vb))
        return answer is not None and answer.status == Status.SUCCESS and answer.value == int(State.ACTIVE).to_bytes(4)


def check_history(log: FailoverLog, acknowledged: Sequence[tuple[int, int]], before: FailoverLog = ()) -> None:
    """Check the last owner's failover log, newest first, against its rules and the acknowledged writes.

    Args:
        before: the log at the beginning: it must still be the older part of this one.

    Raises:
        Violation: a rule is broken.
    """
    uuids, seqnos = [uuid for uuid, _ in log], [seqno for _, seqno in log]
    if len(set(uuids)) != len(uuids) or seqnos != sorted(seqnos, reverse=True) or seqnos[-1:] != [0]:
        raise Violation(f"no failover log: {log}")
    if before and list(log[-len(before) :]) != list(before):
        raise Violation(f"the history began as {before}, and is {log} now")
    ends = dict(zip(uuids, [None, *seqnos], strict=False))  # where the next branch left each one
    for uuid, seqno in acknowledged:
        if uuid not in ends:
            raise Violation(f"seqno {seqno} was acknowledged in a history {uuid:016x} that is gone: {log}")
        end = ends[uuid]
        if end is not None and seqno > end:
            raise Violation(f"seqno {seqno} of {uuid:016x} was acknowledged; the history left that branch at {end}")
