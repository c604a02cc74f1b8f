"""The sockets of a node: its listeners, its TLS, and a connection with its incoming and outgoing bytes."""
