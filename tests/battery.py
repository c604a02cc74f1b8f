"""Which of many cases that are alike `make test` runs; the others are in `make faults` or `make spark-faults`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few_of(every: Iterable[Any], *kept: Any) -> list[Any]:
    """All cases for `parametrize`, with the mark `battery` but for those kept; a tuple is several arguments."""
    cases = list(every)
    assert kept and all(each in cases for each in kept), "what is kept is one of the cases"
    return [case if case in kept else _of_the_battery(case) for case in cases]


def _of_the_battery(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.battery)
