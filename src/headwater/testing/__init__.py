"""For tests, yours as well: a real node in a subprocess, message strategies, faulty disks.

from headwater import testing
with testing.node() as node:
    ...
"""

from headwater.testing.node import Node, NodeError, node

__all__ = ["Node", "NodeError", "node"]
