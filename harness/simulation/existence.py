"""The model of a bucket beside the first: on which nodes it has to be, may be, and must not be.

Promised: a node that said that it made the bucket serves it from then on, after any crash; one that said that it
dropped it never serves it again; nothing comes or goes that nobody asked for. A request whose answer was lost may be
obeyed at any time, until the process that it was sent to is gone.

Pure: no node, no socket, no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.simulation.histories import Broken


@dataclass(slots=True)
class Request:
    """One that was sent to a node: to make the bucket, or to drop it."""

    makes: bool


@dataclass(slots=True)
class Existence:
    """Of one bucket, by node: True where it has to be, False where it must not be, None where both are possible.

    Attributes:
        on_the_way: requests that may still be obeyed. is_wanted: what the operator asked for last.
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
        """Whether every node has said so."""
        return all(self.must[node] is self.is_wanted for node in self.nodes)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on the way that could still change it."""
        return not any(self.on_the_way.values())

    def asks(self, node: str, *, makes: bool) -> Request:
        """Somebody is about to ask a node to make it, or to drop it."""
        asked = Request(makes)
        self.on_the_way[node].append(asked)
        if self.must[node] is not makes:
            self.must[node] = None
        return asked

    def answered(self, node: str, asked: Request, *, done: bool) -> None:
        """The node has said that it did, or that it could not, which leaves both possible."""
        left = self.on_the_way[node]
        if asked in left:
            left.remove(asked)
        opposite = any(each.makes is not asked.makes for each in left)
        self.must[node] = asked.makes if done and not opposite else None

    def began(self, node: str) -> None:
        """A process was started: what was on the way to the one before is lost."""
        self.on_the_way[node].clear()

    def check(self, node: str, *, is_served: bool) -> None:
        """Check what a node that runs serves."""
        must = self.must[node]
        if must is not None and must is not is_served:
            said = "is not there, though it was made" if must else "is there, though it was dropped, or never made"
            raise Broken(f"bucket: on {node} it {said}")
