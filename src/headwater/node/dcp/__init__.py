"""DCP connections of this node: their opening, and the sessions of both ends."""
