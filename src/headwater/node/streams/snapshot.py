"""Send one snapshot: a view of the store, whose frames are copied into the outlet.

A kernel copies frames that need no change, many at once; other frames are encoded one by one (encoding.py). In both
cases the caller gets the number of bytes sent, because flow control counts bytes on the wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.errors import RemoteProtocolError
from headwater.kernels.gather import NO_DELETES
from headwater.node.storage.records import told_in
from headwater.node.storage.views import UNKNOWN
from headwater.wire.dcp import Abort, Prepare, seqno_of
from headwater.wire.header import HEADER_BYTES, OPCODE_AT, lengths
from headwater.wire.opcodes import Opcode

if TYPE_CHECKING:
    from headwater.node.storage.views import Replaced, View
    from headwater.node.streams.encoding import Encoding
    from headwater.node.streams.outlet import Outlet, Pieces

UNLIMITED_BYTES = 1 << 62
PREPARE_COUNTS_MORE = 2
"""The window counts so many bytes more for a prepare than it has on the wire (dcp 7)."""


class SentAmount(NamedTuple):
    """The result of one step of a snapshot: its bytes and changes in the outlet, and the seqno of its last change."""

    bytes: int
    changes: int
    last_seqno: int


class UnreadableChange(Exception):  # noqa: N818 - a finding, which the reader judges
    """A change on disk has a value that contradicts its datatype, so the part that the consumer wants can't be cut out.

    Attributes:
        key: the key, after the id of its collection unless that is the default one.
        seqno: the seqno of the change.
        why: what is wrong with the value.
    """

    def __init__(self, stored: bytes | memoryview, why: str) -> None:
        super().__init__(why)
        frame_lengths = lengths(stored)
        key_at = HEADER_BYTES + frame_lengths.framing + frame_lengths.extras
        self.key: Final = bytes(stored[key_at : key_at + frame_lengths.key])
        self.why: Final = why
        self.seqno: int = seqno_of(memoryview(stored)[HEADER_BYTES:])

    def __str__(self) -> str:
        key = self.key.decode(errors="backslashreplace")
        return f'the value of "{key}", seqno {self.seqno}, can\'t be read by its datatype: {self.why}'


class SnapshotSender:
    """Sends a view.

    Args:
        view: the view to send; closed by `close`.
        encoding: the encoding of each change.
        covers_seqno: the seqno up to which the consumer has everything once the view is sent.
        last_seqno: the seqno of the last change that will be sent.
        without_deletions: True to omit deletions. The last change is sent even if it is a deletion: without it the end
            would not be a consistent state.
        advances: True to omit a deletion at the end too, because SEQNO_ADVANCED is sent in its place.
        commits: the seqno of each prepare by the seqno of its commit; None for none. Entries are removed when sent.
        prepared: the seqnos of waiting prepares that the consumer has, which `move` keeps up to date; None if the
            consumer gets no prepares.
        hides_over: True to omit prepares and aborts that are superseded in a view that shows every version: a prepare
            is not a version of a document.
    """

    def __init__(
        self,
        view: View,
        encoding: Encoding,
        *,
        covers_seqno: int,
        last_seqno: int,
        without_deletions: bool = False,
        advances: bool = False,
        commits: dict[int, int] | None = None,
        prepared: set[int] | None = None,
        hides_over: bool = False,
    ) -> None:
        self.covers_seqno = covers_seqno
        self.last_seqno = last_seqno
        self._view = view
        self._encoding = encoding
        self._commits = commits or {}
        self._prepared = prepared
        self._hides_over = hides_over
        self._bits = encoding.bits | NO_DELETES * without_deletions
        self._without_deletions = without_deletions
        # Without its last change the end of the range would be a state that never existed (decision 0090).
        last = view.change(last_seqno) if without_deletions and not view.nothing else b""
        self._ends_left_out = bool(last) and last[OPCODE_AT] != Opcode.DCP_MUTATION
        # A copy, because it is kept until all else is sent; it is a deletion, which has at most attributes.
        self._closing = bytes(last) if self._ends_left_out and not advances else b""

    @property
    def is_done(self) -> bool:
        """True if nothing is left to send."""
        return not self._closing and (self._view.nothing or self._view.cursor >= self.last_seqno)

    @property
    def holds_removed_files(self) -> bool:
        """True if the store keeps files for the view that a compaction has replaced."""
        return self._view.holds_removed_files

    @property
    def left(self) -> int:
        """The number of changes left, including deletions that will be omitted. Takes time: reads the row of each
        change.
        """
        return self._view.count()[0]

    def move(self, outlet: Outlet, opaque: int, budget_bytes: int) -> SentAmount:
        """Put changes into the outlet until `budget_bytes` are reached, which the last change may exceed, or there is
        no room.

        Raises:
            UnreadableChange: the next change can't be sent in the form that the consumer wants.
        """
        if self._view.nothing:
            return self._close(outlet, opaque) if self._closing else self._moved(0, 0)
        # The kernel knows no commits: a document that ends a prepare would leave as a document, and the replica's
        # prepare would wait for ever.
        if not self._encoding.plain and not self._commits:
            space = self._encoding.space(outlet)
            filled = self._view.fill(space, opaque, self._bits, budget_bytes, self._encoding.slow)
            if filled.bytes or not filled.plain:
                size = self._encoding.emit(outlet, space[: filled.bytes], is_last=self.is_done)
                # The kernel stopped because the next frame had no room: this turn is over.
                outlet.is_over = not filled.done and not filled.plain and filled.bytes < budget_bytes and outlet.is_low
                return self._moved(size, filled.frames)
            if outlet.is_low:
                outlet.is_over = True
                return self._moved(0, 0)
        replaced = self._view.replaced() if self._view.befores else None
        is_superseded = self._hides_over and self._view.is_next_superseded
        stored = self._view.next_frame()  # memory that is valid only until this method returns
        if is_superseded and isinstance(told_in(stored), Prepare | Abort):
            return self._moved(0, 0)
        if self._without_deletions and stored[OPCODE_AT] != Opcode.DCP_MUTATION:
            return self._moved(0, 0)
        encoded = self._readable(stored, opaque)
        size = self._put_before(outlet, replaced, stored, opaque)
        size += self._encoding.emit_one(outlet, encoded, is_last=self.is_done)
        return self._moved(size + PREPARE_COUNTS_MORE * (encoded.head[OPCODE_AT] == Opcode.DCP_PREPARE), 1)

    def _close(self, outlet: Outlet, opaque: int) -> SentAmount:
        """Put the last change, a deletion that was held back until now, into the outlet."""
        encoded, stored, self._closing = self._readable(self._closing, opaque), self._closing, b""
        size = self._put_before(outlet, UNKNOWN if self._view.befores else None, stored, opaque)
        return SentAmount(size + self._encoding.emit_one(outlet, encoded, is_last=True), 1, self.last_seqno)

    def _put_before(self, outlet: Outlet, replaced: Replaced | None, stored: bytes | memoryview, opaque: int) -> int:
        """Put the message about the replaced version into the outlet, in front of its change; return its bytes.

        Returns 0, without a message, if the consumer did not ask for it, or the change is a system event or the like.
        """
        if replaced is None or told_in(stored) is not None:
            return 0
        return self._encoding.emit_one(outlet, self._encoding.before(replaced, stored, opaque), is_last=False)

    def _readable(self, stored: bytes | memoryview, opaque: int) -> Pieces:
        try:
            return self._encode(stored, opaque)
        except RemoteProtocolError as error:
            raise UnreadableChange(stored, str(error)) from None

    def _encode(self, stored: bytes | memoryview, opaque: int) -> Pieces:
        """Return one change in the form in which it is sent. If the consumer has the prepare of the document, the form
        is a COMMIT.
        """
        if self._prepared is None:
            return self._encoding.encode(stored, opaque)
        seqno = seqno_of(memoryview(stored)[HEADER_BYTES:])
        # Without the prepare the document itself is sent: "a COMMIT is also sent as MUTATION if the stream never saw
        # the prepare" (dcp 8.2).
        begun = self._commits.pop(seqno, None)
        if begun in self._prepared:
            self._prepared.discard(begun)
            return self._encoding.commit(stored, opaque, begun)
        encoded = self._encoding.encode(stored, opaque)
        if encoded.head[OPCODE_AT] == Opcode.DCP_PREPARE:
            self._prepared.add(seqno)
        return encoded

    def close(self) -> None:
        """Free the memory and files that the view keeps."""
        self._view.close()

    def _moved(self, size: int, changes: int) -> SentAmount:
        # The cursor may have passed later changes that are not sent, and the deletion that is held back.
        return SentAmount(size, changes, min(self._view.cursor, self.last_seqno - self._ends_left_out))
