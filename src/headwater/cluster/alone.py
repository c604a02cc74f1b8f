"""The lease of several nodes, by which an operator is the only one at work on them.

Two operators may want the lease at the same time. Both request it from the nodes in the same order, so one of them is
first. The other waits a while, since the first may be about to end: it may be a killed run whose connections the nodes
have not missed yet. Then the other gives up and names the first. Why leases: decision 0064.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from headwater.cluster.admin import NodeAdmin, Operator
from headwater.errors import ClusterError, TransportError

WAIT_SECONDS = 15.0
PAUSE_SECONDS = 0.1


async def lease_all(nodes: Sequence[NodeAdmin], operator: Operator, wait_seconds: float = WAIT_SECONDS) -> None:
    """Take the lease of all of these nodes that answer; all operators must use the same order of nodes.

    Args:
        wait_seconds: the longest wait for another operator to end.

    Raises:
        ClusterError: another operator is still at work on a node; no lease is held then.
    """
    give_up = time.monotonic() + wait_seconds
    while True:
        try:
            for node in nodes:
                # A silent node is passed over. Whatever reaches it later comes after a lease (NodeAdmin.lease).
                with suppress(TransportError):
                    await node.lease(operator)
        except ClusterError:
            # None is kept while waiting: the operator who is ahead may need just these nodes to come to an end.
            await asyncio.gather(*(node.release() for node in nodes))
            if time.monotonic() >= give_up:
                raise
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return
