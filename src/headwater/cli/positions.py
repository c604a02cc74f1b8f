"""The file of `tail --positions`: the position up to which every vbucket was printed.

A drain's own positions cover what it has handed out. A signal, a full disk or a closed pipe ends the command between a
change and its line as well, so only printed changes count here: a change whose line was begun and not noted comes
again, and none is left out.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.errors import NothingCame

if TYPE_CHECKING:
    from headwater.client.changes import Event
    from headwater.client.feeds import Changes
    from headwater.protocol.dcp.position import Position

SAVE_SECONDS = 1.0


class PrintedPositions:
    """The position up to which every vbucket was printed, and the file with these.

    Args:
        changes: the drain that is printed; its `max_wait_seconds` is SAVE_SECONDS, so that a quiet bucket is noted,
            too.
        path: the file; None for none.
        saved: the positions in the file. Positions of vbuckets that are not read now are kept there.

    Attributes:
        on_pause: called while the drain has nothing to print, and between the lines of two events.
    """

    def __init__(
        self,
        changes: Changes,
        path: Path | None,
        saved: Mapping[int, Position],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._changes, self._clock = path, changes, clock
        self._positions = {**saved, **changes.positions}
        self._saved_at = clock()
        self.on_pause: Callable[[], None] = lambda: None

    def note(self, vbucket: int) -> None:
        """Note that the last event of this vbucket was printed, or was not to be."""
        if self._path is None:
            return
        self._positions[vbucket] = self._changes.position(vbucket)
        if self._clock() >= self._saved_at + SAVE_SECONDS:
            self.note_all()

    def note_all(self) -> None:
        """Note that all events were printed, so that seqnos without events are noted as well; write the file."""
        self._positions |= self._changes.positions
        self.close()

    def close(self) -> None:
        """Replace the file by the noted positions; a crash leaves the old one or the new one.

        Raises:
            OSError: the file, or the output, can't be written.
        """
        if self._path is None:
            return
        # The lines first: positions behind lines that a power cut took away would leave those out for good.
        _keep_lines()
        new_file = self._path.with_name(self._path.name + ".new")
        with new_file.open("w", encoding="utf-8") as file:
            file.write(_text(self._positions))
            file.flush()
            os.fsync(file.fileno())
        new_file.replace(self._path)
        self._saved_at = self._clock()


def events(changes: Changes, printed: PrintedPositions) -> Iterator[Event]:
    """Yield the events of a drain to its end. The caller notes each after printing it."""
    while True:
        try:
            event = next(changes, None)
        except NothingCame:
            printed.note_all()
            printed.on_pause()
            continue
        if event is None:
            printed.note_all()
            return
        yield event
        printed.on_pause()


def _text(positions: Mapping[int, Position]) -> str:
    from headwater.client import save_positions

    return save_positions(positions)


def _keep_lines() -> None:
    """Sync lines that go to a file: positions that survive a power cut belong to lines that do, too."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):  # what tests put in its place
        return
    if stat.S_ISREG(os.fstat(number).st_mode):
        os.fsync(number)
