"""The column hash beside its authors' test vectors and a plain twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import siphash
from headwater.kernels.builds import debug_copy

checked = debug_copy("headwater.kernels.siphash")
MASK = (1 << 64) - 1

KEY = bytes(range(16))
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
}


def hashed(keys: list[bytes], vbuckets: list[int], seed: bytes, module: object = siphash, rounds: int = 2) -> list[str]:
    data = np.frombuffer(b"".join(keys) or b"\0", np.uint8).copy()
    offsets = np.cumsum([0, *map(len, keys)], dtype=np.int32)
    high, low = np.zeros(len(keys), np.uint64), np.zeros(len(keys), np.uint64)
    words, rows = np.frombuffer(seed, np.uint64).copy(), np.array(vbuckets, np.int32)
    data.flags.writeable = rows.flags.writeable = False  # the types that are warmed; others would be a second kernel
    kernel = module.hash_keys  # type: ignore[attr-defined]
    kernel(offsets, data, np.uintp(data.ctypes.data), rows, words, high, low, rounds, rounds + 2)
    return [np.array([h, lo], np.uint64).tobytes().hex() for h, lo in zip(high, low, strict=True)]


def plain(key: bytes, vbucket: int, seed: bytes, compress: int) -> str:
    def turned(word: int, by: int) -> int:
        return (word << by | word >> (64 - by)) & MASK

    def rounds(v: list[int], count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = turned(v[1], 13) ^ v[0]
            v[0] = turned(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = turned(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = turned(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = turned(v[1], 17) ^ v[2]
            v[2] = turned(v[2], 32)

    k0, k1 = int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:], "little") ^ vbucket
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    padded = key + bytes(7 - len(key) % 8) + bytes([len(key) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(v, compress)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(v, compress + 2)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(v, compress + 2)
    return (first.to_bytes(8, "little") + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")).hex()


@pytest.mark.parametrize("length", [0, 1])
def test_the_authors_vectors_come_out(length: int) -> None:
    assert hashed([KEY[:length]], [0], KEY) == [VECTORS[length]] == [plain(KEY[:length], 0, KEY, 2)]


KEYS = st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 65535)), min_size=1, max_size=20)


@given(KEYS, st.binary(min_size=16, max_size=16), st.sampled_from([1, 2]))
def test_a_column_is_hashed_as_the_plain_twin_does(rows: list[tuple[bytes, int]], seed: bytes, rounds: int) -> None:
    keys, vbuckets = [key for key, _ in rows], [vb for _, vb in rows]
    wanted = [plain(key, vb, seed, rounds) for key, vb in rows]
    assert hashed(keys, vbuckets, seed, rounds=rounds) == wanted
    assert hashed(keys, vbuckets, seed, checked, rounds) == wanted


def test_equal_keys_of_two_vbuckets_and_of_two_seeds_are_different() -> None:
    first, second = hashed([b"k", b"k"], [1, 2], KEY)
    assert first != second != hashed([b"k"], [2], bytes(16))[0]
