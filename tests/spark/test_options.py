from pathlib import Path

import pytest

from headwater.options import Option
from headwater.spark.options import OPTIONS, WRITE_OPTIONS, reference_page


@pytest.mark.parametrize("option", [*OPTIONS, *WRITE_OPTIONS], ids=lambda option: option.camel)
def test_an_option_takes_its_own_example_and_has_its_say(option: Option) -> None:
    assert option.parse(option.example, option.camel) is not None
    assert option.about.endswith(".")
    assert option.uses in ("", "batch", "streaming")


def test_no_option_is_there_twice_in_any_case() -> None:
    for options in (OPTIONS, WRITE_OPTIONS):
        assert len({option.camel.lower() for option in options}) == len(options)


def test_the_reference_page_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "spark-options.md"
    assert page.read_text(encoding="utf-8") == reference_page()
