"""Small files that may hold a change that was refused: the disk took neither the new file nor the one before for sure.

Whoever sent the change heard that it may be in force after a restart (UnsureFile). As long as the node runs it goes by
the file of before, and puts that back as soon as the disk takes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

from headwater.node.reporting.log_lines import event

log: Final = logging.getLogger("headwater.node")


class KeptFile(Protocol):
    """A file that is replaced whole (storage/text_file.py)."""

    path: Path

    @property
    def unsure(self) -> bool:
        """Return True if a change that was refused may be on disk."""

    def settle(self) -> bool:
        """Put the file of before back, if need be; return whether it is there for sure. Blocking."""


class UnsureFiles:
    """Tells of unsure files and settles them.

    Args:
        files: those of the node, as they are now.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, files: Callable[[], Iterable[KeptFile]]) -> None:
        self._loop, self._files = loop, files
        self._known = set[Path]()
        self._settling: asyncio.Future[None] | None = None

    def count(self) -> int:
        """Return how many there are."""
        return sum(each.unsure for each in self._files())

    def look(self) -> None:
        """Tell of those that have become unsure, and try to put back what was there before; again and again."""
        unsure = [each for each in self._files() if each.unsure]
        for each in unsure:
            if each.path not in self._known:
                self._known.add(each.path)
                log.error(
                    "%s: a change was refused, and the file of before could not be put back: a restart before the disk "
                    "takes writes may bring the change",
                    each.path,
                    extra=event("file.unsure", path=str(each.path)),
                )
        if unsure and (self._settling is None or self._settling.done()):
            self._settling = self._loop.run_in_executor(None, self._settle, unsure)

    def _settle(self, unsure: Iterable[KeptFile]) -> None:
        for each in unsure:
            if each.settle():
                self._known.discard(each.path)
                settled = event("file.settled", path=str(each.path))
                log.warning(
                    "%s: the file of before is back: no change that was refused is in it", each.path, extra=settled
                )
