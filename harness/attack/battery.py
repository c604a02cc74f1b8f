"""The battery: every declared request and every page at its limits, then every storm, against two real nodes.

One node has no users, 1,024 vbuckets and 100,000 documents; the other one has users. The cost of each attack becomes a
row, and each row that is over a bound a complaint.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from struct import pack

from harness.attack import limits, storms, tls_storms, word_storms
from harness.attack.guest import GONE, Guest
from harness.attack.storms import PRODUCER, Place, authorization, push, stream_request, tap_connect
from harness.attack.witness import MIB, Row, Witness, resident
from headwater.testing.node import Node
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode, name_of

TURN_SECONDS_MAX = 0.050
REPEATS = 3
"""How often an attack with a long turn is tried again: if the machine stood still, the turn will be short, but a costly
request costs the same each time. One long turn among the repeats is a complaint.
"""
STRANGERS_MIB = 32
"""The memory that all connections without a login may hold together: server.STRANGERS_BYTES_MAX."""
WORKING_MIB = 160
"""The memory that a node may take besides both (docs/reliability.md): copies of documents, lists, unfinished
answers.
"""
NODES_MEMORY_MIB = 256
USER, PASSWORD = "bob", "bobs-s3cret"
USERS = f"ann:anns-s3cret\n{USER}:{PASSWORD}\n"
ROOT_PAGES = ("/pools", "/pools/default", "/pools/default/buckets", "/pools/default/buckets/default", "/whoami", "/")
PAGES = (
    *ROOT_PAGES,
    *("/pools/default/b/default", "/pools/default/bs/default", "/pools/default/bucketsStreaming/default"),
    *("/settings/rbac/roles", "/settings/rbac/groups", "/settings/rbac/users", "/settings/rbac/users/local"),
    *("/settings/rbac/users/local/bob", "/pools/default/buckets/default/scopes", "/settings/rbac/users/local/x"),
    *("/pools/default/buckets/default/controller/doFlush", "/none"),
)
DISTURBING = (
    *(Opcode.FLUSH, Opcode.FLUSHQ, Opcode.DISABLE_TRAFFIC, Opcode.STOP_PERSISTENCE, Opcode.DEL_VBUCKET),
    *(Opcode.SET_VBUCKET, Opcode.SET_CLUSTER_CONFIG, Opcode.IOCTL_SET, Opcode.COMPACT_DB, Opcode.DELETE_BUCKET),
)
"""Requests that change the node's state for all its clients if they are well-formed: they are sent last."""
WAITS = frozenset({Opcode.SEQNO_PERSISTENCE, Opcode.GET_LOCKED, Opcode.SASL_AUTH})
SILENT_SECONDS = 2.0


@dataclass(slots=True)
class Target:
    """A node under attack, its witness, and the login of its guests; `user` is None on a node without users."""

    node: Node
    witness: Witness
    vbuckets: int
    base_bytes: int = 0
    user: tuple[str, str] | None = None

    def place(self, scale: float, *, log_in: bool = True) -> Place:
        """Return this node as a place for storms; with `log_in` False the guests stay strangers."""
        tls_port = self.node.tls_port or 0
        return Place(self.node.port, self.vbuckets, random.Random(7), scale, self.user, log_in, tls_port)  # noqa: S311

    @property
    def bound_bytes(self) -> int:
        """The most resident memory, in bytes, that the node's options allow, with the index of its data."""
        index = self.witness.stat("curr_items") * 200
        return self.base_bytes + (NODES_MEMORY_MIB + STRANGERS_MIB + WORKING_MIB) * MIB + index


