"""TAP on this node: sessions that send to clients, and the messages that a mover sends to the node."""
