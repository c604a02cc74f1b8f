"""TAP's encoding of changes: the shared cursor copies them from the log, and this encoding rewrites them as
TAP_MUTATION and TAP_DELETE.

Three things are TAP's own: the layout of a message (kernels/tap.py), its number, and the choice of the messages that
request an acknowledgement.

Source: tap.md 2, 3.1, 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headwater.kernels import tap as kernel
from headwater.kernels.gather import KEEP_OPAQUE
from headwater.node.streams.encoding import Encoding
from headwater.node.streams.outlet import OUTLET_BYTES
from headwater.protocol.tap.ledger import ACK_INTERVAL
from headwater.wire.header import HEADER_BYTES, OPCODE_AT, opaque_of, put_body_bytes
from headwater.wire.opcodes import Opcode
from headwater.wire.tap import MessageFlag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headwater.node.streams.outlet import Outlet, Pieces
    from headwater.protocol.tap.producer import TapProducer, TapProducerStream

    Frames: TypeAlias = NDArray[np.uint8]

STORED_BYTES_MIN = 43
"""The size of the smallest change in the log: so many bytes, times the messages that the client's window has room for,
never have more messages than that."""
_FLAGS_LOW = 27


@dataclass(frozen=True, slots=True, kw_only=True)
class TapEncoding(Encoding):
    """The encoding of one stream's changes; it also records them in the session's ledger.

    Attributes:
        producer: the session's protocol object.
        stream: the vbucket's stream in it.
        datatypes: the mask of datatype bits that the client understands.
    """

    producer: TapProducer
    stream: TapProducerStream
    datatypes: int

    def space(self, outlet: Outlet) -> Frames:
        """Return the buffer into which changes are copied before they are rewritten into the outlet.

        It is as large as the outlet's free part: a TAP message is smaller than its change in the log, so all will fit.
        """
        return _BUFFER[: outlet.room]

    def emit(self, outlet: Outlet, frames: Frames, *, is_last: bool) -> int:
        """Write changes into the outlet as TAP messages; return the number of bytes.

        Args:
            outlet: the output.
            frames: the changes, as copied from the log.
            is_last: True to request an acknowledgement of the last one.
        """
        size = self._write(frames, outlet.free, is_last=is_last)
        outlet.fill(size)
        return size

    def emit_one(self, outlet: Outlet, change: Pieces, *, is_last: bool) -> int:
        """Write one change of any size into the outlet; return the number of bytes, 0 if it is not sent.

        The kernel rewrites its head only; its value follows unchanged.
        """
        head, out = np.zeros(len(change.head), np.uint8), np.zeros(len(change.head), np.uint8)
        head[:] = np.frombuffer(change.head, np.uint8)
        put_body_bytes(head.data, len(head) - HEADER_BYTES)
        size = self._write(head, out, is_last=is_last)
        if not size:
            return 0
        value = change.value if change.head[OPCODE_AT] == Opcode.DCP_MUTATION else b""
        put_body_bytes(out.data, size - HEADER_BYTES + len(value))
        outlet.write(out[:size].tobytes(), value)
        return size + len(value)

    def encode(self, stored: bytes | memoryview, opaque: int) -> Pieces:
        """Return a stored frame in pieces, with its own opaque, which its rewriting needs (kernels/tap.py)."""
        # super() does not work here: a dataclass with slots is a second class, made from this one.
        return Encoding.encode(self, stored, opaque_of(stored))

    def _bits(self) -> int:
        return Encoding._bits(self) | KEEP_OPAQUE

    def _write(self, frames: Frames, out: Frames, *, is_last: bool) -> int:
        if not len(frames):
            return 0
        options, ledger = self.producer.options, self.producer.ledger
        size, count, last = kernel.reshape(
            frames,
            len(frames),
            out,
            ledger.sent + 1,
            ACK_INTERVAL if ledger.acknowledges else 0,
            MessageFlag.NO_VALUE * options.keys_only | MessageFlag.NETWORK_BYTE_ORDER * options.network_byte_order,
            int(not options.network_byte_order),
            self.datatypes,
            int(self.producer.sends_all(self.stream)),
            _SEQNOS,
        )
        if not count:
            return 0  # none is sent: each has made as many hops as it may
        if is_last and ledger.acknowledges:
            out[int(last) + _FLAGS_LOW] |= MessageFlag.ACK
        # Without acknowledgements nothing is ever sent again, so only the number of messages matters.
        seqnos = _SEQNOS[: int(count)].tolist() if ledger.acknowledges else range(int(count))
        # Recorded as soon as the messages are in the outlet: the ledger gives them the numbers that the kernel has
        # written.
        self.producer.sent(self.stream, seqnos, int(_SEQNOS[int(count) - 1]), asks=is_last)
        return int(size)


def encoding_of(producer: TapProducer, stream: TapProducerStream, datatypes: int) -> TapEncoding:
    """Return the encoding of a session's stream, for a client that understands these datatypes.

    Attributes of documents are not sent, and values are never compressed; expirations are sent as deletions (tap.md 6).
    """
    no_value = producer.options.keys_only
    return TapEncoding(no_value=no_value, delete_times=True, producer=producer, stream=stream, datatypes=datatypes)


# These hold data only during a call, so all sessions share them.
_BUFFER = np.zeros(OUTLET_BYTES, np.uint8)
_SEQNOS = np.zeros(OUTLET_BYTES // STORED_BYTES_MIN + 1, np.uint64)
