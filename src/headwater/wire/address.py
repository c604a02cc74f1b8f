"""The address of a node: the host and port that a cluster map names and a client connects to."""

from typing import NamedTuple


class Address(NamedTuple):
    """The host and port at which a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
