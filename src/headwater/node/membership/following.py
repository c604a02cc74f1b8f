"""Replicas that follow because the map says so, by the same dialers that IOCTL_SET uses.

The map speaks first when it has news of a vbucket; between two maps an operator may have a vbucket follow somebody
else, or (`hold`) nobody, for instance to bring a stream of his own. What the map began is all that the map ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headwater.node.calling import ProducerAddress
from headwater.wire.address import Address

if TYPE_CHECKING:
    from headwater.node.kv.api import Follower


class Following:
    """The vbuckets that follow another node according to the cluster map.

    Args:
        replication: the node's dialers. source: how to log in at an address.

    Attributes:
        sources: the vbuckets that follow, each with the address that it follows.
        held: vbuckets that follow no node until the map changes their entry.
        held_by_run: those of them that an operator's run holds: until it ends, or another begins, too.
    """

    def __init__(self, replication: Follower, source: Callable[[Address], ProducerAddress]) -> None:
        self.sources: dict[int, Address] = {}
        self.held: set[int] = set()
        self.held_by_run: set[int] = set()
        self._replication = replication
        self._source = source

    def news(self, vbuckets: Iterable[int]) -> None:
        """The map speaks anew of these vbuckets: nothing holds them any more."""
        known = set(vbuckets)
        self.held -= known
        self.held_by_run -= known

    def hold(self, vbuckets: Iterable[int], *, by_run: bool = False) -> None:
        """Somebody else looks after these vbuckets for now; their streams end. `by_run`: a run that has the lease."""
        for vb in vbuckets:
            self.held.add(vb)
            if by_run:
                self.held_by_run.add(vb)
            self._leave(vb)

    def run_over(self) -> set[int]:
        """Let go what an operator's run held, for it is over or another one has begun; returns what that was.

        A run that was killed can't say so itself, and the map may have nothing new to say of a vbucket that it was to
        move: that would follow nobody for ever.
        """
        left, self.held_by_run = self.held_by_run, set()
        self.held -= left
        return left

    def by_hand(self, vbuckets: Iterable[int]) -> None:
        """An operator has these vbuckets follow somebody."""
        for vb in vbuckets:
            self.held.discard(vb)
            self.held_by_run.discard(vb)
            self.sources.pop(vb, None)

    def of(self, host: str, port: int) -> list[int]:
        """The vbuckets that follow a node."""
        return [vb for vb, source in self.sources.items() if source == (host, port)]

    def obey(self, wanted: dict[int, Address | None], *, news: Iterable[int]) -> None:
        """Let each vbucket follow its source (None: nobody); without news, a stream begun by hand goes on."""
        changed, begin = set(news), dict[Address, list[int]]()
        for vb, source in wanted.items():
            if source is None or vb in self.held:
                self._leave(vb)
            elif (vb in changed and self.sources.get(vb) != source) or not self._replication.wants(vb):
                begin.setdefault(source, []).append(vb)
        for source, vbuckets in begin.items():
            self.sources.update(dict.fromkeys(vbuckets, source))
            self._replication.start(self._source(source), vbuckets, takeover=False)

    def redial(self) -> None:
        """Nodes are called in another way from now on (TLS, another port for it): begin again with those that are."""
        begun = dict[Address, list[int]]()
        for vb, source in self.sources.items():
            begun.setdefault(source, []).append(vb)
        for source, vbuckets in begun.items():
            self._replication.start(self._source(source), vbuckets, takeover=False)

    def _leave(self, vb: int) -> None:
        source = self.sources.pop(vb, None)
        if source is not None:
            self._replication.leave(self._source(source), [vb])
