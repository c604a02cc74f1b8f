from datetime import timedelta

import pytest

from headwater.cli.ages import read_age
from headwater.errors import OptionError


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("30s", timedelta(seconds=30)),
        ("90m", timedelta(hours=1.5)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("1.5d", timedelta(hours=36)),
        ("2w", timedelta(days=14)),
    ],
)
def test_an_age_has_its_unit(text: str, age: timedelta, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_age("older-than", text, before="d") == age
    assert capsys.readouterr().err == ""


def test_a_number_alone_is_what_it_was_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_age("older-than", "30", before="d") == timedelta(days=30)
    assert read_age("older-than", "24", before="h") == timedelta(hours=24)
    assert capsys.readouterr().err.splitlines() == [
        "headwater: --older-than 30 is taken for 30d: write the unit as well",
        "headwater: --older-than 24 is taken for 24h: write the unit as well",
    ]


@pytest.mark.parametrize(
    "text", ["", "d", "7 days", "-7d", "7y", "1e3d", "7D", "nan", "inf", "٧d", "9" * 400 + "w", "101w1"]
)
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="an age such as 12h, 7d or 2w"):
        read_age("older-than", text, before="d")


def test_an_age_that_is_too_short_or_too_long_is_refused() -> None:
    with pytest.raises(OptionError, match="1h or more"):
        read_age("older-than", "59m", before="h", at_least=timedelta(hours=1))
    with pytest.raises(OptionError, match="a hundred years at most"):
        read_age("older-than", "40000d", before="h")
