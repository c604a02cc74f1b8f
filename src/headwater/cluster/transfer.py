"""One vbucket's way from source to target, in the steps of failover 5: copied first, then taken over.

    copy()       ADD_STREAM; until the target has nearly everything (dcp-vbtakeover), and has it on disk
    take_over()  the stream is closed and requested again with the takeover flag; until the target is active

The mover sees the states pass: when the target has answered "active", that state is on its disk, and the target owns
the vbucket (failover 4, step 11). The mover waits for the end of the stream, but may also lose it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress

from headwater.cluster.admin import NO_SUCH_GROUP, NodeAdmin
from headwater.cluster.proxied import Limits, ProxiedConnection
from headwater.cluster.proxy import Side
from headwater.errors import MoveError, PeerSilent
from headwater.failpoints import failpoint
from headwater.wire.dcp import EndReason, StreamEnd, StreamFlag
from headwater.wire.header import Frame
from headwater.wire.json_text import context_of
from headwater.wire.opcodes import Opcode
from headwater.wire.status import name_of
from headwater.wire.vbucket import State

ESTIMATE_MAX = 1000
"""A copy that lacks no more than so many changes is near enough for a takeover (failover 5, step 3)."""

AGAIN = "ask for the same move again"
POLL_SECONDS_MAX = 0.5
END_SECONDS_MAX = 5.0


class Transfer:
    """One attempt at one vbucket, on connections that are open.

    Args:
        source, target: the two nodes.
        lag: called with the approximate number of changes that the target still lacks, whenever it is known.

    Attributes:
        active_sent: True if the target got the order to become active, and so may be active.
        ownerless_seconds: the time from step 7, when the source stops serving, to step 11, as the mover measured it.
    """

    def __init__(
        self, vbucket: int, source: NodeAdmin, target: NodeAdmin, limits: Limits, lag: Callable[[int], None]
    ) -> None:
        self.vb = vbucket
        self.active_sent: bool = False
        self.ownerless_seconds: float = 0.0
        self._source, self._target, self._limits, self._lag = source, target, limits, lag
        self._asked_state: State | None = None
        self._pending_at = 0.0
        self._refusal = ""
        self._end_reason: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ownership: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- copying ------------------------------------------------------------------------------------------------------

    async def copy(self, connection: ProxiedConnection) -> None:
        """Let the target follow until it has nearly everything on disk; the stream stays open.

        Raises:
            StatusError, TransportError: the stream could not begin, or ended early.
        """
        connection.listen(self.vb, self)
        await connection.add_stream(self.vb, StreamFlag(0))
        failpoint("move.copying")
        await self._wait_until_near(connection)
        failpoint("move.caught_up")
        # Failover 5, step 4: on the target's disk before it takes over, or the hand-over, in which nobody writes, would
        # wait for it.
        seqno = (await self._source.seqnos(State.ACTIVE)).get(self.vb)
        if seqno is None:
            raise MoveError(self.vb, "the source stopped owning it while it was copied", AGAIN, retriable=True)
        await self._or_end(connection, self._target.wait_persisted(self.vb, seqno))
        failpoint("move.persisted")

    async def follow(self) -> None:
        """Wait until a target that follows the source by its own connection has nearly everything.

        Raises:
            MoveError: it makes no progress.
        """
        nearest, until = -1, 0.0
        while (remaining := await self.lag()) > ESTIMATE_MAX:
            self._lag(remaining)
            now = time.monotonic()
            if nearest < 0 or remaining < nearest:
                nearest, until = remaining, now + self._limits.answer_seconds
            elif now >= until:
                problem = (
                    f"the target, which follows the source by itself, stays {remaining} changes behind; see its log"
                )
                raise MoveError(self.vb, problem, AGAIN, retriable=True)
            await asyncio.sleep(POLL_SECONDS_MAX)
        self._lag(remaining)
        failpoint("move.followed")

    async def _wait_until_near(self, connection: ProxiedConnection) -> None:
        pause = self._limits.poll_seconds
        while (remaining := await self._estimate(connection.name)) > ESTIMATE_MAX:
            self._lag(remaining)
            await self._or_end(connection, asyncio.sleep(pause))
            pause = min(1.5 * pause, POLL_SECONDS_MAX)
        self._lag(remaining)

    async def _estimate(self, name: str) -> int:
        """Return about how many changes the target lacks; at least ESTIMATE_MAX + 1 during a backfill."""
        with suppress(*NO_SUCH_GROUP):
            stats = await self._source.takeover_stats(self.vb, name)
            if stats.is_streaming:
                return stats.estimate if stats.status == "in-memory" else max(stats.estimate, ESTIMATE_MAX + 1)
        return await self.lag()

    async def lag(self) -> int:
        """Return the number of seqnos that the target is behind the source."""
        both = await asyncio.gather(*(node.copies([self.vb]) for node in (self._source, self._target)))
        source_seqno, target_seqno = (copies[self.vb].seqno if self.vb in copies else 0 for copies in both)
        return max(0, source_seqno - target_seqno)

    async def _or_end(self, connection: ProxiedConnection, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine, but cancel it when the stream or the connection ends, and raise that error."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait((task, self._end_reason, connection.proxy.lost), return_when=asyncio.FIRST_COMPLETED)
            self._check(connection)
            await task
        finally:
            task.cancel()
            task.add_done_callback(_read)  # its own error is not raised: the error that ended the stream is

    def _check(self, connection: ProxiedConnection) -> None:
        """Raise the error that ended the connection, or the stream, if there is one."""
        if connection.proxy.lost.done():
            raise connection.proxy.lost.result()
        if self._end_reason.done():
            problem = f"its stream ended: {_reason(self._end_reason.result())}"
            if self._refusal:
                problem += f", for the target would not have it ({self._refusal}); see its log"
            raise MoveError(self.vb, problem, AGAIN, retriable=True)

    # --- taking over --------------------------------------------------------------------------------------------------

    async def take_over(self, connection: ProxiedConnection) -> None:
        """Let the target take over; return when it owns the vbucket.

        Raises:
            StatusError, TransportError: the mover did not see that it owns it.
        """
        # The plain stream has ended, or will: that must not count as the end of this one.
        self._end_reason = asyncio.get_running_loop().create_future()
        connection.listen(self.vb, self)
        await connection.add_stream(self.vb, StreamFlag.TAKEOVER)
        failpoint("move.taking_over")
        waited = (self._ownership, self._end_reason, connection.proxy.lost)
        await asyncio.wait(waited, timeout=self._limits.handover_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not self._ownership.done():  # the stream ends right behind it, and so may the connection
            self._check(connection)
            raise PeerSilent(str(self._target.address), self._limits.handover_seconds)

    async def wait_end(self, connection: ProxiedConnection) -> None:
        """Wait for the end of the stream; "STREAM_END lost is harmless" (failover 4)."""
        waited = (self._end_reason, connection.proxy.lost)
        await asyncio.wait(waited, timeout=END_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)

    def observe(self, side: Side, frame: Frame) -> None:
        """Note a state, its answer, or the end of the stream, before the proxy passes the frame on."""
        if side is Side.CONSUMER:
            self._handle_answer(frame)
        elif frame.opcode == Opcode.DCP_STREAM_END:
            if not self._end_reason.done():
                self._end_reason.set_result(StreamEnd.decode(frame).status)
        else:
            # The state is the last byte of the extras: 1 is active, 3 pending (failover 4).
            self._asked_state = State.ACTIVE if frame.extras[-1:] == b"\x01" else State.PENDING
            # Noted before the frame is passed on, and never taken back: from here on the target may own the vbucket.
            self.active_sent = self.active_sent or self._asked_state is State.ACTIVE
            failpoint("move.active_sent" if self._asked_state is State.ACTIVE else "move.pending_sent")

    def _handle_answer(self, frame: Frame) -> None:
        if frame.status:  # the source ends the stream and takes the vbucket back
            self._refusal = context_of(frame.value) or name_of(frame.status)
            return
        if self._asked_state is State.PENDING:
            self._pending_at = time.monotonic()
            failpoint("move.pending_answered")
        elif self._asked_state is State.ACTIVE and not self._ownership.done():
            failpoint("move.active_answered")
            self.ownerless_seconds = time.monotonic() - self._pending_at
            self._ownership.set_result(None)


def _read(task: asyncio.Task[None]) -> None:
    """Retrieve a task's error, so that asyncio does not report it as unretrieved when no caller waits any more."""
    if not task.cancelled():
        task.exception()


def _reason(number: int) -> str:
    """Return the reason why a stream ended, in words."""
    return EndReason(number).name.lower().replace("_", " ") if number in set(EndReason) else str(number)
