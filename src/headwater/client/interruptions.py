"""Interruptions of a reader: KeyboardInterrupt comes between any two lines, also while a change is on its way out."""

from __future__ import annotations

from contextlib import closing
from typing import Protocol, TypeVar

from headwater.errors import HeadwaterError
from headwater.transport.waiting import Steps

Returned = TypeVar("Returned")


class InterruptibleReader(Protocol):
    """A reader that knows whether an interruption would lose what it was about to return."""

    _torn: bool


def noting_interruptions(reader: InterruptibleReader, steps: Steps[Returned]) -> Steps[Returned]:
    """Run the steps of a reader. Where they wait they may be abandoned, and the next call goes on.

    Elsewhere an interruption may keep what was read from the caller: `_torn` is True there, and behind the last step
    until the reader notes that what it returned has arrived.
    """
    answer = None
    with closing(steps):
        while True:
            reader._torn = True
            try:
                wanted = steps.send(answer)
            except StopIteration as stop:
                returned: Returned = stop.value
                reader._torn = returned is not None
                return returned
            except HeadwaterError:
                reader._torn = False
                raise
            reader._torn = False
            answer = yield wanted
