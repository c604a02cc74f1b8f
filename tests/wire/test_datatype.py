"""The datatype byte."""

from headwater.wire.datatype import DATATYPES, Datatype, legal


def test_only_three_bits_are_known():
    assert [number for number in range(256) if legal(number)] == list(range(8))
    assert DATATYPES == Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR == 7
