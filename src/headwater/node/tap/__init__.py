"""TAP on this node: sessions that send, and the commands of a mover that feeds the node."""
