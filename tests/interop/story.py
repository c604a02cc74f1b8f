"""The events that every DCP client must live through with a node: one story, told with Java's client and with Go's.

1024 vbuckets and a flow-control window a fraction of the content; deletions and expirations; live changes; a node
killed with SIGKILL; and a node that comes back as a replica would which had not received the last changes, so that the
client must roll back. At each step the client must hold exactly what was stored.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from headwater import testing
from headwater.testing.node import Node
from tests.interop.follower import Follower

VBUCKETS = 1024
WINDOW_BYTES = 256 << 10  # what both programs ask for


def follow_through_everything(program: Callable[[int], Sequence[str]], folder: Path) -> None:
    """Tell the story; `program` makes the client's command of a port."""
    with testing.node(vbuckets=VBUCKETS, expiry_pager_seconds=1) as node:
        stored = _fill(node)
        with Follower(program(node.port), folder) as client:
            # A deletion whose mutation was deduplicated changes no document of the client: all of them are waited for
            # by their number.
            client.follow_until(lambda: client.documents() == stored and _gone(client) >= (100, 5))
            assert _gone(client) == (100, 5)
            _write(node, stored, "live")
            client.follow_until(lambda: client.documents() == stored)
            node.kill()
            replica = Path(shutil.copytree(node.data, node.data.with_name("replica")))
            node.restart()
            lost = dict(stored)
            _write(node, lost, "after the crash")
            client.follow_until(lambda: client.documents() == lost)
            node.kill()
            shutil.rmtree(node.data)
            replica.rename(node.data)
            node.restart()
            _write(node, stored, "on the new branch")
            client.follow_until(lambda: client.documents() == stored)
            assert client.counts["rollback"] > 0


def _gone(client: Follower) -> tuple[int, int]:
    """How many documents the client has heard to be deleted, and to have expired."""
    return client.counts["deletion"], client.counts["expiration"]


def _fill(node: Node) -> dict[str, bytes]:
    stored = {f"document-{number}": b"%0300d" % number for number in range(3000)}
    assert sum(map(len, stored.values())) > 3 * WINDOW_BYTES
    with node.client() as bucket:
        bucket.set_many(stored.items())
        for number in range(100):
            bucket.delete(f"document-{number}")
            del stored[f"document-{number}"]
        for number in range(5):
            bucket.set(f"passing-{number}", b"x", expiry=1)
    return stored


def _write(node: Node, stored: dict[str, bytes], name: str) -> None:
    """One new document, one changed, one deleted."""
    changed, gone = list(stored)[:2]
    with node.client() as bucket:
        bucket.set(name, b"new")
        bucket.set(changed, name)
        bucket.delete(gone)
    del stored[gone]
    stored.update({name: b"new", changed: name.encode()})
