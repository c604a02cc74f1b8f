"""Reads of documents whose changes are not on disk yet, and power cuts before they are.

    play(seed, rounds=6)

One node. Two writers change a few documents without waiting; readers on connections of their own read the same ones at
the same time. The disk is slow now and then, so that one batch is written while the next gathers; it fails, or the
power goes, or the process is killed, nearly always in the middle of a batch. Then all documents are read again.

A document has one writer, whose changes take effect in the order in which they were sent. So after an answer about it,
to a reader or to its writer, only the same change or a later one may be seen: before the power cut and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from harness.simulation.callers import Caller
from harness.simulation.cluster import SimCluster
from harness.simulation.histories import Broken
from harness.simulation.host import Crash
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

AT, VB = 0, 0
KEYS = tuple(b"key-%d" % number for number in range(4))
WRITERS, READERS = 2, 3
PAUSES = (0.0, 0.0, 0.0002, 0.001, 0.003)
SYNC_SECONDS = (0.003, 0.003, 0.02, 0.1)
"""How long a piece of work of the node's threads takes at most."""
SIZES = (0, 0, 300, 2000)
BATCH_SECONDS, PATIENCE_SECONDS = 0.2, 30.0


def play(seed: int, rounds: int) -> int:
    """Run the rounds of a seed; return in how many a crash came in the middle of a batch.

    Raises:
        Broken: an answer was contradicted by a later one.
    """
    with SimCluster.running(seed, vbuckets=1, nodes=1, consumers=0) as cluster:
        node = Reads(cluster)
        node.begin()
        for _ in range(rounds):
            node.round()
        return node.amid


@dataclass(slots=True)
class Document:
    """A document, as its clients know it.

    Attributes:
        versions: the values that were sent, in order; None for a deletion, or before the first write.
        known: the index of the newest version that an answer has shown.
    """

    versions: list[bytes | None] = field(default_factory=lambda: [None])
    known: int = 0

    def record(self, value: bytes | None) -> int:
        """Note a value that its writer is about to send; return the version's index."""
        self.versions.append(value)
        return len(self.versions) - 1

    def check(self, key: bytes, value: bytes | None, since: int) -> None:
        """Check a value that was read after version `since` was known.

        Raises:
            Broken: the value is an older version.
        """
        later = (at for at, each in enumerate(self.versions) if at >= since and each == value)
        version = next(later, None)
        if version is None:
            raise Broken(
                f"visible: {key!r} is {_shown(value)}, after somebody was told of {_shown(self.versions[since])}:"
                " that was shown before it was on disk, and is lost"
            )
        self.known = max(self.known, version)


class Reads:
    """Writers and readers of one node.

    Attributes:
        amid: the number of crashes in the middle of a batch. answers: the number of answered reads.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster, self._bucket, self._host = cluster, cluster.first, cluster.hosts[AT]
        self._random = Random(cluster.schedule.random.getrandbits(64))  # noqa: S311 - must be repeatable
        self._documents = {key: Document() for key in KEYS}
        self._writers, self._readers = self._callers(WRITERS), self._callers(READERS)
        self.amid = self.answers = 0

    def _callers(self, count: int) -> Sequence[Caller]:
        return [Caller(self._cluster.network, self._cluster.loop, self._host.name) for _ in range(count)]

    def begin(self) -> None:
        """Let the node own the vbucket."""
        self._cluster.start(AT)
        self._bucket.set_state(AT, VB, State.ACTIVE)
        self._until(lambda: self._host.bucket.is_active(VB), "the vbucket is active")
        self._cluster.run(1.0)  # that is on the disk, too

    def round(self) -> None:
        """Run writes and reads, cause a fault, and read all documents after it."""
        random = self._random
        self._be_slow(random.choice(SYNC_SECONDS))
        for _ in range(random.randrange(10, 60)):
            if random.random() < 0.03:
                self._host.disk.fail(random.randrange(1, 4))
            (self._read if random.random() < 0.6 else self._write)()
            self._cluster.run(random.choice(PAUSES))
        self._crash(Crash.POWER if random.random() < 0.8 else Crash.KILL)
        self._start()
        self._look_at_all()
        self._bucket.check()

    def _be_slow(self, seconds: float) -> None:
        for pool in () if self._host.loop is None else self._host.loop.pools:
            pool.seconds = seconds

    def _write(self) -> None:
        random, number = self._random, self._random.randrange(len(KEYS))
        key, writer = KEYS[number], self._writers[number % WRITERS]
        deletes = random.random() < 0.15
        value = None if deletes else b"%d" % self._cluster.next_number() + b"x" * random.choice(SIZES)
        document = self._documents[key]
        version = document.record(value)

        def answered(answer: Frame | None) -> None:
            if answer is not None and answer.status == Status.SUCCESS:
                document.known = max(document.known, version)

        if value is None:
            writer.ask(Opcode.DELETE, answered, key=key, vbucket=VB)
        else:
            self._bucket.histories.sent(VB, key, value)
            writer.ask(Opcode.SET, answered, key=key, vbucket=VB, extras=bytes(8), value=value)

    def _read(self) -> None:
        self._ask(self._random.choice(self._readers), self._random.choice(KEYS))

    def _ask(self, reader: Caller, key: bytes) -> None:
        document = self._documents[key]
        since = document.known

        def answered(answer: Frame | None) -> None:
            if answer is not None and answer.status in {Status.SUCCESS, Status.KEY_ENOENT}:
                self.answers += 1
                document.check(key, bytes(answer.value) if answer.status == Status.SUCCESS else None, since)

        reader.ask(self._random.choice((Opcode.GET, Opcode.GETK)), answered, key=key, vbucket=VB)

    def _crash(self, how: Crash) -> None:
        """Crash in the middle of a batch, perhaps while the next one gathers; readers send requests just before."""
        for _ in range(self._random.randrange(1, 4)):
            self._write()
            self._cluster.run(BATCH_SECONDS, lambda: bool(self._host.under_way))
            self._read()
        self._cluster.run(self._random.choice(PAUSES))
        self.amid += bool(self._host.under_way)
        self._cluster.crash(AT, how)
        for caller in (*self._writers, *self._readers):
            caller.hang_up()

    def _start(self) -> None:
        self._host.disk.heal()
        self._cluster.start(AT)
        self._until(
            lambda: self._host.is_up and self._host.bucket.is_active(VB), "the node is up, and owns its vbucket"
        )

    def _look_at_all(self) -> None:
        """Read each document once more, when no write is in progress."""
        before = self.answers
        for key in KEYS:
            self._ask(self._readers[0], key)
        self._until(lambda: self.answers == before + len(KEYS), "all documents are read")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        if not self._cluster.run(PATIENCE_SECONDS, condition):
            raise Broken(f"up: {PATIENCE_SECONDS:g} s have passed until {what}")


def _shown(value: bytes | None) -> str:
    return "not there" if value is None else repr(value[:20])
