"""Interruptions of a reader: KeyboardInterrupt comes between any two lines, also while a change is on its way out."""

from __future__ import annotations

from contextlib import closing
from typing import Protocol, TypeVar

from headwater.errors import HeadwaterError
from headwater.transport.waiting import Steps

Returned = TypeVar("Returned")


class InterruptibleReader(Protocol):
    """A reader with the flag `_torn`: True while an interruption would lose what the reader was about to return."""

    _torn: bool


def noting_interruptions(reader: InterruptibleReader, steps: Steps[Returned]) -> Steps[Returned]:
    """Run the steps of a reader and keep its flag `_torn`.

    At a wait the steps may be abandoned, and the next call continues: `_torn` is False. Between waits, and from the
    last step until the reader notes that its result has arrived, an interruption may lose what was read: `_torn` is
    True.
    """
    answer = None
    with closing(steps):
        while True:
            reader._torn = True
            try:
                wait = steps.send(answer)
            except StopIteration as stop:
                returned: Returned = stop.value
                reader._torn = returned is not None
                return returned
            except HeadwaterError:
                reader._torn = False
                raise
            reader._torn = False
            answer = yield wait
