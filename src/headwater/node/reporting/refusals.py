"""Log lines that may come in large numbers: a few for each host and minute, the rest as a count.

A consumer whose requests are refused repeats them, perhaps for a thousand vbuckets; an operator who moves vbuckets sets
the state of a thousand.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from headwater.node.reporting.log_lines import event

LINES_MAX = 10
SECONDS = 60.0
PEERS_MAX = 1000

log: Final = logging.getLogger(__name__)


class RefusalLog:
    """Writes a limited number of lines for each host and minute.

    Lines are counted by host, not by connection, because a refused client often opens another connection.

    Args:
        name: the name of the event.
        level: the level of the lines.
    """

    def __init__(self, name: str = "dcp.refused", level: int = logging.INFO) -> None:
        self._name, self._level = name, level
        self._peers: dict[str, _Minute] = {}

    def tell(self, peer: str, what: Iterable[object], now: float, **fields: object) -> None:
        """Write a line for each sentence in `what`, up to the peer's limit.

        Args:
            peer: host and port, or another name of the refused client.
            what: sentences.
            now: seconds of a monotonic clock.
            fields: further fields of the event.
        """
        host = peer.rpartition(":")[0] or peer
        minute = self._peers.get(host)
        if minute is None:
            minute = self._peers[host] = _Minute(now)
            if len(self._peers) > PEERS_MAX:
                del self._peers[next(iter(self._peers))]
        for sentence in what:
            if minute.has_room(now):
                extra = event(self._name, peer=peer, **fields)
                log.log(self._level, "%s: %s%s", peer, sentence, minute.left_out(), extra=extra)


class _Minute:
    """The number of lines for one peer since `begun`."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._lines = self._left_out = 0

    def has_room(self, now: float) -> bool:
        """Count one more line; return True if it may be written."""
        if now - self._begun >= SECONDS:
            self._begun, self._lines = now, 0
        self._lines += 1
        self._left_out += self._lines > LINES_MAX
        return self._lines <= LINES_MAX

    def left_out(self) -> str:
        """Return a remark with the number of suppressed lines before this one, and reset the number."""
        count, self._left_out = self._left_out, 0
        return f" ({count} lines left out)" if count else ""
