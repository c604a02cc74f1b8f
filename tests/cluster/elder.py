"""A server of 2017, memcached with ep-engine 4.6.4, as strict as that one was seen to be: a real node behind a proxy.

    with node() as young, Elder(young) as old:
        connect to old.endpoint; old.refused has what it would not take, in order

What that server does not know it answers with EINVAL, or hangs up on, and so does this one, however well the node
behind would understand: HELLO without XERROR, JSON and SELECT_BUCKET, one layout of deletions, states as four bytes.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType

from headwater.client.routing import Address
from headwater.cluster.admin import Endpoint
from headwater.testing.node import Node
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode, name_of
from headwater.wire.status import Status

FEATURES = (Feature.DATATYPE, Feature.TCP_NODELAY, Feature.MUTATION_SEQNO)
CONTROLS = frozenset(
    {
        b"connection_buffer_size",
        b"enable_ext_metadata",
        b"enable_noop",
        b"enable_value_compression",
        b"set_noop_interval",
        b"set_priority",
        b"supports_cursor_dropping",
    }
)
CHANGE_EXTRAS = {Opcode.DCP_MUTATION: 31, Opcode.DCP_DELETION: 18, Opcode.DCP_EXPIRATION: 18}
MARKER_EXTRAS = 20
OUTDATED = b"Incorrect packet format"
"""The answer to a layout that it does not know."""

HANGS_UP = "hung up"


@dataclass
class Connection:
    """One client, and the connection to the node behind.

    Attributes:
        has_bucket: whether a bucket is selected. consumes: whether the client said that it produces.
    """

    client: socket.socket
    node: socket.socket
    has_bucket: bool = True
    consumes: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, frame: Frame) -> None:
        with self.lock:
            self.client.sendall(frame.encode())

    def close(self) -> None:
        for each in (self.client, self.node):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Elder:
    """The server.

    Args:
        node: who does the work. grants: which features HELLO grants, those of its time unless given.
        takes_changes: False to refuse every change, whatever its layout.
        knows_flags: the flags of DCP_OPEN that it takes, others being EINVAL as in 5.0; None to take all, as 4.6 does.

    Attributes:
        refused: what it would not take: (opcode, "EINVAL" and the like, or "hung up").
        opens: the flags of each DCP_OPEN.
    """

    def __init__(
        self,
        node: Node,
        *,
        grants: tuple[int, ...] = FEATURES,
        takes_changes: bool = True,
        knows_flags: int | None = None,
    ) -> None:
        self.refused: list[tuple[str, str]] = []
        self.opens: list[int] = []
        self._node, self._grants, self._takes_changes, self._knows = node, grants, takes_changes, knows_flags
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[Connection] = []
        self.endpoint = Endpoint(Address("127.0.0.1", self._listener.getsockname()[1]))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return str(self.endpoint.address)

    def __enter__(self) -> Elder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(client, socket.create_connection((self._node.host, self._node.port)))
            self._connections.append(connection)
            for work in (self._hear, self._tell):
                threading.Thread(target=work, args=(connection,), daemon=True).start()

    def _hear(self, connection: Connection) -> None:
        """From the client to the node."""
        frames = FrameBuffer()
        with suppress(OSError):
            while data := connection.client.recv(1 << 18):
                for frame in frames.receive_data(data):
                    passed = self._judge(connection, frame)
                    if passed is None:
                        connection.close()
                        return
                    connection.node.sendall(passed)
        connection.close()

    def _tell(self, connection: Connection) -> None:
        """From the node to the client; what a consumer of that time did not ask of its producer is answered here."""
        frames = FrameBuffer()
        with suppress(OSError):
            while data := connection.node.recv(1 << 18):
                for frame in frames.receive_data(data):
                    if not frame.is_response and frame.opcode == Opcode.DCP_CONTROL and frame.key not in CONTROLS:
                        connection.node.sendall(response(frame, Status.EINVAL).encode())
                    else:
                        connection.answer(frame)
        connection.close()

    # --- what it takes ------------------------------------------------------------------------------------------------

    def _judge(self, connection: Connection, frame: Frame) -> bytes | None:
        """Return the bytes to pass on to the node; none if they were answered here, None to hang up."""
        if frame.is_response:
            return frame.encode()
        if connection.consumes:
            return self._judge_change(connection, frame)
        match frame.opcode:
            case Opcode.HELLO:
                asked = [frame.value[at : at + 2] for at in range(0, len(frame.value), 2)]
                granted = b"".join(code for code in asked if int.from_bytes(code) in self._grants)
                return replace(frame, value=granted).encode()
            case Opcode.SASL_AUTH:  # an administrator's login, which belongs to no bucket
                connection.has_bucket = False
            case Opcode.SELECT_BUCKET:
                connection.has_bucket = True
            case Opcode.GET_FAILOVER_LOG:
                return self._hang_up(frame)
            case Opcode.DCP_OPEN:
                return self._open(connection, frame)
        if not connection.has_bucket and frame.opcode == Opcode.GET_CLUSTER_CONFIG:
            return self._hang_up(frame)
        if not connection.has_bucket and frame.opcode in (Opcode.STAT, Opcode.GET_VBUCKET):
            return self._refuse(connection, frame, Status.EACCESS)
        if self._is_outdated(frame):
            return self._refuse(connection, frame, Status.EINVAL, OUTDATED)
        if frame.opcode == Opcode.STAT and frame.key == b"replication":
            return self._refuse(connection, frame, Status.KEY_ENOENT)
        return frame.encode()

    def _is_outdated(self, frame: Frame) -> bool:
        """Whether the layout is one that it does not know."""
        match frame.opcode:
            case Opcode.SET_VBUCKET:
                return len(frame.extras) != 4
            case Opcode.GET_ALL_VB_SEQNOS:
                return len(frame.extras) != 0 and frame.extras not in {state.to_bytes(4) for state in (1, 2, 3, 4)}
            case Opcode.DCP_CONTROL:
                return frame.key not in CONTROLS
            case Opcode.IOCTL_SET:
                return True
        return False

    def _open(self, connection: Connection, frame: Frame) -> bytes:
        """Open DCP by the flag for who produces, and by no other."""
        flags = int.from_bytes(frame.extras[4:])
        self.opens.append(flags)
        if self._knows is not None and flags & ~self._knows:
            return self._refuse(connection, frame, Status.EINVAL)
        connection.consumes = not flags & 1
        return replace(frame, extras=frame.extras[:4] + (flags & 1).to_bytes(4)).encode()

    def _judge_change(self, connection: Connection, frame: Frame) -> bytes | None:
        expected = CHANGE_EXTRAS.get(frame.opcode, len(frame.extras))  # type: ignore[call-overload]
        is_marker = frame.opcode == Opcode.DCP_SNAPSHOT_MARKER
        is_change = frame.opcode in CHANGE_EXTRAS
        new = len(frame.extras) != (MARKER_EXTRAS if is_marker else expected)
        new = new or (is_change and (not self._takes_changes or bool(frame.datatype & ~Datatype.JSON)))
        if not new:
            return frame.encode()
        self._refuse(connection, frame, Status.EINVAL)
        return None

    def _refuse(self, connection: Connection, frame: Frame, status: Status, said: bytes = b"") -> bytes:
        self.refused.append((name_of(frame.opcode), status.name))
        connection.answer(response(frame, status, value=said))
        return b""

    def _hang_up(self, frame: Frame) -> None:
        self.refused.append((name_of(frame.opcode), HANGS_UP))
