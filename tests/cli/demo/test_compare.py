"""Node and table side by side."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.demo.compare import compare

CONTENTS = st.dictionaries(st.binary(max_size=2), st.binary(max_size=2), max_size=8)


def test_each_kind_of_difference_is_named_with_its_first_keys() -> None:
    found = compare({b"a": b"1", b"b": b"1", b"c": b"1"}, {b"b": b"2", b"c": b"1", b"d": b"1"})
    assert (found.missing, found.surplus, found.different) == ((b"a",), (b"d",), (b"b",))
    assert not found.equal
    assert found.describe() == "1 missing (a), 1 surplus (d), 1 different (b)"


def test_a_long_list_of_keys_is_cut() -> None:
    assert compare({b"%d" % n: b"" for n in range(5)}, {}).describe().startswith("5 missing (0 1 2 ...), 0 surplus")


@given(CONTENTS, CONTENTS)
def test_equal_means_equal(expected: dict[bytes, bytes], found: dict[bytes, bytes]) -> None:
    assert compare(expected, found).equal == (expected == found)
