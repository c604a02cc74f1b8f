"""A table of FlatBuffers: bytes that its own library wrote, and bytes that nobody should have written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.wire.flatbuffer import FlatNumber, FlatTable, flat_table

CREATED = bytes.fromhex(
    "1c000000000000000000120028001c001800140013000c0004000b00120000002400000000000001100e000000000001"
    "0c00000008000000090000000000000000000000060000006f72646572730000"
)
"""uid 9, scope 8, collection 12, a TTL of 3600 s, "orders", with history; by flatbuffers 25.12 for Python."""


def test_fields_are_found_by_their_number():
    table = FlatTable(CREATED)
    assert (table.number(0, 8), table.number(1, 4), table.number(2, 4)) == (9, 8, 12)
    assert (table.number(3, 1), table.number(4, 4), table.text(5), table.number(6, 1)) == (1, 3600, b"orders", 1)


def test_what_was_left_out_and_what_came_later_has_its_default():
    table = FlatTable(CREATED)
    assert table.number(7, 8) == 0 and table.number(9, 8, default=7) == 7 and table.text(12) is None


@pytest.mark.parametrize("size", range(len(CREATED) - 2))
def test_a_table_that_was_cut_is_refused_or_lacks_nothing_that_is_read(size):
    try:
        table = FlatTable(CREATED[:size])
        found = table.number(0, 8), table.number(4, 4), table.text(5)
    except ValueError as error:
        assert "in a buffer of" in str(error) or "a vtable of" in str(error)
    else:
        assert found == (9, 3600, b"orders")


@given(st.binary(max_size=120), st.integers(0, 12))
def test_garbage_is_a_value_error_or_some_number(data, field):
    try:
        table = FlatTable(data)
        table.number(field, 8)
        text = table.text(field)
    except ValueError:
        return
    assert text is None or len(text) <= len(data)


@given(st.data())
def test_a_table_with_changed_bytes_reads_nothing_beyond_itself(data):
    changed = bytearray(CREATED)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        table = FlatTable(bytes(changed))
        assert len(table.text(5) or b"") <= len(changed) and table.number(0, 8) < 1 << 64
    except ValueError:
        pass


def test_a_table_is_read_as_it_was_written():
    written = flat_table({
        0: FlatNumber(9, 8), 1: FlatNumber(8, 4), 2: FlatNumber(12, 4), 3: FlatNumber(1, 1), 4: FlatNumber(3600, 4),
        5: b"orders", 6: FlatNumber(1, 1),
    })  # fmt: skip
    table = FlatTable(written)
    assert (table.number(0, 8), table.number(1, 4), table.number(2, 4)) == (9, 8, 12)
    assert (table.number(3, 1), table.number(4, 4), table.text(5), table.number(6, 1)) == (1, 3600, b"orders", 1)


@given(
    st.dictionaries(
        st.integers(0, 12),
        st.one_of(
            st.binary(max_size=300),
            *(st.builds(FlatNumber, st.integers(0, (1 << 8 * size) - 1), st.just(size)) for size in (1, 4, 8)),
        ),
        max_size=8,
    )
)
def test_any_table_is_read_as_it_was_written_and_its_numbers_are_aligned(fields):
    data = flat_table(fields)
    table = FlatTable(data)
    for number in range(14):
        value = fields.get(number)
        if isinstance(value, bytes):
            assert table.text(number) == value
        elif value is not None:
            assert table.number(number, value.size) == value.value
        else:
            assert table.text(number) is None and table.number(number, 8, 77) == 77
    root = int.from_bytes(data[:4], "little")
    assert root % 8 == 0 and len(data) % 4 == 0
    vtable = root - int.from_bytes(data[root : root + 4], "little", signed=True)
    for number, value in fields.items():
        if isinstance(value, FlatNumber) and value.value:
            at = vtable + 4 + 2 * number
            assert (root + int.from_bytes(data[at : at + 2], "little")) % value.size == 0
