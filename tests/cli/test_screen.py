"""Numbers as people read them."""

from headwater.cli.screen import count, rate


def test_numbers_have_their_thousands_apart() -> None:
    assert (count(0), count(336_776)) == ("0", "336,776")


def test_a_rate_is_by_the_second_and_a_run_too_short_has_none() -> None:
    assert rate(168_000, 2.0) == "84,000 documents/s"
    assert rate(5, 0.0, "changes") == "- changes/s"
