"""Several real nodes as one bucket, for tests: `with cluster() as c: ...`.

    with testing.cluster() as c, c.client() as bucket:
        bucket.set("k", "v")
        c.nodes[0].kill()
        c.fail_over(c.nodes[0])       its vbuckets continue from their replicas

The nodes have a cluster map, and replicas of each vbucket on other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.testing.node import Node, node

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

Result = TypeVar("Result")


class Cluster:
    """The nodes of a bucket; created by `cluster`.

    Attributes:
        nodes: in the order in which they were started.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def __repr__(self) -> str:
        return f"<Cluster {self.url}>"

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return str(self.nodes[0].options.get("bucket", "default"))

    @property
    def url(self) -> str:
        """The connection string couchbase://host:port,host:port/bucket, for clients, Spark and the command line."""
        return f"couchbase://{','.join(node.address for node in self.nodes)}/{self.bucket}"

    def client(self, *, connect_timeout_seconds: float = 30.0, timeout_seconds: float = 60.0) -> Client:
        """Return a client of the bucket (headwater.client)."""
        from headwater import client  # noqa: PLC0415 - as in Node.client

        return client.connect(
            self.url, connect_timeout_seconds=connect_timeout_seconds, timeout_seconds=timeout_seconds
        )

    def fail_over(self, *dead: Node) -> int:
        """Remove dead nodes and promote replicas of their vbuckets, as `headwater cluster failover` does.

        Returns: the number of promoted vbuckets.

        Raises:
            ClusterError: a dead node answers, a majority is dead, or a vbucket has no copy left.
        """
        from headwater.cluster.failover import Failover  # noqa: PLC0415 - most tests fail nothing over

        seeds = [_address(node) for node in self.nodes if node not in dead]

        async def work(members: Members) -> int:
            return len((await Failover(members, seeds, [_address(each) for each in dead]).run()).promotions)

        return self._run(work)

    def init(self, replicas: int) -> None:
        """Send the nodes their first map, as `headwater cluster init` does."""
        from headwater.cluster.founding import found_cluster  # noqa: PLC0415 - heavy, as above

        async def work(members: Members) -> None:
            await found_cluster(members, [_address(node) for node in self.nodes], replicas)

        self._run(work)

    def _run(self, work: Callable[[Members], Awaitable[Result]]) -> Result:
        from headwater.cluster.members import Members  # noqa: PLC0415 - heavy, as above

        async def run() -> Result:
            async with Members(self.bucket) as members:
                return await work(members)

        return asyncio.run(run())


def _address(node: Node) -> Address:
    from headwater.client.routing import Address  # noqa: PLC0415 - as above

    return Address(node.host, node.port)


@contextmanager
def cluster(nodes: int = 3, *, replicas: int = 1, **options: Any) -> Iterator[Cluster]:
    """Run nodes that are one bucket, for a block.

    Args:
        nodes: number of nodes.
        replicas: of each vbucket, 0 to 3.
        options: of each node, as for `node`.

    Raises:
        NodeError: a node did not start, or left a traceback; with its log.
    """
    with ExitStack() as running:
        running_cluster = Cluster([running.enter_context(node(vbucket_state="none", **options)) for _ in range(nodes)])
        running_cluster.init(replicas)
        yield running_cluster
