"""A node on a small disk that is full again and again, with readers that hold on to it, killed every few seconds:

    python -m harness.disk_battery --seconds 600 --seed 1 --mebibytes 300 --filesystem ext4

The disk is a file system of its own, really mounted (root only). Writers overwrite and delete documents of up to 20
MiB; their live data is kept below half of the disk, but for the rounds that fill it to the brim and delete down to half
again. A consumer follows, another reads slowly, and two hold their streams and never read (DCP and TAP). Every round
ends with kill -9 or an orderly stop, and a start. It checks that:

    nothing is lost, nothing made up     the ledger (checker.py), after every round and for every change that is shown
    the node starts                      on whatever disk it left behind
    it is writing again                  within WRITING_AGAIN_SECONDS of a refusal, whenever live data fits in half

Prints a line every ten seconds; a broken promise ends it with a line that describes it, and status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from socket import create_connection, socket
from threading import Event, Thread
from typing import Final

from harness.checker import GONE, Ledger, Operation, Violation, digest
from harness.small_disk import KINDS, may_mount, small_filesystem
from harness.workload import Follower, Writer, everything
from headwater import testing
from headwater.errors import HeadwaterError
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

__all__ = ["WRITING_AGAIN_SECONDS", "Battery", "Tally", "main"]

MIB: Final = 1 << 20
WRITING_AGAIN_SECONDS: Final = 30.0
TOLD_SECONDS: Final = 10.0
FITS, FITS_AFTER_BRIM, BRIM = 0.48, 0.4, 4.0
"""The budgets of all writers' live data, as multiples of the disk's size: in usual rounds, after the disk was filled,
and while it is filled. 0.48 of documents, with headers, tombstones and records, take half of the disk.
"""
BURST_BYTES, BURST_MAX = 4 * MIB, 32
SIZES = ((0.60, 16, 4 << 10), (0.35, 16 << 10, 256 << 10), (0.0485, 256 << 10, 2 * MIB), (0.0015, 18 * MIB, 20 * MIB))
SIZE_SHARE_MAX: Final = 16
"""The largest document is the disk's size divided by this."""
REFUSED_SECONDS = 0.02


@dataclass(slots=True)
class Tally:
    """The counts of a battery.

    Attributes:
        full: how often writes began to be refused while live data fitted in half of the disk.
        back: how often writes were accepted again. longest_seconds: the longest time until then.
        brims: how often the disk was filled with live data, and emptied to less than half.
        kills, stops: ends of the node.
        starts_full: how many of its starts were on a disk that refused documents before.
    """

    full: int = 0
    back: int = 0
    longest_seconds: float = 0.0
    refused_seconds: float = 0.0
    brims: int = 0
    kills: int = 0
    stops: int = 0
    starts_full: int = 0


class Sizes:
    """The sizes of the documents that writers believe to exist, by (vbucket, key) and by digest."""

    def __init__(self) -> None:
        self.by_digest: dict[int | None, int] = {GONE: 0}
        self.held: dict[int, dict[tuple[int, bytes], int]] = {}

    def live(self, writer: int) -> int:
        """Return the bytes of a writer's documents."""
        return sum(self.held.get(writer, {}).values())

    def settle(self, ledger: Ledger, writer: int) -> None:
        """Take over a writer's documents from the ledger, after a crash."""
        state = ledger.state_of(writer)
        self.held[writer] = {place: self.by_digest[value] for place, value in state.items() if value is not GONE}


