"""Sections: which fields are there, by length or by flag."""

import pytest

from headwater.wire.codec import NUMBERS, Number, Rest, Tail
from headwater.wire.sections import Field, FieldPlace, Fixed, Running, section_of


def field(name, bits, **how):
    return Field(name, NUMBERS[bits], "about", **how)


META = section_of(
    FieldPlace.EXTRAS,
    [field("flags", 32), field("options", 32, optional=True), field("nmeta", 16, optional=True)],
    [4, 6, 8, 10],
)
OPTIONS = section_of(
    FieldPlace.VALUE,
    [
        Field("age", NUMBERS[64], "about", FieldPlace.VALUE, True, (), 0x01),
        Field("closed", Tail(NUMBERS[8]), "about", FieldPlace.VALUE, True, (), 0x80),
        Field("more", Tail(NUMBERS[8]), "about", FieldPlace.VALUE, True, (), 0x100),
    ],
    [],
)


@pytest.mark.parametrize(
    ("data", "values"),
    [
        ("00000001", {"flags": 1}),
        ("000000010002", {"flags": 1, "nmeta": 2}),
        ("0000000100000003", {"flags": 1, "options": 3}),
        ("00000001000000030002", {"flags": 1, "options": 3, "nmeta": 2}),
    ],
)
def test_the_length_tells_which_fields_are_there(data, values):
    assert META.read(bytes.fromhex(data), 0) == values
    assert META.write({"flags": None, "options": None, "nmeta": None} | values).hex() == data


def test_a_length_no_form_has_is_told():
    with pytest.raises(ValueError, match="extras are 5 bytes, expected 4 or 6 or 8 or 10"):
        META.read(bytes(5), 0)


def test_optional_fields_come_from_the_front_unless_told_otherwise():
    section = section_of(
        FieldPlace.VALUE, [field("a", 32), field("b", 32, optional=True), field("c", 32, optional=True)], []
    )
    assert isinstance(section, Fixed) and list(section.shapes) == [4, 8, 12]
    assert section.read(bytes(8), 0) == {"a": 0, "b": 0}
    with pytest.raises(ValueError, match="exactly a, c"):
        section.write({"a": 1, "b": None, "c": 2})


def test_a_length_that_no_fields_make_is_a_mistake_of_the_declaration():
    with pytest.raises(TypeError, match="no choice of fields makes 5 bytes"):
        section_of(FieldPlace.EXTRAS, [field("a", 32)], [5])


def test_numbers_of_odd_width_are_read_like_others():
    section = section_of(
        FieldPlace.EXTRAS, [field("ttl", 8), field("reserved", 24), Field("x", Number(8, True), "")], []
    )
    assert section.read(bytes.fromhex("ff010203ffffffffffffffff"), 0) == {"ttl": 255, "reserved": 0x010203, "x": -1}


def test_another_versions_number_is_refused_both_ways():
    section = section_of(FieldPlace.EXTRAS, [field("version", 8, only=(0, 2))], [])
    for refused in (lambda: section.read(b"\x01", 0), lambda: section.write({"version": 1})):
        with pytest.raises(ValueError, match="version is 1, expected 0 or 2"):
            refused()


def test_flags_tell_which_fields_are_there():
    assert isinstance(OPTIONS, Running)
    assert OPTIONS.read(b"", 0) == {"age": None, "closed": None, "more": None}
    assert OPTIONS.read(bytes(8), 0x81) == {"age": 0, "closed": None, "more": None}
    assert OPTIONS.read(bytes(9), 0x81) == {"age": 0, "closed": 0, "more": None}


def test_bytes_no_flag_announced_are_refused():
    with pytest.raises(ValueError, match="value: 3 of 11 bytes are left over"):
        OPTIONS.read(bytes(11), 0x01)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"flags": 1, "age": None}, "age must be given exactly when flag 0x1 is set"),
        ({"flags": 0, "age": 1}, "age must be given exactly when flag 0x1 is set"),
        ({"flags": 0x180, "age": None, "more": 1}, "more can't follow a field that is missing"),
    ],
)
def test_fields_and_flags_must_agree(values, text):
    with pytest.raises(ValueError, match=text):
        OPTIONS.write({"closed": None, "more": None} | values)


def test_a_wrong_type_is_told_with_the_fields_name():
    section = section_of(FieldPlace.VALUE, [Field("data", Rest(), "")], [])
    with pytest.raises(ValueError, match="data: "):
        section.write({"data": "text"})
