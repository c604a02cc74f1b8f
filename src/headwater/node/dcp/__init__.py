"""DCP connections of this node: how a connection becomes one, and the sessions of both ends."""