@dataclass(slots=True)
class Report:
    """The rows in the order of the attacks, and the bounds that were exceeded.

    Attributes:
        judges_turns: True if a long turn is a complaint; on a machine with other work a long turn proves little.
        rows: by name. complaints: exceeded bounds, in words.
        remarks: long turns that did not come again.
    """

    judges_turns: bool = True
    rows: dict[str, Row] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, target: Target, row: Row) -> None:
        """Add a row; complain if the bystander was not served, the node is gone, or it took too much memory."""
        self.rows.setdefault(row.name, Row(row.name)).add(row)
        if row.unserved:
            self.complaints.append(f"{row.name}: the bystander was not answered {row.unserved} times")
        if not target.node.is_running:
            self.complaints.append(f"{row.name}: the node is gone")
        elif row.peak_bytes > target.bound_bytes:
            over = f"{row.peak_bytes >> 20} MiB of memory, {target.bound_bytes >> 20} are allowed"
            self.complaints.append(f"{row.name}: {over}")

    def is_long(self, row: Row) -> bool:
        """Return True if a row has a turn so long that the attack must be repeated."""
        return self.judges_turns and row.turn_seconds > TURN_SECONDS_MAX

    def judge_turns(self, row: Row, repeats: list[Row]) -> None:
        """Complain of a long turn that came again, or whose attack could not be repeated; remark one that did not come
        again.
        """
        figures = "".join(f", then {1000 * repeat.turn_seconds:.0f}" for repeat in repeats)
        comes_again = not repeats or any(self.is_long(repeat) for repeat in repeats)
        told = self.complaints if comes_again else self.remarks
        told.append(f"{row.name}: a turn of {1000 * row.turn_seconds:.0f} ms{figures}")

    def table(self) -> Iterator[str]:
        """Yield the lines of a table of all rows."""
        heads = ("turn ms", "own ms", "late ms", "waited ms", "of it busy")
        yield f"{'attack':44} {' '.join(f'{head:>10}' for head in heads)} {'MiB':>6}"
        for row in self.rows.values():
            yield f"{row.name:44} {_figures(row)}"
        if self.rows:
            worst = Row("the worst of each")
            for row in self.rows.values():
                worst.add(row)
            yield f"{worst.name:44} {_figures(worst)}"


def _figures(row: Row) -> str:
    told = (row.turn_seconds, row.own_seconds, row.late_seconds, row.waited_seconds, row.waited_busy_seconds)
    return f"{' '.join(f'{1000 * each:10.1f}' for each in told)} {row.peak_bytes >> 20:6}"


State = Callable[[Guest], object]


def _producer(guest: Guest) -> None:
    guest.ask(Opcode.DCP_OPEN, b"attacker", PRODUCER)
    guest.say(stream_request(1).encode())


def _consumer(guest: Guest) -> None:
    guest.ask(Opcode.DCP_OPEN, b"attacked", pack(">II", 0, 0))


def _tap(guest: Guest) -> None:
    guest.say(tap_connect(b"attacker", 0, [1]))


STATES: dict[str, State] = {"plain": lambda guest: None, "producer": _producer, "consumer": _consumer, "TAP": _tap}


@contextmanager
def watched(node: Node, vbuckets: int, documents: int, user: tuple[str, str] | None = None) -> Iterator[Target]:
    """Run a node with documents and a witness, for a block."""

    def admit() -> Guest:
        guest = Guest(node.port)
        if user is not None:
            guest.log_in(*user)
        return guest

    witness = Witness(node, admit).start()
    target = Target(node, witness, vbuckets, user=user)
    try:
        fill(admit(), documents)
        target.base_bytes = resident(node.pid)
        yield target
    finally:
        witness.stop()


def fill(guest: Guest, count: int) -> None:
    """Store `count` small documents, for requests that list them, and enough of 20 MiB that both staging arenas were
    used whole.
    """
    with guest:
        for at in range(0, count, 10_000):
            frames = (Frame(0x80, Opcode.SETQ, b"key-%d" % n, bytes(8), b"v") for n in range(at, at + 10_000))
            guest.say(b"".join(frame.encode() for frame in frames))
            guest.settle()
        for number in range(16):
            guest.say(Frame(0x80, Opcode.SET, b"warm-%d" % (number % 2), bytes(8), bytes(20 * MIB)).encode())
        guest.settle()


