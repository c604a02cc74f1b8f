"""Collection ids in front of keys: unsigned LEB128 of 32 bits. Source: specification, wire.md 8.

Each byte has seven bits, the lowest first; its high bit is set if more bytes follow. Only the shortest form is legal.
"""

from __future__ import annotations

from headwater.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["COLLECTION_ID_MAX", "decode", "encode", "join_key", "split_key"]

COLLECTION_ID_MAX = 0xFFFF_FFFF
_BYTES_MAX = 5


def encode(number: int) -> bytes:
    """Return the 1 to 5 bytes of a collection id."""
    if not 0 <= number <= COLLECTION_ID_MAX:
        raise LocalProtocolError(f"collection id {number}: allowed are 0 to {COLLECTION_ID_MAX}")
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode(data: bytes) -> tuple[int, int]:
    """Return the id at the beginning of `data`, and the number of its bytes.

    Raises:
        RemoteProtocolError: no last byte within the first five, more than 32 bits, or not the shortest form.
    """
    number = 0
    for at, byte in enumerate(data[:_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            # A last byte of 0 adds nothing, so a shorter spelling exists; two spellings of one id would be two keys of
            # one document (wire 8).
            if at and not byte:
                raise RemoteProtocolError(f"collection id {data[: at + 1].hex()}: non canonical, {number} is shorter")
            # Five bytes have room for 35 bits.
            if number > COLLECTION_ID_MAX:
                raise RemoteProtocolError(f"collection id {data[: at + 1].hex()}: more than 32 bits")
            return number, at + 1
    raise RemoteProtocolError(f"collection id {data[:_BYTES_MAX].hex()}: no stop byte")


def split_key(key: bytes) -> tuple[int, bytes]:
    """Return collection id and logical key of a key on a connection with Collections."""
    collection, id_bytes = decode(key)
    if id_bytes == len(key):
        raise RemoteProtocolError(f"key {key.hex()}: no logical key after the collection id")
    return collection, key[id_bytes:]


def join_key(collection: int, logical: bytes) -> bytes:
    """Return the key to send on a connection with Collections."""
    return encode(collection) + logical
