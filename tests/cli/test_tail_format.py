"""Lines of a form of the user's own."""

import pytest

from headwater.cli.tail_format import CSV_HEADER, csv_line, template, wanted_keys
from headwater.client import Deletion, Mutation
from headwater.errors import OptionError

STORED = Mutation(7, 8, 9, 1_795_411_176_533_000_000, 0, b"\xffk", b"v", 1, 8, 5, 6)
GONE = Deletion(7, 9, 10, 1_795_411_176_533_000_000, 0, b"k", b"", 1, 9, 0)


def test_fields_are_those_of_the_change() -> None:
    line = template("{vbucket}:{seqno} {rev_seqno} {key}={value} {flags} {expiry} {time}")
    assert line("mutation", STORED) == r"7:8 9 \xffk=v 5 6 2026-11-23T05:19:36.533Z"
    assert line("deletion", GONE) == "7:9 10 k= 0 0 2026-11-23T05:19:36.533Z"


def test_a_row_has_as_many_fields_as_the_header() -> None:
    assert csv_line("deletion", GONE).count(",") == CSV_HEADER.count(",")


def test_keys_match_one_of_the_globs() -> None:
    wanted = wanted_keys(["a*", "b?"])
    assert [wanted(key) for key in (b"a", b"abc", b"b", b"b1", b"A")] == [True, True, False, True, False]
    assert wanted_keys(None)(b"anything")


def test_a_field_that_there_is_not_is_told_with_those_there_are() -> None:
    with pytest.raises(OptionError, match="event, time, vbucket"):
        template("{nothing}")
