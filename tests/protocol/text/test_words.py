"""Words as numbers, expiries and keys."""

import pytest

from headwater.protocol.text import words
from headwater.wire.times import RELATIVE_SECONDS_MAX


@pytest.mark.parametrize(
    ("word", "found"),
    [(b"0", 0), (b"-17", -17), (b"18446744073709551615", (1 << 64) - 1), (b"+1", 1), (b"007", 7)],
)
def test_a_whole_number(word: bytes, found: int) -> None:
    assert words.integer(word) == found


@pytest.mark.parametrize("word", [b"", b"-", b"1.5", b"x", b"1_0", b"9" * 21, b"\xb2", b" 1", b"--1"])
def test_no_number(word: bytes) -> None:
    assert words.integer(word) is None


def test_a_number_fits_its_bits_and_has_no_sign() -> None:
    assert words.number(b"4294967295", 32) == 0xFFFF_FFFF
    for word in (b"4294967296", b"-1", b"+1", b"x"):
        with pytest.raises(words.LineRefused):
            words.number(word, 32)


def test_a_negative_expiry_is_over_at_once_and_one_beyond_the_wire_is_refused() -> None:
    assert words.expiry(b"0") == 0 and words.expiry(b"4294967295") == 0xFFFF_FFFF
    assert words.expiry(b"-1") == RELATIVE_SECONDS_MAX + 1, "a Unix time, and long over"
    for word in (b"4294967296", b"soon"):
        with pytest.raises(words.LineRefused) as refused:
            words.expiry(word, b"no\r\n")
        assert refused.value.line == b"no\r\n"


def test_a_key_has_250_bytes() -> None:
    assert words.key(b"k" * 250) == b"k" * 250
    with pytest.raises(words.LineRefused):
        words.key(b"k" * 251)
