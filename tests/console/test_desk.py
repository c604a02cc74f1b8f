import time

from headwater.console import desk
from headwater.console.lookout import Said

NOON = time.mktime((2026, 1, 2, 12, 0, 0, 0, 0, -1))


def test_numbers_have_groups_and_what_is_not_known_is_a_dash() -> None:
    assert (desk.count(1_234_567), desk.count(0), desk.count(None)) == ("1,234,567", "0", "\u2013")


def test_a_moment_of_another_day_has_its_date() -> None:
    assert desk.clock(NOON) == "2026-01-02 12:00:00"
    assert len(desk.clock(time.time())) == len("12:00:00")


def test_an_age_has_two_units_at_most() -> None:
    assert [desk.age(each) for each in (0, 0.9, 59, 90, 3600, 90_061)] == [
        "0 s",
        "0 s",
        "59 s",
        "1 min 30 s",
        "1 h",
        "1 d 1 h",
    ]


def test_a_key_has_no_control_characters_and_an_end() -> None:
    assert desk.key(b"a\x00\n\xff\xe2\x80\xae") == "a\\x00\\n\\xff\\u202e"
    assert desk.key(b"k" * 200) == "k" * 120 + "\u2026 (200 bytes)"


def test_an_answer_that_is_old_says_since_when_and_why() -> None:
    assert desk.staleness(Said("x", NOON), NOON) == ""
    told = desk.staleness(Said("x", NOON, "it hung up"), NOON + 61)
    assert told == "No answer now: it hung up. What stands here was said at 2026-01-02 12:00:00, 1 min 1 s ago."
    assert desk.staleness(Said(None, 0.0, "it hung up"), NOON) == "There is no answer yet: it hung up."


def test_a_branch_is_named_by_sixteen_digits() -> None:
    assert desk.vb_uuid(255) == "00000000000000ff"
