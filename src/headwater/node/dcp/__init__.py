"""DCP connections of this node: the opening of one, and the sessions of both ends."""
