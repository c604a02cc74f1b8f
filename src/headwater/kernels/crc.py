"""CRC-32C (Castagnoli), the checksum of a document's body that clients read in `$document.value_crc32c`.

Source: RFC 3720 appendix B.4, whose examples are the tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import kernel

_POLYNOMIAL = 0x82F63B78
_ALL = np.uint32(0xFFFF_FFFF)


def _table() -> Any:
    """Return the remainders of all bytes, with reflected bits (uint32[256])."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


TABLE = _table()


@kernel
def _sum(data: Any, table: Any) -> Any:
    crc = _ALL
    for byte in data:
        crc = table[(crc ^ byte) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ _ALL


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of the bytes."""
    return int(_sum(np.frombuffer(data, np.uint8), TABLE)) if data else 0


def warm_up() -> None:
    """Build the kernel of this module."""
    crc32c(b"headwater")
