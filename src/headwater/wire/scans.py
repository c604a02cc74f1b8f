"""Range scans: the keys or documents of one vbucket and collection, in the order of their keys.

The answer to create is the id of a scan, that to continue has its next keys; cancel ends the scan. Source: KV engine,
docs/range_scans; wire 2 (opcodes), 3 (statuses).
"""

from __future__ import annotations

from struct import Struct

from headwater.wire import leb128
from headwater.wire.layout import ANY_STATUS, OPTIONAL, REQUIRED, VALUE, Answer, Done, Request, about, u32, u64
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import READ

__all__ = ["RangeScanCancel", "RangeScanContinue", "RangeScanCreate", "RangeScanCreated", "RangeScanPart"]
__all__ += ["scanned_document", "scanned_key"]

_METADATA = Struct(">IIQQB")


class RangeScanCreated(Answer):
    """The scan's id, 16 bytes."""

    scan_high: u64 = about("the name, its first half", place=VALUE)
    scan_low: u64 = about("and its second", place=VALUE)


class RangeScanCreate(
    Request, opcode=Opcode.RANGE_SCAN_CREATE, privilege=READ, value=REQUIRED, answer=RangeScanCreated
):
    """Begins a scan; the value is JSON: collection, key_only, range or sampling, snapshot_requirements."""


class RangeScanPart(Answer, status=ANY_STATUS, value=OPTIONAL):
    """The next keys or documents, in one answer or several: the last is RANGE_SCAN_MORE or RANGE_SCAN_COMPLETE.

    The value is n x (leb128 length, key), or n x (u32 flags, u32 expiry, u64 seqno, u64 CAS, u8 datatype, leb128
    length, key, leb128 length, value).
    """

    flags: u32 = about("0: keys, 1: documents", only=(0, 1))


class RangeScanContinue(Request, opcode=Opcode.RANGE_SCAN_CONTINUE, privilege=READ, answer=RangeScanPart):
    """Continues a scan until one of its limits is reached."""

    scan_high: u64 = about("the scan's name, its first half")
    scan_low: u64 = about("and its second")
    item_limit: u32 = about("keys or documents at most; 0: no such limit", default=0)
    time_limit_ms: u32 = about("milliseconds at most; 0: no such limit", default=0)
    byte_limit: u32 = about("bytes at most, but for the one that reaches it; 0: no such limit", default=0)


class RangeScanCancel(Request, opcode=Opcode.RANGE_SCAN_CANCEL, privilege=READ, answer=Done):
    """Ends a scan."""

    scan_high: u64 = about("the scan's name, its first half")
    scan_low: u64 = about("and its second")


def scanned_key(key: bytes) -> bytes:
    """Return one key as encoded in RangeScanPart."""
    return leb128.encode(len(key)) + key


def scanned_document(key: bytes, value: bytes, *metadata: int) -> bytes:
    """Return one document as encoded in RangeScanPart; `metadata`: flags, expiry, seqno, CAS, datatype."""
    return _METADATA.pack(*metadata) + scanned_key(key) + leb128.encode(len(value)) + value
