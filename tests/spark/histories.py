"""How to make the histories of a node part, with nothing but the node itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from headwater.testing.node import Node


def diverge(bucket: Node, *, lost: Callable[[], None], vbuckets: int = 4) -> None:
    """Put the node back to where it was before `lost`, as a replica that had not received those writes would be.

    It then becomes active, which begins a new branch of history. Whoever read what `lost` wrote is ahead of the branch.
    """
    bucket.stop()
    replica = bucket.data.with_name("replica")
    shutil.copytree(bucket.data, replica)
    bucket.restart()
    lost()
    bucket.stop()
    shutil.rmtree(bucket.data)
    replica.rename(bucket.data)
    bucket.restart()
    with bucket.client() as client:
        for vbucket in range(vbuckets):
            client.set_vbucket_state(vbucket, "replica")
            client.set_vbucket_state(vbucket, "active")
