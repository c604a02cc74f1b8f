"""Small files that may contain a refused change, because the disk failed while the old file was put back.

The sender of the change got an error which says that the change may take effect after a restart (UnsureFile). The
running node uses the old content, and writes it back as soon as the disk allows.
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
        """True if a refused change may be on disk."""

    def settle(self) -> bool:
        """Put the old file back, if necessary; return True if it is certainly there. Blocking."""


class UnsureFiles:
    """Logs unsure files, and puts their old content back.

    Args:
        loop: the event loop, whose thread pool does the writes.
        files: returns the present files of the node.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, files: Callable[[], Iterable[KeptFile]]) -> None:
        self._loop, self._files = loop, files
        self._known = set[Path]()
        self._settling: asyncio.Future[None] | None = None

    def count(self) -> int:
        """Return the number of unsure files."""
        return sum(file.unsure for file in self._files())

    def look(self) -> None:
        """Log files that have become unsure, and try once, in a thread, to put their old content back. The node calls
        this at intervals.
        """
        unsure = [file for file in self._files() if file.unsure]
        for each in unsure:
            if each.path not in self._known:
                self._known.add(each.path)
                log.error(
                    "%s: a change was refused, and the file of before could not be put back: a restart before the disk "
                    "takes writes may bring the change",
                    each.path,
                    extra=event("file.unsure", path=str(each.path)),
                )
        # One try at a time: the disk blocks in it, and the pool of threads is shared.
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
