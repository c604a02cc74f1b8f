"""Moves vbuckets from one node to another: the orchestrator that the protocol's documents leave outside of the nodes.

    async with Mover(source, target, on_owned=push_the_map) as mover:
        await asyncio.gather(*(mover.move(vb) for vb in range(512)))

Every attempt at a vbucket begins with a look at both nodes: a move that was killed, cut off or refused half-way is
found (recovery.py), finished or taken back, and continued. So a repetition is always enough, by this object while it
has patience, and by the operator after that. All state is in the nodes.

A target that follows the source by its own connection, as members of a cluster do, is filled by that stream, which ends
when its turn to take over has come (decision 0121). For any other target the mover passes the frames between the two
nodes.

Two proxied connections are used: on one the vbuckets are copied, on the other they change hands, so that the few
messages of a hand-over, during which no node accepts writes, do not queue behind the backfill of another vbucket; and
copying and handing over take turns (alternation.py).

While the mover looks and changes states, it, or the run that it is part of, holds the leases of both nodes (alone.py).
A look and the action after it are one step only as long as no other operator acts in between.

Source: failover 4 and 5. Steps 7 and 8 of failover 5 (the new map, the old copy) are the caller's: `on_owned`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

import numpy as np

from headwater.cluster.admin import Endpoint, NodeAdmin, Operator
from headwater.cluster.alone import WAIT_SECONDS, lease_all
from headwater.cluster.alternation import Alternation
from headwater.cluster.patience import Patience
from headwater.cluster.proxied import Limits, ProxiedConnection, connection_name, open_proxied
from headwater.cluster.proxy import Side
from headwater.cluster.settling import Settling
from headwater.cluster.transfer import AGAIN, Transfer
from headwater.errors import (
    AuthError,
    ClusterError,
    HeadwaterError,
    MoveError,
    NoAccess,
    NoBucket,
    OptionError,
    ProtocolError,
    StatusError,
    TransportError,
    UnknownCommand,
)
from headwater.failpoints import failpoint
from headwater.protocol.dcp.opening import HAND_OVER
from headwater.tracing import span
from headwater.transport.backoff import Backoff
from headwater.wire.vbucket import VBUCKET_NUMBERS

CONCURRENCY = 4
FINISH_SECONDS_MAX = 5.0
"""The longest time that a stopped mover waits for the hand-overs under way."""

QUIET_SECONDS = 0.05
"""Between hand-overs and the next copies; see alternation.py."""

_FOR_GOOD = (AuthError, NoAccess, NoBucket, UnknownCommand)
_COPY, _HAND_OVER = "copy", HAND_OVER.decode().removeprefix(":")


class MoveStage(Enum):
    """The stages of a vbucket on its way."""

    COPYING = "copying"
    TAKING_OVER = "taking over"
    RETRYING = "trying again"
    COPIED = "copied"
    OWNED = "moved"


@dataclass(frozen=True, slots=True)
class MoveEvent:
    """News of a move: a vbucket has reached a stage; `problem` is the reason for another attempt, empty otherwise."""

    vbucket: int
    stage: MoveStage
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a move.

    Attributes:
        vbucket: its number.
        changes, bytes: the totals that passed through the mover for it, in all attempts.
        seconds: the time from the first look to the end. attempts: their number.
        ownerless_seconds: the time in which neither node served it, as the mover measured it; 0 if it did not see the
            hand-over.
    """

    vbucket: int
    changes: int
    bytes: int
    seconds: float
    attempts: int
    ownerless_seconds: float


async def copying_peer(source: NodeAdmin, target: Endpoint) -> str | None:
    """Return the address of a mover that copies vbuckets between two nodes now, as the source reports; None if there is
    none.

    Movers that take vbuckets over wait for each other's lease; movers that copy would end each other's connections.
    """
    try:
        statistics = await source.stats("dcp")
    except (StatusError, ProtocolError):
        return None
    return statistics.get(f"eq_dcpq:{connection_name(source.endpoint, target, _COPY)}:peer")


