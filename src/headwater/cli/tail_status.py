"""The status of `tail --status`, on stderr each second: until when everything is printed, and what holds that up."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from headwater.cli.forms import remark
from headwater.errors import StatusError, TransportError
from headwater.protocol.dcp.complete import Completeness, as_time

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.client.feeds import Changes

STATUS_SECONDS = 1.0


class TailStatus:
    """The status of a drain that is printed.

    Args:
        client: of the bucket.
        changes: the drain; its `max_wait_seconds` is STATUS_SECONDS, so that a quiet bucket has a status, too.
        vbuckets: the vbuckets; None for all. chooses: True if the drain has chosen its collections.
        clock: returns seconds.
    """

    def __init__(
        self,
        client: Client,
        changes: Changes,
        vbuckets: Collection[int] | None,
        *,
        chooses: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._changes, self._vbuckets, self._chooses = client, changes, vbuckets, chooses
        self._clock, self._complete, self._said_at, self._complete_until = clock, Completeness(), float("-inf"), 0

    def tell(self) -> None:
        """Say the status on stderr, if the last time is a second ago."""
        now = self._clock()
        if now >= self._said_at + STATUS_SECONDS:
            self._said_at = now
            remark(self._line(now))

    def _line(self, now: float) -> str:
        problem = self._obstacle(now)
        self._complete_until = self._complete.until(self._printed(), self._complete_until)
        complete_until = as_time(self._complete_until)
        line = "everything is printed" if complete_until else "it is not known until when everything is printed"
        until = (
            f" until {complete_until:%Y-%m-%d %H:%M:%S}.{complete_until.microsecond // 1000:03} UTC"
            if complete_until
            else ""
        )
        return line + until + (f"; it stands there: {problem}" if problem else "")

    def _obstacle(self, now: float) -> str:
        """Ask the nodes; return what holds the time up, or an empty text."""
        complete, client = self._complete, self._client
        if complete.rests(now):
            return complete.problem
        try:
            # The clocks come before the seqnos: these are what the promises are about.
            clocks = client.hold_clocks(complete.wanted(now))
            if clocks.now and not clocks.cas:  # the first time: what is there to promise is known only now
                clocks = client.hold_clocks(clocks.now)
            seqnos = client.seqnos("all") if self._chooses else client.seqnos()
        except (TransportError, StatusError) as error:
            return str(error)
        complete.look(clocks, seqnos, self._vbuckets or range(client.map.vbuckets), now)
        return complete.problem

    def _printed(self) -> Mapping[int, int]:
        """Return the seqno by vbucket up to which the drain's state is whole."""
        positions = self._changes.positions
        return {vb: at.seqno if at.complete else at.snapshot_start for vb, at in positions.items()}
