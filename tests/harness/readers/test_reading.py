"""Values of readers, as JSON."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from harness.readers.reading import plain, words_of

TWO_HOURS = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "means"),
    [
        (b"text", "text"),
        (bytearray(b"\xff"), "0xff"),
        (datetime(1970, 1, 1, 0, 0, 1), 1_000_000),
        (datetime(1970, 1, 1, 2, 0, 1, tzinfo=TWO_HOURS), 1_000_000),
        ({"a": [b"x", (1, None)], "b": 1.5}, {"a": ["x", [1, None]], "b": 1.5}),
        (True, True),
        (Decimal("0.5"), 0.5),
    ],
)
def test_a_value_is_the_same_whoever_read_it(value: Any, means: Any) -> None:
    assert plain(value) == means


def test_rows_of_spark_are_objects() -> None:
    class Row:
        def asDict(self) -> dict[str, Any]:
            return {"a": b"1"}

    assert plain(Row()) == {"a": "1"}


def test_an_error_is_a_line() -> None:
    assert words_of(ValueError("\n\nfirst\nsecond")) == "ValueError: first"
    assert words_of(KeyError()) == "KeyError: "
