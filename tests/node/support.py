"""Sessions without sockets: a real store and bucket, a connection that keeps what it is told, a clock that obeys."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.node import handlers, notices
from headwater.node.buckets.bucket import Bucket
from headwater.node.config import NodeConfig
from headwater.node.connections.budget import Budget
from headwater.node.connections.loopback import is_local
from headwater.node.kv.api import FastRequests, Session, UserSession
from headwater.node.kv.command import COMMANDS
from headwater.node.kv.fast import FastPath, Workspace
from headwater.node.kv.parking import Parking
from headwater.node.kv.session import KvSession
from headwater.node.membership.member import Membership
from headwater.node.membership.stats import stats
from headwater.node.ownership.cluster_map import ServedMap
from headwater.node.replication.command import Replication
from headwater.node.reporting.durations import Durations
from headwater.node.reporting.requests import Requests
from headwater.node.storage.store import Store
from headwater.node.streams.dcp_hub import DcpHub
from headwater.node.tap.hub import TapHub
from headwater.node.users.failures import Failures
from headwater.node.users.logins import Users
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.layout import NO_OPCODE

NOON = 1_700_000_000
assert handlers.ALL
_FORMS = [form.layout for command in COMMANDS.values() for form in command.forms]
QUIET = {layout.quiet: layout.opcode for layout in _FORMS if layout.quiet != NO_OPCODE}
"""The opcodes of quiet forms, and those of their loud ones."""


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = NOON
        self.jumped_seconds = 0

    def time_ns(self) -> int:
        return (self.seconds + self.jumped_seconds) * 1_000_000_000

    def monotonic(self) -> float:
        return float(self.seconds)


class SteppedCommitter:
    """Commits when it is told to."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.durable, self.open = 0, 1
        self.commits = self.failures = 0
        self.dirty = False
        self.on_durable: list[Callable[[], None]] = []
        self.on_failure: list[object] = []
        self.waiting: set[object] = set()
        self.room: list[Callable[[], None]] = []
        self.durations = Durations()

    def wrote(self) -> int:
        self.dirty = True
        return self.open

    def gate(self) -> int:
        return self.open if self.dirty else 0

    def when_room(self, callback: Callable[[], None]) -> None:
        self.room.append(callback)

    def commit(self) -> None:
        batch = self.store.freeze()
        if batch is not None:
            self.store.write(batch)
            self.store.settle(batch)
        self.durable, self.open, self.dirty = self.open, self.open + 1, False
        for callback in self.on_durable:
            callback()
        callbacks, self.room = self.room, []
        for callback in callbacks:
            callback()


