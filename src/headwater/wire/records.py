"""Lists in the values of messages. Source: specification, dcp.md 2.4 and 2.20."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, ClassVar, NamedTuple

from headwater.wire.codec import NUMBERS, Codec, RowsCodec

__all__ = ["LOG_ENTRY_BYTES", "CacheItem", "CacheItems", "FailoverLog", "decode_log", "encode_log", "log_entries"]

_FAILOVER_LOG = RowsCodec((("vb_uuid", NUMBERS[64]), ("seqno", NUMBERS[64])), rows_min=1)
FailoverLog = Annotated[list[tuple[int, int]], _FAILOVER_LOG]
_ENTRY = Struct(">QQ")
LOG_ENTRY_BYTES = _ENTRY.size


def encode_log(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return a failover log's bytes: (vb uuid, seqno) entries, newest first, at least one."""
    return _FAILOVER_LOG.write(list(entries))


def decode_log(value: bytes) -> list[tuple[int, int]]:
    """Return the entries of an encoded failover log.

    Raises:
        ValueError: the last entry is incomplete, or there is no entry.
    """
    return _FAILOVER_LOG.read(value, 0)[0]


def log_entries(value: memoryview) -> tuple[tuple[int, int], ...]:
    """Return the entries of an encoded failover log whose size is already checked; fast, for a drain reads a thousand
    logs.
    """
    return tuple(_ENTRY.iter_unpack(value))


class CacheItem(NamedTuple):
    """One record of a cache transfer; its key holds 2 to 251 bytes, collection prefix included."""

    cas: int
    by_seqno: int
    rev_seqno: int
    flags: int
    expiration: int
    datatype: int
    cache_hint: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class _CacheItems:
    """The codec of a cache transfer's records: numbers, among them the lengths of key and value; then key and value."""

    size: ClassVar[None] = None
    widths: ClassVar[tuple[Codec, ...]] = tuple(NUMBERS[bits] for bits in (64, 64, 64, 32, 32, 32, 16, 8, 8))

    def write(self, value: list[CacheItem]) -> bytes:
        """Return the records one after the other."""
        return b"".join(self._write_item(item) for item in value)

    def _write_item(self, item: CacheItem) -> bytes:
        numbers = [item.cas, item.by_seqno, item.rev_seqno, len(item.value), item.flags, item.expiration]
        numbers += [len(item.key), item.datatype, item.cache_hint]
        head = b"".join(codec.write(number) for codec, number in zip(self.widths, numbers, strict=True))
        return head + item.key + item.value

    def read(self, data: bytes, at: int) -> tuple[list[CacheItem], int]:
        """Return all records."""
        items = []
        while at < len(data):
            item, at = self._read_item(data, at)
            items.append(item)
        return items, at

    def _read_item(self, data: bytes, at: int) -> tuple[CacheItem, int]:
        numbers = []
        for codec in self.widths:
            number, at = codec.read(data, at)
            numbers.append(number)
        cas, by_seqno, rev_seqno, value_len, flags, expiration, key_len, datatype, hint = numbers
        end = at + key_len + value_len
        if end > len(data):
            raise ValueError(f"a record of {key_len} + {value_len} bytes at offset {at} of {len(data)}")
        key, value = data[at : at + key_len], data[at + key_len : end]
        return CacheItem(cas, by_seqno, rev_seqno, flags, expiration, datatype, hint, key, value), end

    def __str__(self) -> str:
        return (
            "n x (u64 cas, u64 by_seqno, u64 rev_seqno, u32 value_len, u32 flags, u32 expiration, "
            "u16 key_len, u8 datatype, u8 cache_hint, key, value)"
        )


CacheItems = Annotated[list[CacheItem], _CacheItems()]
