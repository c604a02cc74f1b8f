"""TAP on this node: sessions that produce, and the commands of a mover that feeds it."""
