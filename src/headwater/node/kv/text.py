"""The session of a connection with memcached's text protocol: the same requests, executed by the same handlers.

`headwater.protocol.text` converts a command to requests, one after the other, and their answers to lines. Each request
takes the path of a frame from the network, so rights, vbuckets, locks, the disk and durability are checked in the same
places. A command stays at the beginning of the input until it is answered. If it must wait (for room, a vbucket, a
password check, its turn), it later continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from headwater.node.kv.command import COMMANDS
from headwater.node.kv.session import KvSession
from headwater.node.refused import CommandRefused, NoRoom
from headwater.protocol.text.answers import stat_line
from headwater.protocol.text.commands import steps
from headwater.protocol.text.line import CommandReader, TextCommand
from headwater.wire.bootstrap import StatResponse
from headwater.wire.dialect import Dialect, decode
from headwater.wire.failure import Failure
from headwater.wire.header import VALUE_BYTES_MAX, Frame
from headwater.wire.json_text import context_of
from headwater.wire.layout import Answer, Request
from headwater.wire.status import Status
from headwater.wire.vbucket import vbucket_of

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection
    from headwater.node.kv.api import Services
    from headwater.protocol.text.words import Steps
    from headwater.wire.address import Address

STRANGER_BLOCK_BYTES_MAX = 1 << 10
"""The longest block of data before the login, which has a name and a password."""
SEND_BYTES = 64 << 10


class TextSession(KvSession):
    """The state of a text connection: that of a plain session, and the command at the beginning of the input, with its
    progress. The arguments are those of `KvSession`.
    """

    def __init__(
        self,
        connection: Connection,
        server: Services,
        user: str | None = None,
        relays: Mapping[Address, str] = MappingProxyType({}),
    ) -> None:
        self._reader = CommandReader()
        self._command: TextCommand | None = None
        self._steps: Steps
        self._request: Request | None = None
        self._is_handled = False
        self._answer_heard: Answer | None = None
        self._swallows = 0
        self._lines = bytearray()
        self._gate = 0
        super().__init__(connection, server, user, relays)
        connection.measures(self._reader.wanted)

    def refresh_access(self) -> None:
        """Look up rights as a plain session does; there is no fast path, because the kernels read frames only."""
        super().refresh_access()
        self._fast = None
        self._reader.block_bytes_max = VALUE_BYTES_MAX if self.access.is_logged_in else STRANGER_BLOCK_BYTES_MAX

    @property
    def quick(self) -> None:
        """None: the kernels read frames only."""

    # --- what the connection calls ------------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        """Execute every whole command in `data`; stop early if the connection is paused. Return the number of bytes
        consumed.
        """
        offset, connection = 0, self.connection
        while offset < len(data) and not connection.is_paused and not connection.is_closed:
            if self._swallows:
                offset += self._swallow(len(data) - offset)
                continue
            if self._command is None and not self._begin(data[offset:]):
                break
            if not self._carry_out():
                break
            offset += self._end()
            if connection.gives_way():
                break
        self._flush()
        return offset

    def _swallow(self, available: int) -> int:
        count = min(self._swallows, available)
        self._swallows -= count
        self._reader.begin()
        return count

    def _begin(self, data: memoryview) -> bool:
        """Read the command at the beginning of the input; return False while it is incomplete."""
        self._command = self._reader.read(data)
        if self._command is None:
            return False
        self._steps = steps(self._command, self.server.bucket.now(), is_stranger=not self.access.is_logged_in)
        return True

    def _end(self) -> int:
        """Finish the current command; return its size in bytes."""
        command, self._command = self._command, None
        assert command is not None  # noqa: S101 - `receive` calls this after a command was executed
        self._swallows = command.swallows
        if command.closes:
            self._flush()
            self.connection.finish()
        return command.size

    # --- a command ----------------------------------------------------------------------------------------------------

    def _carry_out(self) -> bool:
        """Continue the current command; return True once it is done, False if it must wait."""
        while True:
            if self._request is not None and not self._is_answered(self._request):
                return False
            heard, self._answer_heard = self._answer_heard, None
            try:
                step = self._steps.send(heard)
            except StopIteration:
                return True
            if isinstance(step, Request):
                self._request = step
            else:
                self._say(step)
            if self.connection.is_paused or self.connection.gives_way():
                return False

    def _say(self, step: bytes | tuple[bytes, ...]) -> None:
        for piece in step if isinstance(step, tuple) else (step,):
            if len(piece) >= SEND_BYTES:
                self.send(piece, self._gate)
            else:
                self._lines += piece
        if len(self._lines) >= SEND_BYTES:
            self._flush()

    def _is_answered(self, request: Request) -> bool:
        """Execute a request, unless an earlier call has done so; return True once it is answered."""
        if not self._is_handled:
            frame, relay = self._placed(request), self.relay
            if relay is not None and relay.holds_back(frame):
                return False
            try:
                self.answer(frame)
            except NoRoom:
                self.parking.wait_for_room(self.server.committer)
                return False
            self._is_handled = True
            if relay is not None:
                relay.flush()
        if self.parking.is_at_work or self.connection.is_closed or (self.relay is not None and self.relay.is_waiting):
            return False
        self._request, self._is_handled = None, False
        return True

    def _placed(self, request: Request) -> Frame:
        """Return the frame of a request, with the vbucket of its key."""
        frame = request.frame()
        if not COMMANDS[frame.opcode].document:
            return frame
        return replace(frame, vbucket=vbucket_of(frame.key, self.server.bucket.vbucket_count))

    # --- answers ------------------------------------------------------------------------------------------------------

    def reply(self, frame: Frame, answer: Answer) -> None:
        """Keep the answer for the command's next step. Its lines will wait for the same batches as a frame would."""
        if COMMANDS[frame.opcode].document:
            self._gate = max(self._gate, self.server.committer.gate())
        self._answer_heard = answer

    def pass_on(self, answer: bytes) -> None:
        """Keep another worker's answer for the command's next step."""
        heard = decode(answer, Dialect.KV)
        if isinstance(heard, Failure):
            heard = replace(heard, value=context_of(heard.value).encode())
        self._answer_heard = heard if isinstance(heard, Answer) else None

    def encoded(self, frame: Frame, answer: Answer) -> bytes:
        """Return an answer of STAT as a line; empty for any other answer."""
        return stat_line(frame.key, answer) if isinstance(answer, StatResponse) else b""

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        """Queue data after the lines of the command so far."""
        self._flush()
        super().send(data, gate)

    def finish(self) -> None:
        """Close the connection after the lines of the command so far."""
        self._flush()
        super().finish()

    def _flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, bytearray()
            super().send(lines, self._gate)
            self._gate = 0

    def refuse(self, frame: Frame, refused: CommandRefused) -> None:
        """Keep the refusal as the answer for the command's next step."""
        context = refused.context
        if refused.status == Status.NOT_MY_VBUCKET:
            owner = self.server.cluster.owner(frame.vbucket)
            context = f"vbucket {frame.vbucket} belongs to {owner or 'no node at present'}"
        self.reply(frame, Failure(status=refused.status, value=context.encode()))