class FakeConnection:
    """Keeps what is sent, with its gate."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, int]] = []
        self.paused: set[str] = set()
        self.is_closed = False
        self.finished = False
        self.peer = "127.0.0.1:5"
        self.tls = None
        self.called_at = ("127.0.0.1", 11210)
        self.dropped = ""
        self.is_inner = False
        self.is_crowded = False
        self.kept_bytes = self.relayed_bytes = 0
        self.session: KvSession
        self.awaits_others: Callable[[], bool] = lambda: False
        self.others_have_answered = False

    @property
    def is_paused(self) -> bool:
        return bool(self.paused)

    @property
    def writable(self) -> bool:
        return True

    def send(self, data: bytes | memoryview, gate: int = 0) -> None:
        if data:
            self.sent.append((bytes(data), gate))

    def pause(self, reason: str) -> None:
        self.paused.add(reason)

    def resume(self, reason: str) -> None:
        self.paused.discard(reason)

    def drop(self, cause: str, *, fault: bool = True) -> None:
        self.is_closed, self.dropped = True, cause

    def finish(self) -> None:
        self.finished = True
        self.pause("finishing")

    def others_answered(self) -> None:
        self.others_have_answered = True

    def wake(self) -> None:
        pass

    def serve(self, committer: object, requests: object) -> None:
        self.committer = committer

    def know(self, *, is_known: bool, is_trusted: bool = False) -> None:
        self.is_known = is_known

    @property
    def session_bytes(self) -> int:
        return self.kept_bytes + self.relayed_bytes

    def keeps(self, session_bytes: int) -> None:
        self.kept_bytes = session_bytes

    def keeps_relayed(self, relayed_bytes: int) -> None:
        self.relayed_bytes = relayed_bytes

    def gives_way(self) -> bool:
        return False

    def others_wait(self) -> bool:
        return self.is_crowded

    def stand_behind(self) -> None:
        self.pause("turn")

    def measures(self, measure: Callable[[memoryview], int]) -> None:
        self.measure = measure

    def begin_turn(self) -> None:
        pass

    def turn_is_over(self) -> bool:
        return False


def discard(folder: Path) -> None:
    """Give a closed store's space back at once. Its maps, and with them the space set aside in its files, would live
    until the garbage collector comes by: hundreds of examples would fill a disk."""
    for path in folder.glob("*.log"):
        os.truncate(path, 0)


class StillLoop:
    """A loop on which nothing runs: it knows the time, at which a range scan was asked for or is cancelled."""

    def time(self) -> float:
        return 0.0


class Desk:
    """A server as its sessions know it."""

    def __init__(
        self,
        path: Path,
        *,
        vbuckets: int = 4,
        config: NodeConfig | None = None,
        fast: bool = True,
        first_uuid: int = 1,
    ) -> None:
        self.config = config or NodeConfig(data=path, vbuckets=vbuckets)
        self.clock = Clock()
        self.store = Store.open(path, vbuckets=vbuckets, random=lambda count: bytes(range(count)), arena_bytes=48 << 20)
        self.store.staging.check_document_room(8 << 20)  # for batches of some MiB: an empty store has little room
        self.committer = SteppedCommitter(self.store)
        uuids = iter(range(first_uuid, 1 << 30))
        self.bucket = Bucket(
            self.config.bucket,
            self.store,
            self.committer,  # type: ignore[arg-type]
            clock=self.clock,
            new_uuid=lambda: next(uuids),
        )
        self.bucket.recover(self.config)
        self.committer.commit()
        self.budget = self.strangers = Budget(1 << 30, 1 << 30, "all")
        self.users, self.failures = Users(self.config.users, self.config.roles), Failures()
        self.cluster = ServedMap(11210, self.bucket)
        self.tls = self.tls_port = None
        self.is_spare = False
        self.workspace = Workspace()
        self.requests = Requests(self.workspace)
        self.connections: set[object] = set()
        self.warnings: list[str] = []
        self.recorded: list[str] = []
        self.fast = fast
        self.dcp = DcpHub(self.bucket)
        self.replication = Replication(self)  # type: ignore[arg-type]
        self.membership = Membership(self)  # type: ignore[arg-type]
        self.bucket.stat_groups["cluster"] = lambda _: stats(self, self.membership)  # type: ignore[arg-type]
        self.tap = TapHub(self.bucket, None, 0)  # type: ignore[arg-type]
        self.buckets = {self.bucket.name: self}
        self.loop: asyncio.AbstractEventLoop = StillLoop()  # type: ignore[assignment]

    def fast_path(self, session: Session) -> FastRequests | None:
        return FastPath(session, self.bucket, self.workspace) if self.fast else None

    def tell_of_map(self) -> None:
        notices.tell((), self)  # type: ignore[arg-type]

    def login_refused(self, peer: str, user: str, why: str) -> None:
        self.warnings.append(f"login refused: {why} (user {user!r})")

    def record(self, session: UserSession, what: str, *, moves: bool = False) -> None:
        self.recorded.append(what)

    def warn(self, peer: str, cause: str) -> None:
        self.warnings.append(cause)

    def audit(self, session: UserSession, what: str) -> None:
        self.warnings.append(f"user {session.user!r} {what}")

    def figures(self) -> Iterator[tuple[str, str]]:
        yield "uptime", "12"

    def is_client_there(self, agent: str) -> bool:
        return False

    def hears_passwords(self, connection: object) -> bool:
        return not self.users.required or is_local(connection.peer)  # type: ignore[attr-defined]

    def session(self) -> Talk:
        return Talk(self)

    def close(self) -> None:
        self.store.close()


class Talk:
    """One session, spoken to in frames."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.connection = FakeConnection()
        self.kv = KvSession(self.connection, desk)  # type: ignore[arg-type]
        self.connection.session = self.kv

    def speak_over(self, connection: FakeConnection) -> None:
        """Let the session have another connection."""
        self.kv.connection = connection  # type: ignore[assignment]
        self.kv.parking = Parking(self.kv.connection)
        connection.session = self.kv

    def give(self, data: bytes) -> int:
        return self.kv.receive(memoryview(bytearray(data)))

    def bytes_sent(self) -> bytes:
        data = b"".join(data for data, _ in self.connection.sent)
        self.connection.sent.clear()
        return data

    def ask(self, opcode: int, **sections: object) -> list[Frame]:
        """All answers to one request."""
        request = Frame(0x80, opcode, **sections).encode()  # type: ignore[arg-type]
        assert self.give(request) == len(request)
        return FrameBuffer().receive_data(self.bytes_sent())

    def one(self, opcode: int, **sections: object) -> Frame:
        """The one answer to one request."""
        (answer,) = self.ask(opcode, **sections)
        return answer

    def hello(self, *features: int) -> None:
        assert self.one(0x1F, value=b"".join(code.to_bytes(2, "big") for code in features)).status == 0


@contextmanager
def desk(path: Path, **options: object) -> Iterator[Desk]:
    made = Desk(path, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()
        discard(path)
