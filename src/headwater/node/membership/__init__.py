"""One of several nodes: the cluster map that names this node, kept on disk, and what the node does because of it."""
