"""Copies of common sizes (of keys, of values) without a call.

memcpy selects its method at each call, which for 16 bytes costs more than the copy. Here blocks of 16 or 64 bytes cover
a range, and the last block may overlap the one before, so no byte outside the ranges is read or written. Source and
target must not overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel
from headwater.kernels.intrinsics import copy, copy16, copy64

U = np.uintp


@inline_kernel
def copy_key(target: Any, source: Any, count: Any) -> None:
    """Copy `count` bytes; fastest for 16 to 32."""
    if count < U(16) or count > U(32):
        copy(target, source, count)
    else:
        last = count - U(16)
        copy16(target, source)
        copy16(target + last, source + last)


@inline_kernel
def copy_value(target: Any, source: Any, count: Any) -> None:
    """Copy `count` bytes; fastest for 64 to 1024."""
    if count < U(64) or count > U(1024):
        copy(target, source, count)
    else:
        last, copied = count - U(64), U(0)
        while copied < last:
            copy64(target + copied, source + copied)
            copied += U(64)
        copy64(target + last, source + last)
