"""SipHash with 128 bits of a whole column of keys, which identifies the rows in the lake's index.

Anybody who writes to the bucket can choose keys, so the hash takes a secret seed: without it nobody can construct two
keys with one hash. With 128 bits the odds of an accidental collision among 2^40 keys are 2^-49. The vbucket belongs to
a row's identity and is mixed into the seed, so that equal keys in two vbuckets are two rows.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), and the 128-bit variant of its authors'
reference code. `compress` and `finish` are its numbers of rounds: 2 and 4 are the ones with published test vectors; the
index uses 1 and 3, as hash tables commonly do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.builds import inline_kernel, kernel
from headwater.kernels.intrinsics import load8, load64_native

U = np.uintp
U64 = np.uint64
_EIGHT = U(8)
_INIT = (U64(0x736F6D6570736575), U64(0x646F72616E646F6D), U64(0x6C7967656E657261), U64(0x7465646279746573))
_WIDE_START, _WIDE_HALF, _WIDE_END = U64(0xEE), U64(0xDD), U64(0xEE)


@inline_kernel
def _rotated(word: Any, by: Any) -> Any:
    return (word << by) | (word >> (U64(64) - by))


@inline_kernel
def _rounds(v0: Any, v1: Any, v2: Any, v3: Any, count: Any) -> Any:
    for _ in range(count):
        v0 += v1
        v1 = _rotated(v1, U64(13)) ^ v0
        v0 = _rotated(v0, U64(32))
        v2 += v3
        v3 = _rotated(v3, U64(16)) ^ v2
        v0 += v3
        v3 = _rotated(v3, U64(21)) ^ v0
        v2 += v1
        v1 = _rotated(v1, U64(17)) ^ v2
        v2 = _rotated(v2, U64(32))
    return v0, v1, v2, v3


@inline_kernel
def _last_word(at: Any, length: Any) -> Any:
    """Return the last word of a key: the bytes after the last full word, with the length's low byte on top."""
    word = U64(length & 0xFF) << U64(56)
    for place in range(length & 7):
        word |= U64(load8(at + U(place))) << U64(8 * place)
    return word


@kernel
def hash_keys(
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    address: np.uintp,
    vbuckets: NDArray[np.int32],
    seed: NDArray[np.uint64],
    high: NDArray[np.uint64],
    low: NDArray[np.uint64],
    compress: int,
    finish: int,
) -> None:
    """Write each row's hash to `high` and `low`.

    Args:
        offsets: begin of each key in `data`, and the end of the last: one element more than rows.
        data: the bytes of all keys. address: address of `data`.
        vbuckets: by row.
        seed: two words.
        compress, finish: rounds for each word of a key, and after the last.
    """
    for row in range(len(vbuckets)):
        at, length = address + U(offsets[row]), int(offsets[row + 1] - offsets[row])
        second = seed[1] ^ U64(vbuckets[row])
        v0, v1 = _INIT[0] ^ seed[0], _INIT[1] ^ second ^ _WIDE_START
        v2, v3 = _INIT[2] ^ seed[0], _INIT[3] ^ second
        for _ in range(length >> 3):
            word = U64(load64_native(at))
            v3 ^= word
            v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, compress)
            v0 ^= word
            at = at + _EIGHT
        word = _last_word(at, length)
        v3 ^= word
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, compress)
        v0 ^= word
        v2 ^= _WIDE_END
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, finish)
        high[row] = v0 ^ v1 ^ v2 ^ v3
        v1 ^= _WIDE_HALF
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, finish)
        low[row] = v0 ^ v1 ^ v2 ^ v3


def warm_up() -> None:
    """Build the kernels of this module."""
    data, words = np.zeros(1, np.uint8), np.zeros(2, np.uint64)
    rows = np.zeros(1, np.int32)
    data.flags.writeable = rows.flags.writeable = False
    hash_keys(np.zeros(2, np.int32), data, U(data.ctypes.data), rows, words, words[:1].copy(), words[:1].copy(), 1, 3)
