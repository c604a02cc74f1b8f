"""The time up to which a table has everything, as people and other tools read it."""

from __future__ import annotations

from headwater.lake.freshness import complete_ms, complete_text, complete_text_of

NOON = 1_700_000_000_123_456_789


def test_an_offset_with_a_time_is_told_in_words_and_in_milliseconds() -> None:
    assert complete_text({"completeUntil": NOON}) == "2023-11-14T22:13:20.123Z"
    assert complete_ms({"completeUntil": NOON}) == 1_700_000_000_123


def test_an_offset_of_an_older_release_tells_no_time() -> None:
    assert complete_text({"v": 1, "vb": {}}) is None
    assert complete_ms({}) is None


def test_a_table_without_a_record_tells_no_time() -> None:
    assert complete_text_of(None) is None
    assert complete_text_of('{"end": {"completeUntil": 1700000000123456789}}') == "2023-11-14T22:13:20.123Z"