class BudgetWriter(Writer):
    """A writer that writes until its connection ends, and keeps the bytes of its live documents below a bound.

    Attributes:
        budget: that bound.
        filling: True to write only new and larger documents.
        accepted_at: when a document was accepted last.
        refused_at: when a document was refused first after that; 0 if none was.
    """

    def __init__(self, battery: Battery, number: int, random: Random) -> None:
        super().__init__(
            battery.ledger, number, battery.node.port, vbuckets=battery.vbuckets, random=random, keys=battery.keys
        )
        self.budget = 0
        self.accepted_at = time.monotonic()
        self.refused_at = 0.0
        self._sizes, self._size_max = battery.sizes, battery.size_max
        self._held = battery.sizes.held.setdefault(number, {})
        self._planned = dict(self._held)
        self._planned_bytes = sum(self._planned.values())

    @property
    def is_within(self) -> bool:
        """True if its live documents are within the budget."""
        return sum(self._held.copy().values()) <= self.budget

    def _burst(self) -> list[tuple[Operation, Frame]]:
        burst: list[tuple[Operation, Frame]] = []
        size = 0
        while size < BURST_BYTES and len(burst) < BURST_MAX:
            burst.append(self._next())
            size += len(burst[-1][1].value)
        return burst

    def _next(self) -> tuple[Operation, Frame]:
        number, room = next(self._count), self.budget - self._planned_bytes
        if room < 0 or (self._planned and self._random.random() < 0.05):
            vbucket, key = place = self._random.choice(tuple(self._planned))
            self._plan(place, None)
            frame = Frame(Magic.CLIENT_REQUEST, Opcode.DELETE, key, vbucket=vbucket, opaque=number)
            return Operation(number, vbucket, key, GONE), frame
        vbucket, key = place = self._random.choice(self._places)
        value = self._random.randbytes(max(16, min(self._size(), room + self._planned.get(place, 0))))
        self._plan(place, len(value))
        checksum = digest(value)
        self._sizes.by_digest[checksum] = len(value)
        frame = Frame(Magic.CLIENT_REQUEST, Opcode.SET, key, bytes(8), value, vbucket=vbucket, opaque=number)
        return Operation(number, vbucket, key, checksum), frame

    def _size(self) -> int:
        at = self._random.random()
        for share, least, most in SIZES:
            if at < share:
                return min(self._random.randint(least, most), self._size_max)
            at -= share
        return 16

    def _plan(self, place: tuple[int, bytes], size: int | None) -> None:
        self._planned_bytes += (size or 0) - self._planned.pop(place, 0)
        if size is not None:
            self._planned[place] = size

    def _answered(self, operation: Operation, answer: Frame) -> None:
        super()._answered(operation, answer)
        place = operation.vbucket, operation.key
        if answer.status != Status.SUCCESS:
            self._plan(place, self._held.get(place))
        elif operation.digest is GONE:
            self._held.pop(place, None)
        else:
            self._held[place] = self._sizes.by_digest[operation.digest]
        if operation.digest is not GONE:
            self._document_answered(taken=answer.status == Status.SUCCESS)

    def _document_answered(self, *, taken: bool) -> None:
        now = time.monotonic()
        if taken:
            self.accepted_at, self.refused_at = now, 0.0
        elif not self.refused_at:
            self.refused_at = now
        if not taken:
            self.stopping.wait(REFUSED_SECONDS)


class Stuck(Thread):
    """A reader that opens a connection for all changes, reads nothing, and connects again when it is cut."""

    def __init__(self, port: int, hello: Sequence[bytes], vbuckets: int) -> None:
        super().__init__(daemon=True)
        self.begun = 0
        self._port, self._hello, self._vbuckets = port, hello, vbuckets
        self._stopping = Event()

    def run(self) -> None:
        """Hold a connection, until `stop`."""
        while not self._stopping.is_set():
            with contextlib.suppress(OSError), create_connection(("127.0.0.1", self._port), 5) as sock:
                self._hold(sock)
            self._stopping.wait(1.0)

    def _hold(self, sock: socket) -> None:
        sock.sendall(b"".join(self._hello))
        self.begun += 1
        # It looks for the end of the connection only now and then, for which it has to take what is there.
        while not self._stopping.wait(3.0):
            sock.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                if not sock.recv(1 << 10):
                    return

    def stop(self) -> None:
        """End the reader."""
        self._stopping.set()
        self.join(20)


def stuck_dcp(vbuckets: int) -> list[bytes]:
    """Return the frames that open a DCP producer with the smallest window and request a stream of each vbucket."""
    forever = (1 << 64) - 1
    frames = [
        Frame(Magic.CLIENT_REQUEST, Opcode.DCP_OPEN, b"stuck", (0).to_bytes(4, "big") + (1).to_bytes(4, "big")),
        Frame(Magic.CLIENT_REQUEST, Opcode.DCP_CONTROL, b"connection_buffer_size", value=b"1000"),
    ]
    extras = bytes(8) + b"".join(number.to_bytes(8, "big") for number in (0, forever, 0, 0, 0))
    frames += [
        Frame(Magic.CLIENT_REQUEST, Opcode.DCP_STREAM_REQ, b"", extras, vbucket=vbucket, opaque=vbucket)
        for vbucket in range(vbuckets)
    ]
    return [frame.encode() for frame in frames]


def stuck_tap() -> list[bytes]:
    """Return the frames that open a TAP connection with a backfill of everything."""
    flags = (1).to_bytes(4, "big")
    return [Frame(Magic.CLIENT_REQUEST, Opcode.TAP_CONNECT, b"stuck-tap", flags, bytes(8)).encode()]


