from pathlib import Path

import pytest

from headwater.spark.options import OPTIONS, WRITE_OPTIONS, SourceOption, reference_page


@pytest.mark.parametrize("option", [*OPTIONS, *WRITE_OPTIONS], ids=lambda option: option.name)
def test_an_option_takes_its_own_example_and_has_its_say(option: SourceOption) -> None:
    assert option.read(option.example) is not None
    assert option.meaning.endswith(".")
    assert option.batch or option.streaming


def test_no_option_is_there_twice_in_any_case() -> None:
    for options in (OPTIONS, WRITE_OPTIONS):
        assert len({option.name.lower() for option in options}) == len(options)


def test_the_reference_page_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "spark-options.md"
    assert page.read_text(encoding="utf-8") == reference_page()
