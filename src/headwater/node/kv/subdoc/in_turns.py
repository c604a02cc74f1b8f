"""Edits a large body by several paths: one path in each turn of the event loop, with turns for other work in between.

Each path into 20 MiB costs a scan and a copy, so sixteen paths in one turn would stop all clients for a quarter of a
second, and twenty such connections for some seconds. So the edits are made in advance:

    handler     finds that the edits are long, pauses its connection, and starts their preparation
    edit        waits for one of the few places for large documents, reads the document, edits path by path
    session     handles the request again from the beginning: rights, vbucket, locks, CAS are checked then
    handler     uses the prepared body if the document has not changed meanwhile; otherwise starts again

After ATTEMPTS_MAX attempts the edits are made in one turn: other clients keep changing the document.
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
"""Bytes that the paths of one request may walk through in one turn: about the slice of a connection."""
ATTEMPTS_MAX = 3

Version: TypeAlias = tuple[int, int] | None
"""The seqno and the CAS of a document; None for none."""


class Body(Protocol):
    """A body under edit."""

    body: bytes

    def apply_one(self, index: int, spec: MutationSpec) -> None:
        """Apply the edit of one path. Raises PathRefused."""


@dataclass
class EditedBody:
    """A body with the edits of one request, made in advance.

    Attributes:
        specs: all paths of the request. version: the version of the document that was edited.
        attempts: number of attempts for this request, this one included.
        edited: the edited body; None if the vbucket is no longer active.
        refusal: the refusal of the first path that could not be applied; None if all could.
    """

    specs: Sequence[MutationSpec]
    attempts: int
    place: asyncio.Semaphore
    version: Version = None
    edited: Body | None = None
    refusal: Exception | None = None
    _has_place: bool = field(default=True, init=False)

    def drop(self) -> None:
        """Free the place for a large document."""
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

    A body that is computed from an attribute is small, and is unknown until the attributes are edited.

    Args:
        old_bytes: size of the document in bytes, uncompressed.
    """
    if any(opcode == Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR for opcode, *_ in specs):
        return False
    longest = max(old_bytes, *(len(value) for *_, value in specs))
    return len(of_body(specs)) > 1 and longest * len(of_body(specs)) > LONG_BYTES


def of_body(specs: Sequence[MutationSpec]) -> list[tuple[int, MutationSpec]]:
    """Return the paths into the body, which follow those into attributes, with their indexes."""
    return [(index, spec) for index, spec in enumerate(specs) if not spec[1] & PathFlag.XATTR]


async def edit(
    queue: RunQueue,
    specs: Sequence[MutationSpec],
    attempts: int,
    read: Callable[[], tuple[Version, Body] | None],
    refused: type[Exception],
) -> EditedBody:
    """Edit a body path by path, each in its own turn of the event loop.

    Args:
        read: returns the present version of the document and its body to edit; None if it may no longer be edited here.
        refused: the exception class of a refused edit.

    Returns: the edited body, which occupies a place for large documents until `drop`.
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
