"""Ages as options take them: `90s`, `30m`, `12h`, `7d`, `2w`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Literal

from headwater.cli.forms import remark
from headwater.errors import OptionError

_NAMES = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)
FORM = "an age such as 12h, 7d or 2w (s, m, h, d, w)"
AGE_MAX = timedelta(days=100 * 365)
"""The longest age that is accepted: nothing here is as old, and Python has no dates before the year 1."""


def age_of(text: str) -> timedelta | None:
    """Return an age that is written with its unit; None for any other text."""
    match = _AGE.fullmatch(text)
    if match is None:
        return None
    try:
        return timedelta(**{_NAMES[match[2]]: float(match[1])})
    except OverflowError:
        return timedelta.max


def read_age(option: str, text: str, before: Literal["h", "d"], at_least: timedelta = timedelta(0)) -> timedelta:
    """Return an age.

    Args:
        option: its name, without dashes.
        before: the unit of a bare number in older releases; such a number is still accepted, with a remark.
        at_least: a shorter one is refused.

    Raises:
        OptionError: the text is no age, or the age is too short, or over a hundred years.
    """
    age = age_of(text.strip())
    if age is None:
        age = age_of(f"{text.strip()}{before}")
        if age is None:
            raise OptionError(option, text, FORM)
        remark(f"--{option} {text} is taken for {text.strip()}{before}: write the unit as well")
    if age > AGE_MAX:
        raise OptionError(option, text, f"{FORM}, a hundred years at most")
    if age < at_least:
        raise OptionError(option, text, f"{FORM}, {at_least.total_seconds() / 3600:g}h or more")
    return age
