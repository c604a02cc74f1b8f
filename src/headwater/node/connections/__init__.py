"""The sockets of a node: where it listens, its TLS, and a connection with the bytes that came and those that wait."""
