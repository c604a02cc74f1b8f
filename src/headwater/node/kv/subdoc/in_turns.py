"""Edits of a large body by several paths: one path in each turn of the event loop, with turns for other work in
between.

Each path into 20 MiB takes a scan and a copy of them, so sixteen in one turn would keep all clients waiting for a
quarter of a second, and twenty such connections for some seconds. The edits are carried out beforehand:

    handler     finds that the edits are long, pauses its connection, and has them prepared
    edit        waits for one of the few places for large documents, reads the document, edits path by path
    session     handles the request from its beginning again: rights, vbucket, locks, CAS are judged at that moment
    handler     takes the prepared body if the document is still the one that was edited; else begins anew

After ATTEMPTS_MAX attempts the edits are carried out in one turn, for other clients write the document all the time.
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
        """Carry out the edit of one path. Raises PathRefused."""


@dataclass
class EditedBody:
    """The edits of one request in a body, carried out beforehand.

    Attributes:
        specs: all paths of the request. version: the version of the document that was edited.
        attempts: the number of times that the edits of this request were begun, this one included.
        edited: the body with its edits; None if the vbucket is not active any more.
        refusal: the refusal of the first path that could not be carried out.
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
    """Return True if the paths into the body walk through more bytes than one turn has time for.

    A body that is computed from an attribute is small, and is not known before the attributes are edited.

    Args:
        old_bytes: the size of the document without its compression.
    """
    if any(opcode == Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR for opcode, *_ in specs):
        return False
    longest = max(old_bytes, *(len(value) for *_, value in specs))
    return len(of_body(specs)) > 1 and longest * len(of_body(specs)) > LONG_BYTES


def of_body(specs: Sequence[MutationSpec]) -> list[tuple[int, MutationSpec]]:
    """Return the paths into the body, which come behind those into attributes, with their indexes."""
    return [(index, spec) for index, spec in enumerate(specs) if not spec[1] & PathFlag.XATTR]


async def edit(
    queue: RunQueue,
    specs: Sequence[MutationSpec],
    attempts: int,
    read: Callable[[], tuple[Version, Body] | None],
    refused: type[Exception],
) -> EditedBody:
    """Edit a body path by path, each in a turn of its own.

    Args:
        read: returns the document as it is now, and its body to edit; None if it must not be edited here any more.
        refused: the exception that a refused edit raises.

    Returns: the edited body, which holds the place for a large document until it is dropped.
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
