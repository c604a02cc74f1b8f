"""One table of options: how a field becomes an option, and how its texts are read and refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headwater.errors import OptionError
from headwater.options import (
    BYTES,
    MIB,
    MILLISECONDS,
    SECONDS,
    Option,
    Unit,
    check,
    listed,
    nearest,
    option,
    options_of,
)


@dataclass(frozen=True)
class Brewing:
    """Settings of a machine."""

    cups: int = option(2, "how many", least=1, most=12)
    strength: str = option("mild", "how strong", choices=("mild", "strong", "black"))
    keep_warm_seconds: float = option(0.0, "for how long", unit=SECONDS, least=0)
    grind: bool = option(False, "beans")
    pin: str | None = option(None, "who may", secret=True, read=lambda text: text[int(text) :])
    beans: list[str] = option(["arabica"], "which")
    used: int = 0


TABLE = {each.field: each for each in options_of(Brewing)}


def test_the_table_has_the_fields_that_are_options_in_their_order() -> None:
    assert list(TABLE) == ["cups", "strength", "keep_warm_seconds", "grind", "pin", "beans"]
    warm = TABLE["keep_warm_seconds"]
    assert (warm.name, warm.camel, warm.variable) == (
        "keep-warm-seconds",
        "keepWarmSeconds",
        "HEADWATER_KEEP_WARM_SECONDS",
    )
    assert Brewing().beans == ["arabica"]
    assert Brewing().beans is not Brewing().beans


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("cups", "12", 12),
        ("strength", "BLACK", "black"),
        ("keep_warm_seconds", "1.5", 1.5),
        ("keep_warm_seconds", "1.5h", 5400.0),
        ("grind", "yes", True),
    ],
)
def test_a_text_is_read_as_the_kind_of_its_field(field: str, text: str, value: object) -> None:
    assert TABLE[field].parse(text) == value


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("cups", "13", 'option "cups": "13" is not a whole number, 1 to 12'),
        ("cups", "few", 'option "cups": "few" is not a whole number, 1 to 12'),
        ("strength", "weak", 'option "strength": "weak" is not one of mild, strong, black'),
        (
            "keep_warm_seconds",
            "-1",
            'option "keep-warm-seconds": "-1" is not a number of seconds, 0 or more; or such as 30s, 5m or 2h',
        ),
        ("grind", "maybe", 'option "grind": "maybe" is not a truth value'),
        ("pin", "secret", 'option "pin": "..." is not a text'),
    ],
)
def test_a_text_that_means_nothing_is_refused_with_what_would_have_been_right(
    field: str, text: str, message: str
) -> None:
    with pytest.raises(OptionError) as refused:
        TABLE[field].parse(text)
    assert str(refused.value) == message


def test_an_error_has_the_name_by_which_the_option_was_called() -> None:
    with pytest.raises(OptionError, match='"cupsPerDay"'):
        TABLE["cups"].parse("0", "cupsPerDay")


def test_a_file_has_the_value_itself_or_the_text_of_a_duration() -> None:
    assert TABLE["keep_warm_seconds"].of_file("2m") == 120.0
    assert TABLE["keep_warm_seconds"].of_file(7) == 7
    for field, value in (("cups", "3"), ("cups", True), ("grind", 1), ("strength", 1)):
        with pytest.raises(OptionError):
            TABLE[field].of_file(value)


def test_settings_are_checked_by_their_table() -> None:
    check(Brewing(cups=12))
    with pytest.raises(OptionError, match="13 is not a whole number, 1 to 12"):
        check(Brewing(cups=13))


@pytest.mark.parametrize(
    ("unit", "text", "number"),
    [
        (SECONDS, "30", 30),
        (SECONDS, "1d", 86_400),
        (SECONDS, "250ms", 0.25),
        (MILLISECONDS, "2s", 2000),
        (MIB, "1GiB", 1024),
        (MIB, "512KiB", 0.5),
        (BYTES, "64MiB", 64 << 20),
        (BYTES, "10 B", 10),
    ],
)
def test_a_duration_or_a_size_counts_in_the_unit_of_its_option(unit: Unit, text: str, number: float) -> None:
    assert unit.read(text) == number


@pytest.mark.parametrize("text", ["", "s", "1x", "1 h 2", "1S", "--1s", "\u0661s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        SECONDS.read(text)


def test_whole_numbers_have_no_halves() -> None:
    segment = Option("segment_mib", 256, "size", kind=int, unit=MIB)
    assert segment.parse("2GiB") == 2048
    with pytest.raises(OptionError, match="a number of MiB"):
        segment.parse("512KiB")


def test_a_misspelt_name_has_a_nearest_one_in_any_case() -> None:
    assert nearest("MAXchangespertriger", ["maxChangesPerTrigger", "url"]) == "maxChangesPerTrigger"
    assert nearest("colour", ["url"]) is None


def test_words_are_listed_as_one_says_them() -> None:
    assert (listed(["a", "b"]), listed("abc")) == ("a or b", "one of a, b, c")
