"""Numbers of a command line."""

import pytest

from harness.numbers import numbers_of


def test_numbers_and_ranges_name_numbers() -> None:
    assert numbers_of("0-2,7") == [0, 1, 2, 7]


@pytest.mark.parametrize("text", ["", "a", "-3", "3,,4"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        numbers_of(text)
