"""Make replicas follow other nodes by the map, with the same dialers as IOCTL_SET.

When a map changes the entry of a vbucket, the map decides which node the vbucket follows. Until then an operator may
make it follow another node, or (`hold`) no node, for instance to use another stream. A map ends only streams that a map
began.
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
        replication: the node's dialers.
        source: returns the producer at an address, with the login for it.

    Attributes:
        sources: the address of the followed node, by vbucket.
        held: the vbuckets that follow no node until a map changes their entry.
        held_by_run: the vbuckets in `held` that an operator's run holds; the end of the run, or the start of another
            one, also ends the hold.
    """

    def __init__(self, replication: Follower, source: Callable[[Address], ProducerAddress]) -> None:
        self.sources: dict[int, Address] = {}
        self.held: set[int] = set()
        self.held_by_run: set[int] = set()
        self._replication = replication
        self._source = source

    def news(self, vbuckets: Iterable[int]) -> None:
        """End the hold of vbuckets, because a new map has changed their entries."""
        changed = set(vbuckets)
        self.held -= changed
        self.held_by_run -= changed

    def hold(self, vbuckets: Iterable[int], *, by_run: bool = False) -> None:
        """End the streams of vbuckets that the map began, and keep these vbuckets from following a node. `by_run` is
        True if an operator's run with the lease requests this.
        """
        for vb in vbuckets:
            self.held.add(vb)
            if by_run:
                self.held_by_run.add(vb)
            self._leave(vb)

    def run_over(self) -> set[int]:
        """End the holds of an operator's run, because the run has ended or another one begins; return their vbuckets.

        A killed run can't end its holds, and the next map may not change the entry of a vbucket that the run was
        moving: without this, the vbucket would never follow a node again.
        """
        released, self.held_by_run = self.held_by_run, set()
        self.held -= released
        return released

    def by_hand(self, vbuckets: Iterable[int]) -> None:
        """Note that an operator makes vbuckets follow a node: the map no longer decides about their streams."""
        for vb in vbuckets:
            self.held.discard(vb)
            self.held_by_run.discard(vb)
            self.sources.pop(vb, None)

    def of(self, host: str, port: int) -> list[int]:
        """Return the vbuckets that follow a node by the map."""
        return [vb for vb, source in self.sources.items() if source == (host, port)]

    def obey(self, sources: dict[int, Address | None], *, news: Iterable[int]) -> None:
        """Make each vbucket follow its source in `sources` (None: no node).

        A stream that an operator began continues, unless the vbucket is in `news`: a map has changed its entry.
        """
        changed, begin = set(news), dict[Address, list[int]]()
        for vb, source in sources.items():
            if source is None or vb in self.held:
                self._leave(vb)
            # A stream that an operator began, to another node, continues until a map changes the entry.
            elif (vb in changed and self.sources.get(vb) != source) or not self._replication.wants(vb):
                begin.setdefault(source, []).append(vb)
        for source, vbuckets in begin.items():
            self.sources.update(dict.fromkeys(vbuckets, source))
            self._replication.start(self._source(source), vbuckets, takeover=False)

    def redial(self) -> None:
        """Connect to all followed nodes again, because their TLS or its ports have changed."""
        begun = dict[Address, list[int]]()
        for vb, source in self.sources.items():
            begun.setdefault(source, []).append(vb)
        for source, vbuckets in begun.items():
            self._replication.start(self._source(source), vbuckets, takeover=False)

    def _leave(self, vb: int) -> None:
        # Only streams that the map began are ended.
        source = self.sources.pop(vb, None)
        if source is not None:
            self._replication.leave(self._source(source), [vb])
