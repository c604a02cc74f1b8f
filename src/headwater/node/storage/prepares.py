"""Stages, ends and finds the prepares of durable writes in a store.

A prepare is stored as a document with a separate key (`prepare_key`), so the document itself does not change until the
prepare is over. The prepare is over when that key is deleted: by the abort, or by a mark after the document that it
became. Older programs must not read the folder: its manifest declares this before the first prepare is staged.

Here the key of a document always begins with the id of its collection. Source: dcp 2.17. Reasons: decision 0068.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headwater.kernels import index
from headwater.node.storage.messages import messages_of
from headwater.node.storage.records import prepare_frame, prepare_key, prepare_over_frame, told_in
from headwater.wire.dcp import Abort, Prepare

if TYPE_CHECKING:
    from headwater.node.storage.columns import Index
    from headwater.node.storage.log import Log
    from headwater.node.storage.slots import Slots
    from headwater.node.storage.staging import Staging


class StoredPrepares:
    """The prepares in a store, by vbucket."""

    def __init__(self, of: Index, slots: Slots, log: Log, staging: Staging) -> None:
        self._index = of
        self._slots = slots
        self._log = log
        self._staging = staging

    def announce(self) -> None:
        """Declare that prepares may come: older programs must refuse the folder from now on. Durable on return; blocks
        the first time.

        Raises:
            DiskFull, StorageError: the declaration could not be written.
        """
        if not self._log.manifest.content.prepares:
            self._log.declare(lambda manifest: replace(manifest, collections=True, prepares=True))

    def stage(self, vbucket: int, prepare: Prepare) -> int:
        """Stage a prepare, after `announce`; return its seqno (the next one if the prepare has none).

        Raises:
            DiskFull, ArenaFull, StorageError: as `Staging.mutation`.
        """
        seqno = self._staging.next_seqno(vbucket, prepare.by_seqno or None, prepare.cas, prepare.rev_seqno)
        self._staging.document(vbucket, prepare_frame(vbucket, replace(prepare, by_seqno=seqno)))
        return seqno

    def stage_abort(self, vbucket: int, abort: Abort, delete_time: int) -> int:
        """Stage the abort of a prepare; return its seqno (the next one if the abort has none). Raises as `stage`."""
        seqno = self._staging.next_seqno(vbucket, abort.abort_seqno or None)
        mark = replace(abort, abort_seqno=seqno)
        self._staging.document(vbucket, prepare_over_frame(vbucket, abort.key, seqno, delete_time, mark))
        return seqno

    def stage_over(self, vbucket: int, key: bytes, delete_time: int) -> None:
        """Stage the mark that a prepare became the document staged before it; both have the same seqno. Raises as
        `stage`.
        """
        seqno = self._index.table.item(vbucket, index.HIGH)
        self._staging.document(vbucket, prepare_over_frame(vbucket, key, seqno, delete_time, None))

    def check_room(self, count: int) -> None:
        """Raise DiskFull or ArenaFull unless `count` bytes can be staged, in one batch."""
        self._staging.check_document_room(count)

    def waiting(self, vbucket: int) -> list[Prepare]:
        """Return the prepares that are not over, durable or not, in the order of their seqnos.

        Reads every row of a vbucket that has more than documents of the default collection.
        """
        return [message for message in messages_of(self._index, self._slots, vbucket) if isinstance(message, Prepare)]

    def find(self, vbucket: int, key: bytes) -> Prepare | None:
        """Return the prepare of a key; None if there is none, or it is over."""
        sought = np.frombuffer(prepare_key(key), np.uint8)
        row = int(index.lookup(self._index.table, vbucket, self._slots.table, sought, 1))
        message = None if row < 0 else told_in(self._slots.frame(self._index.columns[vbucket].loc.item(row)))
        return message if isinstance(message, Prepare) else None
