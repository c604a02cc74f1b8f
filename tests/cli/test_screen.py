"""Numbers as people read them."""

import io

import pytest
from rich.console import Console

from headwater.cli.screen import count, progress, rate, several


def test_numbers_have_their_thousands_apart() -> None:
    assert (count(0), count(336_776)) == ("0", "336,776")


def test_a_rate_is_by_the_second_and_a_run_too_short_has_none() -> None:
    assert rate(168_000, 2.0) == "84,000 documents/s"
    assert rate(5, 0.0, "changes") == "- changes/s"
    assert rate(2, 5.0) == "0.4 documents/s"
    assert rate(0, 5.0) == "0 documents/s"


@pytest.mark.parametrize(("number", "told"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1024, "1,024 nodes")])
def test_one_is_not_several(number: int, told: str) -> None:
    assert several(number, "node") == told


def drawn(*, terminal: bool) -> str:
    """Return the text that a bar with two fields of its own leaves on the screen."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=120, color_system=None)
    with progress(console, "rate", "lag") as bar:
        bar.add_task("4 vbuckets", total=1000, completed=250, rate="9 changes/s", lag="750 behind")
    return screen.getvalue()


def test_a_bar_shows_the_count_and_the_fields_it_was_given() -> None:
    line = drawn(terminal=True)
    assert "4 vbuckets" in line and "250/1000" in line and "9 changes/s 750 behind" in line


def test_where_there_is_no_terminal_nothing_is_drawn() -> None:
    assert drawn(terminal=False).strip() == ""
