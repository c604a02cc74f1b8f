"""Observation by TAP: count what is written, by prefix of the key, without ever fetching a value.

    python tap_observation.py                          a node of its own, as a demonstration
    python tap_observation.py couchbase://host/bucket  until Ctrl-C

Every node is listened to, and everything comes from each: its replicas, copies of vbuckets that move, all there is once
more after a connection was lost. So nothing is missed, and the CAS tells what is new: it is the time of the change in
nanoseconds, given by the vbucket's owner, and grows with each change of a key.
"""

import sys
import threading
import time
from collections import Counter

from headwater import client, testing
from headwater.client.routing import Address
from headwater.client.tapnodes import TapNodes
from headwater.errors import HeadwaterError
from headwater.protocol.tap.consumer import TapMessage
from headwater.wire.tap import Delete, Mutation

CAS_STEP = 1 << 16
"""The clock in a CAS is as fine as that."""


class Observer:
    """Counts of what was written since it began.

    Attributes: seen: how often, by "stored prefix" and "deleted prefix".
    """

    def __init__(self, url: str) -> None:
        self.seen: Counter[str] = Counter()
        self._newest: dict[bytes, int] = {}
        self._began = time.time_ns() // CAS_STEP * CAS_STEP  # the nodes' clocks must agree with ours
        self._changed = threading.Condition()
        self._nodes = TapNodes(url, self._hear, keys_only=True)
        self._nodes.open()

    def wait_for(self, total: int, timeout_seconds: float = 60.0) -> bool:
        """Wait until so many changes were seen; False if they were not."""
        with self._changed:
            return self._changed.wait_for(lambda: self.seen.total() >= total, timeout_seconds)

    def close(self) -> None:
        """Let go of the connections."""
        self._nodes.close()

    def _hear(self, _: Address, message: TapMessage) -> None:
        if not isinstance(message, Mutation | Delete) or message.cas < self._newest.get(message.key, self._began):
            return
        with self._changed:
            self._newest[message.key] = message.cas + 1
            what = "stored" if isinstance(message, Mutation) else "deleted"
            self.seen[f"{what} {message.key.decode().partition(':')[0]}"] += 1
            self._changed.notify_all()


def demonstrate() -> None:
    """Write, and see it."""
    with testing.node(vbuckets=16) as node, client.connect(node.url) as writer:
        writer.set("user:old", "from before")
        observer = Observer(node.url)
        for number in range(6):
            writer.set(f"user:{number}" if number % 2 else f"order:{number}", "a value that stays on the node")
        observer.wait_for(6)  # without it, the two changes of the next key might be merged into one
        writer.delete("order:0")
        observer.wait_for(7)
        observer.close()
        for what, count in sorted(observer.seen.items()):
            print(what, count)


def observe(url: str) -> None:
    """Print the counts whenever they have changed, until Ctrl-C."""
    observer = Observer(url)
    try:
        while True:
            if observer.wait_for(observer.seen.total() + 1, timeout_seconds=1.0):
                print(*(f"{what}: {count}" for what, count in sorted(observer.seen.items())), sep=", ", flush=True)
    except KeyboardInterrupt:
        observer.close()


if __name__ == "__main__":
    try:
        observe(sys.argv[1]) if sys.argv[1:] else demonstrate()
    except HeadwaterError as error:
        raise SystemExit(str(error)) from None
