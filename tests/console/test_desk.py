import json
import logging
import time

import pytest

from headwater.console import desk
from headwater.console.lookout import TimedAnswer
from headwater.node.reporting.log_lines import JsonLine, OneLine

NOON = 1_767_355_200.0  # 2 January 2026, 12 o'clock, UTC


def test_numbers_have_groups_and_what_is_not_known_is_a_dash() -> None:
    assert (desk.count(1_234_567), desk.count(0), desk.count(None)) == ("1,234,567", "0", "\u2013")


def test_a_moment_is_told_as_in_the_log_wherever_the_console_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    line = logging.makeLogRecord({"name": "headwater", "created": NOON + 0.25, "msg": "served", "levelname": "INFO"})
    for zone in ("UTC", "Pacific/Auckland"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert desk.clock(NOON) == "2026-01-02T12:00:00Z"
        assert OneLine().format(line) == "2026-01-02T12:00:00.250Z INFO served"
        assert json.loads(JsonLine().format(line))["time"] == "2026-01-02T12:00:00.250Z"
    monkeypatch.undo()
    time.tzset()


def test_a_datatype_is_told_in_words() -> None:
    assert desk.datatype(0) == "0: bytes of no declared kind"
    assert desk.datatype(7) == "7: JSON, compressed with Snappy, extended attributes"


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
    assert desk.staleness(TimedAnswer("x", NOON), NOON) == ""
    told = desk.staleness(TimedAnswer("x", NOON, "it hung up"), NOON + 61)
    assert told == "No answer now: it hung up. What stands here was said at 2026-01-02T12:00:00Z, 1 min 1 s ago."
    assert desk.staleness(TimedAnswer(None, 0.0, "it hung up"), NOON) == "There is no answer yet: it hung up."


def test_a_right_in_one_collection_is_enough_to_be_offered_what_needs_it() -> None:
    assert desk.may({"read"}, "read") and desk.may({"read_somewhere"}, "read")
    assert not desk.may({"write_somewhere"}, "read")


def test_a_branch_is_named_by_sixteen_digits() -> None:
    assert desk.vb_uuid(255) == "00000000000000ff"