class Battery:
    """One node on one disk. `run` runs it; `tally` and `ledger` have the counts.

    Args:
        folder: on the small disk. disk_bytes: the size of that disk.
        options: of the node, beside the number of vbuckets.
    """

    def __init__(self, folder: Path, disk_bytes: int, seed: int, options: dict[str, object] | None = None) -> None:
        self.vbuckets = 64
        self.node = testing.Node(folder / "data", {"vbuckets": self.vbuckets, **(options or {})})
        self.disk_bytes = disk_bytes
        self.size_max = disk_bytes // SIZE_SHARE_MAX
        self.keys = max(100, disk_bytes // (200 << 10))  # of each writer
        self.ledger, self.sizes, self.tally = Ledger(disk_may_fill=True), Sizes(), Tally()
        self.writers: list[BudgetWriter] = []
        self._random = Random(seed)
        self._folder = folder
        self._readers: list[Follower | Stuck] = []
        self._follower: Follower | None = None
        self._told_at = self._began_at = time.monotonic()

    # ------------------------------------------------------------------ a life

    def run(self, seconds: float) -> None:
        """Run rounds for so many seconds.

        Raises:
            Violation: a promise was broken. NodeError: the node did not start.
        """
        self._began_at = self._told_at = time.monotonic()
        left = seconds  # of the time in which it runs: a start may take as long as a busy machine lets it
        while left > 0:
            self._start()
            begun = time.monotonic()
            if self._random.random() < 0.3:
                self._brim()
            else:
                self._fits(min(max(left, 1.0), self._random.uniform(3, 12)))
            left -= time.monotonic() - begun
            self._end()
        self.verify()

    def verify(self) -> None:
        """Check all documents against the ledger a last time, and the follower's documents against the node's."""
        self.node.start()
        there = {(change.vbucket, change.key): change for change in everything(self.node.url)}
        self.ledger.settle(there.values())
        if self._follower is not None:
            self._follower.stop()
            self._follower.catch_up()
            if self._follower.held != there:
                raise Violation("the follower holds something else than the node")
        self.node.stop()
        before, traceback, after = self.node.log.partition("Traceback")
        if traceback:
            raise Violation(f"the node left a traceback behind: {before[-1000:]}{traceback}{after[:4000]}")

    def _start(self) -> None:
        self.node.start()
        self.ledger.settle(everything(self.node.url))
        self._start_readers()
        self.writers = []
        for number in range(2):
            self.sizes.settle(self.ledger, number)
            writer = BudgetWriter(self, number, Random(self._random.random()))
            self.writers.append(writer)
        self._budget(FITS)
        for writer in self.writers:
            writer.start()

    def _start_readers(self) -> None:
        before = self._follower
        if before is None or self._random.random() < 0.5:
            if before is not None:
                before.stop()
            saved, held = (before.saved, before.held) if before is not None else ("[]", {})
            self._follower = Follower(self.ledger, self.node.url, saved, held, goes_back=True)
            self._follower.start()
        slow = Follower(self.ledger, self.node.url, pace_seconds=0.3, window_bytes=256 << 10, goes_back=True)
        self._readers = [
            slow,
            Stuck(self.node.port, stuck_dcp(self.vbuckets), self.vbuckets),
            Stuck(self.node.port, stuck_tap(), self.vbuckets),
        ]
        for reader in self._readers:
            reader.start()

    def _end(self) -> None:
        """Kill the node or stop it, then end all writers and readers."""
        refused = any(writer.refused_at for writer in self.writers)
        self.tally.starts_full += refused
        if self._random.random() < 0.75:
            self.tally.kills += 1
            self.node.kill()
        else:
            self.tally.stops += 1
            for writer in self.writers:
                writer.stopping.set()
            self.node.stop()
        for writer in self.writers:
            writer.end()
        for reader in self._readers:
            reader.stop()

    # ------------------------------------------------------------------ rounds

    def _fits(self, seconds: float) -> None:
        """Keep the live data below half of the disk for a while; every refusal must end in time."""
        self._budget(FITS)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._look()
            self._refusals()

    def _brim(self) -> None:
        """Fill the disk with live data until writes are refused for a while, perhaps crash there; then delete down to
        less than half.
        """
        self._budget(BRIM)
        full = self._refused_for(2.0)
        self._until(full, 20.0, "")
        if self._random.random() < 0.5:
            self._end()
            self._start()
        self._budget(FITS_AFTER_BRIM)
        self._until(lambda: all(writer.is_within for writer in self.writers), 60.0, "deletions are refused for good")
        begun = time.monotonic()
        self._until(
            lambda: all(writer.accepted_at > begun for writer in self.writers), WRITING_AGAIN_SECONDS, "no write"
        )
        self._back(time.monotonic() - begun)
        self.tally.brims += 1
        self._fits(1.0)

    def _refused_for(self, seconds: float) -> Callable[[], bool]:
        return lambda: all(
            writer.refused_at and time.monotonic() - writer.refused_at > seconds for writer in self.writers
        )

    def _refusals(self) -> None:
        """Wait until a refusal that has begun has ended."""
        refused = [writer for writer in self.writers if writer.refused_at]
        if not refused:
            return
        begun = min((writer.refused_at for writer in refused if writer.refused_at), default=time.monotonic())
        before = time.monotonic()
        self._until(
            lambda: all(not writer.refused_at or writer.accepted_at > before for writer in refused),
            WRITING_AGAIN_SECONDS,
            "live data fits in half, and no document is taken",
        )
        self._back(time.monotonic() - begun)

    def _back(self, seconds: float) -> None:
        self.tally.full += 1
        self.tally.back += 1
        self.tally.refused_seconds += seconds
        self.tally.longest_seconds = max(self.tally.longest_seconds, seconds)

    def _until(self, true: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `true()`; after so many seconds raise a Violation that says `what`, or return if `what` is
        empty.
        """
        deadline = time.monotonic() + seconds
        while not true():
            self._look()
            if time.monotonic() > deadline:
                if not what:
                    return
                raise Violation(f"{what} after {seconds:.0f} s; {self.situation()}")

    def _look(self) -> None:
        """Wait a moment, and check that node, writers and readers are alive."""
        time.sleep(0.05)
        for writer in self.writers:
            if not writer.is_alive():
                writer.end()
                raise Violation(f"the node hung up on a writer; {self.situation()}")
        for reader in (*self._readers, self._follower):
            if isinstance(reader, Follower) and reader.error is not None:
                raise Violation(f"{reader.name}: {reader.error}; {self.situation()}") from reader.error
        if time.monotonic() > self._told_at + TOLD_SECONDS:
            self._told_at = time.monotonic()
            print(self.summary(), flush=True)

    def _budget(self, share: float) -> None:
        for writer in self.writers:
            writer.budget = int(self.disk_bytes * share / len(self.writers))

    # ------------------------------------------------------------------ to be told

    def situation(self) -> str:
        """Return how full the disk is, and of what, in words."""
        usage = shutil.disk_usage(self._folder)
        live = sum(self.sizes.live(number) for number in range(len(self.writers)))
        files = sorted((path.name, path.stat().st_blocks * 512 >> 10) for path in self.node.data.iterdir())
        named = ", ".join(f"{name} {kib:,}" for name, kib in files)
        return f"{live / MIB:.0f} MiB live, {usage.free / MIB:.1f} of {usage.total / MIB:.0f} MiB free; KiB: {named}"

    def summary(self) -> str:
        """Return the counts so far, in a line."""
        tally, ledger = self.tally, self.ledger
        return (
            f"{time.monotonic() - self._began_at:.0f} s: {ledger.acknowledged:,} acknowledged, "
            f"{ledger.observations:,} shown, {tally.kills} kills, {tally.stops} stops, "
            f"{tally.starts_full} starts on a full disk, {tally.full} times full, {tally.back} times back "
            f"(longest {tally.longest_seconds:.1f} s, {tally.refused_seconds:.0f} s in all), "
            f"{tally.brims} times brimful, {ledger.recovered:,} unanswered survived, {ledger.lost_unknown:,} did not"
        )


@contextlib.contextmanager
def _disk(mebibytes: int, kind: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headwater-battery-") as root:
        path = Path(root) / "disk"
        with small_filesystem(path, mebibytes, kind):
            yield path


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.disk_battery", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mebibytes", type=int, default=300)
    parser.add_argument("--filesystem", choices=KINDS, default=KINDS[0])
    arguments = parser.parse_args(argv)
    if not may_mount():
        print("only root may mount a small disk; run this as root, outside of a container", file=sys.stderr)
        return 2
    with _disk(arguments.mebibytes, arguments.filesystem) as folder:
        battery = Battery(folder, shutil.disk_usage(folder).total, arguments.seed)
        try:
            battery.run(arguments.seconds)
        except (Violation, testing.NodeError, HeadwaterError) as broken:
            print(battery.summary())
            print(f"seed {arguments.seed}: {broken}", file=sys.stderr)
            print(battery.node.log[-9000:], file=sys.stderr)
            return 1
        finally:
            battery.node.kill()
    print(f"{battery.summary()}; lost 0, made up 0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
