"""Stage, end and find the prepares of durable writes in a store.

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
        """Declare that the log may have prepares, so that older programs refuse the folder. The declaration is durable
        on return; the first call blocks while the disk works.

        Raises:
            DiskFull, StorageError: the declaration could not be written.
        """
        if not self._log.manifest.content.prepares:
            self._log.declare(lambda manifest: replace(manifest, collections=True, prepares=True))

    def stage(self, vbucket: int, prepare: Prepare) -> int:
        """Stage a prepare, after `announce`; return its seqno: that of the message, or the next one if that is 0.

        Raises:
            DiskFull, ArenaFull, StorageError: as `Staging.mutation`.
        """
        seqno = self._staging.next_seqno(vbucket, prepare.by_seqno or None, prepare.cas, prepare.rev_seqno)
        self._staging.document(vbucket, prepare_frame(vbucket, replace(prepare, by_seqno=seqno)))
        return seqno

    def stage_abort(self, vbucket: int, abort: Abort, delete_time: int) -> int:
        """Stage the abort of a prepare; return its seqno: that of the message, or the next one if that is 0. Raises as
        `stage`.
        """
        seqno = self._staging.next_seqno(vbucket, abort.abort_seqno or None)
        mark = replace(abort, abort_seqno=seqno)
        self._staging.document(vbucket, prepare_over_frame(vbucket, abort.key, seqno, delete_time, mark))
        return seqno

    def stage_over(self, vbucket: int, key: bytes, delete_time: int) -> None:
        """Stage the mark that a prepare is over, after its document: the mark has the seqno of the document. Raises as
        `stage`.
        """
        seqno = self._index.table.item(vbucket, index.HIGH)
        self._staging.document(vbucket, prepare_over_frame(vbucket, key, seqno, delete_time, None))

    def check_room(self, count: int) -> None:
        """Raise DiskFull or ArenaFull unless `count` bytes can be staged, in one batch."""
        self._staging.check_document_room(count)

    def waiting(self, vbucket: int) -> list[Prepare]:
        """Return the prepares that are not over, durable or not, in seqno order.

        Takes time if the vbucket has prepares, system events or named collections: reads every row.
        """
        return [message for message in messages_of(self._index, self._slots, vbucket) if isinstance(message, Prepare)]

    def find(self, vbucket: int, key: bytes) -> Prepare | None:
        """Return the waiting prepare of a key; None if there is none."""
        sought = np.frombuffer(prepare_key(key), np.uint8)
        row = int(index.lookup(self._index.table, vbucket, self._slots.table, sought, 1))
        message = None if row < 0 else told_in(self._slots.frame(self._index.columns[vbucket].loc.item(row)))
        return message if isinstance(message, Prepare) else None
