"""One field on the wire: numbers, byte strings, rows."""

import pytest

from headwater.wire.codec import NUMBERS, Counted, Number, Prefixed, Rest, RowsCodec, Tail

PAIRS = RowsCodec((("vb_uuid", NUMBERS[64]), ("seqno", NUMBERS[64])), rows_min=1)
KEYS = RowsCodec((("vbucket", NUMBERS[16]), ("key", Prefixed())))
STATES = RowsCodec((("vbucket", NUMBERS[16]), ("key", Prefixed()), ("state", NUMBERS[8])))
NAMES = RowsCodec((("name", Prefixed()),))
FEATURES = RowsCodec((("feature", NUMBERS[16]),))
MOMENTS = RowsCodec((("time", NUMBERS[56]), ("key", Prefixed())))
LIST = Counted(RowsCodec((("vbucket", NUMBERS[16]),)))


@pytest.mark.parametrize(
    ("codec", "value", "data"),
    [
        (Number(1), 0xFF, "ff"),
        (Number(3), 0x010203, "010203"),
        (Number(8), (1 << 64) - 1, "ffffffffffffffff"),
        (Number(8, signed=True), -1, "ffffffffffffffff"),
        (Rest(), b"abc", "616263"),
        (Prefixed(), b"abc", "0003616263"),
        (PAIRS, [(1, 2)], "00000000000000010000000000000002"),
        (KEYS, [(7, b"a"), (8, b"")], "000700016100080000"),
        (STATES, [(7, b"a", 1), (8, b"", 2)], "000700016101" + "0008000002"),
        (NAMES, [b"ab", b""], "0002616200" + "00"),
        (FEATURES, [1, 258], "00010102"),
        (MOMENTS, [(1, b"a")], "00000000000001000161"),
        (LIST, [1, 2, 5], "0003000100020005"),
        (Tail(NUMBERS[8]), 1, "01"),
        (Tail(NUMBERS[8]), None, ""),
    ],
)
def test_a_value_both_ways(codec, value, data):
    assert codec.write(value).hex() == data
    assert codec.read(bytes.fromhex("aa" + data), 1) == (value, 1 + len(data) // 2)


@pytest.mark.parametrize(
    ("codec", "data", "text"),
    [
        (Number(4), "0102", "4 bytes expected at offset 0 of 2"),
        (Prefixed(), "ffff61", "65535 bytes expected at offset 2 of 3"),
        (PAIRS, "0000000000000001", "8 bytes expected at offset 8 of 8"),
        (PAIRS, "", "0 rows, at least 1 expected"),
        (KEYS, "0007000261", "2 bytes expected at offset 4 of 5"),
        (STATES, "000700016101" + "000700016101"[:10], "1 bytes expected at offset 11 of 11"),
        (STATES, "0007ffff6101", "65535 bytes expected at offset 4 of 6"),
        (NAMES, "000161" + "0002", "2 bytes expected at offset 5 of 5"),
        (FEATURES, "000100", "2 bytes expected at offset 2 of 3"),
        (LIST, "ffff0001", "2 bytes expected at offset 4 of 4"),
    ],
)
def test_what_is_not_there_is_not_read(codec, data, text):
    with pytest.raises(ValueError, match=text):
        codec.read(bytes.fromhex(data), 0)


@pytest.mark.parametrize(("number", "value"), [(Number(1), 256), (Number(1), -1), (Number(8, signed=True), 1 << 63)])
def test_a_number_out_of_range_is_not_written(number, value):
    with pytest.raises(ValueError, match=f"{value} does not fit"):
        number.write(value)


@pytest.mark.parametrize(
    ("rows", "value", "text"),
    [
        (STATES, [(1, b"a", 1), (2, b"b", 256)], "256 does not fit a u8"),
        (KEYS, [(1 << 16, b"a")], "65536 does not fit a u16"),
        (NAMES, [bytes(1 << 16)], "65536 does not fit a u16"),
        (FEATURES, [-1], "-1 does not fit a u16"),
    ],
)
def test_a_row_that_does_not_fit_is_not_written(rows, value, text):
    with pytest.raises(ValueError, match=text):
        rows.write(value)


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (Number(4), "u32"),
        (Number(8, signed=True), "i64"),
        (Prefixed(), "u16 length, bytes"),
        (KEYS, "n x (u16 vbucket, u16 length, bytes key)"),
        (LIST, "u16 n, n x (u16 vbucket)"),
        (Tail(NUMBERS[8]), "u8; may be missing"),
        (Rest(), "bytes"),
    ],
)
def test_a_form_is_named_for_the_reference(codec, text):
    assert str(codec) == text
