"""Makes replicas follow other nodes by the map, over the same dialers as IOCTL_SET.

A map decides when it changes the entry of a vbucket. Between two maps an operator may make a vbucket follow another
node, or (`hold`) none, for instance to use another stream. A map ends only streams that a map began.
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
        replication: the node's dialers. source: returns the producer, with its login, at an address.

    Attributes:
        sources: address of the followed node, by vbucket.
        held: vbuckets that follow no node until the map changes their entry.
        held_by_run: the vbuckets in `held` that an operator's run holds; the end of the run, or the start of another,
            frees them as well.
    """

    def __init__(self, replication: Follower, source: Callable[[Address], ProducerAddress]) -> None:
        self.sources: dict[int, Address] = {}
        self.held: set[int] = set()
        self.held_by_run: set[int] = set()
        self._replication = replication
        self._source = source

    def news(self, vbuckets: Iterable[int]) -> None:
        """End the hold of these vbuckets, because a new map changed their entries."""
        known = set(vbuckets)
        self.held -= known
        self.held_by_run -= known

    def hold(self, vbuckets: Iterable[int], *, by_run: bool = False) -> None:
        """End the streams of these vbuckets, and keep them from following; `by_run` is True if the operator's run has
        the lease.
        """
        for vb in vbuckets:
            self.held.add(vb)
            if by_run:
                self.held_by_run.add(vb)
            self._leave(vb)

    def run_over(self) -> set[int]:
        """End the holds by an operator's run that has ended, or was followed by another; return these vbuckets.

        A killed run can't end them itself, and the next map may not change the entry of a vbucket that the run was
        moving: without this, the vbucket would never follow a node again.
        """
        left, self.held_by_run = self.held_by_run, set()
        self.held -= left
        return left

    def by_hand(self, vbuckets: Iterable[int]) -> None:
        """Note that an operator makes these vbuckets follow a node."""
        for vb in vbuckets:
            self.held.discard(vb)
            self.held_by_run.discard(vb)
            self.sources.pop(vb, None)

    def of(self, host: str, port: int) -> list[int]:
        """Return the vbuckets that follow a node."""
        return [vb for vb, source in self.sources.items() if source == (host, port)]

    def obey(self, wanted: dict[int, Address | None], *, news: Iterable[int]) -> None:
        """Make each vbucket follow its source (None: no node).

        A stream that an operator began continues unless the map has news of the vbucket.
        """
        changed, begin = set(news), dict[Address, list[int]]()
        for vb, source in wanted.items():
            if source is None or vb in self.held:
                self._leave(vb)
            # A stream that an operator began to another node goes on until a map changes the entry.
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
        # Only streams that the map began are ended by it.
        source = self.sources.pop(vb, None)
        if source is not None:
            self._replication.leave(self._source(source), [vb])
