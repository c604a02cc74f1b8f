"""Edit a large body by several paths: one path in each turn of the event loop, with turns for other work in between.

Each path into 20 MiB costs a scan and a copy, so sixteen paths in one turn would stop all clients for a quarter of a
second, and twenty such connections for some seconds. So the edits are prepared before the request is handled:

    handler     finds that the edits are long, pauses its connection, and starts their preparation
    edit        waits for one of the few places for large documents, reads the document, edits path by path
    session     handles the request again from the beginning: rights, vbucket, locks, CAS are checked then
    handler     uses the prepared body if the document has not changed meanwhile; otherwise starts again

If other clients changed the document during each of ATTEMPTS_MAX preparations, the handler edits it in one turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from headwater.wire.opcodes import Opcode
from headwater.wire.subdoc import MutationSpec, PathFlag

if TYPE_CHECKING:
    from headwater.node.process.run_queue import RunQueue
    from headwater.node.storage.records import StoredDocument

LONG_BYTES = 4 << 20
"""The most bytes that the paths of one request may scan in one turn: about as many as a connection's time slice
allows."""
ATTEMPTS_MAX = 3

Version: TypeAlias = tuple[int, int] | None
"""The seqno and the CAS of a document; None if there is no document."""


class Body(Protocol):
    """A body that is being edited."""

    body: bytes

    def apply_one(self, index: int, spec: MutationSpec) -> None:
        """Apply the edit of one path. Raises PathRefused."""


@dataclass
class EditedBody:
    """A body with the prepared edits of one request.

    Attributes:
        specs: all paths of the request.
        attempts: the number of preparations for this request, this one included.
        place: the semaphore of the places for large documents; this object has one place until `drop`.
        version: the version of the document that was edited.
        edited: the edited body; None if the document could not be read here any more.
        refusal: the refusal of the first path that could not be applied; None if all paths were applied.
    """

    specs: Sequence[MutationSpec]
    attempts: int
    place: asyncio.Semaphore
    version: Version = None
    edited: Body | None = None
    refusal: Exception | None = None
    _has_place: bool = field(default=True, init=False)

    def drop(self) -> None:
        """Free the place for a large document, and the body. A second call does nothing."""
        if self._has_place:
            self._has_place, self.edited = False, None
            self.place.release()

    def is_of(self, specs: Sequence[MutationSpec], old: StoredDocument | None) -> bool:
        """Return True if these are the edits of this request in this version of the document."""
        return self.edited is not None and self.version == version_of(old) and self.specs == specs


def version_of(document: StoredDocument | None) -> Version:
    """Return the seqno and the CAS of a document; None if there is none."""
    return None if document is None else (document.seqno, document.cas)


def is_long(specs: Sequence[MutationSpec], old_bytes: int) -> bool:
    """Return True if the paths into the body scan more bytes than one turn has time for.

    If a path replaces the body with an attribute, the result is False: such a body is small, and unknown until the
    attributes are edited.

    Args:
        specs: all paths of the request.
        old_bytes: the size of the present document in bytes, uncompressed.
    """
    if any(opcode == Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR for opcode, *_ in specs):
        return False
    longest = max(old_bytes, *(len(value) for *_, value in specs))
    return len(of_body(specs)) > 1 and longest * len(of_body(specs)) > LONG_BYTES


def of_body(specs: Sequence[MutationSpec]) -> list[tuple[int, MutationSpec]]:
    """Return the paths into the body, each with its index in the request."""
    return [(index, spec) for index, spec in enumerate(specs) if not spec[1] & PathFlag.XATTR]


async def edit(
    queue: RunQueue,
    specs: Sequence[MutationSpec],
    attempts: int,
    read: Callable[[], tuple[Version, Body] | None],
    refused: type[Exception],
) -> EditedBody:
    """Edit a body path by path, each path in its own turn of the event loop.

    Args:
        queue: the run queue, which gives the turns, and the places for large documents.
        specs: all paths of the request.
        attempts: the number of preparations for this request, this one included.
        read: returns the present version of the document, and its body to edit; None if the document can't be edited
            here any more.
        refused: the exception class of a refused edit.

    Returns:
        The edited body, which occupies a place for large documents until `drop`.
    """
    await queue.large.acquire()
    edits = EditedBody(specs, attempts, queue.large)
    try:
        await queue.turn()
        if (outcome := read()) is not None:
            edits.version, edits.edited = outcome
            await _edit_all(queue, edits, edits.edited, refused)
    except BaseException:
        edits.drop()
        raise
    return edits


async def _edit_all(queue: RunQueue, edits: EditedBody, body: Body, refused: type[Exception]) -> None:
    try:
        for index, spec in of_body(edits.specs):
            await queue.turn()
            body.apply_one(index, spec)
    except refused as error:
        edits.refusal = error
