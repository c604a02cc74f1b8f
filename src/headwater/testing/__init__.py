"""For tests, including those of users: real nodes as processes, clusters, faulty disks, message strategies.

    from headwater import testing
    with testing.node() as node:
        ...

Nodes and clusters run until their block ends, and are removed with their data.
"""

from headwater.testing.cluster import Cluster, cluster
from headwater.testing.node import Node, NodeError, node

__all__ = ["Cluster", "Node", "NodeError", "cluster", "node"]
