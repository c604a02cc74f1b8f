"""The model of a second bucket: on which nodes it must be served, may be, and must not be.

Promised: a node that confirmed that it created the bucket serves it from then on, after any crash; a node that
confirmed the drop never serves it again; no bucket appears or vanishes without a request. A request whose answer was
lost may take effect at any time, until the process that it was sent to is gone.

Pure: no node, no socket, no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.simulation.histories import Broken


@dataclass(slots=True)
class Request:
    """A request to a node to create the bucket, or to drop it."""

    makes: bool


@dataclass(slots=True)
class Existence:
    """The model of one bucket, by node: True where it must exist, False where it must not, None where both are
    possible.

    Attributes:
        on_the_way: requests that may still take effect. is_wanted: the operator's last request: True to create it.
    """

    nodes: Sequence[str]
    must: dict[str, bool | None] = field(default_factory=dict)
    on_the_way: dict[str, list[Request]] = field(default_factory=dict)
    is_wanted: bool = False

    def __post_init__(self) -> None:
        for node in self.nodes:
            self.must[node], self.on_the_way[node] = False, []

    @property
    def is_as_wanted(self) -> bool:
        """True if every node has confirmed the last request."""
        return all(self.must[node] is self.is_wanted for node in self.nodes)

    @property
    def is_quiet(self) -> bool:
        """True if no pending request could still change it."""
        return not any(self.on_the_way.values())

    def asks(self, node: str, *, makes: bool) -> Request:
        """Note that a request is about to be sent to a node; return it."""
        request = Request(makes)
        self.on_the_way[node].append(request)
        if self.must[node] is not makes:
            self.must[node] = None
        return request

    def answered(self, node: str, request: Request, *, done: bool) -> None:
        """Note that a node confirmed a request, or failed to carry it out, which leaves both states possible."""
        left = self.on_the_way[node]
        if request in left:
            left.remove(request)
        opposite = any(each.makes is not request.makes for each in left)
        self.must[node] = request.makes if done and not opposite else None

    def began(self, node: str) -> None:
        """Note that a process was started: requests to the one before are lost."""
        self.on_the_way[node].clear()

    def check(self, node: str, *, is_served: bool) -> None:
        """Check that a running node serves the bucket only where it may, and where it must."""
        must = self.must[node]
        if must is not None and must is not is_served:
            problem = "is not there, though it was made" if must else "is there, though it was dropped, or never made"
            raise Broken(f"bucket: on {node} it {problem}")