class Battery:
    """A run of all attacks, one after the other, until its time is over.

    Args:
        seconds: the time of the run; attacks that were not reached are listed in the report.
        scale: the size of storms; 1.0 is as much as a guest can do.
        only: a pattern that the names of attacks must match; empty for all.
        tell: called with a line about each attack.
        judges_turns: as in `Report`.
    """

    def __init__(
        self,
        everybody: Target,
        users: Target,
        *,
        seconds: float,
        scale: float = 1.0,
        only: str = "",
        tell: Callable[[str], None] = lambda line: None,
        judges_turns: bool = True,
    ) -> None:
        self.report = Report(judges_turns)
        self._only = re.compile(only)
        self._everybody, self._users = everybody, users
        self._ends = time.monotonic() + seconds
        self._scale = scale
        self._tell = tell
        self._random = random.Random(11)  # noqa: S311 - must be repeatable

    def run(self) -> Report:
        """Run all attacks, those that disturb the node last; return the report."""
        calm = [opcode for opcode in limits.opcodes() if opcode not in DISTURBING]
        self._pages()
        for opcode in calm:
            self._opcode(opcode)
        for storm in (*tls_storms.STORMS, *word_storms.STORMS, *storms.STORMS):
            self._storm(storm)
        for opcode in calm:
            self._large(opcode)
        for opcode in DISTURBING:
            self._opcode(opcode)
        for target in (self._everybody, self._users):
            if "Traceback" in target.node.log:
                self.report.complaints.append("a traceback in the log:\n" + target.node.log[-4000:])
        return self.report

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._ends

    def measured(self, target: Target, name: str, attack: Callable[[], object]) -> None:
        """Run one attack and add its row; repeat it if a turn was long."""
        if not self._only.search(name):
            return
        if self._is_over or not target.node.is_running:
            why = "the time was over" if self._is_over else "the node is gone"
            self.report.complaints.append(f"{name}: not tried, {why}")
            return
        row = self._once(target, name, attack)
        if self.report.is_long(row):
            repeats = range(REPEATS if target.node.is_running and not self._is_over else 0)
            self.report.judge_turns(row, [self._once(target, name, attack) for _ in repeats])

    def _once(self, target: Target, name: str, attack: Callable[[], object]) -> Row:
        begun = time.monotonic()
        with target.witness.measure(name) as row, suppress(*GONE):
            attack()
        row.unserved *= target.node.is_running  # it is gone, which is told once
        self.report.add(target, row)
        took = time.monotonic() - begun
        self._tell(f"{name}: {1000 * row.turn_seconds:.1f} ms, {row.peak_bytes >> 20} MiB, {took:.2f} s")
        return row

    # --- requests -----------------------------------------------------------------------------------------------------

    def _opcode(self, opcode: int) -> None:
        """Attack with the requests of an opcode at their limits: before the login, as a user, and in every state of a
        connection.
        """
        name = name_of(opcode)
        stranger = self._users.place(self._scale, log_in=False)
        self.measured(self._users, f"{name} before login", lambda: self._said(stranger, opcode, STATES["plain"]))
        user = self._users.place(self._scale)
        self.measured(self._users, f"{name} as a user", lambda: self._said(user, opcode, STATES["plain"]))
        for state, enter in STATES.items():
            place = self._everybody.place(self._scale)
            self.measured(self._everybody, f"{name} {state}", partial(self._said, place, opcode, enter))
        with self._everybody.place(1).guest() as guest:
            guest.ask(Opcode.ENABLE_TRAFFIC)

    def _said(self, place: Place, opcode: int, enter: State) -> None:
        frames = list(limits.small(opcode, self._random))
        if self._scale < 1:
            frames = self._random.sample(frames, max(8, round(len(frames) * self._scale)))
        while frames and not self._is_over:
            with place.guest(SILENT_SECONDS) as guest:
                enter(guest)
                frames = frames[self._say(guest, frames, waits=opcode in WAITS) :]
        for frame in limits.cut(opcode):
            with place.guest(SILENT_SECONDS) as half:
                enter(half)
                half.say(frame)

    def _say(self, guest: Guest, frames: list[bytes], *, waits: bool) -> int:
        """Send frames, each followed by a no-op, and wait for the no-ops' answers; or send only the first frame, if
        `waits`.

        Returns: the number of frames that the node has read, including the one after which it hung up or was silent.
        """
        if waits:
            guest.say(frames[0])
            return 1
        guest.say(b"".join(frame + guest.mark() for frame in frames))
        count = 0
        while count < len(frames) and guest.reach_mark():
            count += 1
        return count + 1

    def _large(self, opcode: int) -> None:
        """Attack with requests of an opcode whose values have the largest size, and more."""
        size = round(20 * MIB * self._scale) if self._scale < 1 else 20 * MIB
        place = self._everybody.place(self._scale)

        def attack() -> None:
            for frame in limits.large(opcode, self._random, size):
                with place.guest(storms.SHORT_SECONDS) as guest:
                    push(guest, frame, storms.SHORT_SECONDS)
                    guest.settle()

        self.measured(self._everybody, f"{name_of(opcode)} large", attack)

    # --- pages and storms ---------------------------------------------------------------------------------------------

    def _pages(self) -> None:
        for target, log_in in ((self._everybody, True), (self._users, False), (self._users, True)):
            place = target.place(self._scale, log_in=log_in)
            whose = "" if target is self._everybody else " as a user" if log_in else " before login"
            for page in PAGES:
                self.measured(target, f"{page}{whose}", partial(self._page, place, page))

    def _page(self, place: Place, page: str) -> None:
        login = authorization(place)
        for line, fields, body in (
            (f"GET {page} HTTP/1.1", b"", b""),
            (f"HEAD {page} HTTP/1.0", b"", b""),
            (f"POST {page} HTTP/1.1", b"Content-Length: 15000\r\n", bytes(15_000)),
            (f"GET {page}?{'x' * 15_000} HTTP/1.1", b"", b""),
            (f"GET {page}/{'..%2f' * 3000} HTTP/1.1", b"", b""),
            (f"GET {page} HTTP/1.1", b"X: y\r\n" * 2500, b""),
            (f"GET {page} HTTP/1.1", b"Content-Length: 999999999\r\n", b"x"),
            (f"PUT {page} HTTP/1.1", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
            (f"DELETE {page} HTTP/9.9", b"", b""),
        ):
            with Guest(place.port, 0.05) as guest:
                guest.say(line.encode() + b"\r\nHost: x\r\nConnection: close\r\n" + login + fields + b"\r\n" + body)
                storms.drain(guest, 0.05)

    def _storm(self, storm: Callable[[Place], None]) -> None:
        name = storm.__name__.replace("_", " ")
        place = self._everybody.place(self._scale)
        self.measured(self._everybody, name, lambda: storm(place))
        if storm in BEFORE_LOGIN:
            stranger = self._users.place(self._scale, log_in=False)
            self.measured(self._users, f"{name}, before login", lambda: storm(stranger))


BEFORE_LOGIN = (
    storms.hello_of_many_features,
    storms.half_frames_on_many_connections,
    storms.small_answers_that_nobody_reads,
    storms.sasl_in_all_orders,
    storms.pages_pipelined,
    storms.connections_that_come_and_go,
    storms.faults_by_the_thousand,
    *tls_storms.BEFORE_LOGIN,
    *word_storms.BEFORE_LOGIN,
)


@contextmanager
def two_nodes(folder: Path, documents: int = storms.KEYS) -> Iterator[tuple[Target, Target]]:
    """Run a node without users and one with users for a block, both watched closely, with `documents` documents
    each.
    """
    from headwater import testing  # noqa: PLC0415 - starts processes

    users = folder / "users"
    users.write_text(USERS)
    users.chmod(0o600)
    usual = {"loop_watch_ms": 2, "memory_mib": NODES_MEMORY_MIB, "tap_keep_alive_seconds": 60}
    with (
        testing.node(vbuckets=1024, tls=True, **usual) as open_node,  # type: ignore[arg-type]
        testing.node(vbuckets=64, tls=True, users_file=users, **usual) as closed,  # type: ignore[arg-type]
        watched(open_node, 1024, documents) as everybody,
        watched(closed, 64, documents, (USER, PASSWORD)) as with_users,
    ):
        yield everybody, with_users
