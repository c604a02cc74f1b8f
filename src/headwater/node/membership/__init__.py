"""One of several nodes: the cluster map that names this node, kept on disk, and its consequences for the node."""