class Mover:
    """A mover of vbuckets between two nodes; use it as `async with`.

    Args:
        source, target: the nodes.
        concurrency: the number of vbuckets that are moved at the same time.
        limits: the timeouts.
        on_owned: awaited with a vbucket as soon as the target owns it, so that the map is sent now. It may be awaited
            again for a vbucket that was moved before. `move` raises its errors.
        progress: called with every event.
        operator: the run that this mover is part of, which holds the leases of both nodes already; None for a run of
            its own.

    Attributes:
        lags: about how many changes the target lacked at the last look, by vbucket.
    """

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        *,
        concurrency: int = CONCURRENCY,
        limits: Limits = Limits(),  # noqa: B008 - a constant
        on_owned: Callable[[int], Awaitable[None]] | None = None,
        progress: Callable[[MoveEvent], None] | None = None,
        operator: Operator | None = None,
    ) -> None:
        if concurrency < 1:
            raise OptionError("concurrency", concurrency, "a number of 1 or more")
        self.source: Final = source
        self.target: Final = target
        self.limits: Final = limits
        self.lags: dict[int, int] = {}
        self._source = NodeAdmin(source, limits.connect_seconds)
        self._target = NodeAdmin(target, limits.connect_seconds)
        self._operator, self._is_part = operator or Operator.of("move"), operator is not None
        self._at_work, self._is_alone, self._leasing = 0, False, asyncio.Lock()
        self._settling = Settling(self._source, self._target)
        self._on_owned, self._progress = on_owned, progress or (lambda event: None)
        self._slots = asyncio.Semaphore(concurrency)
        self._connections: dict[str, ProxiedConnection] = {}
        self._alternation = Alternation(QUIET_SECONDS)
        self._delete_times = True
        self._opening = asyncio.Lock()
        self._handovers: set[asyncio.Task[float]] = set()
        self._changing_hands: set[int] = set()
        self._changes = np.zeros(VBUCKET_NUMBERS, np.int64)  # what connections that are closed have passed
        self._bytes = np.zeros(VBUCKET_NUMBERS, np.int64)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let running hand-overs finish, for a few seconds at most; then close the connections."""
        if self._handovers:
            await asyncio.wait(self._handovers, timeout=FINISH_SECONDS_MAX)
        for connection in self._connections.values():
            connection.close()
        for task in self._handovers:
            task.cancel()
        self._source.close()
        self._target.close()

    @property
    def is_copying(self) -> bool:
        """True if the connection on which vbuckets are copied is open."""
        return _COPY in self._connections and self._connections[_COPY].is_open

    def passed(self, vbucket: int | None = None) -> tuple[int, int]:
        """Return the changes and bytes that passed, for one vbucket or for all."""
        connections = [connection.proxy.down for connection in self._connections.values()]
        at = slice(None) if vbucket is None else slice(vbucket, vbucket + 1)
        changes = int(self._changes[at].sum()) + sum(int(down.changes[at].sum()) for down in connections)
        return changes, int(self._bytes[at].sum()) + sum(int(down.change_bytes[at].sum()) for down in connections)

    async def move(self, vbucket: int, *, takeover: bool = True) -> Moved:
        """Move a vbucket, or copy it.

        Args:
            takeover: False to copy: the target gets a replica, which follows until `close`.

        Raises:
            MoveError: it can't be moved, or makes no progress for `Limits.patience_seconds`.
            ClusterError: another operator is still at work on one of the nodes after that time.
            StatusError: a node refuses for good: a wrong password, no such bucket.
        """
        async with self._slots, self._leases() if takeover else nullcontext():
            return await self._persistently(vbucket, takeover=takeover)

    async def recover(self, vbucket: int) -> bool:
        """Repair a hand-over that broke off; return True if the target owns the vbucket now.

        Raises:
            MoveError: its owner is unknown, or is neither of these two nodes.
        """
        async with self._leases():
            await self._open_connections()
            return await self._settling.settle(vbucket)

    async def release(self, vbucket: int) -> None:
        """End the copying of a vbucket; the target keeps its documents."""
        await self._leave(vbucket)

    # --- attempts -----------------------------------------------------------------------------------------------------

    async def _persistently(self, vb: int, *, takeover: bool) -> Moved:
        began, attempts, backoff = time.monotonic(), 0, Backoff(longest_seconds=2.0)
        patience = Patience(self.limits.patience_seconds, began)
        while True:
            attempts, passed_before = attempts + 1, self.passed(vb)
            patience.begin()
            try:
                # Only the first attempt relies on the target's own stream: where that does not do, the mover copies by
                # itself.
                ownerless = await self._attempt(vb, patience, takeover=takeover, follows=takeover and attempts == 1)
            except (TransportError, ProtocolError, StatusError, MoveError) as error:
                problem = error
            else:
                return Moved(vb, *self.passed(vb), time.monotonic() - began, attempts, ownerless)
            passed = self.passed(vb) != passed_before
            if (given_up := await self._gives_up(vb, problem, backoff, patience, passed=passed)) is not None:
                await self._put_right(vb, given_up)
                return Moved(vb, *self.passed(vb), time.monotonic() - began, attempts, 0.0)

    async def _gives_up(
        self, vb: int, problem: HeadwaterError, backoff: Backoff, patience: Patience, *, passed: bool
    ) -> HeadwaterError | None:
        """Wait before the next attempt and return None; or return the error of the move, if no attempt is left or would
        help.
        """
        if isinstance(problem, _FOR_GOOD) or (isinstance(problem, MoveError) and not problem.retriable):
            return problem
        progress = await self._settling.held(vb)
        if patience.failed(time.monotonic(), progress, passed=passed):
            backoff.reset()
        pause = backoff.next_seconds()
        if patience.is_over(time.monotonic() + pause):
            return problem if isinstance(problem, MoveError) else _given_up(vb, problem)
        self._progress(MoveEvent(vb, MoveStage.RETRYING, str(problem)))
        await asyncio.sleep(pause)
        return None

    async def _put_right(self, vb: int, problem: HeadwaterError) -> None:
        """Repair a broken hand-over, which leaves the vbucket without an owner, before a move is given up.

        Returns if the target owns the vbucket after all.

        Raises:
            HeadwaterError: `problem`. The vbucket has an owner then, unless a node does not answer: then the next run
                repairs it.
        """
        if vb in self._settling.active_sent:
            with suppress(TransportError, ProtocolError, StatusError, ClusterError):
                if await self._is_moved(vb):
                    await self._report_owned(vb)
                    return
        raise problem

    async def _attempt(self, vb: int, patience: Patience, *, takeover: bool, follows: bool) -> float:
        """Make one attempt with all steps; return the seconds for which the vbucket had no owner.

        Args:
            takeover: False to copy only.
            follows: True if the target may follow the source by its own connection until the vbucket changes hands.
        """
        async with self._leases():
            if await self._is_moved(vb, follows=follows):
                return await self._report_owned(vb)
            failpoint("move.replica_made")
        transfer = Transfer(vb, self._source, self._target, self.limits, lambda lag: self.lags.__setitem__(vb, lag))
        try:
            return await self._transfer(transfer, patience, takeover=takeover)
        except BaseException:
            if vb not in self._changing_hands:  # else the hand-over ends on its stream, though we are stopped
                await asyncio.shield(self._leave(vb))
            raise

    async def _is_moved(self, vb: int, *, follows: bool = False) -> bool:
        """Look at both nodes, and repair an earlier hand-over; return True if the target owns the vbucket."""
        try:
            await self._open_connections()
        except TransportError as error:
            await self._settling.settle_alone(vb, error)
            return True
        failpoint("move.connected")
        return await self._settling.settle(vb, follows=follows)

    async def _transfer(self, transfer: Transfer, patience: Patience, *, takeover: bool) -> float:
        vb = transfer.vb
        self._progress(MoveEvent(vb, MoveStage.COPYING))
        follows = vb in self._settling.followed  # then nothing is copied by us, and nobody's turn is in the way
        async with nullcontext() if follows else self._alternation.copying():
            with span("move.copy", vbucket=vb) as trace:
                if follows:
                    await transfer.follow()
                else:
                    await transfer.copy(self._connections[_COPY])
                if trace.is_heard:
                    changes, count = self.passed(vb)
                    trace.tell(changes=changes, bytes=count)
        patience.note_copied(time.monotonic())
        if not takeover:
            self._progress(MoveEvent(vb, MoveStage.COPIED))
            return 0.0
        self._progress(MoveEvent(vb, MoveStage.TAKING_OVER))
        handover_turn = AsyncExitStack()
        await handover_turn.enter_async_context(self._alternation.handing_over())
        # Whoever stops the mover does not stop this: half a hand-over would leave the vbucket without an owner.
        self._changing_hands.add(vb)
        task = asyncio.create_task(self._hand_over_alone(transfer, handover_turn))
        self._handovers.add(task)
        task.add_done_callback(self._handovers.discard)
        return await asyncio.shield(task)

    async def _hand_over_alone(self, transfer: Transfer, handover_turn: AsyncExitStack) -> float:
        try:
            async with handover_turn, self._leases():
                return await self._hand_over(transfer, handover_turn)
        finally:
            self._changing_hands.discard(transfer.vb)

    async def _hand_over(self, transfer: Transfer, handover_turn: AsyncExitStack) -> float:
        vb, connection = transfer.vb, self._connections[_HAND_OVER]
        # Failover 5, step 6: the plain stream is closed at both ends before the one that takes over is requested.
        await self._leave(vb)
        if vb in self._settling.followed:
            # The target's own stream would open again beside ours, as it does whenever it breaks off.
            await self._settling.let_go(vb)
        failpoint("move.closed")
        try:
            with span("move.take_over", vbucket=vb) as trace:
                await transfer.take_over(connection)
                trace.tell(ownerless_seconds=transfer.ownerless_seconds)
        except BaseException:
            is_known = transfer.active_sent or connection.proxy.fallen is not Side.PRODUCER
            self._settling.active_sent[vb] = transfer.active_sent if is_known else None
            raise
        await handover_turn.aclose()  # the next hand-over need not wait for the map; one map then has several
        await self._report_owned(vb)
        await transfer.wait_end(connection)
        connection.stop_listening(vb)
        return transfer.ownerless_seconds

    async def _report_owned(self, vb: int) -> float:
        """Call `on_owned` and report that the target owns the vbucket; return 0.0, the seconds without an owner."""
        failpoint("move.owned")
        self.lags[vb] = 0
        if self._on_owned is not None:
            with span("move.map", vbucket=vb):
                await self._on_owned(vb)
        self._progress(MoveEvent(vb, MoveStage.OWNED))
        return 0.0

    # --- being alone at work ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _leases(self) -> AsyncIterator[None]:
        """Hold the leases of both nodes within a block, so that no other operator changes states there.

        Raises:
            ClusterError: another operator is at work; the block is not entered.
        """
        self._at_work += 1
        try:
            async with self._leasing:
                await self._lease()
            yield
        finally:
            self._at_work -= 1
            if not self._at_work and not self._is_part:
                async with self._leasing:
                    await self._release()

    async def _lease(self) -> None:
        nodes = sorted((self._source, self._target), key=lambda node: str(node.address))
        if not self._is_part and not self._is_alone:
            self._settling.active_sent.clear()  # others may have been at work
            wait_seconds = max(WAIT_SECONDS, self.limits.patience_seconds)
            await lease_all(nodes, self._operator, wait_seconds)
            self._is_alone = True
        # A connection that was opened anew takes the lease again, or learns that another operator was at work since.
        for node in nodes:
            with suppress(TransportError):  # asking it will fail
                await node.lease(self._operator, is_renewal=True)

    async def _release(self) -> None:
        if not self._at_work:
            self._is_alone = False
            await asyncio.gather(self._source.release(), self._target.release())

    # --- connections --------------------------------------------------------------------------------------------------

    async def _open_connections(self) -> None:
        """Open both connections, that of the hand-overs first, which ends every hand-over of an older mover."""
        async with self._opening:
            self._learn()
            for purpose in (_HAND_OVER, _COPY):
                connection = self._connections.get(purpose)
                if connection is None or not connection.is_open:
                    new_connection = await open_proxied(
                        self.source, self.target, self.limits, purpose, delete_times=self._delete_times
                    )
                    if connection is not None:
                        self._changes += connection.proxy.down.changes
                        self._bytes += connection.proxy.down.change_bytes
                    self._connections[purpose] = new_connection

    def _learn(self) -> None:
        """Stop sending deletions with their times, if the target has refused one."""
        if self._delete_times and any(connection.refuses_delete_times for connection in self._connections.values()):
            self._delete_times = False
            for connection in self._connections.values():
                if connection.is_idle:
                    connection.close()

    async def _leave(self, vb: int) -> None:
        """Close the vbucket's streams on both connections; a connection on which that fails is closed."""
        for connection in tuple(self._connections.values()):
            if connection.stop_listening(vb) and connection.is_open:
                try:
                    await connection.close_stream(vb)
                except (TransportError, StatusError):
                    connection.close()


def _given_up(vb: int, problem: HeadwaterError) -> MoveError:
    error = MoveError(vb, str(problem), AGAIN)
    error.__cause__ = problem
    return error
