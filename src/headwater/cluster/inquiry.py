"""Requests for the states of copies, sent to each node for many vbuckets at once.

Each node has at most one such request pending; vbuckets that are wanted meanwhile go together with the next one (as the
changes of the map do in publisher.py). An answer is never older than the call that gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.cluster.answers import CopyReport
from headwater.errors import ClusterError

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.admin import NodeAdmin

__all__ = ["Inquiry", "lost"]


class Inquiry:
    """A source of copies' states that combines the requests to a node.

    Args:
        admin: returns the administration of a node.
    """

    def __init__(self, admin: Callable[[Address], NodeAdmin]) -> None:
        self._admin = admin
        self._asking: dict[Address, asyncio.Lock] = {}
        self._waiting_questions: dict[Address, tuple[set[int], asyncio.Task[dict[int, CopyReport]]]] = {}

    async def copy(self, node: Address, vbucket: int) -> CopyReport | None:
        """Return a node's present copy of a vbucket; None if it has none.

        Raises:
            TransportError, StatusError: it does not answer.
        """
        if node not in self._waiting_questions:
            vbuckets: set[int] = set()
            task = asyncio.create_task(self._ask(node, vbuckets))
            task.add_done_callback(_read)
            self._waiting_questions[node] = vbuckets, task
        vbuckets, task = self._waiting_questions[node]
        vbuckets.add(vbucket)
        # One caller that is cancelled must not take the others' answers with it.
        return (await asyncio.shield(task)).get(vbucket)

    async def owned_seqno(self, owner: Address, vbucket: int) -> int:
        """Return the seqno on disk of a vbucket at its owner.

        Raises:
            ClusterError: the node is not the owner any more.
            TransportError, StatusError: it does not answer.
        """
        copy = await self.copy(owner, vbucket)
        if copy is None or not copy.is_active:
            raise lost(owner, vbucket)
        return copy.seqno

    async def _ask(self, node: Address, vbuckets: set[int]) -> dict[int, CopyReport]:
        async with self._asking.setdefault(node, asyncio.Lock()):
            del self._waiting_questions[node]  # whoever comes now asks anew
            return await self._admin(node).copies(vbuckets)


def lost(owner: Address, vbucket: int) -> ClusterError:
    """Return the error for a node that no longer owns a vbucket."""
    return ClusterError(f"{owner} does not own vbucket {vbucket} any more", "type this again")


def _read(task: asyncio.Task[dict[int, CopyReport]]) -> None:
    """Retrieve a task's error, so that asyncio does not report it as unretrieved when no caller waits any more."""
    if not task.cancelled():
        task.exception()
